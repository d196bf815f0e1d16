"""Finds the place of a quote in a chunk, and the sentence of a chunk that is most similar to a text.

A language model is asked to quote evidence word for word. A quote counts only if the document contains it. A note then
shows the document's text at that place, never the model's.
"""

import re
from collections.abc import Sequence

import numpy as np

from qrag_jax.chunking.text.proper_names import find_words
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import readable
from qrag_jax.types import Span

MIN_SIMILARITY = 0.9  # of a quote that is not exact
MIN_WORDS = 8  # of such a quote; fewer words resemble too many texts
_BLANK = re.compile(r"\s")


def quote_places(quote: str, text: str, spans: Sequence[Span]) -> list[Span]:
    """The places of a quote in a chunk, exact or almost exact.

    An exact match ignores differences of white space, and begins and ends at word borders of English words. If there is
    none, a quote of at least `MIN_WORDS` words is searched by similarity (`near_places`).

    Args:
        spans: of the chunk; a quote across two spans is not found.

    Returns:
        Half-open offsets into `text`: empty if the quote is not in the chunk, several if it is ambiguous.
    """
    words = quote.split()
    if not words:
        return []
    parts = [(start, readable(text[start:end])) for start, end in spans]  # as a model sees them
    found = [(start + a, start + b) for start, part in parts for a, b in _exact_places(words, part)]
    if found or len(words) < MIN_WORDS:
        return found
    return [(start + a, start + b) for start, part in parts for a, b in near_places(" ".join(words), part)]


def near_places(quote: str, text: str, least: float = MIN_SIMILARITY) -> list[Span]:
    """Parts of a text that are similar to a quote, the most similar first, without overlaps.

    The distance of two texts is the number of characters to delete and to insert. For every end in the text, the part
    with the smallest distance to the quote is found (Sellers, 1980):

        D[0, j] = 0,   D[i, j] = min(D[i-1, j] + 1, D[i, j-1] + 1, D[i-1, j-1] if quote[i] = text[j])

    It counts if its similarity, 1 - D / (length of quote + length of part), is at least `least`. All blanks are equal.

    The time is proportional to the length of the quote times the length of the text.
    """
    if 2 * len(text) < least * (len(quote) + len(text)):  # not even the whole text would be similar enough
        return []
    letters = np.array([ord(letter) for letter in _BLANK.sub(" ", text)], np.int64)
    size = len(letters)
    # Distance and start of the best part in one number (distance first, then later starts), so one minimum finds both.
    unit, ends = size + 1, np.arange(size + 1)
    row = size - ends
    for letter in _BLANK.sub(" ", quote):
        equal = np.flatnonzero(letters == ord(letter))
        best = row + unit
        best[equal + 1] = np.minimum(best[equal + 1], row[equal])
        row = np.minimum.accumulate(best - ends * unit) + ends * unit
    distances, starts = row // unit, size - row % unit
    similarities = 1 - distances / np.maximum(len(quote) + ends - starts, 1)
    found: list[Span] = []
    candidates = np.flatnonzero(similarities >= least)
    for end in candidates[np.argsort(-similarities[candidates], kind="stable")].tolist():
        start = int(starts[end])
        if start < end and all(end <= a or b <= start for a, b in found):
            found.append((start, end))
    return found


def whole_sentences(part: Span, text: str, spans: Sequence[Span]) -> Span:
    """The span of the sentences of a chunk that contain a part of it.

    Args:
        part: within one of the spans, not blank.
    """
    touched = [(start, end) for start, end in chunk_sentences(text, spans) if start < part[1] and part[0] < end]
    return touched[0][0], touched[-1][1]


def most_like(told: str, text: str, spans: Sequence[Span]) -> Span | None:
    """The sentence of a chunk with the most words of a text, the first of equals; None if no sentence has any."""
    wanted = {word.text for word in find_words(told)}
    sentences = chunk_sentences(text, spans)
    shared = [len(wanted & {word.text for word in find_words(text[start:end])}) for start, end in sentences]
    most = max(shared, default=0)
    return sentences[shared.index(most)] if most else None


def share_of_words(told: str, text: str) -> float:
    """The share of the distinct words of `told` that are in a text; 0 if `told` has no words."""
    wanted, there = ({word.text for word in find_words(one)} for one in (told, text))
    return len(wanted & there) / len(wanted) if wanted else 0.0


def chunk_sentences(text: str, spans: Sequence[Span]) -> list[Span]:
    """The sentences of a chunk, as half-open offsets into the text of its document."""
    return [(begin + a, begin + b) for begin, stop in spans for a, b in split_sentences(text[begin:stop])]


def _exact_places(words: Sequence[str], text: str) -> list[Span]:
    before = r"(?<![A-Za-z0-9])" if _is_english(words[0][0]) else ""
    behind = r"(?![A-Za-z0-9])" if _is_english(words[-1][-1]) else ""
    pattern = before + r"\s+".join(map(re.escape, words)) + behind
    # Searched at every character, because two places may overlap.
    return [found.span(1) for found in re.finditer(f"(?=({pattern}))", text)]


def _is_english(letter: str) -> bool:
    return letter.isascii() and letter.isalnum()
