"""Where in a chunk a quote stands, and which of its sentences a text is most like.

A language model is asked for evidence word for word. What it gives counts only where the document has it: a note shows
the document's own text at that place, never the model's.
"""

import re
from collections.abc import Sequence

import numpy as np

from qrag_jax.chunking.text.proper_names import find_words
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import readable
from qrag_jax.types import Span

MIN_SIMILARITY = 0.9  # of a quote that is not word for word
MIN_WORDS = 8  # of such a quote: fewer words are near to too much
_BLANK = re.compile(r"\s")


def quote_places(quote: str, text: str, spans: Sequence[Span]) -> list[Span]:
    """Where a quote stands in a chunk: word for word, or else nearly so.

    Word for word means but for line breaks and other blanks, and never from the middle of an English word. A quote of
    `MIN_WORDS` words or more that stands nowhere so is looked for by its similarity (`near_places`).

    Args:
        spans: of the chunk; a quote over the border of two is not found.

    Returns:
        Half-open offsets into `text`: none where the quote is not in the chunk, several where it does not say which
        place is meant.
    """
    words = quote.split()
    if not words:
        return []
    parts = [(start, readable(text[start:end])) for start, end in spans]  # as a model is shown them
    found = [(start + a, start + b) for start, part in parts for a, b in _exact_places(words, part)]
    if found or len(words) < MIN_WORDS:
        return found
    return [(start + a, start + b) for start, part in parts for a, b in near_places(" ".join(words), part)]


def near_places(quote: str, text: str, least: float = MIN_SIMILARITY) -> list[Span]:
    """Parts of a text that are nearly a quote, the most similar one first, none overlapping another.

    The distance of two texts is the number of characters to take out of one and to put in to get the other one. For
    every end in the text, the part with the least distance to the quote is found (Sellers, 1980):

        D[0, j] = 0,   D[i, j] = min(D[i-1, j] + 1, D[i, j-1] + 1, D[i-1, j-1] where quote[i] = text[j])

    and counts where its similarity, 1 - D / (length of quote + length of part), is at least `least`. Blanks are equal.

    Takes time in proportion to the lengths of quote times text.
    """
    if 2 * len(text) < least * (len(quote) + len(text)):  # not even all of the text would be similar enough
        return []
    letters = np.array([ord(letter) for letter in _BLANK.sub(" ", text)], np.int64)
    size = len(letters)
    # Distance and start of the best part in one number, (distance, later starts first), so that one minimum does both.
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
    """The sentences of a chunk that a part of it stands in, from the first to the last.

    Args:
        part: within one of the spans, not blank.
    """
    touched = [(start, end) for start, end in chunk_sentences(text, spans) if start < part[1] and part[0] < end]
    return touched[0][0], touched[-1][1]


def most_like(told: str, text: str, spans: Sequence[Span]) -> Span | None:
    """The sentence of a chunk that has the most of the words of a text, the first one of equals; None: none has any."""
    wanted = {word.text for word in find_words(told)}
    sentences = chunk_sentences(text, spans)
    shared = [len(wanted & {word.text for word in find_words(text[start:end])}) for start, end in sentences]
    most = max(shared, default=0)
    return sentences[shared.index(most)] if most else None


def share_of_words(told: str, text: str) -> float:
    """The share of the different words of `told` that stand in a text too; 0 where it has none."""
    wanted, there = ({word.text for word in find_words(one)} for one in (told, text))
    return len(wanted & there) / len(wanted) if wanted else 0.0


def chunk_sentences(text: str, spans: Sequence[Span]) -> list[Span]:
    """The sentences of a chunk, as half-open offsets into the text of its document."""
    return [(begin + a, begin + b) for begin, stop in spans for a, b in split_sentences(text[begin:stop])]


def _exact_places(words: Sequence[str], text: str) -> list[Span]:
    before = r"(?<![A-Za-z0-9])" if _is_english(words[0][0]) else ""
    behind = r"(?![A-Za-z0-9])" if _is_english(words[-1][-1]) else ""
    pattern = before + r"\s+".join(map(re.escape, words)) + behind
    # Looked for at every character: two places may overlap.
    return [found.span(1) for found in re.finditer(f"(?=({pattern}))", text)]


def _is_english(letter: str) -> bool:
    return letter.isascii() and letter.isalnum()
