"""Do notes harm where nothing has to be bridged? Exact evidence that is found within a budget of tokens."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float

from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.measures.evidence_scores import (
    Sentence,
    belonging,
    cut_long,
    evidence_scores,
    index_sentences,
    touched,
)
from qrag_jax.eval.notes.scores import ReportProgress, check_modes, rank_mode
from qrag_jax.retrieval.corpus.corpus import ChunkDocument, build_corpus
from qrag_jax.retrieval.index.notes import NoteSearch, note_corpus
from qrag_jax.types import Chunk, CountTokens, Embed, InputError, NoteReader


def evidence_recall(
    task: StudyTask,
    chunk: ChunkDocument,
    reader: NoteReader,
    embed: Embed,
    count: CountTokens,
    *,
    modes: Sequence[str],
    num_tokens: int = 1000,
    search: NoteSearch | None = None,
    seed: int = 0,
    progress: ReportProgress | None = None,
) -> dict[str, Float[np.ndarray, " n"]]:
    """Share of the evidence sentences that stand in the first chunks which `num_tokens` hold together, mode by mode.

    Notes take no room: what is read is the document's own text (`eval/measures/evidence_scores.py` says which sentences
    a chunk holds). All documents are searched.

    Args:
        task: of kind "evidence".
        chunk: cuts a document.
        reader: writes the notes.
        embed: texts -> vectors.
        count: tokens of a text.
        modes: of `scores.EVAL_MODES`.
        num_tokens: that are read; the first chunk that goes beyond them ends it.
        search, seed: as of `score_notes`.
        progress: called with (questions done, of).

    Returns:
        For each mode one recall a question, in their order.

    Raises:
        InputError: a task without evidence, or as `build_corpus` and `note_corpus`.
        UsageError: an unknown mode.
    """
    check_modes(modes, [1])
    if task.kind != "evidence":
        raise InputError(f"{task.name}: its labels are documents; choose a task with evidence")
    corpus = build_corpus(task.documents, chunk, embed)
    noted = note_corpus(corpus, reader(corpus.documents, corpus.nodes).notes, embed, count)
    held_of, gold_of = _sentence_finders(task)
    found: dict[str, list[float]] = {mode: [] for mode in modes}
    for done, question in enumerate(task.questions, 1):
        gold = gold_of(question.id)
        for mode in modes:
            ids = rank_mode(question.text, noted, embed, mode, search or NoteSearch(), seed).ids.tolist()
            read = _within([corpus.nodes[node] for node in ids], num_tokens)
            held = [held_of(node.document_id, node.spans) for node in read]
            found[mode].append(evidence_scores(held, gold, len(held)).recall if held else 0.0)
        if progress is not None:
            progress(done, len(task.questions))
    return {mode: np.array(values) for mode, values in found.items()}


def _within(chunks: Sequence[Chunk], num_tokens: int) -> list[Chunk]:
    total = np.cumsum([chunk.num_tokens for chunk in chunks])
    return list(chunks[: int(np.searchsorted(total, num_tokens, side="right"))])


def _sentence_finders(task: StudyTask):
    """(spans of a document -> the sentences they hold), (id of a question -> those of its evidence)."""
    texts = {document.id: document.text for document in task.documents}
    asked = {question.id: question for question in task.questions}

    @cache
    def index_of(name: str):
        return index_sentences(texts[name], cut_long(texts[name], task.sentences[name]))

    @cache
    def held_of(name: str, spans: tuple[tuple[int, int], ...]) -> frozenset[Sentence]:
        return frozenset((name, number) for number in belonging(spans, index_of(name)))

    def gold_of(question_id: str) -> frozenset[Sentence]:
        return frozenset(
            (part.document_id, number)
            for part in asked[question_id].evidence
            for number in touched([(part.start, part.end)], index_of(part.document_id))
        )

    return held_of, gold_of
