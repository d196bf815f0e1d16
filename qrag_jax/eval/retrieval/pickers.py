"""The methods that are compared: each picks T chunks of a context, over a pool of texts that is indexed once.

Every method picks to the end; `protocols` then says how many of its picks count.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from qrag_jax.chunking.text.words import plain_tokens
from qrag_jax.files.mapped import mapped_array
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.weights import LoadedEncoder, load_encoder
from qrag_jax.names import METHODS
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.long_contexts import is_long
from qrag_jax.qrag.multi_step_search import ActionBank, Progress, Texts, make_action_bank
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, QRagRetriever, retriever_around
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.types import Arg, Reranker, UsageError

_NUM_RERANKED = 10


class Picked(NamedTuple):
    """T picks for each of `batch` questions.

    Attributes:
        chosen: int [batch, T], chunks in order of retrieval.
        scores: float [batch, T], the value that each was picked by.
        num_before_stop: int [batch], picks before the method's own learned STOP (T where it never stops); None for a
            method that has none.
    """

    chosen: np.ndarray
    scores: np.ndarray
    num_before_stop: np.ndarray | None = None


# (contexts, num_steps) -> picks
Picker = Callable[[Contexts, int], Picked]


def multi_step_picker(index: ActionBank, questions: Texts) -> Picker:
    """Greedy multi-step retrieval over an index."""
    asked, link = index.read_questions(questions), index.linker(questions)

    def pick(contexts: Contexts, num_steps: int) -> Picked:
        played = index.play(asked, link(contexts), num_steps)
        q = np.asarray(played.q_values.sum(-1))
        stops = np.asarray(played.stop_q_values.sum(-1)) > q
        before = np.where(stops.any(1), stops.argmax(1), num_steps) if index.retriever.env.stop else None
        return Picked(np.asarray(played.actions), q, before)

    return pick


def beam_picker(index: ActionBank, questions: Texts, width: int, threshold: float | None = None) -> Picker:
    """Beam search over Q (`retrieval.beam`); a beam of a run without STOP is finished below the `threshold`."""
    asked, link, stop = index.read_questions(questions), index.linker(questions), index.retriever.env.stop
    lowest = -np.inf if threshold is None or stop else threshold

    def pick(contexts: Contexts, num_steps: int) -> Picked:
        plan = index.plan(asked, link(contexts), num_steps, width, lowest)
        before = np.asarray(plan.num_kept) if stop else None
        return Picked(np.asarray(plan.actions), np.asarray(plan.q_values), before)

    return pick


# What an encoder has no parameters for.
_AS_PUBLISHED: dict[str, Any] = {
    "positions": "none",
    "num_q_heads": 1,
    "stop": False,
    "stop_head": "vector",
    "ranking_scale": None,
    "links": False,
    "coverage": False,
}


def untrained_retriever(loaded: LoadedEncoder, model: ModelConfig, env: EnvConfig) -> QRagRetriever:
    """A published encoder in the same multi-step search: state text against chunk text.

    It has neither positions nor STOP, which are learned.
    """
    spec = EncoderSpec(
        "as given", num_layers=None, window=model.encoder.window, question_window=model.encoder.question_window
    )
    text = ModelConfig(mode="text", encoder=spec, state_chunk_window=model.state_chunk_window, scale=1.0)
    return retriever_around(text, replace(env, **_AS_PUBLISHED), loaded)


def single_step_picker(chunk_vectors: np.ndarray, question_vectors: np.ndarray) -> Picker:
    """Nearest neighbours of the question alone by inner product, T at once."""

    def product(contexts: Contexts) -> np.ndarray:
        asked, chunks = question_vectors[contexts.questions], np.maximum(contexts.chunks, 0)
        if is_long(chunks.shape[1]):  # the vectors of a context would not fit into memory
            return np.stack([(chunk_vectors @ own)[row] for own, row in zip(asked, chunks, strict=True)])
        return np.einsum("bmd,bd->bm", chunk_vectors[chunks], asked)

    def pick(contexts: Contexts, num_steps: int) -> Picked:
        scores = product(contexts)
        scores = np.where(contexts.chunks >= 0, scores, -np.inf)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :num_steps]
        return Picked(best, np.take_along_axis(scores, best, axis=1))

    return pick


def bm25_picker(texts: Sequence[str], questions: Sequence[str]) -> Picker:
    """BM25 over each context as a separate collection, T chunks at a time.

    It compares plain words, as the published baselines do, without the forms of identifiers that search adds.
    """
    index = Bm25Index(texts, plain_tokens)

    def pick(contexts: Contexts, num_steps: int) -> Picked:
        asked = [str(questions[i]) for i in contexts.questions]
        if (contexts.chunks >= 0).all():
            return Picked(*index.top_k_each(asked, num_steps, contexts.chunks))
        each = [index.top_k(q, num_steps, row[row >= 0]) for q, row in zip(asked, contexts.chunks, strict=True)]
        return Picked(np.stack([chosen for chosen, _ in each]), np.stack([scores for _, scores in each]))

    return pick


def rerank_picker(first: Picker, texts: Sequence[str], questions: Sequence[str], reranker: Reranker) -> Picker:
    """The best chunks of another method, `_NUM_RERANKED` or T if that is more, in the order of a reranker.

    Scores are those of `search/rerank.py`.
    """

    def pick(contexts: Contexts, num_steps: int) -> Picked:
        found = first(contexts, max(num_steps, _NUM_RERANKED))
        for row, (chosen, scores) in enumerate(zip(found.chosen, found.scores, strict=True)):
            real = np.flatnonzero(np.isfinite(scores))  # the others are padding
            passages = [str(texts[contexts.chunks[row, place]]) for place in chosen[real]]
            own = reranker(str(questions[contexts.questions[row]]), passages)
            total = own if reranker.weight is None else scores[real] + reranker.weight * own
            order = np.argsort(-total, kind="stable")
            chosen[real], scores[real] = chosen[real][order], total[order]
        return Picked(found.chosen[:, :num_steps], found.scores[:, :num_steps])

    return pick


def make_pickers(
    retriever: QRagRetriever,
    texts: Texts,
    questions: Texts,
    methods: Sequence[str],
    baseline_encoder: str = "minilm",
    progress: Progress | None = None,
    index: ActionBank | None = None,
    reranker: Reranker | None = None,
    mapped: bool = False,
) -> dict[str, Picker]:
    """One picker for every method name.

    Args:
        retriever: the trained one.
        texts: pool of chunks.
        questions: pool of questions.
        methods: of `trained`, `untrained` (the baseline encoder in the same multi-step search), `single_step` (its
            nearest neighbours of the question), `bm25` and `reranked` (the best of `single_step`).
        baseline_encoder: source of the encoder of the untrained methods, all its layers, as published.
        progress: of the embedding of the texts.
        index: of the texts by the trained retriever, if already built.
        reranker: of `reranked`.
        mapped: keep vectors of texts on the disk (`files.mapped`).

    Raises:
        UsageError: an unknown method, or one that does not apply to a task of vectors.
    """
    unknown = sorted(set(methods) - set(METHODS))
    if unknown:
        raise UsageError(f"choose from {', '.join(METHODS)}", field="method", value=unknown[0])
    pickers: dict[str, Picker] = {}
    if "trained" in methods:
        index = index or make_action_bank(retriever, texts, progress, mapped=mapped)
        pickers["trained"] = multi_step_picker(index, questions)
    if isinstance(texts, np.ndarray) or isinstance(questions, np.ndarray):
        if set(methods) & {"untrained", "bm25", "reranked"}:
            raise UsageError(
                "untrained, bm25 and reranked read texts, this task is made of vectors",
                remedy=(": ", Arg("methods", ("trained", "single_step"))),
            )
        if "single_step" in methods:
            pickers["single_step"] = single_step_picker(np.asarray(texts), np.asarray(questions))
        return pickers
    if set(methods) & {"untrained", "single_step", "reranked"}:
        loaded = load_encoder(baseline_encoder)
        window = retriever.model.encoder.window
        embedder = make_embedder(loaded, window=window)
        out = mapped_array((len(texts), embedder.dim)) if mapped else None
        vectors = embedder(texts, progress, out)  # both methods search these
        if "untrained" in methods:
            untrained = untrained_retriever(loaded, retriever.model, retriever.env)
            bank = make_action_bank(untrained, texts, vectors=vectors, mapped=mapped)
            pickers["untrained"] = multi_step_picker(bank, questions)
        if set(methods) & {"single_step", "reranked"}:
            ask = make_embedder(loaded, window=retriever.model.encoder.question_window)
            single_step = single_step_picker(vectors, ask.questions(questions))
            pickers |= {"single_step": single_step} if "single_step" in methods else {}
            if "reranked" in methods and reranker is not None:
                pickers["reranked"] = rerank_picker(single_step, texts, questions, reranker)
    if "bm25" in methods:
        pickers["bm25"] = bm25_picker(texts, questions)
    return pickers
