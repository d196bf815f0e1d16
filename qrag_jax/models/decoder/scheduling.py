"""Decisions of generation on the host: chunks, sizes of caches and groups, keys of rows, the end of a stop text.

Prompts that were read, kept so that others which begin with the same tokens read only what is new.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CHUNKS = (32, 64, 128, 192, 256, 384, 512)  # tokens of a prompt that are read at once
# What a chunk costs beside its tokens, in tokens: on CPU every matrix is read and packed anew. An estimate: it decides
# between padding a prompt and reading it in one piece more.
_CHUNK_COST = 40
_SMALLEST_CACHE = 128


def find_stop(
    decode: Callable[[Sequence[int]], str], ids: Sequence[int], heard: int, stop: Sequence[str]
) -> tuple[int, str] | None:
    """The first number of tokens whose text holds a stop text, and the text before it; None if there is none.

    The text is decoded as a whole each time, so stop texts may span tokens, and a character whose bytes are split over
    tokens is looked at when it is complete.

    Args:
        ids: of the answer so far.
        heard: how many of them were searched before.
        stop: texts, none of them empty.
    """
    if not any(text in decode(ids) for text in stop):
        return None
    for count in range(heard + 1, len(ids) + 1):
        text = decode(ids[:count])
        ends = [place for place in (text.find(each) for each in stop) if place >= 0]
        if ends:
            return count, text[: min(ends)]
    return None


def prompt_hash(prompt: Sequence[int], seed: int) -> np.ndarray:
    """uint32 [2]: what the random key of a prompt's answer is made of; sha256 of the seed and the ids."""
    content = f"{seed}:" + ",".join(str(int(token)) for token in prompt)
    return np.frombuffer(hashlib.sha256(content.encode()).digest()[:8], "<u4").astype(np.uint32)


def chunk_lengths(length: int) -> list[int]:
    """Lengths from `CHUNKS`, small ones first, that a prompt is read in; their sum is `length` or a little more.

    Whole chunks of the largest size, and for the rest the cheapest choice: one chunk that holds it, or the next smaller
    one and what that leaves.
    """
    count, rest = divmod(length, CHUNKS[-1])
    return _cheapest(rest) + [CHUNKS[-1]] * count


def _cheapest(rest: int) -> list[int]:
    if rest <= 0:
        return []
    place = next(place for place, size in enumerate(CHUNKS) if size >= rest)
    whole = [CHUNKS[place]]
    if place == 0:
        return whole
    parts = [*_cheapest(rest - CHUNKS[place - 1]), CHUNKS[place - 1]]
    return min(whole, parts, key=reading_cost)


def reading_cost(chunks: Sequence[int]) -> int:
    """The cost of reading chunks of these lengths, in tokens."""
    return sum(chunks) + _CHUNK_COST * len(chunks)


def shared_start(length: int, shared: int, size: int) -> int:
    """From which token on a prompt is read whose first `shared` tokens have been, in a cache of `size` slots.

    `shared`, or a little less where the chunks of the rest would reach beyond the cache; 0 where that saves nothing.
    """
    start = min(shared, length - 1)
    while start > 0 and start + sum(chunk_lengths(length - start)) > size:
        start -= 1
    return start if reading_cost(chunk_lengths(length - start)) < reading_cost(chunk_lengths(length)) else 0


def cache_size(length: int, room: int) -> int:
    """Slots for a prompt and `room` new tokens: 128, 192, 256, 384, 512, 768, ..."""
    needed, size = max(sum(chunk_lengths(length)), length + room), _SMALLEST_CACHE
    while size < needed:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def group_by_size(sizes: Sequence[int], batch_size: int) -> list[tuple[int, list[int]]]:
    """(size, places) of prompts that share a cache size; too few for a batch go with those of the next larger one."""
    groups: list[tuple[int, list[int]]] = []
    carried: list[int] = []
    distinct = sorted(set(sizes))
    for size in distinct:
        carried += [place for place, each in enumerate(sizes) if each == size]
        if len(carried) >= batch_size or size == distinct[-1]:
            groups.append((size, carried))
            carried = []
    return groups


@dataclass(frozen=True)
class ReadPrompt:
    """The result of reading a prompt.

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
