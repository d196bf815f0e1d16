"""Decoders (causal language models) in flax linen: Llama, Qwen2 and 2.5, Qwen3. Pure functions over a KV cache.

Pre-norm layers: `x = x + attention(norm(x)); x = x + mlp(norm(x))`, RMSNorm, rotary positions, grouped queries,
`mlp(x) = down(silu(gate(x)) * up(x))`. The layers are unrolled: a scan over stacked weights copies each layer's before
it uses them, which is most of what a step on CPU does.

Rows of unequal length are padded on the left, so that all end in the same slot and the cache is written at one place.
Slot s of row b holds position `s - pads[b]`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from qrag_jax.models.blocks.matrix import BlockMatrix, columns, concatenated, product, same_form
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.rotary import inverse_frequencies, rotate_halves, turns_at
from qrag_jax.models.gguf.unpack import FileRows
from qrag_jax.types import UsageError

Params = Mapping[str, Any]
ComputeDtype = Literal["float32", "bfloat16"]
AnyArray = Any  # an array, or its shape or sharding where JAX puts one in its place

_MASKED_LOGIT = -1e30
# Caches of twice this and more are attended to block by block, as far as they are written; smaller ones as a whole.
_SLOTS = 512
# Projections of the same input, which `join_projections` makes one of.
QUERY_KEY_VALUE, GATE_UP = ("query", "key", "value"), ("gate", "up")


@struct.dataclass
class KVCache:
    """Keys (rotated) and values of every slot, one array a layer: [kv_heads * batch, slots, head_dim].

    Entry `head * batch + row` is a head of a row. One axis, as XLA on CPU copies an array with an axis of size 1 (the
    batch of a single row) at every step; heads first, so that it can be split by head over devices.
    """

    keys: tuple[AnyArray, ...]
    values: tuple[AnyArray, ...]

    @property
    def num_slots(self) -> int:
        """Most tokens of a row, its padding counted."""
        return self.keys[0].shape[1]


def init_cache(config: DecoderConfig, batch: int, size: int, dtype: ComputeDtype = "float32") -> KVCache:
    """An empty cache of `size` slots for `batch` rows. It has 2 layers * batch * kv_heads * size * head_dim numbers."""
    if min(batch, size) < 1:
        raise UsageError(f"a cache of {batch} rows and {size} slots: both must be at least 1")
    shape = (config.num_kv_heads * batch, size, config.head_dim)
    # Arrays of their own, so that each can be donated.
    empty = lambda: tuple(jnp.zeros(shape, dtype) for _ in range(config.num_layers))  # noqa: E731
    return KVCache(empty(), empty())


def attend_grouped(
    query: Float[Array, "B heads C c"],
    keys: Float[Array, "kv_heads_B S c"],
    values: Float[Array, "kv_heads_B S c"],
    mask: Bool[Array, "B C S"],
) -> Float[Array, "B heads C c"]:
    """`softmax(query keys^T / sqrt(c)) values` over the slots of `mask`; logits and softmax are float32.

    Query heads [g * group, (g + 1) * group) read head g of keys and values, which is not repeated in memory.
    """
    batch, heads, length, size = query.shape
    pairs, num_slots = keys.shape[:2]
    kv_heads = pairs // batch
    scaled = query * jnp.asarray(size**-0.5, query.dtype)
    grouped = _heads_first(scaled.reshape(batch, kv_heads, -1, size))
    logits = jnp.einsum("pqc,psc->pqs", grouped, keys, preferred_element_type=jnp.float32)
    logits = logits.reshape(kv_heads, batch, heads // kv_heads, length, num_slots)
    # A finite constant: padding may attend to nothing, and its uniform weights disturb nobody.
    weights = jax.nn.softmax(jnp.where(mask[:, None], logits, _MASKED_LOGIT), axis=-1)
    weights = weights.astype(values.dtype).reshape(pairs, -1, num_slots)
    mixed = jnp.einsum("pqs,psc->pqc", weights, values)
    return jnp.swapaxes(mixed.reshape(kv_heads, batch, -1, size), 0, 1).reshape(query.shape)


def attend_written(
    query: Float[Array, "B heads C c"],
    keys: Float[Array, "kv_heads_B S c"],
    values: Float[Array, "kv_heads_B S c"],
    mask: Bool[Array, "B C S"],
    end: Int[Array, ""],
) -> Float[Array, "B heads C c"]:
    """`attend_grouped` over the first `end` slots, whatever the cache has behind them; `_SLOTS` at a time.

    Softmax over blocks: logits of a block are taken from the largest so far, and what was summed before is scaled to
    the new largest (Milakov and Gimelshein, 2018). S must be a multiple of `_SLOTS`. Not differentiable in reverse.
    """
    batch, heads, length, size = query.shape
    pairs = keys.shape[0]
    kv_heads = pairs // batch
    scaled = query * jnp.asarray(size**-0.5, query.dtype)
    grouped = _heads_first(scaled.reshape(batch, kv_heads, -1, size))

    def add_block(number: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        largest, total, mixed = state
        first = number * _SLOTS
        own_keys, own_values = (
            jax.lax.dynamic_slice_in_dim(rows, first, _SLOTS, axis=1).astype(query.dtype) for rows in (keys, values)
        )
        seen = jax.lax.dynamic_slice_in_dim(mask, first, _SLOTS, axis=2)
        logits = jnp.einsum("pqc,psc->pqs", grouped, own_keys, preferred_element_type=jnp.float32)
        logits = logits.reshape(kv_heads, batch, heads // kv_heads, length, _SLOTS)
        logits = jnp.where(seen[:, None], logits, _MASKED_LOGIT).reshape(pairs, -1, _SLOTS)
        new_largest = jnp.maximum(largest, logits.max(axis=-1))
        weights, kept = jnp.exp(logits - new_largest[..., None]), jnp.exp(largest - new_largest)
        of_block = jnp.einsum(
            "pqs,psc->pqc", weights.astype(query.dtype), own_values, preferred_element_type=jnp.float32
        )
        return new_largest, total * kept + weights.sum(axis=-1), mixed * kept[..., None] + of_block

    rows = grouped.shape[:2]
    state = jnp.full(rows, -jnp.inf), jnp.zeros(rows), jnp.zeros(grouped.shape, jnp.float32)
    _, total, mixed = jax.lax.fori_loop(0, -(-end // _SLOTS), add_block, state)
    mixed = (mixed / total[..., None]).astype(query.dtype)
    return jnp.swapaxes(mixed.reshape(kv_heads, batch, -1, size), 0, 1).reshape(query.shape)


def _heads_first(rows: Float[Array, "B kv_heads n c"]) -> Float[Array, "kv_heads_B n c"]:
    """Rows in the order of the cache."""
    return jnp.swapaxes(rows, 0, 1).reshape(-1, *rows.shape[2:])


class Projection(nn.Module):
    """A linear layer `rows @ kernel + bias`; the kernel is an array [in, out] or a `BlockMatrix`."""

    size: int
    use_bias: bool
    dtype: ComputeDtype
    result_dtype: ComputeDtype | None = None  # that of the product; None is dtype

    @nn.compact
    def __call__(self, rows: Float[Array, "*rows in"]) -> Float[Array, "*rows out"]:
        """Maps rows."""
        kernel = _parameter(self, "kernel", nn.initializers.lecun_normal(), (rows.shape[-1], self.size))
        result_dtype = self.result_dtype or self.dtype
        if isinstance(kernel, BlockMatrix):
            made = product(rows, kernel).astype(result_dtype)
        else:
            contracted = (((rows.ndim - 1,), (0,)), ((), ()))
            made = _dot_general(rows.astype(self.dtype), kernel.astype(self.dtype), contracted, result_dtype)
        if not self.use_bias:
            return made
        return made + self.param("bias", nn.initializers.zeros, (self.size,)).astype(result_dtype)


class TokenTable(nn.Module):
    """Embeddings of tokens: an array [vocab, d], `FileRows`, or the `BlockMatrix` of the output layer."""

    vocab_size: int
    size: int
    dtype: ComputeDtype

    def setup(self) -> None:
        """Declares the table."""
        self.embedding = _parameter(self, "embedding", nn.initializers.normal(0.02), (self.vocab_size, self.size))

    def __call__(self, tokens: Int[Array, "B C"]) -> Float[Array, "B C d"]:
        """Looks tokens up."""
        table = self.embedding
        if isinstance(table, BlockMatrix):
            return columns(table, tokens).astype(self.dtype)
        return (table.rows(tokens) if isinstance(table, FileRows) else table[tokens]).astype(self.dtype)

    def logits(self, rows: Float[Array, "*rows d"]) -> Float[Array, "*rows vocab"]:
        """The table as output layer, float32."""
        table = self.embedding
        if isinstance(table, BlockMatrix):
            return product(rows, table)
        contracted = (((rows.ndim - 1,), (1,)), ((), ()))
        return _dot_general(rows, table.astype(rows.dtype), contracted, jnp.float32)


def _parameter(module: nn.Module, name: str, init: Any, shape: tuple[int, ...]) -> Any:
    """A parameter that need not be one array: flax compares the shape of those that it declares."""
    given = module.get_variable("params", name) if module.has_variable("params", name) else None
    return given if isinstance(given, BlockMatrix | FileRows) else module.param(name, init, shape)


class DecoderLayer(nn.Module):
    """One layer; it writes keys and values of its tokens into the cache and attends to the cache."""

    config: DecoderConfig
    dtype: ComputeDtype

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "B C d"],
        turns: tuple[Array, Array],
        mask: Bool[Array, "B C S"],
        keys: Float[Array, "kv_heads_B S c"],
        values: Float[Array, "kv_heads_B S c"],
        start: Int[Array, ""],
        written_only: bool,
    ) -> tuple[Float[Array, "B C d"], Float[Array, "kv_heads_B S c"], Float[Array, "kv_heads_B S c"]]:
        """Maps hidden states and the layer's cache to the new ones; `start` is the first slot that is written."""
        config = self.config
        inner = self._norm("attention_norm")(hidden)
        query, key, value = self._query_key_value(inner)
        if config.qk_norm:
            query, key = self._norm("query_norm")(query), self._norm("key_norm")(key)
        query, key = rotate_halves(query, *turns), rotate_halves(key, *turns)
        keys, values = _written(keys, _heads_first(key), start), _written(values, _heads_first(value), start)
        if written_only and keys.shape[1] >= 2 * _SLOTS and keys.shape[1] % _SLOTS == 0:
            mixed = attend_written(query, keys, values, mask, start + hidden.shape[1])
        else:
            mixed = attend_grouped(query, keys.astype(query.dtype), values.astype(query.dtype), mask)
        mixed = jnp.swapaxes(mixed, 1, 2).reshape(*hidden.shape[:2], -1)
        hidden = hidden + self._dense("output", config.hidden_size, config.output_bias)(mixed)
        inner = self._norm("mlp_norm")(hidden)
        size = config.intermediate_size
        gate, up = self._projections(inner, GATE_UP, (size, size), config.mlp_bias)
        return hidden + self._dense("down", config.hidden_size, config.mlp_bias)(nn.silu(gate) * up), keys, values

    def _query_key_value(self, rows: Array) -> list[Float[Array, "B heads C c"]]:
        config, (batch, length, _) = self.config, rows.shape
        heads = config.num_heads, config.num_kv_heads, config.num_kv_heads
        sizes = tuple(count * config.head_dim for count in heads)
        made = self._projections(rows, QUERY_KEY_VALUE, sizes, config.qkv_bias)
        return [jnp.swapaxes(each.reshape(batch, length, -1, config.head_dim), 1, 2) for each in made]

    def _projections(self, rows: Array, names: tuple[str, ...], sizes: tuple[int, ...], use_bias: bool) -> list[Array]:
        """Products of the same rows: one for each name, or a joined one that is cut (`join_projections`)."""
        joined = "_".join(names)
        if joined not in self.variables.get("params", {}):
            return [self._dense(name, size, use_bias)(rows) for name, size in zip(names, sizes, strict=True)]
        made = self._dense(joined, sum(sizes), use_bias)(rows)
        return jnp.split(made, list(accumulate(sizes))[:-1], axis=-1)

    def _dense(self, name: str, size: int, use_bias: bool) -> "Projection":
        return Projection(size, use_bias, self.dtype, name=name)

    def _norm(self, name: str) -> nn.RMSNorm:
        return nn.RMSNorm(self.config.norm_eps, dtype=self.dtype, name=name)


def _dot_general(left: Array, right: Array, dimensions: Any, result_dtype: Any) -> Array:
    """`jax.lax.dot_general` of rows and a matrix; one row on CPU as a sum of products, which XLA spreads over cores.

    Logits of bfloat16 factors are asked for in float32: near ones must not become equal.
    """
    dot = partial(jax.lax.dot_general, dimension_numbers=dimensions, preferred_element_type=result_dtype)
    if left.size > left.shape[-1]:
        return dot(left, right)

    def add_products(left: Array, right: Array) -> Array:
        (_, (axis,)), _ = dimensions
        row = jnp.expand_dims(left.reshape(-1), 1 - axis)
        total = (right.astype(jnp.float32) * row.astype(jnp.float32)).sum(axis)
        return total.astype(result_dtype).reshape(*left.shape[:-1], -1)

    return jax.lax.platform_dependent(left, right, cpu=add_products, default=dot)


def _written(cache: Array, new: Array, start: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(cache, new.astype(cache.dtype), start, axis=1)


class Decoder(nn.Module):
    """Embedding, layers, last norm and output layer; see `extend` for the meaning of its arguments."""

    config: DecoderConfig
    dtype: ComputeDtype = "float32"

    def setup(self) -> None:
        """Declares the submodules; their attribute names are the names in the parameter tree."""
        config = self.config
        self.embed = TokenTable(config.vocab_size, config.hidden_size, self.dtype)
        self.layer = [DecoderLayer(config, self.dtype) for _ in range(config.num_layers)]
        self.norm = nn.RMSNorm(config.norm_eps, dtype=self.dtype)
        if not config.tie_embeddings:
            self.head = Projection(config.vocab_size, False, self.dtype, "float32")

    def __call__(
        self,
        tokens: Int[Array, "B C"],
        pads: Int[Array, " B"],
        cache: KVCache,
        start: Int[Array, ""],
        rope_length: int | None = None,
        written_only: bool = True,
    ) -> tuple[Float[Array, "B C d"], KVCache]:
        """Hidden states of the last layer before the last norm, and the cache with the tokens' keys and values."""
        own = start + jnp.arange(tokens.shape[1], dtype=jnp.int32)
        slots = jnp.arange(cache.num_slots, dtype=jnp.int32)
        mask = (slots <= own[:, None]) & (slots >= pads[:, None, None])
        positions = jnp.maximum(own - pads[:, None], 0)
        turns = turns_at(positions, *inverse_frequencies(self.config, rope_length))
        hidden, keys, values = self.embed(tokens), [], []
        for layer, old_keys, old_values in zip(self.layer, cache.keys, cache.values, strict=True):
            hidden, new_keys, new_values = layer(hidden, turns, mask, old_keys, old_values, start, written_only)
            keys.append(new_keys)
            values.append(new_values)
        return hidden, KVCache(tuple(keys), tuple(values))

    def logits(self, hidden: Float[Array, "*rows d"]) -> Float[Array, "*rows vocab"]:
        """Last norm and output layer, float32."""
        normed = self.norm(hidden)
        return self.embed.logits(normed) if self.config.tie_embeddings else self.head(normed)

    def everything(
        self, tokens: Int[Array, "B L"], pads: Int[Array, " B"], rope_length: int | None = None
    ) -> Float[Array, "B L vocab"]:
        """Logits of every position."""
        batch, length = tokens.shape
        cache = init_cache(self.config, batch, length, self.dtype)
        hidden, _ = self(tokens, pads, cache, jnp.int32(0), rope_length, written_only=False)  # differentiable
        return self.logits(hidden)


def init_decoder(key: PRNGKeyArray | Array, config: DecoderConfig) -> dict[str, Any]:
    """Draws float32 parameters: embeddings normal with deviation 0.02, matrices LeCun normal, biases 0, norms 1."""
    tokens, pads = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((1, 1), (1,)))
    variables: Any = Decoder(config).lazy_init(key, tokens, pads, method=Decoder.everything)
    return variables["params"]


def unstacked(params: Params) -> dict[str, Any]:
    """Parameters of `network.py` by layer, as `extend` takes them."""
    layers, others = params["layers"], {name: value for name, value in params.items() if name != "layers"}
    count = jax.tree.leaves(layers)[0].shape[0]
    return others | {f"layer_{number}": jax.tree.map(lambda x, n=number: x[n], layers) for number in range(count)}


def join_projections(params: Params) -> dict[str, Any]:
    """The same decoder with one matrix for query, key and value of a layer, and one for gate and up.

    Fewer and larger products, which cost a step of one row on CPU less. The names in a file and the shardings
    of `sharding.py` are those of the single matrices, so this is for one device, after loading. Matrices
    of different dtypes or forms of blocks stay single; what is joined already stays as it is. Arrays of NumPy give
    arrays of NumPy.
    """
    return {name: _join_layer(value) if name.startswith("layer_") else value for name, value in params.items()}


def is_joined(params: Params) -> bool:
    """True if any projections are joined: such parameters are those of no file."""
    joined = {"_".join(QUERY_KEY_VALUE), "_".join(GATE_UP)}
    return any(joined.intersection(value) for name, value in params.items() if name.startswith("layer_"))


def _join_layer(layer: Mapping[str, Any]) -> dict[str, Any]:
    for names in (QUERY_KEY_VALUE, GATE_UP):
        if names[0] in layer and _can_join([layer[name]["kernel"] for name in names]):
            joined = {part: _joined([layer[name][part] for name in names]) for part in layer[names[0]]}
            layer = {name: value for name, value in layer.items() if name not in names} | {"_".join(names): joined}
    return dict(layer)


def _can_join(kernels: Sequence[Any]) -> bool:
    if any(isinstance(kernel, BlockMatrix) for kernel in kernels):
        return same_form(kernels)
    return len({kernel.dtype for kernel in kernels}) == 1  # a file may have float16 beside bfloat16


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], BlockMatrix):
        return concatenated(parts)
    return (np if isinstance(parts[0], np.ndarray) else jnp).concatenate(parts, axis=-1)


def extend(
    config: DecoderConfig,
    params: Params,
    tokens: Int[Array, "B C"],
    pads: Int[Array, " B"],
    cache: KVCache,
    start: Int[Array, ""],
    *,
    last: Int[Array, ""] | None = None,
    compute_dtype: ComputeDtype = "float32",
    rope_length: int | None = None,
) -> tuple[Float[Array, "B vocab"], KVCache]:
    """Reads C more tokens of every row: a chunk of the prompt, or with C = 1 a step of decoding. Pure.

    Chunks of any sizes give what one piece gives. Under `jax.jit` with the cache donated it is updated in place.

    Args:
        config: of the decoder; static under jit, as are the keywords.
        params: of `init_decoder`, of a file, or of `join_projections`.
        tokens: ids in [0, vocab_size), padded on the left; padding may hold any of them.
        pads: slots at the start of each row that are padding and are never attended.
        cache: as the call before left it; its slots from `start` on are not read, but written first.
        start: first slot to write. The caller sees to it that `start + C` is at most the cache's number of slots and
            that no position exceeds `config.max_positions`: inside jit neither can be checked.
        last: place among the C tokens of the one whose next token the logits are of; None is the last of them. What
            stands behind it is padding on the right: its slots are to be written again before they are read.
        compute_dtype: of matrix products and activations; norms, rotations, softmax and logits are float32.
        rope_length: for dynamic rope scaling only, the length that frequencies are made for; None is
            `config.max_positions`, so that they do not change while a text grows.

    Returns:
        Logits (float32) of the token after the `last` one of every row; the cache with slots start..start+C-1 written.
    """
    if tokens.shape[1] > cache.num_slots:
        raise UsageError(f"{tokens.shape[1]} tokens a row for a cache of {cache.num_slots} slots: make a larger cache")
    decoder, variables = Decoder(config, compute_dtype), {"params": params}
    made: Any = decoder.apply(variables, tokens, pads, cache, start, rope_length)
    hidden, cache = made
    hidden = hidden[:, -1] if last is None else jax.lax.dynamic_index_in_dim(hidden, last, axis=1, keepdims=False)
    logits: Any = decoder.apply(variables, hidden, method="logits")
    return logits, cache


def all_logits(
    config: DecoderConfig,
    params: Params,
    tokens: Int[Array, "B L"],
    pads: Int[Array, " B"],
    *,
    compute_dtype: ComputeDtype = "float32",
    rope_length: int | None = None,
) -> Float[Array, "B L vocab"]:
    """Logits of the token after every one, without a cache to keep; those at padding are meaningless.

    Pure and differentiable in `params`. For the arguments see `extend`.
    """
    decoder = Decoder(config, compute_dtype)
    logits: Any = decoder.apply({"params": params}, tokens, pads, rope_length, method="everything")
    return logits
