"""Rows of fixed shape: prompts and answers to imitate, packed, and padded prompts."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from qrag_jax.types import InputError

_OPEN_ROWS = 32  # rows that may still take a text; more would hardly fill better and cost time
Ids = Sequence[int]


class Rows(NamedTuple):
    """Token ids in rows.

    Attributes:
        tokens: int32 [rows, width]; 0 where there is none.
        segments: int32 [rows, width]: 1, 2, ... for the texts of a row, 0 for padding.
        answers: bool [rows, width]: tokens of answers, the end of an answer among them.
    """

    tokens: Int[np.ndarray, "rows width"]
    segments: Int[np.ndarray, "rows width"]
    answers: Bool[np.ndarray, "rows width"]


def pack_rows(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Numbers of texts, row by row: each goes into the first open row with room, in the order given.

    Args:
        lengths: tokens of each text.
        width: tokens of a row.

    Raises:
        InputError: a text is longer than a row.
    """
    rows: list[list[int]] = []
    opened: deque[tuple[list[int], list[int]]] = deque(maxlen=_OPEN_ROWS)  # (row, [tokens left])
    for number, length in enumerate(lengths):
        if length > width:
            raise InputError(f"example {number} has {length:,} tokens, a row holds {width:,}: raise imitation.width")
        for row, left in opened:
            if left[0] >= length:
                row.append(number)
                left[0] -= length
                break
        else:
            rows.append([number])
            opened.append((rows[-1], [width - length]))
    return rows


def fill_rows(texts: Sequence[Sequence[tuple[Ids, Ids]]], num_rows: int, width: int) -> Rows:
    """Rows of (prompt, answer) pairs, each pair a segment.

    Args:
        texts: of each row; fewer than `num_rows` leave the last rows empty.
    """
    rows = Rows(*(np.zeros((num_rows, width), kind) for kind in (np.int32, np.int32, bool)))
    for place, pairs in enumerate(texts):
        start = 0
        for segment, (prompt, answer) in enumerate(pairs, start=1):
            middle, end = start + len(prompt), start + len(prompt) + len(answer)
            rows.tokens[place, start:end] = [*prompt, *answer]
            rows.segments[place, start:end] = segment
            rows.answers[place, middle:end] = True
            start = end
    return rows


def pad_left(prompts: Sequence[Ids], width: int) -> tuple[Int[np.ndarray, "prompts width"], np.ndarray]:
    """Prompts at the right end of rows, int32, and their lengths."""
    padded = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[width - len(prompt) :] = prompt
    return padded, np.array([len(prompt) for prompt in prompts], np.int32)
