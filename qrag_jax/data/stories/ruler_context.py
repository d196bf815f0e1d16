"""Contexts of RULER: noise in chunks of whole sentences, with needles between the sentences.

The noise is packed in chunks once for a seed, and each question reads it from another chunk on. A needle is put between
two sentences, and only the chunk around it is packed again, with the needle among its neighbours. So questions share
nearly all chunks, and these are embedded once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from qrag_jax.types import Arg, UsageError

_MOST_MISFITS = 16  # chunks that do not fit the end of a context

CountAll = Callable[[Sequence[str]], Sequence[int]]  # texts -> tokens of each


@dataclass(frozen=True)
class RulerQuestion:
    """A question to a context of its own.

    Attributes:
        id: its number, or its id in a data set.
        question: its text.
        chunks: of the context, in the order of the document.
        titles: of the chunks; empty where there is none.
        gold: numbers of the chunks that answer it.
        answers: all values, all variables, or the reference answers.
        num_tokens: tokens of the context.
    """

    id: str
    question: str
    chunks: tuple[str, ...]
    titles: tuple[str, ...]
    gold: tuple[int, ...]
    answers: tuple[str, ...]
    num_tokens: int


class TokenCounts:
    """Tokens of texts, where each distinct text is counted once; a context has the sum over its sentences."""

    def __init__(self, count: CountAll) -> None:
        self._count, self._known = count, dict[str, int]()

    def __call__(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each text."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            self._known |= zip(new, map(int, self._count(new)), strict=True)
        return [self._known[text] for text in texts]


@dataclass(frozen=True)
class Asked:
    """A question, its needles in the order of their draw, which of them are gold, and its answers."""

    question: str
    needles: tuple[str, ...]
    gold: frozenset[int]
    answers: tuple[str, ...]
    in_order: bool = False


@dataclass(frozen=True)
class Noise:
    """Sentences of noise in chunks; `bounds` are half-open numbers of the sentences of each chunk."""

    sentences: Sequence[str]
    sizes: Sequence[int]
    bounds: Sequence[tuple[int, int]]
    _texts: dict[range, str] = field(default_factory=dict)

    def text(self, run: range) -> str:
        """The sentences as one text; contexts of many questions share it."""
        if run not in self._texts:
            self._texts[run] = " ".join(self.sentences[i] for i in run)
        return self._texts[run]


def compose(
    number: int, asked: Asked, noise: Noise, num_tokens: int, chunk_tokens: int, counts: TokenCounts,
    rng: np.random.Generator,
) -> RulerQuestion:  # fmt: skip
    """The noise from a random chunk on, as much as fits, with the needles between its sentences.

    Args:
        number: of the question.
        noise: of at least `num_tokens` tokens.
        num_tokens: most tokens of the context.
        chunk_tokens: most tokens of a chunk; a sentence that is longer is a chunk.
        rng: draws the first chunk and the places of the needles.
    """
    own = counts(asked.needles)
    runs = _fitting(noise, num_tokens - sum(own), int(rng.integers(len(noise.bounds))))
    num_sentences = sum(map(len, runs))
    if num_sentences + 1 < len(own):
        raise too_short("needles among sentences of this length", num_tokens, 2 * num_tokens)
    gaps = rng.choice(num_sentences + 1, len(own), replace=False)
    gaps = np.sort(gaps) if asked.in_order else gaps
    at: dict[int, int] = {int(gap): needle for needle, gap in enumerate(gaps)}
    chunks, gold, first = [], [], 0
    for last, run in enumerate(runs, start=1 - len(runs)):
        end = first + len(run) + (last == 0)  # the last run has the gap behind it too
        inside = {gap - first: at[gap] for gap in range(first, end) if gap in at}
        first += len(run)
        if not inside:
            chunks.append(noise.text(run))
            continue
        mixed = _mixed(run, inside)
        sizes = [noise.sizes[i] if needle < 0 else own[needle] for i, needle in mixed]
        for start, stop in packed(sizes, chunk_tokens):
            part = mixed[start:stop]
            if any(needle in asked.gold for _, needle in part):
                gold.append(len(chunks))
            chunks.append(" ".join(noise.sentences[i] if n < 0 else asked.needles[n] for i, n in part))
    used = sum(own) + sum(noise.sizes[i] for run in runs for i in run)
    titles = ("",) * len(chunks)
    return RulerQuestion(str(number), asked.question, tuple(chunks), titles, tuple(gold), asked.answers, used)


def too_short(task: str, num_tokens: int, least: int) -> UsageError:
    """The refusal of a length that a task does not fit."""
    return UsageError(
        (Arg("num_tokens", num_tokens), f": is too short for {task}; give at least {least:,} tokens"),
        field="num_tokens",
        value=num_tokens,
    )


def packed(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Half-open runs of numbers, each with as many whole sentences as fit `most` tokens, or with one that is longer."""
    first, total = 0, 0
    for i, size in enumerate(sizes):
        if i > first and total + size > most:
            yield first, i
            first, total = i, 0
        total += size
    if first < len(sizes):
        yield first, len(sizes)


def _fitting(noise: Noise, num_tokens: int, start: int) -> list[range]:
    """The sentences of the chunks from `start` on, the first chunk after the last, as many as fit.

    Where a long sentence does not fit, some of the chunks after it fill the rest.
    """
    runs: list[range] = []
    misfits = 0
    for first, end in (*noise.bounds[start:], *noise.bounds[:start]):
        sums = list(accumulate(noise.sizes[first:end]))
        fit = len(sums) if sums[-1] <= num_tokens else int(np.searchsorted(sums, num_tokens, side="right"))
        if fit:
            runs.append(range(first, first + fit))
            num_tokens -= sums[fit - 1]
        misfits += fit < len(sums)
        if misfits >= _MOST_MISFITS:
            break
    return runs


def _mixed(run: range, at: dict[int, int]) -> list[tuple[int, int]]:
    """(sentence, -1) for sentences of noise, and (-1, needle) before the sentences that needles are put before."""
    mixed: list[tuple[int, int]] = []
    for place in range(len(run) + 1):
        if place in at:
            mixed.append((-1, at[place]))
        if place < len(run):
            mixed.append((run[place], -1))
    return mixed
