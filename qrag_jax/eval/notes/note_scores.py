"""Shares of questions whose gold chunks are all among the first k, every mode on the same questions, with its cost."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import cast

import numpy as np
from jaxtyping import Float

from qrag_jax.chunking.text.spans import readable
from qrag_jax.eval.notes.note_sets import Asked, Pool
from qrag_jax.measures.aggregate import Difference, mean_interval, paired_difference
from qrag_jax.names import NOTE_MODES, NoteMode
from qrag_jax.search.corpus import Corpus, MadeBy, embed_texts
from qrag_jax.search.hybrid import WORDS_WEIGHT, Ranked, rank_bm25
from qrag_jax.search.note_search import INSERTING, NotedCorpus, NotedRanked, NoteSearch, note_corpus, rank_noted
from qrag_jax.types import CountTokens, Embed, Encoder, Note, NoteReader, ReadNotes, UsageError, for_questions

BM25 = "bm25"
UNCAPPED = "best_of_uncapped"  # `best_of` without `NoteSearch.capped`
WITH_WORDS = "+bm25"  # behind a mode: fused with BM25 over texts with notes
# The words of `random` would be those of all notes, and an order has no scores to fuse.
EVAL_MODES = (
    *NOTE_MODES,
    UNCAPPED,
    BM25,
    *(mode + WITH_WORDS for mode in NOTE_MODES if mode not in ("random", "walk")),
)
ReportProgress = Callable[[int, int], None]  # (questions done, of)
_NUM_SPECIAL = 2  # [CLS] and [SEP]
_Asked = tuple[np.ndarray, np.ndarray, int, float, int, int]  # a row of `ModeScores`
# (places of inserted notes) -> chunks that have them, and those of these beyond the window
_CutCounter = Callable[[tuple[int, ...]], tuple[int, int]]


@dataclass(frozen=True)
class NoteRow:
    """One mode at one k.

    Attributes:
        task: the set.
        mode: of `EVAL_MODES`.
        reader: who wrote the notes.
        k: chunks that are looked at.
        all_gold: share of questions whose gold chunks are all among them; low, high: its 95% interval.
        recall: mean share of the gold chunks among them.
        ceiling: share of questions with at most k gold chunks: no search finds all of more.
        n: questions.
        n_chunks: of all pools together.
        n_notes: the same, of notes.
        cross_chunk_share: share of the notes that come from another chunk than the one they belong to.
        embedded_at_query: texts that were embedded a question, besides the question itself.
        noted_chunks: chunks that a question compares itself with and that were embedded with notes in them, mean.
        cut_chunks: those of them that are longer than the encoder's window, and of which only the beginning was
            embedded; mean. cut_questions: share of questions with one.
        seconds: median per question, with its embedding; the first ones compile. Embedding before the first question
            does not count.
        seed: of the questions, the pools and random notes.
    """

    task: str
    mode: str
    reader: str
    k: int
    all_gold: float
    low: float
    high: float
    recall: float
    ceiling: float
    n: int
    n_chunks: int
    n_notes: int
    cross_chunk_share: float
    embedded_at_query: float
    noted_chunks: float
    cut_chunks: float
    cut_questions: float
    seconds: float
    seed: int


@dataclass(frozen=True)
class ModeScores:
    """The results of a mode: one row per question, one column per k.

    Attributes:
        all_gold: 1 where all gold chunks are among the first k, else 0.
        recall: share of the gold chunks among the first k.
        embedded: texts that were embedded at each question, besides itself.
        seconds: of each question.
        noted, cut: as `NoteRow.noted_chunks` and `cut_chunks`, of each question.
    """

    all_gold: Float[np.ndarray, "n ks"]
    recall: Float[np.ndarray, "n ks"]
    embedded: Float[np.ndarray, " n"]
    seconds: Float[np.ndarray, " n"]
    noted: Float[np.ndarray, " n"]
    cut: Float[np.ndarray, " n"]


@dataclass(frozen=True)
class NoteScores:
    """All modes on the same questions, and what they searched.

    Attributes:
        num_gold: gold chunks of each question.
        left_out: how many notes the reader did not write or keep, by reason (`ReadNotes`), of all pools together.
    """

    task: str
    reader: str
    seed: int
    ks: tuple[int, ...]
    modes: dict[str, ModeScores]
    num_chunks: int
    num_notes: int
    num_cross_chunk: int
    num_gold: tuple[int, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)

    def rows(self) -> list[NoteRow]:
        """One of every mode and k."""
        return [self._row(mode, column) for mode in self.modes for column in range(len(self.ks))]

    def difference(self, mode: str, other: str, k: int) -> Difference:
        """All gold at `k` of a mode minus that of another one, question by question (`paired_difference`)."""
        column = self.ks.index(k)
        first, second = (self.modes[name].all_gold[:, column] for name in (mode, other))
        return paired_difference(first, second, seed=self.seed)

    def _row(self, mode: str, column: int) -> NoteRow:
        scores = self.modes[mode]
        found = mean_interval(scores.all_gold[:, column], seed=self.seed)
        return NoteRow(
            task=self.task,
            mode=mode,
            reader=self.reader,
            k=self.ks[column],
            all_gold=found.mean,
            low=found.low,
            high=found.high,
            recall=float(scores.recall[:, column].mean()),
            ceiling=gold_ceiling(self.num_gold, self.ks[column]),
            n=found.n,
            n_chunks=self.num_chunks,
            n_notes=self.num_notes,
            cross_chunk_share=self.num_cross_chunk / self.num_notes if self.num_notes else 0.0,
            embedded_at_query=float(scores.embedded.mean()),
            noted_chunks=float(scores.noted.mean()),
            cut_chunks=float(scores.cut.mean()),
            cut_questions=float(np.mean(scores.cut > 0)),
            seconds=float(np.median(scores.seconds)),
            seed=self.seed,
        )


def score_notes(
    task: str,
    pools: Sequence[Pool],
    reader: NoteReader,
    embed: Embed,
    count: CountTokens,
    *,
    reader_name: str,
    modes: Sequence[str] = NOTE_MODES,
    ks: Sequence[int] = (2, 4, 5, 10),
    search: NoteSearch | None = None,
    seed: int = 0,
    known: Embed | None = None,
    window: int | None = None,
    progress: ReportProgress | None = None,
) -> NoteScores:
    """Asks every question of every pool in every mode.

    Args:
        task: name of the set.
        pools: searched one by one.
        reader: writes the notes of a pool.
        embed: texts -> vectors.
        count: tokens of a text.
        reader_name: of the rows.
        modes: of `EVAL_MODES`, none twice.
        ks: chunks that are looked at.
        search: what modes have in common; its `mode` and `words_weight` are those of each mode.
        seed: of random notes and intervals.
        known: `known_vectors` of `embed`, for texts that are embedded before the first question; None makes one for
            these pools.
        window: most tokens that `embed` reads of a text, [CLS] and [SEP] counted; None: all.
        progress: called with (questions done, of).

    Raises:
        UsageError: an unknown mode, no k, or one below 1.
        InputError: as the reader, `Corpus` and `note_corpus`.
    """
    check_modes(modes, ks)
    search = search or NoteSearch()
    read = [reader(pool.documents, pool.chunks) for pool in pools]
    with_all = any(_search_of(mode, search, seed).mode == "all" for mode in modes)
    noted_pools = _note_pools(pools, read, known or known_vectors(embed), count, search.max_share if with_all else None)
    num_questions, done = sum(len(pool.asked) for pool in pools), 0
    found: dict[str, list[_Asked]] = {mode: [] for mode in modes}
    for pool, noted in zip(pools, noted_pools, strict=True):
        cut_of = _cut_counter(noted, search.max_share, count, window)
        for asked in pool.asked:
            for mode in modes:
                found[mode].append(_ask(noted, asked, embed, mode, search, seed, ks, cut_of))
            done += 1
            if progress is not None:
                progress(done, num_questions)
    num_notes = sum(len(noted.notes) for noted in noted_pools)
    num_cross = sum(int(np.count_nonzero(noted.asking != noted.answering)) for noted in noted_pools)
    left_out = sum((Counter(one.left_out) for one in read), Counter())
    scores = {mode: _stacked(rows) for mode, rows in found.items()}
    num_chunks = sum(len(pool.chunks) for pool in pools)
    num_gold = tuple(len(asked.gold) for pool in pools for asked in pool.asked)
    return NoteScores(
        task, reader_name, seed, tuple(ks), scores, num_chunks, num_notes, num_cross, num_gold, dict(left_out)
    )


def gold_ceiling(num_gold: Sequence[int], k: int) -> float:
    """Share of questions with at most `k` gold chunks (`num_gold`, one number a question): the most that `all_gold` at
    `k` can be."""
    return float(np.mean(np.asarray(num_gold) <= k))


def check_modes(modes: Sequence[str], ks: Sequence[int]) -> None:
    """Raises an error for unknown modes and invalid numbers of chunks."""
    unknown = [mode for mode in modes if mode not in EVAL_MODES]
    if unknown:
        raise UsageError(f"mode {unknown[0]!r}: choose from {', '.join(EVAL_MODES)}")
    if not modes or len(set(modes)) < len(modes):
        raise UsageError(f"modes {','.join(modes)}: give at least one, and none twice")
    if not ks or min(ks) < 1 or len(set(ks)) < len(ks):
        raise UsageError(f"k {','.join(map(str, ks))}: give at least one, from 1 on, and none twice")


def _note_pools(
    pools: Sequence[Pool], read: Sequence[ReadNotes], known: Embed, count: CountTokens, share_of_all: float | None
) -> list[NotedCorpus]:
    """Each pool with its notes. All pools are embedded together, because fuller blocks are faster.

    Args:
        share_of_all: of `with_all`, where it is asked for.
    """
    _learn(known, (text for pool in pools for text in Corpus(pool.documents, pool.chunks).texts))
    _learn(known, (text for one in read for note in one.notes for text in (note.text, note.question or note.text)))
    noted_pools = [noted_pool(pool, one.notes, known, count) for pool, one in zip(pools, read, strict=True)]
    if share_of_all is not None:
        changed = [noted.texts_with(range(len(noted.notes)), share_of_all) for noted in noted_pools]
        _learn(known, (text for texts in changed for text in texts.values()))
        for noted in noted_pools:
            noted.with_all(known, share_of_all)  # before any question, and in no question's time
    return noted_pools


def noted_pool(pool: Pool, notes: Sequence[Note], embed: Embed, count: CountTokens) -> NotedCorpus:
    """A pool as a corpus with vectors, and its notes."""
    fingerprint = embed.fingerprint if isinstance(embed, Encoder) else ""
    bare = Corpus(pool.documents, pool.chunks)
    corpus = replace(bare, vectors=embed_texts(embed, bare.texts), made_by=MadeBy(fingerprint=fingerprint))
    return note_corpus(corpus, notes, embed, count)


def rank_mode(
    question: str, noted: NotedCorpus, embed: Embed, mode: str, search: NoteSearch, seed: int, top_k: int | None = None
) -> Ranked:
    """The chunks in the order of a mode of `EVAL_MODES`."""
    if mode == BM25:
        return rank_bm25(question, noted.corpus, top_k)
    return rank_noted(question, noted, embed, _search_of(mode, search, seed), top_k)


def _search_of(mode: str, search: NoteSearch, seed: int) -> NoteSearch:
    if mode == UNCAPPED:
        return replace(search, mode="best_of", capped=False, words_weight=0.0, seed=seed)
    plain = cast(NoteMode, "none" if mode == BM25 else mode.removesuffix(WITH_WORDS))
    weight = WORDS_WEIGHT if mode.endswith(WITH_WORDS) else 0.0
    return replace(search, mode=plain, words_weight=weight, seed=seed)


class _Counted:
    """An embedder that counts the texts that are no questions."""

    def __init__(self, embed: Embed) -> None:
        self.embed, self.questions, self.num_texts = embed, for_questions(embed), 0

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        self.num_texts += len(texts)
        return self.embed(texts)


def _ask(
    noted: NotedCorpus,
    asked: Asked,
    embed: Embed,
    mode: str,
    search: NoteSearch,
    seed: int,
    ks: Sequence[int],
    cut_of: _CutCounter,
) -> _Asked:
    counted = _Counted(embed)
    start = time.perf_counter()
    ranked = rank_mode(asked.question, noted, counted, mode, search, seed, max(ks))
    seconds = time.perf_counter() - start
    ids = ranked.ids.tolist()
    recall = np.array([len(asked.gold.intersection(ids[:k])) / len(asked.gold) for k in ks])
    inserted: list[int] = []
    if isinstance(ranked, NotedRanked) and _search_of(mode, search, seed).mode in INSERTING:
        inserted = ranked.telling.tolist()
    num_noted, num_cut = cut_of(tuple(inserted))
    return (recall == 1).astype(np.float64), recall, counted.num_texts, seconds, num_noted, num_cut


def _cut_counter(noted: NotedCorpus, max_share: float, count: CountTokens, window: int | None) -> _CutCounter:
    most = np.inf if window is None else window - _NUM_SPECIAL

    @cache  # `all` puts the same notes into the same chunks at every question
    def cut_of(places: tuple[int, ...]) -> tuple[int, int]:
        texts = noted.texts_with(places, max_share).values()
        return len(texts), sum(count(readable(text)) > most for text in texts)

    return cut_of


def _stacked(rows: Sequence[_Asked]) -> ModeScores:
    all_gold, recall, *numbers = zip(*rows, strict=True)
    return ModeScores(np.stack(all_gold), np.stack(recall), *(np.array(one, np.float64) for one in numbers))


def _learn(known: Embed, texts: Iterable[str]) -> None:
    """Embeds those texts that are not known yet."""
    unlike = list(dict.fromkeys(texts))
    if unlike:
        embed_texts(known, unlike)


def known_vectors(embed: Embed) -> Embed:
    """The embedder, with the vectors of texts that it was given before, kept: stories say the same sentences again."""
    known: dict[str, np.ndarray] = {}

    def look_up(texts: Sequence[str]) -> np.ndarray:
        new = list(dict.fromkeys(text for text in texts if text not in known))
        if new:
            known.update(zip(new, embed(new), strict=True))
        return np.stack([known[text] for text in texts])

    return look_up
