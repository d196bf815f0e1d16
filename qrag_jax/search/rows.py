"""Unit vectors that are kept in several arrays, such as those of mapped files, and are read like one array.

An array may have codes beside its vectors, of one byte (int8) or two (float16) a number. A product of codes differs
from the exact one by at most the length of the coding errors. So only the few vectors that may be among the nearest are
compared exactly:

    v = scale * code + r,   q = scale' * code' + s,   |q . v - scale * scale' * (code' . code)| <= |r| + |s| (1 + |r|)

for |q| = |v| = 1. numkong, which the extra `codes` brings, multiplies codes as they are. Without it, codes are turned
into float32 first. A question gets two int8 codes, the second of the rest that the first leaves, or one float16 code:

    |s| <= sqrt(dim) / (2 * 127)^2   or   |s| <= 2^-11
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

_CODED_ROWS = 1024  # turned into float32 at a time: 1.5 MB, which stay in a cache of the processor
_MORE_ROWS = 8  # times as many rows for several questions, because their products run faster in large blocks
_BLOCK_ROWS = 32_768  # of codes that numkong multiplies at a time, in one thread
CodeKind = Literal["float16", "int8"]


@dataclass(frozen=True, eq=False)
class Codes:
    """Vectors in fewer bytes.

    Attributes:
        codes: int8 or float16 [n, dim].
        scales: float32 [n].
        lost: the largest distance between a vector and its coded form.
    """

    codes: np.ndarray
    scales: Float[np.ndarray, " n"]
    lost: float

    @property
    def error(self) -> float:
        """Most that a product with a question of length 1 is off; `dense.rough_error` adds the rounding of float32."""
        own = 2.0**-11 if self.codes.dtype == np.float16 else self.codes.shape[1] ** 0.5 / 254**2
        return self.lost + own * (1 + self.lost)

    def products(self, questions: Float[np.ndarray, "q dim"]) -> Float[np.ndarray, "q n"]:
        """Dot products with all vectors, each off by at most `error` for questions of length 1."""
        found = np.empty((len(questions), len(self.codes)), np.float32)
        if (kernels := _kernels()) is not None:
            self._multiply(questions, found, kernels)
            return found
        step = _CODED_ROWS * min(_MORE_ROWS, len(questions))
        wide = np.empty((step, self.codes.shape[1]), np.float32)
        for start in range(0, len(self.codes), step):
            some = self.codes[start : start + step]
            np.copyto(wide[: len(some)], some)
            found[:, start : start + len(some)] = questions @ wide[: len(some)].T
        found *= self.scales
        return found

    def _multiply(
        self, questions: Float[np.ndarray, "q dim"], found: Float[np.ndarray, "q n"], kernels: ModuleType
    ) -> None:
        """Writes the products with coded questions, in a thread for each processor."""
        parts = [code(np.ascontiguousarray(questions), "float16" if self.codes.dtype == np.float16 else "int8")]
        if self.codes.dtype == np.int8:
            parts.append(code(questions - parts[0].scales[:, None] * parts[0].codes, "int8"))
        # A row for each code: those of all questions, then those of their rests. A column adds up those of a question.
        weights = np.concatenate([np.diag(one.scales) for one in parts])
        packed: Any = kernels.dots_pack(np.concatenate([one.codes for one in parts]))

        def multiply(start: int) -> None:
            some = slice(start, start + _BLOCK_ROWS)
            dots = np.asarray(kernels.dots_packed(self.codes[some], packed)).astype(np.float32)
            np.multiply((dots @ weights).T, self.scales[some], out=found[:, some])

        if len(self.codes) <= _BLOCK_ROWS:
            multiply(0)
            return
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(multiply, range(0, len(self.codes), _BLOCK_ROWS)))


@cache
def _kernels() -> ModuleType | None:
    """numkong; None if it is not installed."""
    try:
        import numkong
    except ImportError:
        return None
    return numkong


def code(vectors: Float[np.ndarray, "n dim"], kind: CodeKind) -> Codes:
    """The codes of vectors of length 1 or 0."""
    if kind == "float16":
        codes, scales = vectors.astype(np.float16), np.ones(len(vectors), np.float32)
    else:
        most = np.abs(vectors).max(axis=1)
        scales = np.where(most > 0, most / 127, 1).astype(np.float32)
        codes = np.rint(vectors / scales[:, None]).astype(np.int8)
    lost = vectors - scales[:, None] * codes.astype(np.float32)
    return Codes(codes, scales, float(np.linalg.norm(lost, axis=1).max(initial=0.0)))


@dataclass(frozen=True, eq=False)
class RowPart:
    """Some of the rows.

    Attributes:
        vectors: float32 [n, dim].
        places: of each its number among all rows; -1 if it is not one of them.
        check: compares rows with what was written, before their first use; None is all.
        codes: of the vectors, for a first comparison.
        check_codes: as `check`, for all codes.
    """

    vectors: Float[np.ndarray, "n dim"]
    places: Int[np.ndarray, " n"]
    check: Callable[[Int[np.ndarray, " _"] | None], None] = lambda rows: None
    codes: Codes | None = None
    check_codes: Callable[[], None] = lambda: None

    def products(self, questions: Float[np.ndarray, "q dim"]) -> Float[np.ndarray, "q n"]:
        """Dot products with all rows in float32, without a copy of the rows."""
        if self.codes is not None:
            self.check_codes()
            return self.codes.products(questions)
        self.check(None)
        return questions @ self.vectors.T


class Rows:
    """float32 [rows, dim], as an array that can be indexed by a slice or by an array of numbers.

    Attributes:
        shape: (rows, dim).
        error: most that a product of `products` is off because of codes.
    """

    def __init__(self, parts: Sequence[RowPart], num_rows: int, dim: int) -> None:
        self._parts, self.shape = parts, (num_rows, dim)
        self._known: dict[bytes, Float[np.ndarray, " rows"]] = {}  # products, by the bytes of a question
        self.error = max((part.codes.error for part in parts if part.codes is not None), default=0.0)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, some: slice | Int[np.ndarray, " _"]) -> Float[np.ndarray, "_ dim"]:
        numbers = np.arange(*some.indices(len(self))) if isinstance(some, slice) else np.asarray(some)
        owners, rows = self._homes[0][numbers], self._homes[1][numbers]
        if len(numbers) and (owners == owners[0]).all():
            part = self._parts[owners[0]]
            part.check(rows)
            return np.take(part.vectors, rows, axis=0)
        found = np.empty((len(numbers), self.shape[1]), np.float32)
        for owner, part in enumerate(self._parts):
            here = owners == owner
            part.check(rows[here])
            found[here] = part.vectors[rows[here]]
        return found

    def part_products(self, question: Float[np.ndarray, " dim"], part: int) -> Float[np.ndarray, " n"]:
        """Dot products with the vectors of one part, in their order there, in float32."""
        return self._parts[part].products(question[None].astype(np.float32))[0]

    def products(self, questions: Float[np.ndarray, "q dim"]) -> Float[np.ndarray, "q rows"]:
        """Dot products with all rows in float32."""
        asked = questions.astype(np.float32)
        known = self._known.get(asked.tobytes())
        if known is not None:
            return known[None]
        if self._is_one:
            return self._parts[0].products(asked)
        found = np.zeros((len(questions), len(self)), np.float32)
        for part in self._parts:
            there = part.places >= 0
            found[:, part.places[there]] = part.products(asked)[:, there]
        return found

    @contextmanager
    def asked(self, questions: Float[np.ndarray, "q dim"]) -> Iterator[None]:
        """Reads the rows once for several questions; inside of it, `products` with each of these alone are known."""
        products = self.products(questions)
        known = dict(zip((one.tobytes() for one in questions.astype(np.float32)), products, strict=True))
        self._known |= known
        try:
            yield
        finally:
            for key in known:
                self._known.pop(key, None)

    @cached_property
    def _is_one(self) -> bool:
        """True if one part has all rows in their order."""
        return len(self._parts) == 1 and np.array_equal(self._parts[0].places, np.arange(len(self)))

    @cached_property
    def _homes(self) -> tuple[Int[np.ndarray, " rows"], Int[np.ndarray, " rows"]]:
        """The part of each row, and its number there."""
        owners, rows = np.zeros(len(self), np.int32), np.zeros(len(self), np.int32)
        for owner, part in enumerate(self._parts):
            there = np.flatnonzero(part.places >= 0)
            owners[part.places[there]], rows[part.places[there]] = owner, there
        return owners, rows
