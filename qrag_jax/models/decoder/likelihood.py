"""Scores passages and answers by a decoder that reads each of them once and writes nothing.

    likelihood:   score(q, d) = 1/|q| sum_i log p(q_i | prompt with d, q_<i)                (UPR, Sachan et al. 2022)
    yes or no:    score(q, d) = log p("yes" | prompt with q and d) - log p("no" | the same)   (Qwen3-Reranker)
    an answer a:  log p(a_i | prompt, a_<i), for each of its tokens

The beginning that all prompts share is read once. Rows are padded on the left to one of few lengths, so the targets are
at the same place in every row and nothing is compiled for one question.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.network import (
    ComputeDtype,
    Params,
    hidden_states,
    next_logprobs,
    sliced_fast,
    vocabulary_logits,
)
from qrag_jax.models.decoder.rerank_prompts import LIKELIHOOD_WEIGHT, RerankPrompt, ScoreKind
from qrag_jax.models.decoder.rollout import LayerCache, empty_cache, read_prompts
from qrag_jax.models.decoder.weights import LoadedDecoder, num_parameters
from qrag_jax.models.weights.machine import multiplies_bfloat16
from qrag_jax.types import InputError, TextCounts

_WINDOW = 2048  # most tokens of a prompt; attention to more takes gigabytes
_UNSEEN = -1e30  # logit of slots that a query does not see
_LEAST = -50.0  # below the largest logit: a weight of 2e-22
_ROWS, _LONG = 5, 1024  # passages that are read together, unless they are longer than this
_BEGINNING = 32  # the shared beginning of answers' prompts has a multiple of this many tokens
_WEIGHTS = {"likelihood": LIKELIHOOD_WEIGHT, "yesno": None}


class DecoderReranker:
    """A decoder that scores passages. Satisfies `types.Reranker`.

    Attributes:
        name: as given.
        kind: likelihood or yesno.
        weight: see `types.Reranker`: `LIKELIHOOD_WEIGHT`, or None for yesno, which was trained to order passages alone.
        counts: passages and tokens read so far.
        num_parameters: of the decoder.
    """

    def __init__(self, loaded: LoadedDecoder, kind: ScoreKind, name: str, dtype: ComputeDtype | None = None) -> None:
        """Reads the beginning of the prompt.

        Args:
            dtype: of matrix products and cache; None is that of the parameters. Scores are float32.

        Raises:
            UsageError, InputError: as `RerankPrompt.of`.
        """
        self.name, self.kind, self.weight, self.counts = name, kind, _WEIGHTS[kind], TextCounts()
        self.num_parameters = num_parameters(loaded.config)
        self._tokenizer, self._config = loaded.tokenizer, loaded.config
        self._prompt = RerankPrompt.of(kind, loaded.tokenizer)
        self._params = sliced_fast(jax.device_put(loaded.params))
        compute: Any = dtype or str(loaded.params["norm"]["scale"].dtype)
        read, self._score = (
            _compiled_read(loaded.config, compute),
            _compiled_score(loaded.config, compute, self._prompt.answers),
        )
        shared = np.array([self._prompt.shared], np.int32)
        self._shared = read(self._params, shared, np.array([shared.size], np.int32))

    def __call__(
        self, question: str, passages: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> Float[np.ndarray, " n"]:
        """Scores of passages, float64; see `types.Reranker`.

        A score depends on question and passage; the other passages change only the rounding.
        """
        window = min(self._config.max_positions, _WINDOW)
        rows, asked, num_cut = self._prompt.rows(self._tokenizer, question, passages, window)
        lengths = np.array([len(row) for row in rows], int)
        targets = np.zeros(_step(len(asked), 16), np.int32)
        targets[len(targets) - len(asked) :] = asked
        scores, done = np.zeros(len(rows)), 0
        order = np.argsort(-lengths, kind="stable")
        while len(order):
            count, size = _block(lengths[order], len(targets))
            block, order = order[:count], order[count:]
            tokens, real = np.zeros((count, size), np.int32), np.ones(count, np.int32)
            for place, row in enumerate(block):
                tokens[place, size - lengths[row] :], real[place] = rows[row], lengths[row]
            found = self._score(self._params, self._shared, tokens, real, targets, np.int32(len(asked)))
            scores[block] = np.asarray(found)[: len(block)]
            done += int(lengths[block].sum())
            if progress is not None:
                progress(done, int(lengths.sum()))
        if not np.isfinite(scores).all():
            raise InputError(f"{self.name}: gives NaN: its weights are damaged, or too large for its dtype")
        self.counts = self.counts.plus(len(rows), int(lengths.sum()), num_cut)
        return scores


class AnswerLikelihood:
    """Tells how likely answers are after prompts of token ids."""

    def __init__(self, loaded: LoadedDecoder, dtype: ComputeDtype) -> None:
        """Args: dtype, of matrix products and cache; log-probabilities are float32."""
        self.window = min(loaded.config.max_positions, _WINDOW)
        self._params = sliced_fast(jax.device_put(loaded.params))
        self._read, self._score = _compiled_read(loaded.config, dtype), _compiled_targets(loaded.config, dtype)
        self._nothing = empty_cache(loaded.config, 1, 0, dtype)
        self._shared: tuple[list[int], LayerCache] = [], self._nothing

    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        told: Callable[[int, tuple[float, ...]], None],
    ) -> None:
        """Tells the log-probabilities of the tokens of each answer.

        They depend on prompt and answer; the other prompts change only the rounding.

        Args:
            prompts, answers: none of them empty; both together fit into `window`.
            told: called with the place of a prompt and the values of its answer, in any order.

        Raises:
            InputError: the model gives NaN.
        """
        before, cache = self._beginning(prompts)
        rows = [[*prompt[before:], *answer] for prompt, answer in zip(prompts, answers, strict=True)]
        lengths, order = np.array([len(row) for row in rows], int), np.argsort([-len(row) for row in rows])
        width = _step(max(map(len, answers), default=1), 16)
        while len(order):
            count, size = _block(lengths[order], width)
            block, order = order[:count].tolist(), order[count:]
            tokens, real = np.zeros((count, size), np.int32), np.ones(count, np.int32)
            targets = np.zeros((count, width), np.int32)
            for place, number in enumerate(block):
                row, answer = rows[number], answers[number]
                tokens[place, size - len(row) :], real[place] = row, len(row)
                targets[place, width - len(answer) :] = answer
            scored = np.asarray(self._score(self._params, cache, tokens, real, targets))
            for number, values in zip(block, scored, strict=False):
                logprobs = values[width - len(answers[number]) :]
                if not np.isfinite(logprobs).all():
                    raise InputError("the model gives NaN: its weights are damaged, or too large for its dtype")
                told(number, tuple(logprobs.tolist()))

    def _beginning(self, prompts: Sequence[Sequence[int]]) -> tuple[int, LayerCache]:
        """Number of tokens of the shared beginning, and its cache; it is read again only for other prompts."""
        size = len(self._shared[0])
        if size and all(len(one) > size and list(one[:size]) == self._shared[0] for one in prompts):
            return size, self._shared[1]
        first, last = min(map(list, prompts)), max(map(list, prompts))  # all others lie between them
        most = min(map(len, prompts)) - 1 if len(prompts) > 1 else 0
        same = next((i for i in range(most) if first[i] != last[i]), most)
        begun = first[: same - same % _BEGINNING]  # few lengths, because each is compiled
        if not begun:
            return 0, self._nothing
        self._shared = begun, self._read(self._params, np.array([begun], np.int32), np.array([len(begun)], np.int32))
        return len(begun), self._shared[1]


def fast_dtype() -> ComputeDtype:
    """The dtype to load a decoder in for scoring: bfloat16, or float32 on a CPU without products of bfloat16."""
    return "bfloat16" if jax.default_backend() != "cpu" or multiplies_bfloat16() else "float32"


def _block(lengths: Int[np.ndarray, " n"], num_targets: int) -> tuple[int, int]:
    """(rows, slots) of the next block, for lengths in falling order; `_ROWS` rows, or one, of few lengths."""
    longest = max(int(lengths[0]), num_targets + 1)
    size = -(-longest // 32) * 32 if longest <= 512 else _step(longest, 512)
    return (_ROWS if len(lengths) > 2 and size <= _LONG else 1), size


def _step(size: int, least: int) -> int:
    """The next of `least`, 2 `least`, 4 `least`, ..."""
    return least << max(0, -(-size // least) - 1).bit_length()


@cache
def _compiled_read(config: DecoderConfig, dtype: ComputeDtype) -> Callable[..., LayerCache]:
    """A jitted function that reads a beginning, shared by all models of an architecture."""

    def read(params: Params, tokens: Int[Array, "1 P"], length: Int[Array, "1"]) -> LayerCache:
        return read_prompts(params, tokens, length, config=config, dtype=dtype)[1]

    return jax.jit(read)


@cache
def _compiled_score(
    config: DecoderConfig, dtype: ComputeDtype, answers: tuple[int, int] | None
) -> Callable[..., Float[Array, " B"]]:
    """Likewise one that scores rows."""
    if answers is None:
        return jax.jit(partial(question_logprobs, config=config, dtype=dtype))

    def score(params: Params, shared: LayerCache, tokens: Array, lengths: Array, *_: Any) -> Array:
        hidden = read_rows(params, shared, tokens, lengths, config=config, dtype=dtype)
        logits = vocabulary_logits(params, hidden[:, -1])
        return logits[:, answers[0]] - logits[:, answers[1]]

    return jax.jit(score)


@cache
def _compiled_targets(config: DecoderConfig, dtype: ComputeDtype) -> Callable[..., Float[Array, "B Q"]]:
    """Likewise `target_logprobs`."""
    return jax.jit(partial(target_logprobs, config=config, dtype=dtype))


def question_logprobs(
    params: Params,
    shared: LayerCache,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    targets: Int[Array, " Q"],
    count: Int[Array, ""],
    *,
    config: DecoderConfig,
    dtype: ComputeDtype,
) -> Float[Array, " B"]:
    """`1/count sum_i log p(q_i | shared, the row before q_i)`, natural logarithm, float32.

    Args:
        targets: the question, padded on the left; all rows end with it.
        count: tokens of the question.
    """
    rows = jnp.broadcast_to(targets, (tokens.shape[0], targets.shape[0]))
    logprobs = target_logprobs(params, shared, tokens, lengths, rows, config=config, dtype=dtype)
    return jnp.where(jnp.arange(targets.shape[0]) >= targets.shape[0] - count, logprobs, 0.0).sum(axis=1) / count


def target_logprobs(
    params: Params,
    shared: LayerCache,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    targets: Int[Array, "B Q"],
    *,
    config: DecoderConfig,
    dtype: ComputeDtype,
) -> Float[Array, "B Q"]:
    """`log p(target_i | shared, the row before target_i)`, natural logarithm, float32.

    Args:
        shared: keys and values of the beginning, of one row.
        tokens: rows that end with their targets, padded on the left; T > Q.
        lengths: tokens of each row.
        targets: padded on the left; values at padding mean nothing.
    """
    hidden = read_rows(params, shared, tokens, lengths, config=config, dtype=dtype)
    return next_logprobs(params, hidden[:, -targets.shape[1] - 1 : -1], targets)


def read_rows(
    params: Params,
    shared: LayerCache,
    tokens: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    *,
    config: DecoderConfig,
    dtype: ComputeDtype,
) -> Float[Array, "B T d"]:
    """Hidden states of rows, padded on the left, that continue one beginning."""
    (batch, size), before = tokens.shape, shared.keys.shape[2]
    slots, pads = jnp.arange(size), size - lengths[:, None]
    # Padding sees itself: if it saw nothing, where the beginning is empty, its NaN would reach the others.
    own = (slots[:, None] >= slots) & (slots >= pads[:, :, None]) | jnp.eye(size, dtype=bool)
    seen = jnp.pad(own, ((0, 0), (0, 0), (before, 0)), constant_values=True)

    def attend(query: Array, key: Array, value: Array, layer: Array, cache: LayerCache) -> tuple[Array, LayerCache]:
        first = (jnp.broadcast_to(each, (batch, *each.shape[1:])) for each in cache.layer(layer))
        keys, values = (jnp.concatenate(pair, axis=1) for pair in zip(first, (key, value), strict=True))
        return attend_grouped(query, keys, values, seen), cache

    positions = before + jnp.maximum(slots - pads, 0)
    return hidden_states(params, tokens, positions, attend, shared, config=config, dtype=dtype)[0]


def attend_grouped(
    query: Float[Array, "B T heads c"],
    keys: Float[Array, "B S kv_heads c"],
    values: Float[Array, "B S kv_heads c"],
    seen: Bool[Array, "B T S"],
) -> Float[Array, "B T heads c"]:
    """`softmax(query keys^T / sqrt(c)) values` over the seen slots, the queries of a group of heads in one product.

    Made for CPUs, where `jax.nn.dot_product_attention` takes twice as long: weights are computed once and stored, and
    none becomes a denormal number. Softmax is float32.
    """
    (batch, size, heads, depth), (slots, num_kv) = query.shape, keys.shape[1:3]
    grouped = query.reshape(batch, size, num_kv, -1, depth).transpose(0, 2, 3, 1, 4).reshape(batch * num_kv, -1, depth)
    keys = keys.transpose(0, 2, 3, 1).reshape(batch * num_kv, depth, slots)
    values = values.transpose(0, 2, 1, 3).reshape(batch * num_kv, slots, depth)
    product = partial(jnp.matmul, preferred_element_type=jnp.float32)
    logits = product(grouped, keys).reshape(batch, heads, size, slots) / math.sqrt(depth)
    logits = jnp.where(seen[:, None], logits, _UNSEEN)
    weights = jnp.exp(jnp.maximum(logits - logits.max(axis=-1, keepdims=True), _LEAST)) * seen[:, None]
    weights = jax.lax.optimization_barrier(weights)
    mixed = product(weights.astype(query.dtype).reshape(batch * num_kv, -1, slots), values)
    mixed = mixed.reshape(batch, heads, size, depth) / weights.sum(axis=-1, keepdims=True)
    return jnp.swapaxes(mixed, 1, 2).astype(query.dtype)
