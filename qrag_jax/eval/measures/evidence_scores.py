"""Which sentences the chunks that were found hold: recall, precision and F1 over evidence sentences.

What a splitter calls a sentence may be a table, a list or a program, longer than any chunk. So the units in which
evidence is counted are sentences of at most 300 characters, and the parts of longer ones (`cut_long`): a chunk that
holds the row of a table which answers has found something.
"""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.text.spans import strip_span
from qrag_jax.eval.measures.document_scores import FoundScore, found_score
from qrag_jax.eval.measures.text_measure import TextMeasure, measure_words
from qrag_jax.types import InputError, Span

_MOST_CHARACTERS = 300  # of a unit: a chunk of 64 tokens has about as many, of dense text half
_BLANK = re.compile(r"\s")
Sentence = tuple[str, int]  # document id, number of the sentence in it
FindSentences = Callable[[str, tuple[Span, ...]], frozenset[Sentence]]  # (document id, spans of it) -> sentences


def cut_long(text: str, sentences: Sequence[Span]) -> list[Span]:
    """Sentences, those of more than 300 characters in parts of at most so many.

    A part ends at the last line end that fits, else at the last white space, else after 300 characters.
    """
    units = []
    for start, end in sentences:
        while end - start > _MOST_CHARACTERS:
            room = text[start : start + _MOST_CHARACTERS + 1]
            blanks = [match.start() for match in _BLANK.finditer(room, 1)]
            lines = [place for place in blanks if room[place] in "\r\n"]
            cut = start + (lines or blanks or [_MOST_CHARACTERS])[-1]
            units.append((start, cut))
            after = strip_span(text, cut, end)
            start, end = after or (end, end)
        if start < end:
            units.append((start, end))
    return units


@dataclass(frozen=True, eq=False)
class SentenceIndex:
    """The sentences of one document, and how many characters that are not blank each has."""

    starts: Int[np.ndarray, " n"]
    ends: Int[np.ndarray, " n"]
    sizes: Float[np.ndarray, " n"]
    characters: TextMeasure


def index_sentences(text: str, sentences: Sequence[Span]) -> SentenceIndex:
    """Prepares the sentences of a document (ordered, disjoint, at least one) for `belonging` and `touched`."""
    if not sentences:
        raise InputError("no sentences: there is nothing to count evidence in")
    characters = measure_words(text, len)
    starts, ends = np.array(sentences, np.int64).T
    return SentenceIndex(starts, ends, characters.between(*_floats(starts, ends)), characters)


def belonging(spans: Sequence[Span], index: SentenceIndex) -> list[int]:
    """Numbers of the sentences that belong to a chunk: its spans hold more than half of their characters.

    Blank space does not count. Chunkers cut long sentences, and chunks begin and end with the blanks of one side or
    the other, so that whole containment would lose sentences that a reader of the chunk does see, while any shared
    character would give one sentence to both of its neighbours. By more than half, chunks that do not overlap never
    hold the same sentence; one that is cut into parts of at most a half belongs to none.

    Args:
        spans: of the chunk, ordered and disjoint.
    """
    first, held = _held(spans, index)
    return (first + np.flatnonzero(2 * held > index.sizes[first : first + held.size])).tolist()


def touched(spans: Sequence[Span], index: SentenceIndex) -> list[int]:
    """Numbers of the sentences that share a character, blank space aside, with any of the spans: evidence sentences.

    Evidence is often less than a sentence (an answer, a clause): the smallest unit that shows it is the sentence.
    """
    numbers: set[int] = set()
    for span in spans:  # evidence may overlap
        first, held = _held([span], index)
        numbers.update((first + np.flatnonzero(held > 0)).tolist())
    return sorted(numbers)


def make_sentence_finders(
    texts: Mapping[str, str], sentences: Mapping[str, Sequence[Span]]
) -> tuple[FindSentences, FindSentences]:
    """What finds the sentences that a chunk holds (`belonging`), and what finds those of evidence (`touched`).

    A document is prepared when it is first asked for; what a chunk holds is kept.

    Args:
        texts: of the documents, by their ids.
        sentences: of each, as its splitter gives them; long ones are cut (`cut_long`).
    """
    index_of = cache(lambda name: index_sentences(texts[name], cut_long(texts[name], sentences[name])))

    @cache
    def held(name: str, spans: tuple[Span, ...]) -> frozenset[Sentence]:
        return frozenset((name, number) for number in belonging(spans, index_of(name)))

    def evident(name: str, spans: tuple[Span, ...]) -> frozenset[Sentence]:
        return frozenset((name, number) for number in touched(spans, index_of(name)))

    return held, evident


def evidence_scores(retrieved: Sequence[Set[Sentence]], gold: Set[Sentence], k: int) -> FoundScore:
    """Evidence retrieval: a gold sentence counts once, a retrieved one each time it is retrieved.

        recall@k    = distinct gold sentences in the first k chunks / gold sentences
        precision@k = distinct gold sentences in the first k chunks / sum over these of max(1, sentences of the chunk)

    A sentence that stands in two overlapping chunks is so read twice and counts twice in the denominator of the
    precision, never in a numerator: overlap costs, and every measure stays in [0, 1]. A chunk that holds no sentence,
    being a small part of one, counts as one that is wrong: what is read is not free.

    Args:
        retrieved: sentences of each chunk that was found, best first.
        gold: sentences that hold evidence, at least one.
        k: at least 1; fewer chunks than k are taken as they are.
    """
    if k < 1:
        raise InputError(f"k {k}: give at least 1")
    if not gold:
        raise InputError("gold is empty: a question without evidence has no recall; leave it out")
    right = {sentence for chunk in retrieved[:k] for sentence in gold & chunk}
    return found_score(len(right), sum(max(1, len(chunk)) for chunk in retrieved[:k]), len(gold))


def _held(spans: Sequence[Span], index: SentenceIndex) -> tuple[int, Float[np.ndarray, " m"]]:
    """(number of the first sentence that the spans reach, characters of it and the following ones in the spans)."""
    first = int(np.searchsorted(index.ends, spans[0][0], side="right"))
    last = int(np.searchsorted(index.starts, spans[-1][1], side="left"))
    held = np.zeros(max(0, last - first))
    for start, end in spans:
        low = int(np.searchsorted(index.ends, start, side="right"))
        high = int(np.searchsorted(index.starts, end, side="left"))
        inside = _floats(np.maximum(index.starts[low:high], start), np.minimum(index.ends[low:high], end))
        held[low - first : high - first] += index.characters.between(*inside)
    return first, held


def _floats(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(array.astype(np.float64) for array in arrays)
