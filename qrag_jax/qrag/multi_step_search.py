"""Greedy multi-step search: chunks are embedded once and then searched for any number of questions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite

import jax
import numpy as np

from qrag_jax.models.encoder.embedder import added_tokens, make_embedder
from qrag_jax.models.encoder.weights import LoadedEncoder
from qrag_jax.models.towers.q_network import PyTree, TokenRows, VectorRows
from qrag_jax.qrag.batching import Contexts, Link, check_linkable, make_linker
from qrag_jax.qrag.beam import Plan
from qrag_jax.qrag.chunk_encoder import one_line
from qrag_jax.qrag.env import Rollout
from qrag_jax.qrag.long_contexts import LongPlay, is_long, play_long
from qrag_jax.qrag.retriever import Progress, QRagRetriever, Texts
from qrag_jax.search.corpus import Corpus, check_fingerprint
from qrag_jax.types import InputError, Step, Trajectory, UsageError

_FEWEST_SLOTS = 8
NUM_RUNNERS_UP = 5


@dataclass(frozen=True)
class ActionBank:
    """Embedded chunks and the retriever that searches them; made by `make_action_bank` or `action_bank`.

    Attributes:
        retriever: whose towers made the vectors.
        num_chunks: chunks in it.
        num_slots: capacity in chunks; searches are compiled for it.
        num_texts_cut: chunks that were longer than the window; only their beginning is read.
        read_questions: questions (texts, or vectors [n, dim]) -> inputs of the state tower; a longer question is cut
            to its window (`num_questions_cut`).
        play: (question rows, contexts over the chunks, T, n = 0) -> greedy rollouts, which take chunks to the end and
            report the Q of STOP and the n best chunks at each step. Compiled once per retriever for every shape of
            bank, contexts, T and n. Contexts of more than `long_contexts.LONG` chunks are scored in blocks.
        plan: (question rows, contexts, T, beam width, threshold) -> beam search, compiled as `play`.
        texts: of the chunks, if the retriever compares them (`env.links`): its contexts then need the output of
            `linker`.
    """

    retriever: QRagRetriever
    num_chunks: int
    num_slots: int
    num_texts_cut: int
    read_questions: Callable[[Texts], PyTree]
    play: Callable[..., Rollout | LongPlay]
    plan: Callable[[PyTree, Contexts, int, int, float], Plan]
    texts: Texts | None = None

    def linker(self, questions: Texts) -> Link:
        """A function that prepares contexts over the bank for `play` and `plan`; errors as `batching.make_linker`."""
        return make_linker(self.retriever.env, self.texts, questions)


def make_action_bank(
    retriever: QRagRetriever,
    texts: Texts,
    progress: Progress | None = None,
    vectors: np.ndarray | None = None,
    mapped: bool = False,
) -> ActionBank:
    """Embeds chunks that are plain texts or vectors, as in tasks; `action_bank` is for documents.

    Args:
        retriever: as trained.
        texts: chunks in document order: texts, or float32 [n, dim] for a retriever of given vectors.
        progress: of the embedding.
        vectors: action vectors of the chunks, if already computed.
        mapped: keep all vectors on the disk (`files.mapped`), for contexts that are scored in blocks.

    Raises:
        InputError: no chunks, vectors for a retriever of texts, or texts for a retriever of vectors.
    """
    if not len(texts):
        raise InputError("no chunk to search in: give at least one")
    rows, num_texts_cut = retriever.rows(texts, "chunk", progress, mapped)
    if vectors is None:
        vectors = retriever.action_vectors(rows, texts, progress, mapped)
    pool = vectors, rows
    return _bank(retriever, len(texts), num_texts_cut, pool if mapped else jax.device_put(pool), texts)


def action_bank(retriever: QRagRetriever, corpus: Corpus) -> ActionBank:
    """The bank of a corpus that was embedded by the encoder of a run; its chunks are the leaves, in their order.

    The encoder is `QRagRetriever.chunk_encoder`. Latent towers read its vectors, so one corpus serves all runs on that
    encoder; of text towers the corpus holds the action vectors themselves. The bank has room for up to half as many
    chunks more (`num_slots`), so corpora of many sizes share few compiled functions.

    Raises:
        InputError: the corpus has no vectors, or those of another encoder; more chunks than a run with `env.links`
            compares with each other.
    """
    if retriever.env.links:
        check_linkable(len(corpus.leaves))
    if corpus.vectors is None:
        raise InputError("corpus: has no vectors: embed it with the run (embed_corpus and QRagRetriever.chunk_encoder)")
    check_fingerprint(corpus, retriever.chunk_encoder.fingerprint, "this run")
    vectors = corpus.vectors[corpus.leaves] if corpus.trees else np.asarray(corpus.vectors)
    if retriever.model.mode == "latent":
        rows = with_slots(retriever.rows(vectors, "chunk")[0])
        pool = retriever.action_vectors(rows, vectors), rows
    else:
        texts = [one_line(corpus.full_texts[node]) for node in corpus.leaves.tolist()]
        pool = with_slots((vectors, retriever.rows(texts, "chunk")[0]))
    texts = [corpus.full_texts[node] for node in corpus.leaves.tolist()] if retriever.env.links else None
    return _bank(retriever, len(corpus.leaves), corpus.num_beyond_window, jax.device_put(pool), texts)


def num_slots(num_chunks: int) -> int:
    """The smallest of 8, 12, 16, 24, 32, 48, ... that is at least the number of chunks."""
    power = 1 << (num_chunks - 1).bit_length()
    return max(_FEWEST_SLOTS, power * 3 // 4 if power * 3 // 4 >= num_chunks else power)


def with_slots(rows: PyTree) -> PyTree:
    """The rows, and copies of the last one up to a number of slots: no context names them, so they are never read."""

    def fill(leaf: np.ndarray) -> np.ndarray:
        more = num_slots(len(leaf)) - len(leaf)
        return np.pad(leaf, [(0, more)] + [(0, 0)] * (leaf.ndim - 1), mode="edge")

    return jax.tree.map(fill, rows)


def _bank(
    retriever: QRagRetriever, num_chunks: int, num_texts_cut: int, pool: PyTree, texts: Texts | None = None
) -> ActionBank:
    """The bank of a pool, (action vectors, rows), of the chunks in their order and perhaps others behind them.

    The pool is where it is used: on the device, or on the host for contexts that are scored in blocks.
    """
    functions = retriever.search_functions
    on_device, on_host = cache(lambda: jax.device_put(pool)), cache(lambda: jax.tree.map(np.asarray, pool))

    def run(questions: PyTree, contexts: Contexts, num_steps: int, num_best: int = 0) -> Rollout | LongPlay:
        env = replace(retriever.env, num_steps=num_steps)
        if is_long(contexts.chunks.shape[1]):
            own = retriever.block_functions, env, retriever.params, on_host()
            return play_long(*own, questions, contexts, num_best)
        return functions.play(env, num_best, retriever.params, on_device(), questions, contexts)

    def run_plan(questions: PyTree, contexts: Contexts, num_steps: int, width: int, threshold: float) -> Plan:
        env = replace(retriever.env, num_steps=num_steps)
        return functions.plan(env, width, np.float32(threshold), retriever.params, on_device(), questions, contexts)

    slots, read = len(pool[0]), _question_reader(retriever)
    return ActionBank(retriever, num_chunks, slots, num_texts_cut, read, run, run_plan, texts)


def search_bank(
    bank: ActionBank,
    question: str | np.ndarray,
    num_steps: int | None = None,
    query_id: str = "",
    threshold: float | None = None,
    learned_stop: bool = False,
) -> Trajectory:
    """Picks chunks for one question greedily; each pick depends on those before it.

    Args:
        bank: of the chunks.
        question: a text, or float32 [dim] for a retriever of given vectors.
        num_steps: T, chunks to pick; None takes as many as in training.
        query_id: for the trajectory.
        threshold: stop before the first pick whose Q is lower; the first pick always stays.
        learned_stop: stop when Q of STOP exceeds that of every chunk.

    Returns:
        T steps, or those before a stop: index of the chunk, its Q value (summed over heads), its position, and the
        5 next best chunks; and the reason of the stop, `num_steps`, `threshold` or `learned_stop`.

    Raises:
        InputError: fewer chunks than steps, or a question that is empty or longer than its window.
        UsageError: `num_steps` below 1, or a run that has not learned to stop.
    """
    if learned_stop and not bank.retriever.env.stop:
        raise UsageError("learned_stop=True: this run has not learned to stop (env.stop=true in training)")
    steps = bank.retriever.env.num_steps if num_steps is None else num_steps
    if steps < 1:
        raise UsageError(f"num_steps={steps}: pick at least one chunk")
    if bank.num_chunks < steps:
        raise InputError(
            f"{bank.num_chunks} chunks cannot give {steps} picks: lower num_steps or search in a longer text"
        )
    asked = [question] if isinstance(question, str) else question[None]
    check_questions(bank.retriever, asked)
    questions = bank.read_questions(asked)
    slots = np.arange(bank.num_slots, dtype=np.int32)[None]
    everything = np.where(slots < bank.num_chunks, slots, -1)
    contexts = Contexts(np.zeros(1, np.int32), everything, np.zeros(everything.shape, bool))
    played = bank.play(questions, bank.linker(asked)(contexts), steps, 1 + NUM_RUNNERS_UP)
    return trajectory_of(played, query_id, threshold, learned_stop)


def trajectory_of(
    played: Rollout | LongPlay, query_id: str = "", threshold: float | None = None, learned_stop: bool = False
) -> Trajectory:
    """The first question's picks of a rollout with its best chunks; arguments as of `search_bank`."""
    picks = _steps(played)
    for t, pick in enumerate(picks[1:], start=1):
        if learned_stop and pick.stop_q_value is not None and pick.stop_q_value > pick.q_value:
            return Trajectory(query_id, picks[:t], "learned_stop", pick)
        if threshold is not None and min(picks[0].q_value, pick.q_value) < threshold:
            return Trajectory(query_id, picks[:t], "threshold", pick)
    return Trajectory(query_id, picks, "num_steps")


def _steps(played: Rollout | LongPlay) -> tuple[Step, ...]:
    """The steps of the first question of a rollout."""
    assert played.best is not None and played.best_q_values is not None
    columns = (played.actions, played.q_values.sum(-1), played.positions, played.best, played.best_q_values)
    rows = zip(*(np.asarray(x)[0].tolist() for x in (*columns, played.stop_q_values.sum(-1))), strict=True)
    steps = []
    for action, q_value, position, best, best_q, stop_q in rows:
        others = tuple((chunk, q) for chunk, q in zip(best, best_q, strict=True) if chunk != action and isfinite(q))
        steps.append(Step(action, q_value, position, others, stop_q if isfinite(stop_q) else None))
    return tuple(steps)


def check_questions(retriever: QRagRetriever, questions: Texts) -> None:
    """Raises an error for questions that the retriever cannot read, before anything is embedded."""
    if isinstance(questions, np.ndarray) or retriever.encoder is None:
        return
    window, added = retriever.model.encoder.question_window, _num_added(retriever.encoder)
    for question, ids in zip(questions, retriever.encoder.tokenizer.ids(questions), strict=True):
        shown = question if len(question) <= 60 else question[:60] + "..."
        if not len(ids):
            raise InputError(f"question {question!r}: nothing to ask; write a question")
        if len(ids) + added > window:
            raise InputError(
                f"question {shown!r} has {len(ids) + added} tokens (special ones counted), this run reads {window} "
                "(model.encoder.question_window): shorten it"
            )


def num_tokens_asked(retriever: QRagRetriever, question: str, picked: Sequence[str]) -> int:
    """Number of tokens that a search encoded, with special ones: those of the question and, in text mode, of every
    state.

    Args:
        retriever: of texts.
        picked: texts of its picks, in their order.
    """
    assert retriever.encoder is not None
    tokenizer, model = retriever.encoder.tokenizer, retriever.model
    in_question = tokenizer.count(question) + _num_added(retriever.encoder)
    if model.mode == "latent":
        return in_question
    special = tokenizer.num_special
    ids = tokenizer.ids([one_line(text) for text in picked])
    lengths = [min(len(row) + special, model.encoder.window) for row in ids]
    added = [min(length - special + 1, model.state_chunk_window) for length in lengths]
    return sum(in_question + sum(added[:t]) for t in range(len(added)))


def num_questions_cut(retriever: QRagRetriever, questions: Texts) -> int:
    """Number of questions that are longer than their window."""
    if isinstance(questions, np.ndarray) or retriever.encoder is None:
        return 0
    ids, added = retriever.encoder.tokenizer.ids(questions), _num_added(retriever.encoder)
    return sum(len(row) + added > retriever.model.encoder.question_window for row in ids)


def _num_added(encoder: LoadedEncoder) -> int:
    """Tokens of a question's row beside those of its text."""
    return added_tokens(encoder.tokenizer, encoder.prompts.query)


def _question_reader(retriever: QRagRetriever) -> Callable[[Texts], PyTree]:
    """One encoder for all later questions, in shapes that stay the same from question to question."""
    encoder, window = retriever.encoder, retriever.model.encoder.question_window
    if encoder is None:
        return lambda questions: retriever.rows(questions, "question")[0]
    if retriever.model.mode == "text":
        read = lambda questions: encoder.tokenizer.encode(questions, window, length=window)  # noqa: E731
        rows = lambda table: TokenRows(table.tokens, table.lengths)  # noqa: E731
    else:
        read, rows = make_embedder(encoder, window=window).questions, VectorRows

    def read_questions(questions: Texts) -> PyTree:
        if isinstance(questions, np.ndarray):  # of the encoder of a latent run
            return retriever.rows(questions, "question")[0]
        return rows(read(questions))

    return read_questions
