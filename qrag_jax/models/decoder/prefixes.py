"""Prompts that were read, kept so that others which begin with the same tokens read only what is new."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ReadPrompt:
    """What reading a prompt gave.

    Attributes:
        tokens: int32 [n].
        cache: of one row, token i in slot i; what lies behind the n tokens means nothing.
        logits: float32 [1, vocab] of the token after them.
        num_bytes: that cache and logits take.
    """

    tokens: np.ndarray
    cache: Any
    logits: Any
    num_bytes: int


class Prefixes:
    """Read prompts within a budget; the one that was of no use for the longest time goes first."""

    def __init__(self, max_bytes: int) -> None:
        """Keeps nothing yet, and never more than `max_bytes`."""
        self.max_bytes = max_bytes
        self._kept: list[ReadPrompt] = []  # most recently used last

    @property
    def num_bytes(self) -> int:
        """Bytes of what is kept."""
        return sum(read.num_bytes for read in self._kept)

    def find(self, prompt: Sequence[int]) -> tuple[ReadPrompt | None, int]:
        """The kept prompt that begins with the most tokens of this one, and how many; None and 0 where none does."""
        tokens = np.asarray(prompt, np.int32)
        shared = [_num_shared(read.tokens, tokens) for read in self._kept]
        most = max(shared, default=0)
        if not most:
            return None, 0
        # Of several the latest: it is kept longest anyway.
        return self._kept[len(shared) - 1 - shared[::-1].index(most)], most

    def keep(self, read: ReadPrompt) -> None:
        """Adds a prompt, or says that one was of use; what alone is beyond the budget is not kept."""
        if read.num_bytes > self.max_bytes:
            return
        self._kept = [each for each in self._kept if each is not read] + [read]
        while self.num_bytes > self.max_bytes:
            self._kept.pop(0)


def _num_shared(left: np.ndarray, right: np.ndarray) -> int:
    size = min(len(left), len(right))
    differs = np.flatnonzero(left[:size] != right[:size])
    return int(differs[0]) if len(differs) else size
