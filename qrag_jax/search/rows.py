"""Unit vectors that are kept in several arrays, such as those of mapped files, and are read like one array."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, eq=False)
class RowPart:
    """Some of the rows.

    Attributes:
        vectors: float32 [n, dim].
        places: of each its number among all rows; -1 if it is not one of them.
        check: compares all vectors with what was written; called before their first use.
    """

    vectors: Float[np.ndarray, "n dim"]
    places: Int[np.ndarray, " n"]
    check: Callable[[], None]


class Rows:
    """float32 [rows, dim], as an array that can be indexed by a slice or by an array of numbers."""

    def __init__(self, parts: Sequence[RowPart], num_rows: int, dim: int) -> None:
        self._parts, self.shape = parts, (num_rows, dim)
        self._are_checked = False

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, some: slice | Int[np.ndarray, " _"]) -> Float[np.ndarray, "_ dim"]:
        self._check()
        numbers = np.arange(*some.indices(len(self))) if isinstance(some, slice) else np.asarray(some)
        found = np.empty((len(numbers), self.shape[1]), np.float32)
        owners, rows = self._homes[0][numbers], self._homes[1][numbers]
        for owner, part in enumerate(self._parts):
            here = owners == owner
            found[here] = part.vectors[rows[here]]
        return found

    def products(self, questions: Float[np.ndarray, "q dim"]) -> Float[np.ndarray, "q rows"]:
        """Dot products with all rows in float32, without a copy of the rows."""
        self._check()
        found = np.zeros((len(questions), len(self)), np.float32)
        for part in self._parts:
            products = questions.astype(np.float32) @ part.vectors.T
            there = part.places >= 0
            if there.all():
                found[:, part.places] = products
            else:
                found[:, part.places[there]] = products[:, there]
        return found

    def _check(self) -> None:
        if not self._are_checked:
            for part in self._parts:
                part.check()
            self._are_checked = True

    @cached_property
    def _homes(self) -> tuple[Int[np.ndarray, " rows"], Int[np.ndarray, " rows"]]:
        """The part of each row, and its number there."""
        owners, rows = np.zeros(len(self), np.int32), np.zeros(len(self), np.int32)
        for owner, part in enumerate(self._parts):
            there = np.flatnonzero(part.places >= 0)
            owners[part.places[there]], rows[part.places[there]] = owner, there
        return owners, rows
