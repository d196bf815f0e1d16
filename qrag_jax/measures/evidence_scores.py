"""Which sentences the chunks that were found hold: recall, precision and F1 over evidence sentences.

A splitter may return a table, a list or a program as one sentence, longer than any chunk. So evidence is counted in
sentences of at most 300 characters and in parts of longer ones (`cut_long`): a chunk with the answering row of a
table has then found something.

Also recall, precision and F1 over the distinct documents of the chunks; and recall, precision and IoU of the evidence
in tokens, where the size of a span is known without reading its text again.

The last are the measures of Chroma's chunking evaluation (Smith and Troynikov 2024), with tokens of one tokenizer as
weights of the characters (`measure_tokens`), the same for all chunkers. With E the evidence and C_i the i-th chunk, as
sets of tokens of the corpus, and |.| their number:

    found            = | E and (C_1 or ... or C_k) |             evidence that was found, once
    read             = |C_1| + ... + |C_k|                       what overlaps is read as often as it is there
    token_recall     = found / |E|
    token_precision  = found / read
    iou              = found / (read + |E| - found)              evidence that was missed joins the denominator

Overlapping evidence counts once. All three are in [0, 1]; chunks that repeat text lose precision and IoU.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.text.spans import merge_spans, readable, strip_span
from qrag_jax.types import CountTokens, InputError, Span

# WordPiece takes a longer word for one unknown token, and texts without blanks are one word.
_WORD = re.compile(r"\S{1,100}")


@dataclass(frozen=True, eq=False)
class TextMeasure:
    """The weight of a text before each position; between two edges it grows evenly.

    Attributes:
        edges: where words begin and end, not decreasing.
        before: weight of the text before each edge.
    """

    edges: Float[np.ndarray, " edges"]
    before: Float[np.ndarray, " edges"]

    def between(self, starts: Float[np.ndarray, " n"], ends: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Weight of every [start, end); 0 where the end is not after the start."""
        return np.maximum(np.interp(ends, self.edges, self.before) - np.interp(starts, self.edges, self.before), 0.0)


def measure_words(text: str, weigh: Callable[[str], float]) -> TextMeasure:
    """A text measured by its words: maximal runs of characters that are not blank, cut after every 100 of them.

    The weight of a word is spread evenly over its characters: a part of a word has its part, and weights of disjoint
    spans add up to that of the whole.

    Args:
        weigh: a word -> its weight, at least 0. `len` counts the characters that are not blank.
    """
    words = [(match.start(), match.end(), weigh(match.group())) for match in _WORD.finditer(text)]
    if not words:
        raise InputError("the text is blank: there is nothing to measure in it; leave it out")
    starts, ends, weights = np.array(words, np.float64).T
    after = np.cumsum(weights)
    edges = np.stack([starts, ends], axis=1).ravel()
    return TextMeasure(edges, np.stack([after - weights, after], axis=1).ravel())


def measure_tokens(text: str, count: CountTokens) -> TextMeasure:
    """A text measured in tokens, word by word; a word in which `count` sees no token has one.

    Tokens that a tokenizer would join over a blank are so counted apart. Cut words and words that no tokenizer knows
    have a length all the same, or a text of them could be found for nothing.
    """
    return measure_words(readable(text), lambda word: max(1, count(word)))


@dataclass(frozen=True)
class FoundScore:
    """Recall, precision and their F1 of one question, each in [0, 1]."""

    recall: float
    precision: float
    f1: float


def found_score(right: int, found: int, wanted: int) -> FoundScore:
    """Recall right / wanted, precision right / found, and F1; a share of nothing is 0.

    Args:
        right: number of units both found and wanted.
        wanted: all that should be found.
    """
    recall, precision = right / wanted if wanted else 0.0, right / found if found else 0.0
    return FoundScore(recall, precision, harmonic_mean(recall, precision))


def harmonic_mean(recall: float, precision: float) -> float:
    """F1 = 2 * recall * precision / (recall + precision); 0 where both are 0."""
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def document_scores(documents: Sequence[str], relevant: Collection[str], k: int) -> FoundScore:
    """Document retrieval through chunks, over distinct documents.

    The first k chunks give the set of their documents (so k is a number of chunks, not of documents):

        recall@k    = relevant documents in the set / relevant documents
        precision@k = relevant documents in the set / documents in the set

    Five chunks of one relevant document so have a precision of 1, and a second chunk of a wrong document costs nothing
    more. The precision over chunks, or over k, is another measure. No chunk at all has a precision of 0.

    Args:
        documents: document id of each chunk that was found, best first; ids may repeat.
        relevant: ids of the documents that answer, at least one.
        k: at least 1; fewer chunks than k are taken as they are.
    """
    found, wanted = set(documents[:k]), set(relevant)
    return found_score(len(found & wanted), len(found), len(wanted))


_MAX_CHARACTERS = 300  # of a unit: a chunk of 64 tokens has about as many, of dense text half
_BLANK = re.compile(r"\s")
Sentence = tuple[str, int]  # document id, number of the sentence in it
FindSentences = Callable[[str, tuple[Span, ...]], frozenset[Sentence]]  # (document id, spans of it) -> sentences


def cut_long(text: str, sentences: Sequence[Span]) -> list[Span]:
    """Sentences; those of more than 300 characters are cut into parts of at most 300.

    A part ends at the last line end that fits, else at the last white space, else after 300 characters.
    """
    units = []
    for start, end in sentences:
        while end - start > _MAX_CHARACTERS:
            room = text[start : start + _MAX_CHARACTERS + 1]
            blanks = [match.start() for match in _BLANK.finditer(room, 1)]
            lines = [place for place in blanks if room[place] in "\r\n"]
            cut = start + (lines or blanks or [_MAX_CHARACTERS])[-1]
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
    """Two functions: one finds the sentences of a chunk (`belonging`), the other those of evidence (`touched`).

    A document is prepared at its first use; the sentences of a chunk are kept.

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

    A sentence in two overlapping chunks is read twice and counts twice in the denominator of the precision, never in
    a numerator: overlap costs, and every measure stays in [0, 1]. A chunk without a whole sentence counts as one
    wrong sentence, because reading it costs too.

    Args:
        retrieved: sentences of each chunk that was found, best first.
        gold: sentences that hold evidence, at least one.
        k: at least 1; fewer chunks than k are taken as they are.
    """
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


Place = tuple[str, Sequence[Span]]  # document id, spans of it


@dataclass(frozen=True)
class SpanScore:
    """Token-level measures of one question, each in [0, 1]."""

    recall: float
    precision: float
    iou: float


def shared_spans(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """The intersection of two lists of ordered, disjoint spans; ordered and disjoint."""
    shared, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            shared.append((start, end))
        i, j = (i + 1, j) if first[i][1] <= second[j][1] else (i, j + 1)
    return shared


def total(measure: TextMeasure, spans: Sequence[Span]) -> float:
    """Weight of disjoint spans together."""
    bounds = np.array(spans, np.float64).reshape(-1, 2)
    return float(measure.between(bounds[:, 0], bounds[:, 1]).sum())


def span_scores(
    retrieved: Sequence[Place], evidence: Sequence[Place], ks: Sequence[int], measure_of: Callable[[str], TextMeasure]
) -> list[SpanScore]:
    """The measures of the module for the first k chunks, for every k of `ks`.

    Args:
        retrieved: chunks that were found, best first; spans of each ordered and disjoint.
        evidence: places of the evidence; spans and places may overlap.
        ks: each at least 1; fewer chunks than k are taken as they are.
        measure_of: document id -> its tokens (`measure_tokens`); asked again and again, so it should
            remember.
    """
    gold: dict[str, list[Span]] = {}
    for document, spans in evidence:
        gold[document] = merge_spans([*gold.get(document, ()), *spans])
    wanted = sum((total(measure_of(document), spans) for document, spans in gold.items()), 0.0)
    if not wanted:
        raise InputError("evidence is empty or blank: there is nothing to find; leave the question out")
    read, found, covered = [0.0], [0.0], dict[str, list[Span]]()
    for document, spans in retrieved[: max(ks, default=0)]:
        read.append(read[-1] + total(measure_of(document), spans))
        if new := shared_spans(spans, gold.get(document, ())):
            covered[document] = merge_spans([*covered.get(document, ()), *new])
            found.append(sum(total(measure_of(name), parts) for name, parts in covered.items()))
        else:
            found.append(found[-1])
    return [_score(found[min(k, len(retrieved))], read[min(k, len(retrieved))], wanted) for k in ks]


def _score(found: float, read: float, wanted: float) -> SpanScore:
    # Sums of parts of words are off by rounding: a perfect score stays at 1.
    precision = min(1.0, found / read) if read else 0.0
    return SpanScore(min(1.0, found / wanted), precision, min(1.0, found / (read + wanted - found)))
