"""Text encoders in flax linen: embeddings, layers, pooling. All families of `EncoderConfig`.

Parameters are float32. `Compute` sets the precision of the layers: with bfloat16, the matrix products are bfloat16;
softmax, statistics of norms, pooling and the output stay float32.

There is no dropout: training and inference run the same deterministic function (the authors of Q-RAG left dropout on
in policy, critic and target; ours is off everywhere).

RoBERTa counts positions, MPNet adds buckets of relative distance, NomicBERT, ModernBERT and Qwen3 rotate queries and
keys. Short rows of tokens are packed side by side into wider ones, so an encoder computes little padding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Int8, PRNGKeyArray

from qrag_jax.models.encoder.config import NUM_BUCKETS, ROTARY, ComputeDtype, EncoderConfig, LayerKind, Pooling
from qrag_jax.models.weights.param_tree import Params
from qrag_jax.types import UsageError

MAX_DISTANCE = 128
# Smallest distance of each bucket of one side but the first.
_BUCKET_BORDERS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)


def counted_positions(tokens: Int[Array, "n L"], padding_id: int) -> Int[Array, "n L"]:
    """Rows of the position table: real tokens count on from `padding_id + 1`, padding stays at `padding_id`.

        position_i = padding_id + m_i * sum_{j <= i} m_j,   m_j = [token_j != padding_id]

    A padding token that is written out inside of a text is skipped too, as in transformers.
    """
    real = (tokens != padding_id).astype(tokens.dtype)
    return padding_id + real * jnp.cumsum(real, axis=1)


def relative_buckets(length: int) -> Int[Array, "L L"]:
    """Bucket of the distance from every position (row) to every other (column), in [0, NUM_BUCKETS).

    With h = NUM_BUCKETS / 2 buckets a side and e = h / 2 of them for one distance each, a distance of n backwards has

        bucket = n  if n < e,  else  min(h - 1, e + floor((h - e) * log(n / e) / log(MAX_DISTANCE / e)))

    and forwards h more.
    """
    place = jnp.arange(length)
    ahead = place[None, :] - place[:, None]
    steps = jnp.searchsorted(jnp.asarray(_BUCKET_BORDERS), jnp.abs(ahead), side="right")
    return steps + jnp.where(ahead > 0, NUM_BUCKETS // 2, 0)


_SMALLEST_WIDTH, _WIDEST_PAIR = 64, 128
_TOKENS_A_ROW = 4  # a packed row takes width / 4 rows at most, which is room for all but the shortest texts


class Packing(NamedTuple):
    """The places of n rows. `sources` and `members` are those of the packed rows, `row` and `member` those of the n.

    Attributes:
        sources: place in the flattened table of rows; 0 where `members` is -1.
        members: which row of the packed row it is from, counted from 0; -1 is padding.
        row: packed row that holds row i.
        member: number of row i in it.
        num_used: packed rows that hold a token; they come first.
    """

    sources: Int[Array, "packed P"]
    members: Int[Array, "packed P"]
    row: Int[Array, " n"]
    member: Int[Array, " n"]
    num_used: Int[Array, ""]


def packed_width(width: int) -> int:
    """Width of packed rows for rows of `width` places: room for two of them, for one above 128.

    A token attends (masked) over all of its packed row: there, full rows would cost more than padding does. Short rows
    still share one.
    """
    wide = 2 * width if width <= _WIDEST_PAIR else width
    return -(-max(wide, _SMALLEST_WIDTH) // 8) * 8


def max_members(width: int) -> int:
    """Most rows that a packed row of `width` places takes."""
    return max(1, width // _TOKENS_A_ROW)


def num_packed_rows(num_rows: int, width: int) -> int:
    """The largest number of packed rows that n rows of `width` places need, whatever their lengths."""
    wide = packed_width(width)
    return -(-num_rows // min(wide // width, max_members(wide)))


def pack_rows(lengths: Int[Array, " n"], width: int) -> Packing:
    """Fills packed rows in order: a row that does not fit any more begins the next one.

    The first rows of packed rows form a chain, `next(i)` = first row that does not fit next to row i. Doubling finds
    the chain, so no device follows it step by step.

    Args:
        lengths: real tokens of each row, at its beginning.
        width: places of a row, at least any length.
    """
    lengths = jnp.asarray(lengths, jnp.int32)  # smaller integers would overflow
    n, wide = len(lengths), packed_width(width)
    ends = jnp.cumsum(lengths)
    begins = ends - lengths
    places = jnp.arange(n)
    fits = jnp.searchsorted(ends, begins + wide, side="right")
    following = jnp.append(jnp.minimum(fits, places + max_members(wide)), n)  # n: past the end, follows itself
    first = jnp.zeros(n + 1, bool).at[0].set(True)
    for _ in range(max(1, (n - 1).bit_length())):
        first = first.at[following].max(first)
        following = following[following]
    first = first[:n]
    row = jnp.cumsum(first) - 1
    opening = jax.lax.cummax(jnp.where(first, places, 0))
    member, start = places - opening, begins - begins[opening]

    inside = jnp.arange(width) < lengths[:, None]
    size = num_packed_rows(n, width) * wide
    to = jnp.where(inside, (row * wide + start)[:, None] + jnp.arange(width), size)
    sources = jnp.full(size, -1).at[to].set(jnp.arange(n * width).reshape(n, width), mode="drop").reshape(-1, wide)
    members = jnp.where(sources >= 0, member[sources // width], -1)
    return Packing(
        jnp.maximum(sources, 0), members, row, member, 1 + jnp.max(jnp.where(lengths > 0, row, -1), initial=-1)
    )


TOKENS_PER_BLOCK = 1024
_MASKED_LOGIT = -1e30
_QUERIES = 1024  # of a row that are computed at once
_SQRT_HALF = 0.5**0.5
_SMALLEST_NORM, _SMALLEST_SQUARED_NORM = 1e-12, 1e-24
_LARGEST_CODE = 127


@dataclass(frozen=True)
class Compute:
    """How a network computes, which changes no parameter.

    Attributes:
        dtype: of matrix products and activations; parameters, optimiser and the output of a tower are float32.
        remat: recompute each encoder layer in the backward pass instead of storing its activations.
    """

    dtype: ComputeDtype = "float32"
    remat: bool = False


FLOAT32 = Compute()


Turns = tuple[Float[Array, "L pairs"], Float[Array, "L pairs"]]  # cosines and sines of each place


class EncoderLayer(nn.Module):
    """One transformer layer: `x = LN(x + attention(x)); x = LN(x + mlp(x))`.

    With `norms_first`: `x = x + attention(LN(x)); x = x + mlp(LN(x))`.
    """

    config: EncoderConfig
    compute: Compute = FLOAT32
    kind: LayerKind = LayerKind()

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "n L d"],
        mask: Bool[Array, "n #L L"],
        bias: Float[Array, "heads L L"] | None = None,
        turns: Turns | None = None,
    ) -> Float[Array, "n L d"]:
        """Maps token vectors to token vectors; a position (second axis of `mask`) attends to those (third) it may."""
        config, shape = self.config, hidden.shape
        first = config.norms_first
        # One long matrix of tokens: XLA on CPU is slower at the gradients of products over [n, L, d].
        hidden = hidden.reshape(-1, shape[-1])
        read = self._norm("attention_norm")(hidden) if first and self.kind.is_normed else hidden
        query = self._heads(self._dense("query", config.num_heads * config.head_size)(read), shape)
        key, value = (
            self._heads(self._dense(name, config.num_key_heads * config.head_size)(read), shape)
            for name in ("key", "value")
        )
        if config.family == "qwen3":
            query, key = self._norm("query_norm")(query), self._norm("key_norm")(key)
        if turns is not None:
            query, key = rotate_halves(query, *turns), rotate_halves(key, *turns)
        mixed = attend(query, key, value, mask, bias).reshape(len(hidden), config.num_heads * config.head_size)
        hidden = hidden + self._dense("attention_output", shape[-1])(mixed)
        hidden = hidden if first else self._norm("attention_norm")(hidden)
        read = self._norm("output_norm")(hidden) if first else hidden
        is_gated = config.family in ROTARY
        inner = _activate(config, self._dense("gate" if is_gated else "intermediate")(read))
        inner = inner * self._dense("intermediate")(read) if is_gated else inner
        hidden = hidden + self._dense("output", shape[-1])(inner)
        return (hidden if first else self._norm("output_norm")(hidden)).reshape(shape)

    def _dense(self, name: str, size: int | None = None) -> nn.Dense:
        config = self.config
        return nn.Dense(
            size or config.intermediate_size,
            use_bias=config.family not in ROTARY,
            dtype=self.compute.dtype,
            name=name,
            dot_general=partial(jax.lax.dot_general, preferred_element_type=_sums(self.compute.dtype)),
        )

    def _norm(self, name: str) -> nn.Module:
        return _norm(self.config, self.compute.dtype, name)

    def _heads(self, rows: Array, shape: tuple[int, ...]) -> Float[Array, "n heads L c"]:
        """Heads before tokens: the products of attention are then without gaps, which is what XLA on CPU needs."""
        size = self.config.head_size
        rows = rows.astype(self.compute.dtype).reshape(*shape[:2], rows.shape[-1] // size, size)
        return jnp.swapaxes(rows, 1, 2)


def _sums(dtype: DTypeLike) -> DTypeLike:
    """The dtype of a product's sums; of bfloat16 on a CPU float32, the only result that XLA computes fast there.

    Elsewhere the products of the gradient would be slow.
    """
    is_wide = jnp.dtype(dtype) == jnp.bfloat16 and jax.default_backend() == "cpu"
    return jnp.float32 if is_wide else dtype


def _activate(config: EncoderConfig, x: Array) -> Array:
    if config.activation == "silu":
        return jax.nn.silu(x)
    return jax.nn.gelu(x, approximate=True) if config.activation == "gelu_tanh" else _exact_gelu(x)


def _exact_gelu(x: Array) -> Array:
    """`x / 2 * (1 + erf(x / sqrt(2)))`, computed in float32 as `1 + erf` has no digits left of it in bfloat16.

    `jax.nn.gelu` takes `erfc`, whose exponentials and branches are slower on CPU.
    """
    wide = x.astype(jnp.float32)
    return (wide * 0.5 * (1 + jax.lax.erf(wide * _SQRT_HALF))).astype(x.dtype)


def rotate_halves(
    x: Float[Array, "*rows c"], cos: Float[Array, "*turns pairs"], sin: Float[Array, "*turns pairs"]
) -> Float[Array, "*rows c"]:
    """Turns (x_k, x_{k + c/2}) by its angle, in float32: `(a cos - b sin, b cos + a sin)`; the dtype of `x` stays."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def turns_of(length: int, size: int, theta: float) -> Turns:
    """Cosines and sines of `place * theta^(-2k / size)` for `length` places; float32, as transformers computes them."""
    frequencies = theta ** (-np.arange(0, size, 2) / size)
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    return jnp.asarray(np.cos(angles)), jnp.asarray(np.sin(angles))


def attend(
    query: Float[Array, "n heads L c"],
    key: Float[Array, "n kv_heads L c"],
    value: Float[Array, "n kv_heads L c"],
    mask: Bool[Array, "n #L L"],
    bias: Float[Array, "heads L L"] | None = None,
) -> Float[Array, "n L heads c"]:
    """`softmax(query key^T / sqrt(c) + bias) value` over the positions of `mask`; logits and softmax are float32.

    A head of keys and values serves heads / kv_heads heads of queries. Of long rows `_QUERIES` queries are computed at
    a time, so that the logits stay small.
    """
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = jnp.repeat(key, shared, axis=1), jnp.repeat(value, shared, axis=1)
    length = query.shape[2]
    if length <= _QUERIES or bias is not None:
        return _attend(query, key, value, mask, bias)
    masks = _in_pieces(jnp.broadcast_to(mask, (len(mask), length, length)), 1)
    run = jax.checkpoint(lambda piece: _attend(piece[0], key, value, piece[1], None))
    mixed = jax.lax.map(run, (_in_pieces(query, 2), masks))
    return jnp.moveaxis(mixed, 0, 1).reshape(len(query), -1, *mixed.shape[3:])[:, :length]


def _in_pieces(rows: Array, axis: int) -> Array:
    """Cuts an axis into pieces of `_QUERIES`, which become the first axis; zeros fill the last piece."""
    ends = [(0, -rows.shape[axis] % _QUERIES if each == axis else 0) for each in range(rows.ndim)]
    pieces = jnp.pad(rows, ends).reshape(*rows.shape[:axis], -1, _QUERIES, *rows.shape[axis + 1 :])
    return jnp.moveaxis(pieces, axis, 0)


def _attend(query: Array, key: Array, value: Array, mask: Array, bias: Array | None) -> Array:
    logits = jnp.einsum("nhqc,nhkc->nhqk", query, key, preferred_element_type=jnp.float32)
    logits = logits / jnp.sqrt(jnp.float32(query.shape[-1]))
    logits = logits if bias is None else logits + bias
    # A finite constant: where nothing may be attended to weights are uniform, so that the gradient is finite.
    weights = jax.nn.softmax(jnp.where(mask[:, None], logits, _MASKED_LOGIT), axis=-1)
    sums: Any = _sums(value.dtype)
    mixed = jnp.einsum("nhqk,nhkc->nhqc", weights.astype(value.dtype), value, preferred_element_type=sums)
    return jnp.swapaxes(mixed, 1, 2)


class Encoder(nn.Module):
    """An encoder without its pooler head: tokens -> vectors of the last layer, mapped to another size for ColBERT.

    Deterministic, no dropout.
    """

    config: EncoderConfig
    compute: Compute = FLOAT32

    def setup(self) -> None:
        """Declares the submodules; their attribute names are the names in the parameter tree."""
        config, dtype = self.config, self.compute.dtype
        self.word_embeddings = _embedding(config.vocab_size, config.hidden_size)
        if config.family not in ROTARY:
            self.position_embeddings = _embedding(config.first_position + config.max_positions, config.hidden_size)
        if config.has_types:
            self.type_embeddings = _embedding(config.type_vocab_size, config.hidden_size)
        if config.family == "mpnet":
            self.relative_bias = _embedding(NUM_BUCKETS, config.num_heads)
        if config.family != "qwen3":
            self.embeddings_norm = _norm(config, dtype)
        if config.norms_first:
            self.final_norm = _norm(config, dtype)
        if config.projection:
            self.projection = nn.Dense(config.projection, use_bias=False, dtype=dtype)
        layer = nn.remat(EncoderLayer) if self.compute.remat else EncoderLayer
        self.layer = [layer(config, self.compute, kind) for kind in config.kinds]

    def __call__(
        self, tokens: Int[Array, "n L"], valid: Bool[Array, "n L"], types: Int[Array, "n L"] | None = None
    ) -> Float[Array, "n L d"]:
        """Encodes padded token rows.

        Args:
            tokens: token ids in [0, vocab_size); values at invalid positions do not affect valid ones.
            valid: True at tokens, False at padding.
            types: of the tokens, as in `embed`.
        """
        return self.contextualise(self.embed(tokens, self.places(tokens), types), valid[:, None])

    def places(self, tokens: Int[Array, "n L"]) -> Int[Array, "n L"]:
        """Row of the position table for every token; place in its row for families without one."""
        config, length = self.config, tokens.shape[1]
        if length > config.max_positions:
            raise UsageError(
                f"rows of {length} tokens, but the encoder has {config.max_positions} positions: choose a window of at "
                f"most {config.max_positions}"
            )
        if config.first_position:
            return counted_positions(tokens, config.padding_id)
        return jnp.broadcast_to(jnp.arange(length), tokens.shape)

    def embed(
        self, tokens: Int[Array, "n L"], places: Int[Array, "n L"], types: Int[Array, "n L"] | None = None
    ) -> Float[Array, "n L d"]:
        """The input of the first layer: word, position and type embeddings (where there are such), normalised.

        Args:
            types: of the tokens; None is type 0.
        """
        config = self.config
        total = self.word_embeddings(tokens)
        if config.family not in ROTARY:
            total = total + self.position_embeddings(places)
        if config.has_types:
            total = total + self.type_embeddings(jnp.zeros_like(tokens) if types is None else types)
        return total.astype(self.compute.dtype) if config.family == "qwen3" else self.embeddings_norm(total)

    def contextualise(self, hidden: Float[Array, "n L d"], mask: Bool[Array, "n #L L"]) -> Float[Array, "n L out"]:
        """All transformer layers on embedded tokens; they share one table of relative biases, where there is one.

        Rotary positions are places in the rows of `hidden`: only differences of places count, so a text may begin
        anywhere in a packed row.

        Args:
            mask: True where a position (second axis) attends to another (third), but for order and distance.
        """
        config, length = self.config, hidden.shape[1]
        bias, turns, local_turns, local = None, None, None, mask
        if config.family == "mpnet":
            bias = jnp.moveaxis(self.relative_bias(relative_buckets(length)), -1, 0)
        if config.family in ROTARY:
            turns = turns_of(length, config.head_size, config.rope_theta)
        if config.family == "qwen3":  # a token attends to earlier ones only
            mask = mask & jnp.tril(jnp.ones((length, length), bool))
        if config.local_window:
            local_turns = turns_of(length, config.head_size, config.local_rope_theta)
            apart = jnp.abs(jnp.arange(length)[:, None] - jnp.arange(length))
            local = mask & (apart <= config.local_window)
        for layer, kind in zip(self.layer, config.kinds, strict=True):
            given = (local, bias, local_turns) if kind.is_local else (mask, bias, turns)
            if self.is_initializing() or self.compute.remat:
                hidden = layer(hidden, *given)
            else:
                hidden = _apply_layer(config, self.compute, kind, layer.variables["params"], hidden, *given)
        hidden = self.final_norm(hidden) if config.norms_first else hidden
        return self.projection(hidden) if config.projection else hidden


@partial(jax.jit, static_argnums=(0, 1, 2))
def _apply_layer(
    config: EncoderConfig,
    compute: Compute,
    kind: LayerKind,
    params: Params,
    hidden: Float[Array, "n L d"],
    mask: Bool[Array, "n #L L"],
    bias: Float[Array, "heads L L"] | None,
    turns: Turns | None,
) -> Float[Array, "n L d"]:
    """One layer. Layers of a kind share its trace, most of the seconds that a new shape costs."""
    layer = EncoderLayer(config, compute, kind, parent=None)
    mixed: Any = layer.apply({"params": params}, hidden, mask, bias, turns)
    return mixed


def _norm(config: EncoderConfig, dtype: str, name: str | None = None) -> nn.Module:
    if config.family == "qwen3":
        return nn.RMSNorm(epsilon=config.layer_norm_eps, dtype=dtype, name=name)
    # E[x^2] - E[x]^2 loses digits against the reference; the two-pass variance costs nothing measurable.
    return nn.LayerNorm(
        epsilon=config.layer_norm_eps,
        dtype=dtype,
        use_bias=config.family != "modernbert",
        use_fast_variance=False,
        name=name,
    )


def _embedding(num_rows: int, size: int) -> nn.Embed:
    return nn.Embed(num_rows, size, embedding_init=nn.initializers.normal(0.02))


def init_encoder(key: PRNGKeyArray | Array, config: EncoderConfig) -> dict[str, Any]:
    """Draws the parameters of an encoder that is trained from scratch; the key is consumed.

    Embeddings are normal with deviation 0.02 (BERT), matrices LeCun normal (small networks learn faster from it),
    biases 0, norms 1.
    """
    tokens, mask = jax.ShapeDtypeStruct((1, 2), jnp.int32), jax.ShapeDtypeStruct((1, 2), jnp.bool_)
    variables: Any = Encoder(config).lazy_init(key, tokens, mask)  # draws, and computes nothing of them
    return variables["params"]


def valid_tokens(lengths: Int[Array, " n"], length: int) -> Bool[Array, "n L"]:
    """True at the first `lengths[i]` of `length` positions of row i."""
    return jnp.arange(length, dtype=lengths.dtype) < lengths[:, None]


def pool(hidden: Float[Array, "n L d"], members: Bool[Array, "n m L"], pooling: Pooling) -> Float[Array, "n m d"]:
    """m vectors a row, each the mean of its members' positions, or that of the first or of the last of them.

    Without members it is the zero vector, with a zero gradient. The sums and the result are float32.
    """
    hidden = hidden.astype(jnp.float32)
    if pooling != "mean":
        counted = jnp.cumsum(members, axis=-1)
        members = members & (counted == (1 if pooling == "cls" else counted[..., -1:]))
    weights = members.astype(hidden.dtype)
    return jnp.einsum("nld,nml->nmd", hidden, weights) / jnp.maximum(weights.sum(axis=-1, keepdims=True), 1)


def finish(config: EncoderConfig, pooled: Float[Array, "n d"]) -> Float[Array, "n dim"]:
    """The vectors of pooled rows: the first `dim` components, of length 1 where the config asks for it."""
    pooled = pooled[:, : config.output_size]
    return normalized(pooled) if config.normalize else pooled


def normalized(vectors: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """`x / max(|x|, 1e-12)`; the zero vector stays, with a finite gradient."""
    squared = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squared, _SMALLEST_SQUARED_NORM))


def encode_tokens(
    config: EncoderConfig,
    params: Params,
    tokens: Int[Array, "n L"],
    lengths: Int[Array, " n"],
    compute: Compute = FLOAT32,
    types: Int[Array, "n L"] | None = None,
) -> Float[Array, "n L d"]:
    """Vectors of the last layer for every position; those at or beyond `lengths[i]` are meaningless."""
    valid = valid_tokens(lengths, tokens.shape[1])
    hidden: Any = Encoder(config, compute).apply({"params": params}, tokens, valid, types)
    return hidden


def encode(
    config: EncoderConfig,
    params: Params,
    tokens: Int[Array, "n L"],
    lengths: Int[Array, " n"],
    compute: Compute = FLOAT32,
) -> Float[Array, "n d"]:
    """One vector a row of tokens, pooled as `config` says. Pure and differentiable in `params`.

    Args:
        tokens: rows as the tokenizer gives them, `[CLS] text [SEP]`, padded on the right with any id.
        lengths: number of valid tokens a row; a row of length 0 becomes the zero vector.
        compute: precision of the layers.
    """
    return _pooled(config, encode_tokens(config, params, tokens, lengths, compute), lengths)


def encode_with_codes(
    config: EncoderConfig,
    params: Params,
    tokens: Int[Array, "n L"],
    lengths: Int[Array, " n"],
    compute: Compute = FLOAT32,
) -> tuple[Float[Array, "n dim"], Int8[Array, "n L d"]]:
    """The vectors of `encode`, and from the same pass the direction of every token's vector in whole numbers.

        code_j = round(127 x_j / max_k |x_k|),   x / |x| ~ code / |code|

    So the scale of a token needs no byte. A zero vector has the code 0.

    Args:
        tokens, lengths, compute: as in `encode`; codes at or beyond `lengths[i]` are meaningless.
    """
    hidden = encode_tokens(config, params, tokens, lengths, compute)
    largest = jnp.max(jnp.abs(hidden), axis=-1, keepdims=True)
    codes = jnp.round(hidden * (_LARGEST_CODE / jnp.maximum(largest, _SMALLEST_NORM))).astype(jnp.int8)
    return _pooled(config, hidden, lengths), codes


def _pooled(config: EncoderConfig, hidden: Float[Array, "n L d"], lengths: Int[Array, " n"]) -> Float[Array, "n dim"]:
    pooled = pool(hidden, valid_tokens(lengths, hidden.shape[1])[:, None], config.pooling)[:, 0]
    return finish(config, pooled)


def encode_in_blocks(
    config: EncoderConfig,
    params: Params,
    tokens: Int[Array, "n L"],
    lengths: Int[Array, "n"],
    tokens_per_block: int = TOKENS_PER_BLOCK,
    compute: Compute = FLOAT32,
) -> Float[Array, "n d"]:
    """The values of `encode`, computed on packed rows, block after block of at most about `tokens_per_block` tokens.

    Short rows share packed rows (`pack_rows`); of several blocks, those behind the last token are skipped. On CPU a
    block whose temporaries stay in cache is about twice as fast as one large batch; accelerators want larger blocks.
    Differentiable; a block is computed again in the backward pass.
    """
    n, width = tokens.shape
    encoder = Encoder(config, compute)
    packing = pack_rows(lengths, width)
    places: Any = encoder.apply({"params": params}, tokens, method="places")
    at = lambda table: table.reshape(-1)[packing.sources]  # noqa: E731
    # Embedded outside of the blocks: each block's gradient of the table would be as large as the whole vocabulary.
    hidden: Any = encoder.apply({"params": params}, at(tokens), at(places), method="embed")
    pooled = _map_blocks(
        lambda rows, members: _pooled_members(config, compute, params, rows, members),
        (hidden, packing.members),
        packing.num_used,
        max(1, tokens_per_block // hidden.shape[1]),
    )
    return finish(config, pooled[packing.row, packing.member])


def _pooled_members(
    config: EncoderConfig, compute: Compute, params: Params, hidden: Float[Array, "n P d"], members: Int[Array, "n P"]
) -> Float[Array, "n m out"]:
    """Layers and pooling of packed rows; m is the most members of one."""
    together = (members[:, :, None] == members[:, None, :]) & (members >= 0)[:, None, :]
    mixed: Any = Encoder(config, compute).apply({"params": params}, hidden, together, method="contextualise")
    is_of = members[:, None, :] == jnp.arange(max_members(members.shape[1]))[:, None]
    return pool(mixed, is_of, config.pooling)


def _map_blocks(function: Callable[..., Array], rows: tuple[Array, ...], num_used: Int[Array, ""], size: int) -> Array:
    """Applies `function(*rows) -> [size, ...]` to blocks of `size` rows; zeros for blocks behind the used rows."""
    n = len(rows[0])
    # A skipped block would have to keep activations too, as zeros, and those of all blocks together are what memory is
    # short of. On CPU computing them again takes no longer than writing and reading them.
    run = jax.checkpoint(function)
    num_blocks = max(1, -(-n // size))
    if num_blocks == 1:
        return run(*rows)
    size = -(-n // num_blocks)  # equal blocks, so that as few padded rows as possible are computed
    padded = [jnp.pad(x, ((0, num_blocks * size - n), *[(0, 0)] * (x.ndim - 1))) for x in rows]
    blocks = tuple(x.reshape(num_blocks, size, *x.shape[1:]) for x in padded)
    shape = jax.eval_shape(function, *(x[0] for x in blocks))
    skip = lambda *block: jnp.zeros(shape.shape, shape.dtype)  # noqa: E731
    mapped = jax.lax.map(
        lambda block: jax.lax.cond(block[0] * size < num_used, run, skip, *block[1]), (jnp.arange(num_blocks), blocks)
    )
    return mapped.reshape(num_blocks * size, *mapped.shape[2:])[:n]
