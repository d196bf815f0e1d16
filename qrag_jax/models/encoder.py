"""Text encoders in flax linen: embeddings, post-norm layers, pooling. BERT, RoBERTa, XLM-RoBERTa and MPNet.

Parameters are float32. `Compute` says what the layers compute in: with bfloat16 the matrix products are bfloat16, while
softmax, norms' statistics, pooling and the vectors that come out stay float32.

There is no dropout: training and inference run the same deterministic function (the authors of Q-RAG left dropout on
in policy, critic and target; ours is off everywhere).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from qrag_jax.models.encoder_config import EncoderConfig, Pooling
from qrag_jax.models.token_positions import NUM_BUCKETS, counted_positions, relative_buckets
from qrag_jax.types import UsageError

Params = Mapping[str, Any]

TOKENS_PER_BLOCK = 1024
NUM_WIDTHS = 4  # widths that a block may be encoded at; each is compiled
_MASKED_LOGIT = -1e30
_SMALLEST_SQUARED_NORM = 1e-24


@dataclass(frozen=True)
class Compute:
    """How a network computes, which changes no parameter.

    Attributes:
        dtype: of matrix products and activations; parameters, optimiser and what comes out of a tower are float32.
        remat: recompute each encoder layer in the backward pass, in place of keeping its activations.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    remat: bool = False


FLOAT32 = Compute()


class EncoderLayer(nn.Module):
    """One post-norm transformer layer: `x = LN(x + attention(x)); x = LN(x + mlp(x))`."""

    config: EncoderConfig
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "n L d"], valid: Bool[Array, "n L"], bias: Float[Array, "heads L L"] | None = None
    ) -> Float[Array, "n L d"]:
        """Maps token vectors to token vectors; no position attends to an invalid one; `bias` is added to the logits."""
        config, dtype = self.config, self.compute.dtype
        n, length, _ = hidden.shape
        heads = (n, length, config.num_heads, config.hidden_size // config.num_heads)
        query = nn.Dense(config.hidden_size, dtype=dtype, name="query")(hidden).reshape(heads)
        key = nn.Dense(config.hidden_size, dtype=dtype, name="key")(hidden).reshape(heads)
        value = nn.Dense(config.hidden_size, dtype=dtype, name="value")(hidden).reshape(heads)
        logits = jnp.einsum("nqhc,nkhc->nhqk", query, key, preferred_element_type=jnp.float32)
        logits = logits / jnp.sqrt(jnp.float32(heads[-1]))
        logits = logits if bias is None else logits + bias
        # A finite constant: a row without any valid token gets uniform weights, so that its gradient is finite.
        weights = jax.nn.softmax(jnp.where(valid[:, None, None, :], logits, _MASKED_LOGIT), axis=-1)
        mixed = jnp.einsum("nhqk,nkhc->nqhc", weights.astype(value.dtype), value).reshape(hidden.shape)
        mixed = nn.Dense(config.hidden_size, dtype=dtype, name="attention_output")(mixed)
        hidden = _layer_norm(config, dtype, "attention_norm")(hidden + mixed)
        inner = nn.Dense(config.intermediate_size, dtype=dtype, name="intermediate")(hidden)
        inner = jax.nn.gelu(inner, approximate=config.activation == "gelu_tanh")
        outer = nn.Dense(config.hidden_size, dtype=dtype, name="output")(inner)
        return _layer_norm(config, dtype, "output_norm")(hidden + outer)


class Encoder(nn.Module):
    """An encoder without its pooler head: tokens -> vectors of the last layer. Deterministic, no dropout."""

    config: EncoderConfig
    compute: Compute = FLOAT32

    def setup(self) -> None:
        """Declares the submodules; their attribute names are the names in the parameter tree."""
        config = self.config
        self.word_embeddings = _embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = _embedding(config.first_position + config.max_positions, config.hidden_size)
        if config.type_vocab_size:
            self.type_embeddings = _embedding(config.type_vocab_size, config.hidden_size)
        if config.family == "mpnet":
            self.relative_bias = _embedding(NUM_BUCKETS, config.num_heads)
        self.embeddings_norm = _layer_norm(config, self.compute.dtype)
        layer = nn.remat(EncoderLayer) if self.compute.remat else EncoderLayer
        self.layer = [layer(config, self.compute) for _ in range(config.num_layers)]

    def __call__(self, tokens: Int[Array, "n L"], valid: Bool[Array, "n L"]) -> Float[Array, "n L d"]:
        """Encodes padded token rows.

        Args:
            tokens: token ids in [0, vocab_size); what stands at invalid positions has no effect on valid ones.
            valid: True at tokens, False at padding.

        Raises:
            UsageError: rows are longer than `config.max_positions`.
        """
        return self.contextualise(self.embed(tokens), valid)

    def embed(self, tokens: Int[Array, "n L"]) -> Float[Array, "n L d"]:
        """The input of the first layer: word, position and type embeddings (where there are types), normalised."""
        config = self.config
        length = tokens.shape[1]
        if length > config.max_positions:
            raise UsageError(
                f"rows of {length} tokens, but the encoder has {config.max_positions} positions: choose a window of at "
                f"most {config.max_positions}"
            )
        places = jnp.arange(length) if config.family == "bert" else counted_positions(tokens, config.padding_id)
        total = self.word_embeddings(tokens) + self.position_embeddings(places)
        if config.type_vocab_size:
            total = total + self.type_embeddings(jnp.zeros_like(tokens))
        return self.embeddings_norm(total)

    def contextualise(self, hidden: Float[Array, "n L d"], valid: Bool[Array, "n L"]) -> Float[Array, "n L d"]:
        """All transformer layers on embedded tokens; they share one table of relative biases, where there is one."""
        bias = None
        if self.config.family == "mpnet":
            bias = jnp.moveaxis(self.relative_bias(relative_buckets(hidden.shape[1])), -1, 0)
        for layer in self.layer:
            hidden = layer(hidden, valid, bias)
        return hidden


def _layer_norm(config: EncoderConfig, dtype: str, name: str | None = None) -> nn.LayerNorm:
    # E[x^2] - E[x]^2 loses digits against the reference; the two-pass variance costs nothing measurable.
    return nn.LayerNorm(epsilon=config.layer_norm_eps, dtype=dtype, use_fast_variance=False, name=name)


def _embedding(num_rows: int, size: int) -> nn.Embed:
    return nn.Embed(num_rows, size, embedding_init=nn.initializers.normal(0.02))


def init_encoder(key: PRNGKeyArray | Array, config: EncoderConfig) -> dict[str, Any]:
    """Draws the parameters of an encoder that is trained from scratch; the key is consumed.

    Embeddings are normal with deviation 0.02 (BERT), matrices LeCun normal (small networks learn faster from it),
    biases 0, norms 1.
    """
    tokens = jnp.zeros((1, 2), jnp.int32)
    variables: Any = Encoder(config).init(key, tokens, jnp.ones((1, 2), bool))
    return variables["params"]


def valid_tokens(lengths: Int[Array, " n"], length: int) -> Bool[Array, "n L"]:
    """True at the first `lengths[i]` of `length` positions of row i."""
    return jnp.arange(length, dtype=lengths.dtype) < lengths[:, None]


def pool(
    hidden: Float[Array, "n L d"], valid: Bool[Array, "n L"], pooling: Pooling, normalize: bool
) -> Float[Array, "n d"]:
    """One vector a row: `mean_i hidden_i` over valid positions or `hidden_0`, then optionally `x / max(|x|, 1e-12)`.

    A row without valid tokens is the zero vector, with a zero gradient. The sums and the result are float32.
    """
    hidden = hidden.astype(jnp.float32)
    weights = valid.astype(hidden.dtype)
    if pooling == "mean":
        count = jnp.maximum(weights.sum(axis=1, keepdims=True), 1)
        pooled = jnp.einsum("nld,nl->nd", hidden, weights) / count
    else:
        pooled = hidden[:, 0] * weights[:, :1]
    if normalize:
        squared = jnp.sum(jnp.square(pooled), axis=-1, keepdims=True)
        pooled = pooled * jax.lax.rsqrt(jnp.maximum(squared, _SMALLEST_SQUARED_NORM))
    return pooled


def encode_tokens(
    config: EncoderConfig, params: Params, tokens: Int[Array, "n L"], lengths: Int[Array, " n"]
) -> Float[Array, "n L d"]:
    """Vectors of the last layer for every position; those at or beyond `lengths[i]` are meaningless."""
    hidden: Any = Encoder(config).apply({"params": params}, tokens, valid_tokens(lengths, tokens.shape[1]))
    return hidden


def encode(
    config: EncoderConfig, params: Params, tokens: Int[Array, "n L"], lengths: Int[Array, " n"]
) -> Float[Array, "n d"]:
    """One vector a row of tokens, pooled as `config` says. Pure and differentiable in `params`.

    Args:
        tokens: rows as the tokenizer gives them, `[CLS] text [SEP]`, padded on the right with any id.
        lengths: number of valid tokens a row; a row of length 0 becomes the zero vector.
    """
    hidden = encode_tokens(config, params, tokens, lengths)
    return pool(hidden, valid_tokens(lengths, tokens.shape[1]), config.pooling, config.normalize)


def encode_in_blocks(
    config: EncoderConfig,
    params: Params,
    tokens: Int[Array, "n L"],
    lengths: Int[Array, "n"],
    tokens_per_block: int = TOKENS_PER_BLOCK,
    compute: Compute = FLOAT32,
) -> Float[Array, "n d"]:
    """The values of `encode`, computed block after block of about `tokens_per_block` tokens (`lax.map`).

    On CPU a block whose temporaries stay in cache is about twice as fast as one large batch; accelerators want large
    blocks. Rows are padded inside to whole blocks. Differentiable. Rows are sorted by length inside, and a block is
    encoded at the smallest of a few widths that holds its longest row, so padding costs little.
    """
    n, width = tokens.shape
    # Embedded outside of the blocks: each block's gradient of the table would be as large as the whole vocabulary.
    hidden = Encoder(config, compute).apply({"params": params}, tokens, method="embed")
    order = jnp.argsort(lengths)
    pooled = _map_blocks(
        lambda rows, row_lengths: _pooled_layers(config, compute, params, rows, row_lengths),
        hidden[order],  # type: ignore[index]
        lengths[order],
        max(1, min(n, tokens_per_block // width)),
    )
    return pooled[jnp.argsort(order)]


def _pooled_layers(config: EncoderConfig, compute: Compute, params: Params, hidden: Array, lengths: Array) -> Array:
    """Layers and pooling of embedded rows, at the smallest of a few widths that holds the longest row."""

    def at_width(width: int) -> Callable[[Params, Array, Array], Array]:
        def run(params: Params, hidden: Array, lengths: Array) -> Array:
            valid = valid_tokens(lengths, width)
            encoder = Encoder(config, compute)
            mixed = encoder.apply({"params": params}, hidden[:, :width], valid, method="contextualise")
            return pool(mixed, valid, config.pooling, config.normalize)  # type: ignore[arg-type]

        # Recomputed in the backward pass: kept activations would be those of all widths, zeros for the ones not taken
        # (measured on CPU: 0.9 s against 9.8 s for a gradient of 9,657 tokens).
        return jax.checkpoint(run)

    widths = sorted({-(-hidden.shape[1] * share // (8 * NUM_WIDTHS)) * 8 for share in range(1, NUM_WIDTHS)})
    widths = [width for width in widths if width < hidden.shape[1]] + [hidden.shape[1]]
    branch = jnp.searchsorted(jnp.asarray(widths), lengths.max(initial=0))
    return jax.lax.switch(branch, [at_width(width) for width in widths], params, hidden, lengths)


def _map_blocks(function: Callable[[Array, Array], Array], rows: Array, lengths: Array, size: int) -> Array:
    """Applies `function(rows, lengths) -> [size, ...]` to blocks of `size` rows and joins the results in order."""
    n = len(rows)
    num_blocks = max(1, -(-n // size))
    # Equal blocks, so that as few padded rows as possible are computed: 65 rows of 64 become 2 x 33, not 2 x 64.
    size = -(-n // num_blocks)
    extra = num_blocks * size - n
    padded = jnp.pad(rows, ((0, extra), *[(0, 0)] * (rows.ndim - 1)))
    blocks = padded.reshape(num_blocks, size, *rows.shape[1:]), jnp.pad(lengths, (0, extra)).reshape(num_blocks, size)
    if num_blocks == 1:
        return function(blocks[0][0], blocks[1][0])[:n]
    mapped = jax.lax.map(lambda block: function(*block), blocks)
    return mapped.reshape(num_blocks * size, *mapped.shape[2:])[:n]
