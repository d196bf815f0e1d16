"""Notes beside other ways: a multi-step run (Q-RAG) on their pools, and exact evidence within a budget of tokens."""

import time
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.notes.note_scores import ModeScores, ReportProgress, check_modes, rank_mode
from qrag_jax.eval.notes.note_sets import Pool
from qrag_jax.eval.retrieval.harness import pick_all
from qrag_jax.eval.retrieval.pickers import multi_step_picker
from qrag_jax.measures.evidence_scores import Sentence, evidence_scores, make_sentence_finders
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.multi_step_search import make_action_bank
from qrag_jax.qrag.retriever import QRagRetriever
from qrag_jax.search.corpus import ChunkDocument, Corpus, build_corpus, embed_corpus
from qrag_jax.search.hybrid import rank_dense
from qrag_jax.search.note_search import NoteSearch, note_corpus
from qrag_jax.types import Chunk, CountTokens, Embed, InputError, NoteReader


def score_run(
    pool: Pool,
    retriever: QRagRetriever,
    ks: Sequence[int],
    num_steps: int,
    among: Int[np.ndarray, "n candidates"] | None = None,
) -> ModeScores:
    """What the first k picks of a run hold, for every question of a pool.

    Texts and questions are cut at the run's windows. A pool may be far longer than the contexts of training: its index
    is made once, and a step compares one state with all chunks. A run that compares the chunks of a context with each
    other (`env.links`) picks from candidates alone.

    Args:
        ks: picks that are looked at; those beyond `num_steps` are not there and find nothing.
        num_steps: picks; text towers read them all, and have room for few.
        among: for each question the chunks that it picks from (`nearest_chunks`); None: all.

    Returns:
        `seconds`: the mean of a question, asked in batches, with the compilation of the search and without the index.
        `embedded`: states that text towers read behind the first one.
    """
    index = make_action_bank(retriever, Corpus(pool.documents, pool.chunks).texts)
    number = len(pool.asked)
    chunks = np.tile(np.arange(index.num_chunks), (number, 1)) if among is None else among
    gold = np.array([np.isin(row, list(asked.gold)) for row, asked in zip(chunks, pool.asked, strict=True)])
    contexts = Contexts(np.arange(number, dtype=np.int32), chunks.astype(np.int32), gold)
    start = time.perf_counter()
    picker = multi_step_picker(index, [asked.question for asked in pool.asked])
    picked, is_gold = pick_all(picker, contexts, num_steps)
    seconds = (time.perf_counter() - start) / number
    found = np.take_along_axis(is_gold, picked.chosen, axis=1)
    wanted = np.array([len(asked.gold) for asked in pool.asked])
    recall = np.stack([found[:, :k].sum(axis=1) / wanted for k in ks], axis=1)
    states = num_steps - 1 if retriever.model.mode == "text" else 0
    all_gold, none = (recall == 1).astype(np.float64), np.zeros(number)
    return ModeScores(all_gold, recall, np.full(number, 1.0 * states), np.full(number, seconds), none, none)


def nearest_chunks(pool: Pool, embed: Embed, number: int) -> Int[np.ndarray, "n candidates"]:
    """For each question the chunks with the nearest vectors, at most so many, in the order of the pool."""
    corpus = embed_corpus(Corpus(pool.documents, pool.chunks), embed)
    found = [np.sort(rank_dense(asked.question, corpus, embed, number).ids) for asked in pool.asked]
    return np.stack(found)


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
