"""Do notes harm where nothing has to be bridged? Exact evidence that is found within a budget of tokens."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.notes.note_scores import ReportProgress, check_modes, rank_mode
from qrag_jax.measures.evidence_scores import Sentence, evidence_scores, make_sentence_finders
from qrag_jax.search.corpus import ChunkDocument, build_corpus
from qrag_jax.search.note_search import NoteSearch, note_corpus
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

    Of sentences, by their places; ERec, of characters by what a context says, is `measures/evidence_recall.py`. Notes
    take no room: what is read is the document's own text (`measures/evidence_scores.py` says which sentences
    a chunk holds). All documents are searched.

    Args:
        modes: of `scores.EVAL_MODES`.
        num_tokens: that are read; the first chunk that goes beyond them ends it.
        search, seed: as of `score_notes`.
        progress: called with (questions done, of).

    Returns:
        For each mode one recall a question, in their order.
    """
    check_modes(modes, [1])
    if task.kind != "evidence":
        raise InputError(f"{task.name}: its labels are documents; choose a task with evidence")
    corpus = build_corpus(task.documents, chunk, embed)
    noted = note_corpus(corpus, reader(corpus.documents, corpus.nodes).notes, embed, count)
    texts = {document.id: document.text for document in task.documents}
    held_by, evident_in = make_sentence_finders(texts, task.sentences)
    found: dict[str, list[float]] = {mode: [] for mode in modes}
    for done, question in enumerate(task.questions, 1):
        evidence = (evident_in(part.document_id, ((part.start, part.end),)) for part in question.evidence)
        gold = frozenset[Sentence]().union(*evidence)
        for mode in modes:
            ids = rank_mode(question.text, noted, embed, mode, search or NoteSearch(), seed).ids.tolist()
            read = _within([corpus.nodes[node] for node in ids], num_tokens)
            held = [held_by(node.document_id, node.spans) for node in read]
            found[mode].append(evidence_scores(held, gold, len(held)).recall if held else 0.0)
        if progress is not None:
            progress(done, len(task.questions))
    return {mode: np.array(values) for mode, values in found.items()}


def _within(chunks: Sequence[Chunk], num_tokens: int) -> list[Chunk]:
    total = np.cumsum([chunk.num_tokens for chunk in chunks])
    return list(chunks[: int(np.searchsorted(total, num_tokens, side="right"))])
