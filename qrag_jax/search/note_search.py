"""Search in one step over a corpus whose chunks have notes (SqRAG's query phase).

    noted = note_corpus(corpus, mention_notes(corpus.documents, corpus.nodes).notes, embed, count)
    ranked = rank_noted("Who wrote it?", noted, embed, NoteSearch("best_of"), top_k=5)
    ranked.notes_of(int(ranked.ids[0]))      # the notes that count for this question, the best first

The mode says how notes are used:

* `none`: not at all; leaves are ranked by their own vectors.
* `best_of` (ours): a chunk gets the best score of its own vector and its notes; a note scores at most as high as the
  chunk it comes from. Embeds only the question.
* `insert`: the notes nearest to the question are inserted into their chunks, which are embedded again (Algorithm 2).
* `all`: every note is in its chunk, embedded once, before any question ("no RelevantQAs").
* `random`: a control: inserts as many notes as `insert` would, drawn from all.
* `walk`: the nearest chunk, then the nearest of those that it links to, then the others: a link without its words.
"""

import warnings
import zlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.text.tables import searched_text
from qrag_jax.names import NOTE_MODES, NoteMode, RetrieverName
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.corpus import Corpus, check_fingerprint, embed_question, embed_texts
from qrag_jax.search.dense import cosine_scores, rough_cosines, rough_error_of, top_in_order
from qrag_jax.search.hybrid import (
    WORDS_WEIGHT,
    Ranked,
    Retrieve,
    check_top_k,
    first_fused,
    first_near,
    fused_with_words,
    known_scores,
    needs_list,
    rank_words,
    words_weight,
)
from qrag_jax.search.note_texts import check_note, fitting_notes, insert_notes, offset_in_chunk
from qrag_jax.search.rows import Rows
from qrag_jax.types import CountTokens, Embed, Encoder, InputError, Note, UsageError, check_fields
from qrag_jax.unit_rows import unit_rows

INSERTING: tuple[NoteMode, ...] = ("insert", "all", "random")  # modes that insert notes into chunks


@dataclass(frozen=True)
class NoteSearch:
    """How notes are used.

    Attributes:
        mode: see the module.
        num_notes: for `insert` and `random`: notes are taken until there are this many; all answers to one question
            are taken together.
        max_share: most tokens of the notes in a chunk, as a multiple of the chunk's tokens.
        capped: for `best_of`: the vector of a note scores at most as high as the chunk it comes from, so a note is
            never better than all chunks. Its words are not capped.
        words_weight: weight of BM25, in [0, 1], over the chunks with all their notes (without notes if `mode` is
            `none`); the rest is the mode's own score. 0 leaves BM25 out.
        seed: for `random`; a draw also depends on the question.
    """

    mode: NoteMode = "best_of"
    num_notes: int = 10
    max_share: float = 1.0
    capped: bool = True
    words_weight: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mode not in NOTE_MODES:
            raise UsageError(f"mode {self.mode!r}: choose one of {', '.join(NOTE_MODES)}")
        least = {"num_notes": 1, "seed": 0}
        check_fields(self, shares=("words_weight",), at_least=least, within={"max_share": "(0, inf)"})
        if self.words_weight and self.mode == "walk":
            raise UsageError("words_weight: walk gives no scores, so words cannot be added; set it to 0")


@dataclass(frozen=True, eq=False)
class NotedCorpus:
    """A corpus and the notes of its leaves. Derived values are computed at first use and kept.

    Attributes:
        corpus: with vectors.
        notes: in any order.
        vectors: float32 [notes, dim] of their texts, of length 1 or 0.
        keys: float32 [notes, dim] to compare with a question when notes are selected: their questions, or their texts
            if they have none.
        num_tokens: int64 [notes], tokens of each text in brackets.

    Raises:
        InputError: a note belongs to no leaf of the corpus; its source, evidence or quote is not at its place; or the
            arrays have other sizes.
    """

    corpus: Corpus
    notes: tuple[Note, ...]
    vectors: Float[np.ndarray, "notes dim"]
    keys: Float[np.ndarray, "notes dim"]
    num_tokens: Int[np.ndarray, " notes"]

    def __post_init__(self) -> None:
        sizes = {len(self.notes), len(self.vectors), len(self.keys), len(self.num_tokens)}
        if len(sizes) > 1:
            raise InputError(
                f"notes: {len(self.notes)} notes, {len(self.vectors)} vectors, {len(self.keys)} keys and "
                f"{len(self.num_tokens)} token counts; give one of each for every note"
            )
        leaves = {node.id: node for node in map(self.corpus.nodes.__getitem__, self.corpus.leaves.tolist())}
        for number, note in enumerate(self.notes):
            check_note(note, number, leaves, self.corpus.by_id)

    def only(self, ids: Collection[str]) -> "NotedCorpus":
        """Some of the documents, and the notes that come from them and belong to them; as `Corpus.only`."""
        corpus = self.corpus.only(ids)
        kept = [
            place for place, note in enumerate(self.notes) if {note.asking, note.answering} <= corpus.by_chunk.keys()
        ]
        notes = tuple(self.notes[place] for place in kept)
        return NotedCorpus(corpus, notes, self.vectors[kept], self.keys[kept], self.num_tokens[kept])

    @cached_property
    def answering(self) -> Int[np.ndarray, " notes"]:
        """The leaf that each note belongs to, as a position in `corpus.leaves`."""
        return np.array([self._leaf_of[note.answering] for note in self.notes], np.int64)

    @cached_property
    def asking(self) -> Int[np.ndarray, " notes"]:
        """The leaf that each note comes from, as a position in `corpus.leaves`."""
        return np.array([self._leaf_of[note.asking] for note in self.notes], np.int64)

    @cached_property
    def groups(self) -> Int[np.ndarray, " notes"]:
        """Group of each note: answers to one question are selected together; a note without a question is alone."""
        numbers: dict[object, int] = {}
        return np.array(
            [numbers.setdefault(note.question or place, len(numbers)) for place, note in enumerate(self.notes)],
            np.int64,
        )

    @cached_property
    def words(self) -> Bm25Index:
        """Words of the leaves with all their notes, counted once, without repeated notes; ids are as in `leaves`."""
        texts = [self.corpus.full_texts[node] for node in self.corpus.leaves.tolist()]
        for leaf, places in self._by_leaf(range(len(self.notes))).items():
            texts[leaf] += "".join(f" ({self.notes[place].text})" for place in places)
        return Bm25Index([readable(text) for text in texts])

    def texts_with(self, chosen: Sequence[int], max_share: float) -> dict[int, str]:
        """The leaves that get a note, and their texts with the notes; arguments as in `fitting`."""
        return {leaf: self.text_with(leaf, places) for leaf, places in self.fitting(chosen, max_share).items()}

    def fitting(self, chosen: Sequence[int], max_share: float) -> dict[int, list[int]]:
        """The leaves that get a note, and the positions of the notes that fit.

        Args:
            chosen: positions of notes, the most important first; those are placed first.
            max_share: as in `NoteSearch`.
        """
        found: dict[int, list[int]] = {}
        for leaf, places in self._by_leaf(chosen).items():
            room = max_share * self.corpus.nodes[int(self.corpus.leaves[leaf])].num_tokens
            numbers = fitting_notes([int(self.num_tokens[place]) for place in places], room)
            if numbers:
                found[leaf] = [places[number] for number in numbers]
        return found

    def with_all(self, embed: Embed, max_share: float) -> tuple[Float[np.ndarray, "leaves dim"], Int[np.ndarray, " _"]]:
        """Unit vectors of the leaves with all notes that fit, and the positions of those notes.

        Embedded at the first call, and kept.
        """
        if max_share not in self._kept:
            fitting = self.fitting(range(len(self.notes)), max_share)
            vectors = np.array(self.corpus.unit_vectors[:])
            if fitting:
                vectors[list(fitting)] = _embed_with_notes(embed, self, fitting)
            self._kept[max_share] = vectors, _joined(fitting)
        return self._kept[max_share]

    @cached_property
    def _kept(self) -> dict[float, tuple[np.ndarray, np.ndarray]]:
        return {}

    @cached_property
    def _leaf_of(self) -> dict[str, int]:
        return {self.corpus.nodes[node].id: leaf for leaf, node in enumerate(self.corpus.leaves.tolist())}

    def _by_leaf(self, chosen: Sequence[int]) -> dict[int, list[int]]:
        """Notes of each leaf, in their order; no text twice in a leaf."""
        found: defaultdict[int, dict[str, int]] = defaultdict(dict)
        for place in chosen:
            found[int(self.answering[place])].setdefault(self.notes[place].text, place)
        return {leaf: list(places.values()) for leaf, places in found.items()}

    def text_with(self, leaf: int, places: Sequence[int]) -> str:
        """The text of a leaf with some of its notes."""
        node = int(self.corpus.leaves[leaf])
        spans = self.corpus.nodes[node].spans
        notes = [self.notes[place] for place in places]
        placed = [(offset_in_chunk(spans, note.evidence[1] - 1), note.text) for note in notes]
        return searched_text(self.corpus.contexts[node], insert_notes(self.corpus.texts[node], placed))


@dataclass(frozen=True, eq=False)
class NotedRanked(Ranked):
    """A ranking that reports which notes brought a node in.

    Attributes:
        question: that was asked.
        noted: the corpus and notes that were searched.
        telling: positions of the notes that moved a chunk, the best first. In `best_of` they score higher than the
            chunk's own vector; in other modes they were in the chunk.
        by_words: the words of notes counted too.
    """

    question: str
    noted: NotedCorpus
    telling: Int[np.ndarray, " _"]
    by_words: bool = False

    def notes_of(self, node: int) -> tuple[Note, ...]:
        """The notes of a node that count for the question, the best first, no text twice; empty if only its text does.

        Notes that moved the node come first. If words count, notes follow that have a word of the question that the
        chunk lacks; words in more than half of all texts are ignored.
        """
        of_node = self.noted.corpus.leaves[self.noted.answering] == node
        places = self.telling[of_node[self.telling]].tolist()
        if self.by_words:
            places += self._with_new_words(node, np.flatnonzero(of_node).tolist())
        found: dict[str, Note] = {}
        for place in places:
            found.setdefault(self.noted.notes[place].text, self.noted.notes[place])
        return tuple(found.values())

    def _with_new_words(self, node: int, places: Sequence[int]) -> list[int]:
        """The positions of notes with words of the question that the chunk lacks, most words first."""
        if not places:
            return []
        words = self.noted.words
        # Words in more than half of the texts are no evidence. A note repeats another text, so one note counts as none.
        few = words.words_of(readable(self.question), words.num_texts // 2 + 1)
        wanted = few - words.words_of(readable(self.noted.corpus.full_texts[node]))
        held = {place: len(wanted & words.words_of(readable(self.noted.notes[place].text))) for place in places}
        return sorted((place for place in places if held[place]), key=lambda place: -held[place])


def note_corpus(corpus: Corpus, notes: Sequence[Note], embed: Embed, count: CountTokens) -> NotedCorpus:
    """Embeds the notes of a corpus; each text and each question is embedded once.

    Args:
        corpus: with vectors of the same encoder.
        notes: of its leaves (`mention_notes`); may be empty.
        embed: texts -> vectors.
        count: text -> its tokens, as for the chunks.

    Raises:
        InputError: as `NotedCorpus` and `embed_texts`, or the encoders differ.
    """
    if isinstance(embed, Encoder):
        check_fingerprint(corpus, embed.fingerprint, "the set of notes")
    texts = list(dict.fromkeys(text for note in notes for text in (note.text, note.question or note.text)))
    rows = {text: row for row, text in enumerate(texts)}
    dim = corpus.unit_vectors.shape[1]
    vectors = unit_rows(embed_texts(embed, texts)) if texts else np.zeros((0, dim), np.float32)
    if vectors.shape[1] != dim:
        raise InputError(
            f"notes: vectors of {vectors.shape[1]} components, those of the corpus have {dim}; use the same encoder"
        )
    told = vectors[np.array([rows[note.text] for note in notes], np.int64)]
    asks = any(note.question for note in notes)
    return NotedCorpus(
        corpus,
        tuple(notes),
        told,
        vectors[np.array([rows[note.question or note.text] for note in notes], np.int64)] if asks else told,
        np.array([count(readable(f"({note.text})")) for note in notes], np.int64),
    )


def rank_noted(
    question: str, noted: NotedCorpus, embed: Embed, config: NoteSearch | None = None, top_k: int | None = None
) -> NotedRanked:
    """Ranks the leaves by their text and their notes; ties by their own scores, then in the order of the corpus.

    Args:
        question: what is asked.
        noted: corpus and notes, with vectors of the same encoder.
        embed: embeds the question, and for `insert` and `random` the chunks that got a note.
        config: None takes the defaults.
        top_k: most nodes; None ranks all.

    Returns:
        Node ids, the best first, and the notes that brought them in. Scores of `walk` are those of the own vectors,
        and may rise once.

    Raises:
        InputError: the corpus has no vectors or those of another encoder, or as `embed_texts`.
        UsageError: `top_k` is below 1.
    """
    check_top_k(top_k)
    config = config or NoteSearch()
    corpus = noted.corpus
    asked = embed_question(corpus, embed, question)
    weight = words_weight(question, embed, config.words_weight)
    is_capped = config.mode == "best_of" and config.capped
    if top_k is not None and is_capped and weight == config.words_weight and (noted.notes or corpus.finds_near):
        return _first_best_of(question, asked, noted, embed, weight, top_k)
    own = _cosines(corpus.unit_vectors, asked)
    scores, telling = _mode_scores(question, asked, own, noted, embed, config)
    by_words = bool(config.words_weight) and config.mode != "none"
    if config.words_weight:
        scores = known_scores(scores, corpus, embed)
        scores = fused_with_words(scores, noted.words if by_words else corpus.words, question, weight)
    # A capped note lifts a chunk as high as the chunk it comes from. That one comes first, because it has the text.
    order = top_in_order(scores, len(scores) if top_k is None or config.mode == "walk" else top_k, then=own)
    if config.mode == "walk":
        order = walk_order(order, noted.asking, noted.answering)
    return NotedRanked(corpus.leaves[order], scores[order], question, noted, telling, by_words).first(top_k)


def _first_best_of(
    question: str, asked: Float[np.ndarray, " dim"], noted: NotedCorpus, embed: Embed, weight: float, top_k: int
) -> NotedRanked:
    """As `rank_noted` in capped `best_of`, with exact scores only for leaves that may be among the first `top_k`."""
    corpus, vectors, asking, answering = noted.corpus, noted.corpus.unit_vectors, noted.asking, noted.answering
    moving: list[np.ndarray] = []

    def exact(leaves: Int[np.ndarray, " _"]) -> Float[np.ndarray, " _"]:
        notes = np.flatnonzero(np.isin(answering, leaves))
        own = np.zeros(len(vectors))
        needed = np.union1d(leaves, asking[notes])
        own[needed] = _cosines(vectors[needed], asked)
        scores = np.minimum(_cosines(noted.vectors[notes], asked), own[asking[notes]])
        lifting = np.flatnonzero(scores > own[answering[notes]])
        moving.append(notes[lifting[np.argsort(-scores[lifting], kind="stable")]])
        return best_of_scores(own, scores, answering[notes])[leaves]

    shares = noted.words.shares(readable(question)) if weight else np.zeros(len(vectors))
    unknown = corpus.unknown_leaves(embed) if weight else np.zeros(len(vectors), bool)
    then = lambda leaves: _cosines(vectors[leaves], asked)  # noqa: E731
    if not needs_list(corpus, weight):
        rough, rough_notes = (rough_cosines(asked[None], some)[0] for some in (vectors, noted.vectors))
        rough = best_of_scores(rough, rough_notes, answering, asking)
        error = max(rough_error_of(vectors), rough_error_of(noted.vectors))
        best, found = first_fused(rough, shares, unknown, exact, top_k, weight, error, then)
    else:
        # A note lifts its leaf no higher than the one that it comes from.
        linked = lambda leaves: np.union1d(leaves, answering[np.isin(asking, leaves)])  # noqa: E731
        best, found = first_near(corpus, asked, shares, unknown, exact, top_k, weight, then, linked)
    return NotedRanked(corpus.leaves[best], found, question, noted, moving[-1], bool(weight))


def rank_noted_words(question: str, noted: NotedCorpus, top_k: int | None = None) -> NotedRanked:
    """Ranks the leaves that share a word with the question, in their text or a note, by `rank_bm25` with notes."""
    ranked = rank_words(question, noted.corpus, noted.words, top_k)
    return NotedRanked(ranked.ids, ranked.scores, question, noted, np.zeros(0, np.int64), True)


def make_noted_retrieve(name: RetrieverName, noted: NotedCorpus, embed: Embed | None, mode: NoteMode) -> Retrieve:
    """A retriever of one step that uses notes; with mode `none` it is that of `make_single_step`.

    Args:
        name: `hybrid` weights words, including those of notes, as `rank_hybrid` does; `dense` (`single_step`) ignores
            words; `bm25` uses only words, so all modes with notes are the same.
        noted: the corpus and notes to search.
        embed: embeds questions, and chunks that get notes; needed by all but `bm25`.
        mode: how notes are used.

    Raises:
        UsageError: the embedder is missing; or, when called, the corpus is another one, or as `rank_noted`.
    """
    config = NoteSearch(mode, words_weight=WORDS_WEIGHT if name == "hybrid" else 0.0)
    if embed is None and name != "bm25":
        raise UsageError(f"retriever {name}: needs an embedder; give `embed`")

    def retrieve(question: str, corpus: Corpus, top_k: int | None) -> Ranked:
        if corpus is not noted.corpus:
            raise UsageError("notes: belong to another corpus; make a retriever for the one you search")
        if name == "bm25":
            return rank_noted_words(question, noted, top_k)
        assert embed is not None
        return rank_noted(question, noted, embed, config, top_k)

    return retrieve


def best_of_scores(
    own: Float[np.ndarray, " chunks"],
    notes: Float[np.ndarray, " notes"],
    answering: Int[np.ndarray, " notes"],
    asking: Int[np.ndarray, " notes"] | None = None,
) -> Float[np.ndarray, " chunks"]:
    """Scores a chunk by the best of its own vector and its notes.

        score(c) = max(own(c), max_{n of c} min(note(n), own(asking(n))))

    A sentence is nearer to a question than its chunk, which also says other things. So without the cap, a note would
    rank its own chunk above the chunk that contains the sentence, and could push that one out of the results.

    Args:
        answering: for each note the chunk that it belongs to.
        asking: for each note the chunk that it comes from; None does not cap notes.
    """
    scores = own.copy()
    np.maximum.at(scores, answering, notes if asking is None else np.minimum(notes, own[asking]))
    return scores


def select_notes(
    scores: Float[np.ndarray, " notes"], groups: Int[np.ndarray, " notes"], most: int
) -> Int[np.ndarray, " _"]:
    """Positions of the notes nearest to a question, the best first; answers to one question together (Algorithm 2).

    Groups are taken whole, by the best score of each, until there are at least `most` notes. The last group may exceed
    that number, because a part of the answers to a question would be misleading.
    """
    best = np.full(int(groups.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(best, groups, scores)
    first = np.full(len(best), len(groups))
    np.minimum.at(first, groups, np.arange(len(groups)))
    # By the score of the group, then by its first note; within a group by the order of the notes.
    order = np.lexsort((np.arange(len(groups)), first[groups], -best[groups]))
    if len(order) <= most:
        return order
    end = most
    while end < len(order) and groups[order[end]] == groups[order[end - 1]]:
        end += 1
    return order[:end]


def walk_order(
    order: Int[np.ndarray, " chunks"], asking: Int[np.ndarray, " notes"], answering: Int[np.ndarray, " notes"]
) -> Int[np.ndarray, " chunks"]:
    """The first chunk, then the best of those that it links to by notes, then the others in their order."""
    named = set(answering[(asking == order[:1]) & (answering != order[:1])].tolist()) if len(order) else set()
    second = [chunk for chunk in order.tolist() if chunk in named][:1]
    return np.array([*order[:1], *second, *(chunk for chunk in order[1:].tolist() if chunk not in second)], np.int64)


def _mode_scores(
    question: str,
    asked: Float[np.ndarray, " dim"],
    own: Float[np.ndarray, " leaves"],
    noted: NotedCorpus,
    embed: Embed,
    config: NoteSearch,
) -> tuple[Float[np.ndarray, " leaves"], Int[np.ndarray, " _"]]:
    """Scores of the leaves, and the positions of the notes that moved one, the best first."""
    if not noted.notes or config.mode in ("none", "walk"):
        return own, np.zeros(0, np.int64)
    if config.mode == "best_of":
        scores = _cosines(noted.vectors, asked)
        if config.capped:
            scores = np.minimum(scores, own[noted.asking])
        moving = np.flatnonzero(scores > own[noted.answering])
        best_first = moving[np.argsort(-scores[moving], kind="stable")]
        return best_of_scores(own, scores, noted.answering), best_first
    if config.mode == "all":
        vectors, places = noted.with_all(embed, config.max_share)
        return _cosines(vectors, asked), places
    chosen = select_notes(_cosines(noted.keys, asked), noted.groups, config.num_notes)
    if config.mode == "random":
        rng = np.random.default_rng([config.seed, zlib.crc32(readable(question).encode())])
        chosen = rng.permutation(len(noted.notes))[: len(chosen)]
    changed = noted.fitting(chosen.tolist(), config.max_share)
    if changed:
        own = own.copy()
        own[list(changed)] = _cosines(_embed_with_notes(embed, noted, changed), asked)
    return own, _joined(changed)


def _embed_with_notes(
    embed: Embed, noted: NotedCorpus, fitting: Mapping[int, Sequence[int]]
) -> Float[np.ndarray, "n dim"]:
    """Unit vectors of chunks with notes; warns if an `Encoder` cuts one."""
    texts = [noted.text_with(leaf, places) for leaf, places in fitting.items()]
    before = embed.counts.num_texts_cut if isinstance(embed, Encoder) else 0
    vectors = unit_rows(embed_texts(embed, texts))
    if isinstance(embed, Encoder) and embed.counts.num_texts_cut > before:
        warnings.warn(
            "notes: chunks with inserted notes exceed the encoder's window, so only their beginnings are searched; cut "
            "smaller chunks, allow fewer notes (max_share), or use best_of, which inserts none",
            stacklevel=2,
        )
    return vectors


def _joined(fitting: Mapping[int, Sequence[int]]) -> Int[np.ndarray, " _"]:
    return np.array([place for places in fitting.values() for place in places], np.int64)


def _cosines(vectors: Float[np.ndarray, "n dim"] | Rows, asked: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " n"]:
    return cosine_scores(asked[None], vectors)[0]
