"""Safetensors of a folder: `model.safetensors`, or the files that `model.safetensors.index.json` names."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from qrag_jax.files.whole_file import read_json
from qrag_jax.types import InputError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARDS = "model-*-of-*.safetensors"
_MAX_HEADER_BYTES = 2**23  # about 100,000 tensors; the library takes sixteen times its bytes to read a header
_MAX_NAME = 255  # bytes
# NumPy reads these types; it does not read floats of 8 bits.
_DTYPES = frozenset(("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"))


class FolderTensors(Mapping[str, np.ndarray]):
    """Tensors of a folder by name; each is read when it is asked for, so that a model is never held twice.

    Attributes:
        files: the files that hold them, sorted.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the files and compares them with their index."""
        self._paths = _weight_files(folder)
        self.files = sorted(set(self._paths.values()))
        self._opened = {path: safe_open(path, "numpy") for path in self.files}

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._opened[self._paths[name]].get_tensor(name)
        except (ValueError, MemoryError) as error:  # a shape that NumPy has not: 0 x 2^63
            raise InputError(f"{name}: cannot be read ({error}); copy it again", file=self._paths[name]) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def _weight_files(folder: Path) -> dict[str, Path]:
    """The file of every tensor: `model.safetensors`, which transformers prefers as well, or as the index says."""
    single, index = folder / WEIGHTS, folder / INDEX
    if single.is_file():
        return dict.fromkeys(_names_in(single), single)
    if index.is_file():
        return _indexed_files(folder, index)
    others = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pth", ".gguf"))
    found = f" (found {', '.join(others)}: pickle is not read, a .gguf file is given by its own path)" if others else ""
    raise InputError(f"neither {WEIGHTS} nor {INDEX}{found}; save the model as safetensors", file=folder)


def _indexed_files(folder: Path, index: Path) -> dict[str, Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise InputError(f"{index}: weight_map, an object of file names by tensor, is needed; copy the folder again")
    paths = {name: _shard(folder, name, index) for name in sorted(set(weight_map.values()))}
    held = {name: _names_in(path) for name, path in paths.items()}
    missing = [f"{tensor} ({name})" for tensor, name in weight_map.items() if tensor not in held[name]]
    left_over = [f"{tensor} ({name})" for name in held for tensor in held[name] if weight_map.get(tensor) != name]
    problems = {"missing": missing, "left over": left_over}
    if shown := [f"{what}: {', '.join(sorted(names))}" for what, names in problems.items() if names]:
        raise InputError(f"{index}: does not fit its files; {'; '.join(shown)}; copy the folder again")
    return {tensor: paths[name] for tensor, name in weight_map.items()}


def _shard(folder: Path, name: str, index: Path) -> Path:
    """A file of the folder itself; it may be a link, as in the hub's cache."""
    is_name = (
        name == PurePosixPath(name).name
        and not {"\\", "\0"} & {*name}
        and len(name.encode("utf-8", "surrogatepass")) <= _MAX_NAME
    )
    if not is_name or not name.endswith(".safetensors"):
        raise InputError(f"{index}: {name!r:.200} is not a safetensors file of this folder; do not trust this model")
    path = folder / name
    if not path.is_file():
        raise InputError(f"no such file, {index.name} needs it; copy the folder again", file=path)
    return path


def _names_in(path: Path) -> list[str]:
    with path.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
    if size > _MAX_HEADER_BYTES:
        raise InputError(
            f"broken safetensors file (a header of {size:,} bytes, at most {_MAX_HEADER_BYTES:,} are read); copy it "
            "again",
            file=path,
        )
    try:
        with safe_open(path, "numpy") as file:
            dtypes = {name: file.get_slice(name).get_dtype() for name in file.keys()}
    except SafetensorError as error:
        raise InputError(f"broken safetensors file ({error}); copy it again", file=path) from error
    if unknown := {name: dtype for name, dtype in dtypes.items() if dtype not in _DTYPES}:
        shown = ", ".join(f"{name}: {dtype}" for name, dtype in unknown.items())
        raise InputError(
            f"dtypes that are not read: {shown}; save the model in float32, float16 or bfloat16", file=path
        )
    return list(dtypes)


def save_tensors(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes `model.safetensors`; weights that were there before, in one file or several, are removed."""
    beside = folder / f".{WEIGHTS}.{os.getpid()}"
    try:
        save_file(dict(tensors), beside, metadata={"format": "pt"})
        os.replace(beside, folder / WEIGHTS)
    except SafetensorError as error:
        raise OSError(
            f"{folder / WEIGHTS}: cannot be written ({error}): make room there, or give another place"
        ) from error
    finally:
        beside.unlink(missing_ok=True)
    for path in (folder / INDEX, *folder.glob(_SHARDS)):  # the index first: it names the others
        path.unlink(missing_ok=True)
