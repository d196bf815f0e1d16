"""The methods that are compared: each picks T chunks of a context, over a pool of texts that is indexed once."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qrag_jax.eval.records import METHODS
from qrag_jax.models.embedder import make_embedder
from qrag_jax.models.weights import LoadedEncoder, load_encoder
from qrag_jax.retrieval.batching import Contexts
from qrag_jax.retrieval.bm25 import Bm25Index
from qrag_jax.retrieval.env import EnvConfig
from qrag_jax.retrieval.retriever import EncoderSpec, ModelConfig, Retriever, retriever_around
from qrag_jax.retrieval.search import Progress, Texts, make_index
from qrag_jax.types import UsageError

# (contexts, num_steps) -> (chosen chunks int [batch, T] in order of retrieval, their scores float [batch, T])
Picker = Callable[[Contexts, int], tuple[np.ndarray, np.ndarray]]


def multi_step_picker(
    retriever: Retriever,
    texts: Texts,
    questions: Texts,
    progress: Progress | None = None,
    vectors: np.ndarray | None = None,
) -> Picker:
    """Greedy multi-step retrieval over an index built here, once; `vectors` are its action vectors, if at hand."""
    index = make_index(retriever, texts, progress, vectors)
    asked = index.read_questions(questions)

    def pick(contexts: Contexts, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
        played = index.play(asked, contexts, num_steps)
        return np.asarray(played.actions), np.asarray(played.q_values.sum(-1))

    return pick


def untrained_retriever(loaded: LoadedEncoder, model: ModelConfig, env: EnvConfig) -> Retriever:
    """An encoder as it was published, in the same multi-step search: state text against chunk text, no positions."""
    spec = EncoderSpec(
        "as given", num_layers=None, window=model.encoder.window, question_window=model.encoder.question_window
    )
    text = ModelConfig(mode="text", encoder=spec, state_chunk_window=model.state_chunk_window, scale=1.0)
    return retriever_around(text, replace(env, positions="none", num_q_heads=1), loaded)


def single_step_picker(chunk_vectors: np.ndarray, question_vectors: np.ndarray) -> Picker:
    """Nearest neighbours of the question alone by inner product, T at once."""

    def pick(contexts: Contexts, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
        rows = chunk_vectors[np.maximum(contexts.chunks, 0)]
        scores = np.einsum("bmd,bd->bm", rows, question_vectors[contexts.questions])
        scores = np.where(contexts.chunks >= 0, scores, -np.inf)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :num_steps]
        return best, np.take_along_axis(scores, best, axis=1)

    return pick


def bm25_picker(texts: Sequence[str], questions: Sequence[str]) -> Picker:
    """BM25 over each context as a collection of its own, T chunks at once."""
    index = Bm25Index(texts)

    def pick(contexts: Contexts, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
        asked = [str(questions[i]) for i in contexts.questions]
        if (contexts.chunks >= 0).all():
            return index.top_k_each(asked, num_steps, contexts.chunks)
        each = [index.top_k(q, num_steps, row[row >= 0]) for q, row in zip(asked, contexts.chunks, strict=True)]
        return np.stack([chosen for chosen, _ in each]), np.stack([scores for _, scores in each])

    return pick


def make_pickers(
    retriever: Retriever,
    texts: Texts,
    questions: Texts,
    methods: Sequence[str],
    baseline_encoder: str = "minilm",
    progress: Progress | None = None,
) -> dict[str, Picker]:
    """One picker for every method name.

    Args:
        retriever: the trained one.
        texts: pool of chunks.
        questions: pool of questions.
        methods: of `trained`, `untrained` (the baseline encoder in the same multi-step search), `single_step` (its
            nearest neighbours of the question) and `bm25`.
        baseline_encoder: source of the encoder of the untrained methods, all its layers, as published.
        progress: of the embedding of the texts.

    Raises:
        UsageError: an unknown method, or one that does not apply to a task of vectors.
    """
    unknown = sorted(set(methods) - set(METHODS))
    if unknown:
        raise UsageError(f"method {unknown[0]!r}: choose from {', '.join(METHODS)}")
    pickers: dict[str, Picker] = {}
    if "trained" in methods:
        pickers["trained"] = multi_step_picker(retriever, texts, questions, progress)
    if isinstance(texts, np.ndarray) or isinstance(questions, np.ndarray):
        if set(methods) & {"untrained", "bm25"}:
            raise UsageError(
                "untrained and bm25 read texts, this task is made of vectors: --methods trained,single_step"
            )
        if "single_step" in methods:
            pickers["single_step"] = single_step_picker(np.asarray(texts), np.asarray(questions))
        return pickers
    if set(methods) & {"untrained", "single_step"}:
        loaded = load_encoder(baseline_encoder)
        window = retriever.model.encoder.window
        vectors = make_embedder(loaded, window=window)(texts, progress)  # both methods search these
        if "untrained" in methods:
            untrained = untrained_retriever(loaded, retriever.model, retriever.env)
            pickers["untrained"] = multi_step_picker(untrained, texts, questions, vectors=vectors)
        if "single_step" in methods:
            ask = make_embedder(loaded, window=retriever.model.encoder.question_window, long_texts="error")
            pickers["single_step"] = single_step_picker(vectors, ask(questions))
    if "bm25" in methods:
        pickers["bm25"] = bm25_picker(texts, questions)
    return pickers
