"""GGUF files (llama.cpp's format), versions 2 and 3: metadata and tensors, everything checked before it is read.

    magic "GGUF", version, number of tensors, number of fields
    fields: name, type, value
    tensors: name, number of dimensions, dimensions (fastest first), type, offset
    data, aligned

All numbers are little endian, a text is its length in bytes and UTF-8. Lengths and counts come from whoever wrote the
file: each is compared with the bytes that are left before anything is made of it. The package `gguf` knows the block
formats and turns them into numbers; its reader trusts the file and is not used.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from qrag_jax.types import InputError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # unless the file names another
_MAX_DIMENSIONS = 4
_NUMBERS_AT_ONCE = 2**16
_MIN_FIELD_BYTES, _MIN_TENSOR_BYTES, _MIN_TEXT_BYTES = 13, 32, 8
# Far more than any model has; each takes many times its bytes when it is read.
_MAX_FIELDS, _MAX_TENSORS, _MAX_TEXTS = 2**16, 2**20, 2**22
_TEXT, _ARRAY = 8, 9
# Scalars by their type number.
_SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_PLAIN = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}
_READ = "; convert the model to F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, an IQ, a TQ or an FP4 type"
_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_NO_WEIGHTS = frozenset({"F64", "I8", "I16", "I32", "I64"})


@dataclass(frozen=True)
class GGUFTensor:
    """The place of a tensor in its file.

    Attributes:
        shape: rows first, as NumPy has it.
        kind: block format of its rows ("F32", "Q4_1", ...).
        start, size: bytes of the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    start: int
    size: int


@dataclass(frozen=True)
class GGUFFile:
    """An open GGUF file.

    Attributes:
        metadata: numbers, truth values, texts, lists of texts, and NumPy arrays of numbers by their names.
        tensors: by name, in the file's order.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]
    data: mmap.mmap

    def read(self, name: str) -> np.ndarray:
        """The numbers of a tensor, float32, of its shape; a view of the file where they are stored so."""
        tensor = self.tensors[name]
        raw = np.frombuffer(self.data, np.uint8, tensor.size, tensor.start)
        if tensor.kind in _PLAIN:
            return raw.view(_PLAIN[tensor.kind]).reshape(tensor.shape).astype(np.float32, copy=False)
        try:
            return _dequantise(raw, gguf.GGMLQuantizationType[tensor.kind]).reshape(tensor.shape)
        except NotImplementedError as error:  # blocks of sums that llama.cpp computes with, and writes into no file
            raise InputError(
                f"{self.path}: tensor {name!r:.200} has type {tensor.kind}, which is not read{_READ}"
            ) from error


def _dequantise(raw: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """The numbers of whole blocks, float32, in parts that stay in the cache of a core.

    The package takes 16 rows at a time: too few for rows of usual length. As one long row a part is taken at once.
    """
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    numbers = np.empty(raw.size // block_bytes * per_block, np.float32)
    step = _NUMBERS_AT_ONCE // per_block
    for start in range(0, raw.size // block_bytes, step):
        part = raw[start * block_bytes : (start + step) * block_bytes]
        numbers[start * per_block : (start + step) * per_block] = gguf.dequantize(part[None], kind)[0]
    return numbers


class GGUFFields:
    """Metadata of one architecture, checked as they are asked for."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        """Reads nothing yet."""
        self.file, self.architecture = file, architecture

    def get(self, key: str) -> Any:
        """A field as it is; None without it."""
        return self.file.metadata.get(f"{self.architecture}.{key}")

    def size(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value: Any = default if self.get(key) is None else self.get(key)
        if type(value) is not int or value < 1:
            raise self.error(key, value, "one positive whole number is needed")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value: Any = default if self.get(key) is None else self.get(key)
        if type(value) not in (int, float) or not _LEAST <= value <= _MOST:
            raise self.error(key, value, "a positive number of float32's range is needed")
        return float(value)

    def error(self, key: str, value: object, what: str) -> InputError:
        """The error of a field."""
        return InputError(f"{self.file.path}: {self.architecture}.{key} is {value!r:.100}; {what}")


def short(value: float) -> float:
    """The shortest decimal number with the same float32: 1e-5 is stored as 9.99999974e-06."""
    return float(str(np.float32(value)))


def read_gguf(path: str | Path) -> GGUFFile:
    """Reads metadata and the list of tensors of a GGUF file; tensors are read when asked for."""
    path = Path(path)
    if not path.is_file():
        raise InputError("no such file", file=path)
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise InputError(f"not a GGUF file: it does not begin with {_MAGIC.decode()}", file=path)
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header = _Header(path, data)
    version = header.number("<u4", "version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        advice = "it is big endian" if swapped in _VERSIONS else f"only {_VERSIONS} are read"
        raise header.error(f"version {version}: {advice}; convert the model again")
    num_tensors = header.count(_MIN_TENSOR_BYTES, "number of tensors", _MAX_TENSORS)
    num_fields = header.count(_MIN_FIELD_BYTES, "number of metadata fields", _MAX_FIELDS)
    metadata = _read_fields(header, num_fields)
    num_parts = metadata.get("split.count", 0)
    if type(num_parts) is not int or num_parts > 1:
        raise header.error(f"one of {num_parts!r:.50} parts; join them with llama-gguf-split --merge")
    return GGUFFile(path, metadata, _read_tensors(header, num_tensors, metadata), data)


class _Header:
    """A place in the file that moves forward and never past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.place = path, data, len(_MAGIC)

    def error(self, what: str) -> InputError:
        return InputError(f"{self.path}: broken GGUF file: {what}")

    def take(self, size: int, what: str) -> int:
        """Moves over `size` bytes and returns where they begin."""
        start = self.place
        if size > len(self.data) - start:
            raise self.error(f"{what} takes {size} bytes, {len(self.data) - start} are left; copy the file again")
        self.place += size
        return start

    def number(self, kind: str, what: str) -> Any:
        dtype = np.dtype(kind)
        return np.frombuffer(self.data, dtype, 1, self.take(dtype.itemsize, what))[0].item()

    def count(self, min_bytes: int, what: str, most: int | None = None) -> int:
        """A count of things that take at least `min_bytes` each; `most` where they take more memory than that."""
        number = self.number("<u8", what)
        if number > (len(self.data) - self.place) // min_bytes:
            raise self.error(f"{what} is {number}, more than the file's {len(self.data)} bytes can hold")
        if most is not None and number > most:
            raise self.error(f"{what} is {number}, and no model has more than {most:,}")
        return number

    def text(self, what: str) -> str:
        size = struct.unpack_from("<Q", self.data, self.take(8, what))[0]
        start = self.take(size, what)
        try:
            return self.data[start : start + size].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8 ({error})") from error


def _read_fields(header: _Header, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number in range(count):
        name = header.text(f"name of metadata field {number}")
        if name in metadata:
            raise header.error(f"metadata field {name!r:.200} occurs twice")
        metadata[name] = _read_value(header, header.number("<u4", f"type of {name!r:.200}"), name)
    return metadata


def _read_value(header: _Header, kind: int, name: str) -> Any:
    what = f"metadata field {name!r:.200}"
    if kind in _SCALARS:
        return header.number(_SCALARS[kind], what)
    if kind == _TEXT:
        return header.text(what)
    if kind != _ARRAY:
        raise header.error(f"{what} has type {kind}, which does not exist")
    inner = header.number("<u4", what)
    if inner == _TEXT:
        return [header.text(what) for _ in range(header.count(_MIN_TEXT_BYTES, f"length of {what}", _MAX_TEXTS))]
    if inner not in _SCALARS:
        raise header.error(f"{what} is an array of type {inner}; only arrays of numbers and of texts are read")
    dtype = np.dtype(_SCALARS[inner])
    count = header.count(dtype.itemsize, f"length of {what}")
    return np.frombuffer(header.data, dtype, count, header.take(count * dtype.itemsize, what)).copy()


def _read_tensors(header: _Header, count: int, metadata: Mapping[str, Any]) -> dict[str, GGUFTensor]:
    listed = [_read_tensor(header, number) for number in range(count)]
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        raise header.error(f"general.alignment is {alignment!r}; a power of two from 8 on is needed")
    first = -(-header.place // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for tensor in listed:
        if tensor.name in tensors:
            raise header.error(f"tensor {tensor.name!r:.200} occurs twice")
        if tensor.start % alignment or first + tensor.start + tensor.size > len(header.data):
            raise header.error(
                f"tensor {tensor.name!r:.200}: {tensor.size} bytes at offset {tensor.start} of the data, which begin "
                f"at byte {first} of {len(header.data)} in steps of {alignment}; copy the file again"
            )
        tensors[tensor.name] = GGUFTensor(tensor.name, tensor.shape, tensor.kind, first + tensor.start, tensor.size)
    return tensors


def _read_tensor(header: _Header, number: int) -> GGUFTensor:
    """One entry of the list of tensors; its start still counts from the first byte of the data."""
    name = header.text(f"name of tensor {number}")
    what = f"tensor {name!r:.200}"
    num_dimensions = header.number("<u4", what)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise header.error(f"{what} has {num_dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
    sizes = [header.number("<u8", what) for _ in range(num_dimensions)]
    kind, start = header.number("<u4", what), header.number("<u8", what)
    names = {known.value: known.name for known in gguf.GGMLQuantizationType}
    if kind not in names or names[kind] in _NO_WEIGHTS:
        raise header.error(f"{what} has type {names.get(kind, kind)}, which is not read as weights{_READ}")
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    if 0 in sizes or sizes[0] % per_block:
        raise header.error(f"{what} has dimensions {sizes}; rows of type {names[kind]} are multiples of {per_block}")
    size = math.prod(sizes) // per_block * block_bytes
    return GGUFTensor(name, tuple(reversed(sizes)), names[kind], start, size)
