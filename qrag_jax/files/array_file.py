"""A file of named arrays that is mapped into memory. A block of it is compared with its hash when it is first read.

    [magic][arrays, each at a multiple of 4,096 bytes][header as JSON][its sha256][its length, 8 bytes]

The header has what a program says about the file, and of each array its type, shape, offset and the hashes of its
blocks. An array without hashes is checked by its reader.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from qrag_jax.files.sqlite import Damaged
from qrag_jax.files.whole_file import whole_file

_MAGIC = b"qrag arrays 1\n"
_BLOCK = 1 << 20
_ALIGN = 4096
_HASH, _LENGTH = 32, 8


class ArrayFile:
    """The arrays of a file that `write_arrays` wrote; read-only.

    Attributes:
        path: of the file.
        about: what was said about it.
    """

    def __init__(self, path: Path) -> None:
        """Maps a file, and checks its header.

        Raises:
            Damaged: it is no such file, is cut off, or its header was changed.
            FileNotFoundError: there is no such file.
        """
        self.path = path
        size = path.stat().st_size
        self._bytes = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
        end = size - _HASH - _LENGTH
        start = end - int.from_bytes(self._bytes[-_LENGTH:].tobytes(), "little")
        if self._bytes[: len(_MAGIC)].tobytes() != _MAGIC or not len(_MAGIC) <= start <= end:
            raise self._damaged("it is no file of arrays, or was cut off")
        header = self._bytes[start:end].tobytes()
        if self._bytes[end : end + _HASH].tobytes() != hashlib.sha256(header).digest():
            raise self._damaged("its header has changed")
        said = json.loads(header)
        self.about: dict[str, Any] = said["about"]
        self._arrays: dict[str, dict[str, Any]] = said["arrays"]
        self._checked = {name: np.zeros(len(one["hashes"]), bool) for name, one in self._arrays.items()}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """The rows `start` to `stop` of an array, as a view of the file.

        Raises:
            Damaged: a block of them has changed since it was written.
        """
        whole = self.unchecked(name)
        rows = whole[start:stop]
        if rows.nbytes:
            row = whole.nbytes // len(whole)
            self._check(name, start * row, start * row + rows.nbytes)
        return rows

    def unchecked(self, name: str) -> np.ndarray:
        """A whole array as a view of the file, not compared with its hashes."""
        one = self._arrays[name]
        return self._raw(name).view(np.dtype(one["dtype"])).reshape(one["shape"])

    def offset(self, name: str) -> int:
        """The first byte of an array in the file."""
        return self._arrays[name]["offset"]

    def check(self) -> None:
        """Compares all blocks with their hashes; raises as `read`."""
        for name, checked in self._checked.items():
            checked[:] = False
            self._check(name, 0, len(self._raw(name)))

    def _raw(self, name: str) -> np.ndarray:
        one = self._arrays[name]
        return self._bytes[one["offset"] : one["offset"] + one["num_bytes"]]

    def _check(self, name: str, first: int, last: int) -> None:
        raw, hashes, checked = self._raw(name), self._arrays[name]["hashes"], self._checked[name]
        for block in range(first // _BLOCK, min(len(checked), -(-last // _BLOCK))):
            if checked[block]:
                continue
            if hashlib.sha256(raw[block * _BLOCK : (block + 1) * _BLOCK].data).hexdigest() != hashes[block]:
                raise self._damaged(f"block {block} of {name} has changed since it was written")
            checked[block] = True

    def _damaged(self, why: str) -> Damaged:
        return Damaged(f"{self.path}: damaged ({why}); remove this file, and the next `qrag index add` makes it again")


def write_arrays(
    path: Path, about: Mapping[str, Any], arrays: Mapping[str, Iterable[np.ndarray]], unchecked: Sequence[str] = ()
) -> None:
    """Writes a file of arrays, complete or not at all.

    Args:
        path: of the file.
        about: what to say about it; JSON.
        arrays: name -> parts that are joined, at least one; of one type, with rows of one shape.
        unchecked: names of arrays without hashes.
    """
    said: dict[str, dict[str, Any]] = {}
    with whole_file(path) as file:
        file.write(_MAGIC)
        for name, parts in arrays.items():
            file.write(bytes(-file.tell() % _ALIGN))
            said[name] = _write(file, parts, is_checked=name not in unchecked)
        header = json.dumps({"about": about, "arrays": said}).encode()
        file.write(header + hashlib.sha256(header).digest() + len(header).to_bytes(_LENGTH, "little"))


def _write(file: BinaryIO, parts: Iterable[np.ndarray], *, is_checked: bool) -> dict[str, Any]:
    """Writes an array; returns what the header says about it."""
    offset, num_rows, digest, room = file.tell(), 0, hashlib.sha256(), _BLOCK
    hashes: list[str] = []
    dtype, shape = "", ()
    for part in parts:
        num_rows, dtype, shape = num_rows + len(part), part.dtype.str, part.shape[1:]
        left = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
        while len(left):
            piece, left = left[:room], left[room:]
            file.write(piece)
            if is_checked:
                digest.update(piece)
            room -= len(piece)
            if not room:
                hashes.append(digest.hexdigest())
                digest, room = hashlib.sha256(), _BLOCK
    if room < _BLOCK:
        hashes.append(digest.hexdigest())
    return {
        "dtype": dtype,
        "shape": (num_rows, *shape),
        "offset": offset,
        "num_bytes": file.tell() - offset,
        "hashes": hashes if is_checked else [],
    }
