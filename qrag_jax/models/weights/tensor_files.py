"""Safetensors of a folder: `model.safetensors`, or the files that `model.safetensors.index.json` names."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from qrag_jax.files.whole_file import read_json, write_json
from qrag_jax.types import InputError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000
_SHARDS = "model-*-of-*.safetensors"
_MAX_HEADER_BYTES = 2**23  # about 100,000 tensors
_MAX_NAME = 255  # bytes
_DTYPES = ("F32", "F16", "BF16")


class FolderTensors(Mapping[str, np.ndarray]):
    """Tensors of a folder by name; each is read when it is asked for, so that a model is never held twice.

    Attributes:
        files: the files that hold them, sorted.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the files and compares them with their index."""
        paths = _weight_files(folder)
        self.files = sorted(set(paths.values()))
        opened = {path: safe_open(path, "numpy") for path in self.files}
        self._opened = {name: opened[path] for name, path in paths.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._opened[name].get_tensor(name)
        except (ValueError, MemoryError) as error:  # a shape that NumPy has not: 0 x 2^63
            raise InputError(f"cannot be read from its safetensors file ({error}); copy it again", file=name) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened)

    def __len__(self) -> int:
        return len(self._opened)


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


def check_header(path: Path) -> None:
    """Refuses a header larger than any model's: the library takes sixteen times its bytes to read it."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > _MAX_HEADER_BYTES:
        raise InputError(
            f"broken safetensors file (a header of {size:,} bytes, at most {_MAX_HEADER_BYTES:,} are read); "
            "copy it again",
            file=path,
        )


def _names_in(path: Path) -> list[str]:
    check_header(path)
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


def save_tensors(folder: Path, tensors: Mapping[str, np.ndarray], max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
    """Writes `model.safetensors`, or several `model-00001-of-0000N.safetensors` with an index if one file would be
    too large.

    Weights that were there before are removed. The index comes last: a folder that was left half written has none.

    Args:
        tensors: in the order of the files.
        max_shard_bytes: of the tensors in a file; a larger tensor gets a separate file.
    """
    shards = _split(tensors, max_shard_bytes)
    count = len(shards)
    names = [WEIGHTS] if count == 1 else [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    beside = [folder / f".{name}.{os.getpid()}" for name in names]
    try:
        for path, shard in zip(beside, shards, strict=True):
            write_tensors({name: tensors[name] for name in shard}, path)
        old = {folder / INDEX, folder / WEIGHTS, *folder.glob(_SHARDS)} - {folder / name for name in names}
        for path in sorted(old, key=lambda path: path.name != INDEX):  # it would speak of files that are no more
            path.unlink(missing_ok=True)
        for path, name in zip(beside, names, strict=True):
            os.replace(path, folder / name)
    finally:
        for path in beside:
            path.unlink(missing_ok=True)
    if count > 1:
        weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_json(folder / INDEX, index)


def write_tensors(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    """Writes one safetensors file."""
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path}: cannot be written ({error}): make room there, or give another place") from error


def _split(tensors: Mapping[str, np.ndarray], max_bytes: int) -> list[list[str]]:
    """Names of tensors by file, in their order."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards
