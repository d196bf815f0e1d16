"""Decisions of generation on the host: sizes of batches, keys of rows, the end of a stop text."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

_SMALLEST = 64


def padded_size(length: int) -> int:
    """The next of 64, 96, 128, 192, ...: prompts and caches of few lengths compile few programs."""
    size = _SMALLEST
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


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
