"""The network of decoders (Llama, Qwen2 and 2.5, Qwen3), the same for training, for prompts and for new tokens.

    x = x + output(attention(norm(x)));   x = x + down(silu(gate(norm(x))) * up(norm(x)))

RMSNorm, rotary positions, grouped queries. Parameters are a plain dict. Those of the layers are stacked on their first
axis and `jax.lax.scan` runs over them, so one layer is compiled, and with `remat` a gradient keeps one hidden state a
layer and one layer's activations. `attend` is the only part that differs: rows of packed texts attend to their own
segment (`token_logprobs`), new tokens attend to a cache (`models/decoder/rollout.py`).

LoRA (Hu et al. 2021): a projection with the leaves `lora_a` [L, in, r] and `lora_b` [L, r, out] computes
`x W + (x A) B`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.rotary import inverse_frequencies, turns_at
from qrag_jax.models.encoder.text_encoder import rotate_halves

Params = Mapping[str, Any]
ComputeDtype = Literal["float32", "bfloat16"]
PyTree = Any
# (queries [B, T, heads, c], keys and values [B, T, kv_heads, c], number of the layer, cache) -> mixed values as the
# queries, and the cache
Attend = Callable[[Array, Array, Array, Array, PyTree], tuple[Array, PyTree]]

_QUERIES = 512  # queries whose logits are in memory at once
_ROWS = 256  # tokens whose logits over the vocabulary are in memory at once
_SCALE = 0.02  # standard deviation of new embeddings


def init_params(config: DecoderConfig, key: PRNGKeyArray, dtype: ComputeDtype = "float32") -> dict[str, Any]:
    """Random parameters of a new decoder; the key is consumed.

    Kernels are normal with variance 1 / inputs; those that add to the hidden state are divided by sqrt(2 layers).
    """
    d, layers = config.hidden_size, config.num_layers
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    inner, qkv = config.intermediate_size, config.qkv_bias
    added = 1 / math.sqrt(2 * layers)
    shapes = {
        "query": (d, heads, qkv, 1.0),
        "key": (d, kv_heads, qkv, 1.0),
        "value": (d, kv_heads, qkv, 1.0),
        "output": (heads, d, config.output_bias, added),
        "gate": (d, inner, config.mlp_bias, 1.0),
        "up": (d, inner, config.mlp_bias, 1.0),
        "down": (inner, d, config.mlp_bias, added),
    }
    keys = iter(jax.random.split(key, len(shapes) + 2))

    def normal(shape: tuple[int, ...], scale: float) -> Array:
        return (scale * jax.random.normal(next(keys), shape)).astype(dtype)

    def projection(inputs: int, outputs: int, use_bias: bool, scale: float) -> dict[str, Array]:
        kernel = {"kernel": normal((layers, inputs, outputs), scale / math.sqrt(inputs))}
        return kernel | ({"bias": jnp.zeros((layers, outputs), dtype)} if use_bias else {})

    stacked: dict[str, Any] = {name: projection(*shape) for name, shape in shapes.items()}
    norms = {"attention_norm": d, "mlp_norm": d}
    norms |= {"query_norm": config.head_dim, "key_norm": config.head_dim} if config.qk_norm else {}
    stacked |= {name: {"scale": jnp.ones((layers, size), dtype)} for name, size in norms.items()}
    params = {
        "embed": {"embedding": normal((config.vocab_size, d), _SCALE)},
        "layers": stacked,
        "norm": {"scale": jnp.ones(d, dtype)},
    }
    if not config.tie_embeddings:
        params["head"] = {"kernel": normal((d, config.vocab_size), 1 / math.sqrt(d))}
    return params


def hidden_states(
    params: Params,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    attend: Attend,
    cache: PyTree = (),
    *,
    config: DecoderConfig,
    dtype: ComputeDtype = "float32",
    remat: bool = False,
) -> tuple[Float[Array, "B T d"], PyTree]:
    """Hidden states after the last norm, and the cache that `attend` leaves.

    Args:
        positions: of the tokens in their texts, from 0.
        cache: handed from layer to layer; () for none.
        dtype: of activations and products; parameters keep theirs.
        remat: a gradient computes each layer again instead of keeping its activations.
    """
    turns = turns_at(positions, *inverse_frequencies(config))
    cos, sin = (jnp.swapaxes(each, 1, 2) for each in turns)  # [B, T, 1, pairs]

    def layer(carry: tuple[Array, PyTree], own: tuple[Params, Array]) -> tuple[tuple[Array, PyTree], None]:
        (x, cache), (weights, number) = carry, own
        inner = _norm(x, weights["attention_norm"], config)
        query, key, value = (_heads(_project(inner, weights[name]), config) for name in ("query", "key", "value"))
        if config.qk_norm:
            query, key = _norm(query, weights["query_norm"], config), _norm(key, weights["key_norm"], config)
        query, key, value = (
            each.astype(dtype) for each in (rotate_halves(query, cos, sin), rotate_halves(key, cos, sin), value)
        )
        mixed, cache = attend(query, key, value, number, cache)
        x = (x + _project(mixed.reshape(*x.shape[:2], -1), weights["output"])).astype(dtype)
        inner = _norm(x, weights["mlp_norm"], config)
        gated = jax.nn.silu(_project(inner, weights["gate"])) * _project(inner, weights["up"])
        return ((x + _project(gated.astype(dtype), weights["down"])).astype(dtype), cache), None

    x = params["embed"]["embedding"][tokens].astype(dtype)
    step = jax.checkpoint(layer, prevent_cse=False) if remat else layer
    (x, cache), _ = jax.lax.scan(step, (x, cache), (params["layers"], jnp.arange(config.num_layers)))
    return _norm(x, params["norm"], config), cache


def vocabulary_logits(params: Params, hidden: Float[Array, "*rows d"]) -> Float[Array, "*rows vocab"]:
    """Logits of the next token, float32."""
    kernel = params["head"]["kernel"] if "head" in params else params["embed"]["embedding"].T
    return jnp.matmul(hidden, kernel.astype(hidden.dtype), preferred_element_type=jnp.float32)


def token_logprobs(
    params: Params,
    tokens: Int[Array, "B T"],
    segments: Int[Array, "B T"],
    *,
    config: DecoderConfig,
    dtype: ComputeDtype = "float32",
    remat: bool = True,
) -> Float[Array, "B T"]:
    """`log p(tokens[t] | the earlier tokens of its segment)`, natural logarithm; the logits are never all in memory.

    Args:
        segments: number of the text that a token belongs to, 1, 2, ... in the order of the row; 0 is padding. Texts of
            a row do not see each other.
        remat: see `hidden_states`.

    Returns:
        float32; 0 at the first token of every text and at padding.
    """
    hidden, _ = hidden_states(
        params,
        tokens,
        segment_positions(segments),
        lambda query, key, value, _, cache: (attend_packed(query, key, value, segments), cache),
        config=config,
        dtype=dtype,
        remat=remat,
    )
    known = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    logprobs = next_logprobs(params, hidden[:, :-1], tokens[:, 1:])
    return jnp.pad(jnp.where(known, logprobs, 0.0), ((0, 0), (1, 0)))


def next_logprobs(params: Params, hidden: Float[Array, "B T d"], targets: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Log-probabilities of the targets, a few tokens of every row at a time; a gradient computes the logits again."""
    (batch, length), size = targets.shape, max(1, _ROWS // targets.shape[0])

    @jax.checkpoint
    def piece(rows: tuple[Array, Array]) -> Array:
        hidden, targets = rows
        logits = vocabulary_logits(params, hidden)
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return chosen - jax.nn.logsumexp(logits, axis=-1)

    pieces = jax.lax.map(piece, (_in_pieces(hidden, size), _in_pieces(targets, size)))
    return jnp.moveaxis(pieces, 0, 1).reshape(batch, -1)[:, :length]


def _in_pieces(rows: Num[Array, "B T *rest"], size: int) -> Num[Array, "pieces B size *rest"]:
    """Cuts the places of every row into pieces; zeros fill the last one."""
    count = -(-rows.shape[1] // size)
    rows = jnp.pad(rows, ((0, 0), (0, count * size - rows.shape[1]), *((0, 0),) * (rows.ndim - 2)))
    return jnp.moveaxis(rows.reshape(rows.shape[0], count, size, *rows.shape[2:]), 1, 0)


def segment_positions(segments: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Places of tokens in their segments, from 0."""
    places = jnp.arange(segments.shape[1])
    starts = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return places - jax.lax.cummax(jnp.where(starts, places, 0), axis=1)


def attend_packed(
    query: Float[Array, "B T heads c"],
    key: Float[Array, "B T kv_heads c"],
    value: Float[Array, "B T kv_heads c"],
    segments: Int[Array, "B T"],
) -> Float[Array, "B T heads c"]:
    """Causal attention within segments, `_QUERIES` queries at a time; a gradient computes their weights again."""
    length, size = query.shape[1], _QUERIES
    places = jnp.arange(length)

    @jax.checkpoint
    def block(rows: tuple[Array, Array, Array]) -> Array:
        query, own, at = rows
        mask = (own[:, :, None] == segments[:, None, :]) & (at[:, None] >= places)
        return attend_cached(query, key, value, mask)

    if length <= size:
        return block((query, segments, places))
    # Queries behind the end attend to padding or to nothing; they are cut off.
    ends = jnp.arange(-(-length // size) * size).reshape(-1, size)
    mixed = jax.lax.map(block, (_in_pieces(query, size), _in_pieces(segments, size), ends))
    return jnp.moveaxis(mixed, 0, 1).reshape(query.shape[0], -1, *query.shape[2:])[:, :length]


def attend_cached(
    query: Float[Array, "B T heads c"],
    keys: Float[Array, "B S kv_heads c"],
    values: Float[Array, "B S kv_heads c"],
    mask: Bool[Array, "B T S"],
) -> Float[Array, "B T heads c"]:
    """`softmax(query keys^T / sqrt(c)) values` over the slots of `mask`."""
    return jax.nn.dot_product_attention(query, keys, values, mask=mask[:, None])


def _norm(x: Array, weights: Params, config: DecoderConfig) -> Array:
    """RMSNorm, computed in float32: `x / sqrt(mean(x^2) + eps) * scale`."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.square(wide).mean(axis=-1, keepdims=True) + config.norm_eps)
    return (wide * weights["scale"].astype(jnp.float32)).astype(x.dtype)


def _project(rows: Array, weights: Params) -> Array:
    """`rows W + (rows A) B + bias`, the last two where they exist; in the dtype of `_product`."""
    made = _product(rows, weights["kernel"])
    if "lora_a" in weights:
        made = made + _product(_product(rows, weights["lora_a"]).astype(rows.dtype), weights["lora_b"])
    return made + weights["bias"].astype(made.dtype) if "bias" in weights else made


def _product(rows: Array, kernel: Array) -> Array:
    """`rows W`, in the dtype of the rows; of bfloat16 rows on a CPU, in float32.

    XLA on CPUs has a fast product of bfloat16 numbers only with a float32 result (four times as fast on a processor
    with AMX), and what follows is faster in float32 too. Elsewhere it would make the products of the gradient slow.
    """
    if kernel.dtype == jnp.uint16:
        kernel = jax.lax.bitcast_convert_type(kernel, jnp.bfloat16)
    wide = rows.dtype == jnp.bfloat16 and jax.default_backend() == "cpu"
    return jnp.matmul(rows, kernel.astype(rows.dtype), preferred_element_type=jnp.float32 if wide else None)


def sliced_fast(params: Params) -> Params:
    """Parameters with bfloat16 kernels of the layers as their bits (uint16), for inference on a CPU.

    There XLA converts every number when `scan` takes a bfloat16 layer out of the stack: 12 ms for one of 9 MB, which is
    half of a product of 1,000 rows; bits take 1 ms. Other parameters, and all elsewhere, stay as they are.
    """
    if jax.default_backend() != "cpu" or params["layers"]["gate"]["kernel"].dtype != jnp.bfloat16:
        return params
    layers = {
        name: {**leaves, "kernel": jax.device_put(np.asarray(leaves["kernel"]).view(np.uint16))}
        if "kernel" in leaves
        else leaves
        for name, leaves in params["layers"].items()
    }
    return {**params, "layers": layers}


def _heads(rows: Array, config: DecoderConfig) -> Array:
    return rows.reshape(*rows.shape[:2], -1, config.head_dim)
