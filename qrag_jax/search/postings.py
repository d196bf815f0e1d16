"""Word counts as arrays, which an index keeps on disk beside its vectors.

A word is kept as the first 8 bytes of its BLAKE2b hash, so no text is in the arrays, and a lookup is a binary search.
Two of a million words share a hash with a probability below 1 in 30 million.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int, UInt64

from qrag_jax.chunking.text.words import bm25_tokens
from qrag_jax.search.bm25 import CountedTexts, Postings

_HASH_BYTES = 8
_MOST_KEPT = 32  # words whose postings are kept


@dataclass(frozen=True, eq=False)
class WordArrays:
    """The words of texts. Word `w` has the postings `bounds[w]` to `bounds[w + 1]`, in the order of the texts.

    Attributes:
        words: hashes, increasing.
        bounds: of the postings of each word.
        texts: of each posting, the text.
        counts: of each posting, how often the text has the word; an unsigned type as small as fits.
        lengths: the number of tokens of each text.
    """

    words: UInt64[np.ndarray, " words"]
    bounds: Int[np.ndarray, " bounds"]
    texts: Int[np.ndarray, " postings"]
    counts: np.ndarray
    lengths: Int[np.ndarray, " N"]


def count_words(texts: Sequence[str]) -> WordArrays:
    """The words of texts, as `Bm25Index` counts them."""
    counted = CountedTexts(texts, bm25_tokens)
    hashes = np.fromiter(map(_hash, counted.words), np.uint64, len(counted.words))
    words = np.repeat(hashes, np.diff(counted.bounds))
    return _arrays(words, counted.texts, counted.counts, counted.lengths)


def join_words(parts: Sequence[WordArrays], kept: Sequence[Int[np.ndarray, " _"]]) -> WordArrays:
    """The words of several arrays, with the texts that are kept of each, one after the other.

    Args:
        kept: of each part, the increasing numbers of its texts that are kept.
    """
    words, texts, counts, start = [], [], [], 0
    for part, some in zip(parts, kept, strict=True):
        place = np.full(len(part.lengths), -1, np.int64)
        place[some] = start + np.arange(len(some))
        there = place[part.texts] >= 0
        words.append(np.repeat(part.words, np.diff(part.bounds))[there])
        texts.append(place[part.texts[there]])
        counts.append(part.counts[there])
        start += len(some)
    lengths = [part.lengths[some] for part, some in zip(parts, kept, strict=True)]
    return _arrays(*map(np.concatenate, (words, texts, counts, lengths)))


def _arrays(words: np.ndarray, texts: np.ndarray, counts: np.ndarray, lengths: np.ndarray) -> WordArrays:
    """Arrays of unsorted postings."""
    order = np.lexsort((texts, words))
    words = words[order]
    first = np.flatnonzero(np.diff(words, prepend=words[:1] + np.uint64(1)))
    most = int(counts.max(initial=0))
    return WordArrays(
        words[first].astype(np.uint64),
        np.append(first, len(words)).astype(np.int64),
        texts[order].astype(np.int32),
        counts[order].astype(np.min_scalar_type(most)),
        lengths.astype(np.int32),
    )


@dataclass(frozen=True, eq=False)
class WordPart:
    """Words of some texts of a pool, read piece by piece.

    Attributes:
        words, bounds: as in `WordArrays`.
        read: (array `texts` or `counts`, first posting, last) -> that part of it.
        places: of each text of the part, its number in the pool; -1 if it is not in it.
    """

    words: UInt64[np.ndarray, " words"]
    bounds: Int[np.ndarray, " bounds"]
    read: Callable[[str, int, int], np.ndarray]
    places: Int[np.ndarray, " n"]

    def find(self, hashed: np.uint64) -> Postings:
        """The postings of a word, by the numbers of the pool, which increase."""
        number = int(np.searchsorted(self.words, hashed))
        if number == len(self.words) or self.words[number] != hashed:
            return np.zeros(0, np.int32), np.zeros(0, np.uint8)
        first, last = int(self.bounds[number]), int(self.bounds[number + 1])
        texts, counts = self.read("texts", first, last), self.read("counts", first, last)
        if self._is_pool:
            return texts, counts
        places = self.places[texts]
        there = places >= 0
        places, counts = places[there], counts[there]
        if self._is_sorted:
            return places, counts
        order = np.argsort(places)
        return places[order], counts[order]

    @cached_property
    def _is_pool(self) -> bool:
        """True if the texts have the same numbers in the pool."""
        return np.array_equal(self.places, np.arange(len(self.places)))

    @cached_property
    def _is_sorted(self) -> bool:
        """True if the texts that are in the pool have increasing numbers there."""
        return bool((np.diff(self.places[self.places >= 0]) > 0).all())


class StoredWords:
    """The words of a pool of texts whose parts are kept as arrays (`bm25.WordCounts`)."""

    def __init__(self, parts: Sequence[WordPart], lengths: Int[np.ndarray, " N"]) -> None:
        """Joins parts; a text may be in several, whose counts are then added.

        Args:
            parts: of the pool.
            lengths: the number of tokens of each text.
        """
        self._parts, self.lengths = parts, lengths
        self._found: dict[str, Postings] = {}

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and bool(len(self.find(word)[0]))

    def find(self, word: str) -> Postings:
        """As `WordCounts.find`."""
        known = self._found.get(word)
        if known is None:
            hashed = np.uint64(_hash(word))
            known = _joined([part.find(hashed) for part in self._parts])
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            self._found[word] = known
        return known


def _joined(found: Sequence[Postings]) -> Postings:
    """Postings of several parts, in the order of the texts; counts of the same text are added."""
    (texts, counts), *others = sorted(found, key=lambda one: -len(one[0]))
    for more, added in others:
        if len(more):
            at = np.searchsorted(texts, more.astype(texts.dtype))
            known = texts[np.minimum(at, len(texts) - 1)] == more
            counts = counts.astype(np.int32)
            counts[at[known]] += added[known]
            texts = np.insert(texts, at[~known], more[~known])
            counts = np.insert(counts, at[~known], added[~known])
    return texts, counts


def _hash(word: str) -> int:
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES)
    return int.from_bytes(digest.digest(), "little")
