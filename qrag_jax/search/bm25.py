"""BM25 over a pool of texts, or over the context of one question taken from that pool.

    score(q, c) = sum_{w in q} log(1 + (N - df_w + 1/2) / (df_w + 1/2)) * tf_wc / (tf_wc + k1 * (1 - b + b * |c| / avg))

This is Lucene's form (Kamphuis et al. 2020, without the constant factor k1 + 1), the default of `bm25s`; tests compare
the scores with that library. We do not use it for two reasons. Importing `bm25s` imports JAX and runs `jax.lax.top_k`,
which starts a back end before the program can choose one. And a baseline that reads one context must take its
statistics (N, df, avg) only from that context, like an index built over it. Here a context is an array of text ids and
only the words of the question are looked up, so thousands of contexts a second need no index each.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from jaxtyping import Float, Int, Integer

from qrag_jax.chunking.text.words import asked_words, bm25_tokens, is_identifier, joined_words
from qrag_jax.search.dense import top_in_order
from qrag_jax.types import InputError

_K1 = 1.5  # saturation of repeated words
_B = 0.75  # weight of the length normalisation
_IDENTIFIER_WEIGHT = 4  # beside a word: benchmarks/search/results/words.md
# A word with hyphens is a name if at most 3 texts and one in 300 contain it, and at most a tenth each of its parts.
_NAMED, _ONE_IN, _SHARE_OF_PART = 3, 300, 10
_CACHED_TEXTS = 32_768  # texts whose scores are added at a time, which a cache of the processor holds
_COMMON = 3  # a word in more than a third of the texts is common
_MOST_COMMON = 32  # words whose counts in all texts are kept
_USUAL, _MOST_USUAL = 2, 8  # a word in more than half of the texts; eight bytes a text are kept for so many


Postings = tuple[Int[np.ndarray, " _"], Integer[np.ndarray, " _"]]  # texts that contain a word, and how often each does


class WordCounts(Protocol):
    """The words of a pool of texts.

    Attributes:
        lengths: int64 [texts], the number of tokens of each text.
    """

    lengths: Int[np.ndarray, " N"]

    def __contains__(self, word: object) -> bool:
        """True if a text contains the word."""
        ...

    def find(self, word: str) -> Postings:
        """The texts that contain a word, in any order, and how often each does; empty for an unknown word."""
        ...


class CountedTexts:
    """The words of texts in memory, counted once."""

    def __init__(self, texts: Sequence[str], tokenize: Callable[[str], list[str]]) -> None:
        numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        tokens: list[int] = []
        lengths = np.zeros(len(texts), np.int64)
        for text_id, text in enumerate(texts):
            words = tokenize(text)
            lengths[text_id] = len(words)
            tokens.extend(map(numbers.__getitem__, words))
        self.words, self.lengths = dict(numbers), lengths
        # One posting for each (word, text) pair, sorted by word, then text; word w has bounds[w] .. bounds[w + 1].
        pairs = np.asarray(tokens, np.int64) * len(texts) + np.repeat(np.arange(len(texts)), lengths)
        postings, self.counts = np.unique(pairs, return_counts=True)
        words_of, self.texts = np.divmod(postings, max(1, len(texts)))
        self.bounds = np.searchsorted(words_of, np.arange(len(self.words) + 1))

    def __contains__(self, word: object) -> bool:
        return word in self.words

    def find(self, word: str) -> Postings:
        """As `WordCounts.find`; the texts increase."""
        number = self.words.get(word)
        there = slice(0, 0) if number is None else slice(self.bounds[number], self.bounds[number + 1])
        return self.texts[there], self.counts[there]


class Bm25Index:
    """Word counts of a pool of texts, searched whole or within a context; immutable."""

    def __init__(self, texts: Sequence[str] | WordCounts, tokenize: Callable[[str], list[str]] = bm25_tokens):
        """Counts the words of every text once. Ids below are indices into the texts.

        Args:
            texts: the texts, or their words that were counted with `bm25_tokens` before.
            tokenize: text -> its tokens. With `plain_tokens`, questions have the same tokens, each of weight 1.
        """
        self._words = CountedTexts(texts, tokenize) if isinstance(texts, Sequence) else texts
        self.num_texts, self._tokenize = len(self._words.lengths), tokenize
        self._common: dict[str, np.ndarray] = {}  # integers
        self._usual: dict[str, np.ndarray] = {}  # float64

    def scores(self, question: str, among: Int[np.ndarray, " M"] | None = None) -> Float[np.ndarray, " M"]:
        """BM25 score of every text of the context. Unknown words add nothing; repeated words count again.

        Args:
            among: ids of the context's texts; repeats are allowed (a sentence can occur twice). None is the whole pool.

        Returns:
            float64 scores in the order of `among`; 0 if no word of the question occurs.
        """
        lengths = self._words.lengths if among is None else self._words.lengths[among]
        scores = np.zeros(len(lengths))
        if not lengths.any():
            return scores
        damping = None if among is None else _damping(lengths)
        for word, weight in self._asked(question).items():
            if among is None or damping is None:
                self._add(scores, weight * _rarity(self.num_texts, self._num_with(word)), word)
                continue
            counts = self._counts_of(*self._words.find(word), among)
            there = np.flatnonzero(counts)
            _add(scores, weight * _rarity(len(among), len(there)), there, counts[there], damping)
        return scores

    def shares(self, question: str) -> Float[np.ndarray, " N"]:
        """BM25 of every text of the pool as a share of what no text can exceed, for fusion with other scores.

            share(q, c) = sum_{w in q} weight_w IDF_w f_wc / sum_{w in q} weight_w IDF_w

        f is the last factor of BM25, below 1. A word in no text counts as the rarest word. So if the rare words of a
        question are missing, its other words give only a small share. An identifier counts four times, and whole
        where it occurs, because vectors hardly tell identifiers apart. So does the form as one word of a name with
        hyphens (`lastingcrane` of lasting-crane, of weight a half), beside its parts.

        Returns:
            float64 shares in [0, 1]; 0 if the question has no word.
        """
        shares, most = np.zeros(self.num_texts), 0.0
        joined = joined_words(question) if self._tokenize is bm25_tokens else {}
        for word, weight in self._asked(question).items():
            texts, counts = self._words.find(word)
            is_whole = is_identifier(word) or (word in joined and self._is_name(len(texts), joined[word]))
            rarity = weight * _rarity(self.num_texts, len(texts)) * (_IDENTIFIER_WEIGHT if is_whole else 1)
            most += rarity
            if is_whole:
                shares[texts] += rarity
            else:
                self._add(shares, rarity, word)
        return np.divide(shares, most, out=shares) if most else shares

    def words_of(self, text: str, most: int | None = None) -> set[str]:
        """The words of a text that occur in at most `most` texts of the pool; None is all."""
        return {word for word in self._tokenize(text) if most is None or self._num_with(word) <= most}

    def top_k(
        self, question: str, k: int, among: Int[np.ndarray, " M"] | None = None
    ) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        """The `k` best texts, the best first. Equal scores are in document order, also for texts without a match.

        Returns:
            int32 indices *into `among`* (text ids if `among` is None), and their float64 scores.
        """
        size = self.num_texts if among is None else len(among)
        if not 1 <= k <= size:
            raise InputError(f"cannot take {k} chunks from a context of {size} chunks; take between 1 and {size}")
        # Sums in another order differ in their last bits; rounding makes them equal, and document order decides.
        scores = np.round(self.scores(question, among), 9)
        best = top_in_order(scores, k)
        return best.astype(np.int32), scores[best]

    def top_k_each(
        self, questions: Sequence[str], k: int, among: Int[np.ndarray, "B M"]
    ) -> tuple[Int[np.ndarray, "B k"], Float[np.ndarray, "B k"]]:
        """`top_k` of every question in its own context, a row of `among`."""
        picks = [self.top_k(question, k, context) for question, context in zip(questions, among, strict=True)]
        ids = np.array([best for best, _ in picks], np.int32).reshape(len(questions), k)
        return ids, np.array([scores for _, scores in picks], np.float64).reshape(len(questions), k)

    def _asked(self, question: str) -> Mapping[str, float]:
        """The weight of each word of a question."""
        if self._tokenize is bm25_tokens:
            return asked_words(question, self._words)
        return {word: float(number) for word, number in Counter(self._tokenize(question)).items()}

    def _add(self, scores: Float[np.ndarray, " N"], factor: float, word: str) -> None:
        """`_add` to the scores of the pool.

        Counts of common words are kept for all texts, so that no text is looked up; of the most usual ones
        `count / (count + damping)`, so that nothing is divided.
        """
        texts, counts = self._words.find(word)
        if not len(texts):
            return
        if self.num_texts <= _CACHED_TEXTS or len(texts) * _COMMON <= self.num_texts:
            _add(scores, factor, texts, counts, self._all_damping)
            return
        kept = self._usual.get(word, self._common.get(word))
        if kept is None:
            kept = np.zeros(self.num_texts, counts.dtype)
            kept[texts] = counts
            if len(texts) * _USUAL > self.num_texts and len(self._usual) < _MOST_USUAL:
                kept = self._usual[word] = kept / (self._all_damping + kept)
            else:
                if len(self._common) >= _MOST_COMMON:
                    self._common.clear()
                self._common[word] = kept
        if kept.dtype != np.float64:
            _add(scores, factor, None, kept, self._all_damping)
            return
        for start in range(0, len(scores), _CACHED_TEXTS):
            piece = slice(start, start + _CACHED_TEXTS)
            scores[piece] += factor * kept[piece]

    def _num_with(self, word: str) -> int:
        """The number of texts of the pool with the word."""
        return len(self._words.find(word)[0])

    def _is_name(self, number: int, parts: Sequence[str]) -> bool:
        """True for a word with hyphens in `number` texts that is rare, in a large pool, and made of no common word."""
        if not 0 < number <= min(_NAMED, self.num_texts // _ONE_IN):
            return False
        return max(map(self._num_with, parts)) * _SHARE_OF_PART <= self.num_texts

    def _counts_of(
        self, texts: Int[np.ndarray, " _"], found: Integer[np.ndarray, " _"], among: Int[np.ndarray, " M"]
    ) -> Int[np.ndarray, " M"]:
        """The number of occurrences of a word in each text of a context, from its postings."""
        counts = np.zeros(self.num_texts, np.int64)
        counts[texts] = found
        return counts[among]

    @cached_property
    def _all_damping(self) -> Float[np.ndarray, " N"]:
        return _damping(self._words.lengths)


def _add(
    scores: Float[np.ndarray, " N"],
    factor: float,
    texts: Int[np.ndarray, " _"] | None,
    counts: Integer[np.ndarray, " _"],
    damping: Float[np.ndarray, " N"],
) -> None:
    """Adds `factor * (count / (count + damping))` of a word to the scores of texts; None are all."""
    for start in range(0, len(counts), _CACHED_TEXTS):
        piece = slice(start, start + _CACHED_TEXTS)
        some = piece if texts is None else texts[piece].astype(np.intp)  # once, and not for each use
        added = counts[piece].astype(np.float64)
        below = damping[some] + added
        added /= below
        added *= factor
        scores[some] += added


def _damping(lengths: Int[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
    """The number of occurrences that gives a word half of its most, in each text."""
    return _K1 * (1 - _B + _B * lengths / (lengths.mean() or 1))


def _rarity(num_texts: int, num_with: int) -> float:
    """The IDF of a word that `num_with` of the texts contain; above 0 even if all do."""
    return float(np.log1p((num_texts - num_with + 0.5) / (num_with + 0.5)))
