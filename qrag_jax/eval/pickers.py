"""The methods that are compared: each picks T chunks of a context, over a pool of texts that is indexed once."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.models.embedder import make_embedder
from qrag_jax.models.network import PyTree
from qrag_jax.models.weights import LoadedEncoder, load_encoder
from qrag_jax.retrieval.batching import Contexts
from qrag_jax.retrieval.bm25 import Bm25Index
from qrag_jax.retrieval.env import Batch, EnvConfig, Rollout, rollout
from qrag_jax.retrieval.policy import make_greedy
from qrag_jax.retrieval.retriever import EncoderSpec, ModelConfig, Retriever, retriever_around
from qrag_jax.types import InputError, UsageError

# (contexts, num_steps) -> (chosen chunks int [batch, T] in order of retrieval, their scores float [batch, T])
Picker = Callable[[Contexts, int], tuple[np.ndarray, np.ndarray]]
Texts = Sequence[str] | np.ndarray
Progress = Callable[[int, int], None]


def multi_step_picker(
    retriever: Retriever, texts: Texts, questions: Texts, progress: Progress | None = None
) -> Picker:
    """Greedy multi-step retrieval: the index of action vectors is built here, once, and searched at every step."""
    rows, _ = retriever.rows(texts, "chunk", progress)
    question_rows, _ = retriever.rows(questions, "question")
    index = retriever.action_vectors(rows, None if isinstance(texts, np.ndarray) else texts)
    pools = jax.device_put((index, rows, question_rows))

    def play(env: EnvConfig, params: PyTree, pools: PyTree, contexts: Contexts) -> Rollout:
        index, rows, question_rows = pools
        return rollout(
            retriever.network,
            params,
            _batch(rows, question_rows, contexts),
            jax.random.key(0),  # a greedy policy draws nothing
            make_greedy(),
            env,
            action_vectors=index,
        )

    compiled = jax.jit(play, static_argnums=0)

    def pick(contexts: Contexts, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
        env = replace(retriever.env, num_steps=num_steps)
        played = compiled(env, retriever.params, pools, contexts)
        return np.asarray(played.actions), np.asarray(played.q_values.sum(-1))

    return pick


def _batch(rows: PyTree, question_rows: PyTree, contexts: Contexts) -> Batch:
    """The pool itself is the table: nothing of it is encoded, the index is at hand."""
    valid = contexts.chunks >= 0
    return Batch(
        table=rows,
        questions=question_rows.take(contexts.questions),
        chunks=jnp.maximum(contexts.chunks, 0),
        indices=jnp.broadcast_to(jnp.arange(contexts.chunks.shape[1]), contexts.chunks.shape),
        lengths=valid.sum(1),
        valid=valid,
        gold=contexts.gold,
        env=jnp.arange(len(contexts.chunks)),
    )


def untrained_retriever(source: str, model: ModelConfig, env: EnvConfig) -> Retriever:
    """The encoder as it was published, in the same multi-step search: state text against chunk text, no positions."""
    loaded = load_encoder(source)
    spec = EncoderSpec(source, None, window=model.encoder.window, question_window=model.encoder.question_window)
    text = ModelConfig(mode="text", encoder=spec, state_chunk_window=model.state_chunk_window, scale=1.0)
    return retriever_around(text, replace(env, positions="none", num_q_heads=1), loaded)


def single_step_picker(encoder: LoadedEncoder | None, texts: Texts, questions: Texts, window: int = 64) -> Picker:
    """Nearest neighbours of the question alone, T at once; given vectors are compared as they are."""
    if encoder is None:
        chunk_vectors, question_vectors = np.asarray(texts), np.asarray(questions)
    else:
        embed = make_embedder(encoder, window=window)
        chunk_vectors, question_vectors = embed(texts), embed(questions)

    def pick(contexts: Contexts, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
        rows = chunk_vectors[np.maximum(contexts.chunks, 0)]
        scores = np.einsum("bmd,bd->bm", rows, question_vectors[contexts.questions])
        scores = np.where(contexts.chunks >= 0, scores, -np.inf)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :num_steps]
        return best, np.take_along_axis(scores, best, axis=1)

    return pick


def bm25_picker(texts: Texts, questions: Texts) -> Picker:
    """BM25 over each context as a collection of its own, T chunks at once."""
    if isinstance(texts, np.ndarray):
        raise UsageError("bm25 reads words, this task is made of vectors: leave bm25 out of --methods")
    index = Bm25Index(texts)

    def pick(contexts: Contexts, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
        asked = [questions[i] for i in contexts.questions]
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
    """One picker for every method name: `trained`, `untrained`, `single_step`, `bm25`.

    Raises:
        UsageError: an unknown method, or one that does not apply to a task of vectors.
    """
    given_vectors = isinstance(texts, np.ndarray)
    pickers: dict[str, Picker] = {}
    for method in methods:
        if method == "trained":
            pickers[method] = multi_step_picker(retriever, texts, questions, progress)
        elif method == "bm25":
            pickers[method] = bm25_picker(texts, questions)
        elif method == "single_step":
            encoder = None if given_vectors else load_encoder(baseline_encoder)
            pickers[method] = single_step_picker(encoder, texts, questions, retriever.model.encoder.window)
        elif method == "untrained":
            if given_vectors:
                raise UsageError("untrained reads texts, this task is made of vectors: leave it out of --methods")
            untrained = untrained_retriever(baseline_encoder, retriever.model, retriever.env)
            pickers[method] = multi_step_picker(untrained, texts, questions, progress)
        else:
            raise UsageError(f"method {method!r}: choose from trained, untrained, single_step, bm25")
    return pickers


def check_steps(contexts: Contexts, num_steps: int) -> None:
    """Refuses contexts with fewer chunks than picks."""
    num_chunks = (contexts.chunks >= 0).sum(1)
    if (num_chunks < num_steps).any():
        raise InputError(
            f"a context of {int(num_chunks.min())} chunks cannot give {num_steps} picks: lower --num_steps or leave it out"
        )
