"""A file of named arrays that is mapped into memory. A block of it is compared with its digest when it is first read.

    [magic][arrays, each at a multiple of 4,096 bytes][header as JSON][its sha256][its length, 8 bytes]

The header has what a program says about the file, and of each array its type, shape, offset and the digests of its
blocks. An array without digests is checked by its reader.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int, Shaped, UInt64

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
        self._bytes = np.asarray(np.memmap(path, np.uint8, "r")) if size else np.zeros(0, np.uint8)
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
        for one in self._arrays.values():
            one.setdefault("digests", [])  # a file of an earlier version has none; its arrays are not used
        self._checked = {name: np.zeros(len(one["digests"]), bool) for name, one in self._arrays.items()}

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
        """A whole array as a view of the file, not compared with its digests."""
        one = self._arrays[name]
        return self._raw(name).view(np.dtype(one["dtype"])).reshape(one["shape"])

    def has(self, name: str) -> bool:
        """True if there is an array of that name."""
        return name in self._arrays

    def offset(self, name: str) -> int:
        """The first byte of an array in the file."""
        return self._arrays[name]["offset"]

    def check(self) -> None:
        """Compares all blocks with their digests; raises as `read`."""
        for name, checked in self._checked.items():
            checked[:] = False
            self._check(name, 0, len(self._raw(name)))

    def _raw(self, name: str) -> np.ndarray:
        one = self._arrays[name]
        return self._bytes[one["offset"] : one["offset"] + one["num_bytes"]]

    def _check(self, name: str, first: int, last: int) -> None:
        raw, digests, checked = self._raw(name), self._arrays[name]["digests"], self._checked[name]
        for block in range(first // _BLOCK, min(len(checked), -(-last // _BLOCK))):
            if checked[block]:
                continue
            if _block_digest(raw[block * _BLOCK : (block + 1) * _BLOCK]) != digests[block]:
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
        unchecked: names of arrays without digests.
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
    offset, num_rows, block = file.tell(), 0, bytearray()
    digests: list[int] = []
    dtype, shape = "", ()
    for part in parts:
        num_rows, dtype, shape = num_rows + len(part), part.dtype.str, part.shape[1:]
        left = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
        while len(left):
            room = _BLOCK - len(block)
            piece, left = left[:room], left[room:]
            file.write(piece)
            if is_checked:
                block += piece
            if len(block) == _BLOCK:
                digests.append(_block_digest(block))
                block = bytearray()
    if block:
        digests.append(_block_digest(block))
    return {
        "dtype": dtype,
        "shape": (num_rows, *shape),
        "offset": offset,
        "num_bytes": file.tell() - offset,
        "digests": digests,
    }


def digests_of(rows: Shaped[np.ndarray, "rows dim"], sizes: Int[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """A digest of each of several groups of rows, to find damage at the speed of memory; sha256 takes 8 times as long.

        digest = sum_r b_r sum_j a_j x_rj    modulo 2^64, with the bytes of row r as whole numbers x_rj

    The a and b are odd, so a change within one x_rj is always found, because an odd factor has an inverse; they are
    random, so another change is missed about once in 2^64 times. A digest does not protect against somebody who changes
    a file on purpose.

    Args:
        rows: of all groups, one after the other.
        sizes: the number of rows of each group.
    """
    width = rows.shape[1] * rows.itemsize
    kind = next(f"u{size}" for size in (8, 4, 2, 1) if width % size == 0)
    numbers = np.ascontiguousarray(rows).view(kind).astype(np.uint64, copy=False)
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    within = np.arange(len(rows)) - np.repeat(starts[:-1], sizes)
    hashed = np.einsum("rj,j->r", numbers, _odd_numbers(1, numbers.shape[1]))
    hashed *= _odd_numbers(2, int(sizes.max(initial=0)))[within]
    return np.diff(np.concatenate([[np.uint64(0)], np.cumsum(hashed)])[starts])


def _odd_numbers(seed: int, number: int) -> UInt64[np.ndarray, " number"]:
    """Random odd numbers; fewer are the first ones of more."""
    return _power_of_two(seed, number.bit_length())[:number]


@cache
def _power_of_two(seed: int, exponent: int) -> UInt64[np.ndarray, " number"]:
    return np.random.PCG64(seed).random_raw(1 << exponent) | np.uint64(1)


def _block_digest(block: bytes | bytearray | memoryview | np.ndarray) -> int:
    """The digest of a block of bytes, in rows of 4,096; the last one is filled up with zeros."""
    found = np.frombuffer(block, np.uint8)
    if len(found) % _ALIGN:
        found = np.concatenate([found, np.zeros(-len(found) % _ALIGN, np.uint8)])
    rows = found.reshape(-1, _ALIGN)
    return int(digests_of(rows, np.array([len(rows)]))[0])
