"""The forward pass of an encoder in NumPy, for a few questions. Imports no JAX.

JAX takes a second or two to import and to trace an encoder, in which a search of a whole index is done. Rows of tokens
stand one after the other in one matrix, so there is no padding, and nothing is compiled for a length. The equations
are those of `text_encoder`, which computes all documents.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.models.encoder.config import EncoderConfig
from qrag_jax.models.weights.param_tree import Params

_FAMILIES = ("bert", "roberta", "xlm-roberta")
_SMALLEST_NORM = 1e-12
_ERF_REACH, _ERF_STEP = 4.0, 2.0**-11  # of the table of erf, which is 1 - 2e-8 at its end


def can_encode(config: EncoderConfig) -> bool:
    """True for the families that NumPy computes: learned positions, norms after each part, no relative bias."""
    return config.family in _FAMILIES and not config.projection


def encode_rows(
    config: EncoderConfig, params: Params, rows: Sequence[Int[np.ndarray, " _"]]
) -> Float[np.ndarray, "n dim"]:
    """The values of `text_encoder.encode`, up to rounding.

    Args:
        config: one that `can_encode`.
        params: nested dict of float32 NumPy arrays.
        rows: tokens of each text, at least one, without padding.
    """
    ends = np.cumsum([len(row) for row in rows]).tolist()
    borders = list(zip([0, *ends], ends, strict=False))
    tokens, places = np.concatenate(rows), np.concatenate([_places(config, row) for row in rows])
    hidden = params["word_embeddings"]["embedding"][tokens] + params["position_embeddings"]["embedding"][places]
    hidden = _norm(config, params["embeddings_norm"], hidden + params["type_embeddings"]["embedding"][0])
    for number in range(config.num_layers):
        layer = params[f"layer_{number}"]
        query, key, value = (_heads(config, _dense(layer[name], hidden)) for name in ("query", "key", "value"))
        mixed = np.concatenate([_attend(query[:, a:b], key[:, a:b], value[:, a:b]) for a, b in borders])
        hidden = _norm(config, layer["attention_norm"], hidden + _dense(layer["attention_output"], mixed))
        inner = _activate(config, _dense(layer["intermediate"], hidden))
        hidden = _norm(config, layer["output_norm"], hidden + _dense(layer["output"], inner))
    pooled = np.stack([_pool(config, hidden[a:b]) for a, b in borders])[:, : config.output_size]
    if not config.normalize:
        return pooled
    return pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), _SMALLEST_NORM)


def _places(config: EncoderConfig, row: Int[np.ndarray, " L"]) -> Int[np.ndarray, " L"]:
    """Rows of the position table, as `text_encoder.counted_positions` counts them for families that do."""
    if not config.first_position:
        return np.arange(len(row))
    real = row != config.padding_id
    return config.padding_id + real * np.cumsum(real)


def _dense(layer: Params, x: Float[np.ndarray, "L d"]) -> Float[np.ndarray, "L out"]:
    return x @ layer["kernel"] + layer["bias"]


def _norm(config: EncoderConfig, layer: Params, x: Float[np.ndarray, "L d"]) -> Float[np.ndarray, "L d"]:
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.square(centred).mean(axis=1, keepdims=True)
    return centred / np.sqrt(variance + np.float32(config.layer_norm_eps)) * layer["scale"] + layer["bias"]


def _heads(config: EncoderConfig, x: Float[np.ndarray, "L d"]) -> Float[np.ndarray, "heads L c"]:
    return np.moveaxis(x.reshape(len(x), config.num_heads, -1), 1, 0)


def _attend(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> Float[np.ndarray, "L d"]:
    """`softmax(query key^T / sqrt(c)) value` of [heads, L, c], heads side by side."""
    logits = query @ np.swapaxes(key, 1, 2) / np.float32(math.sqrt(query.shape[-1]))
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    mixed = weights / weights.sum(axis=-1, keepdims=True) @ value
    return np.moveaxis(mixed, 0, 1).reshape(query.shape[1], -1)


def _activate(config: EncoderConfig, x: np.ndarray) -> np.ndarray:
    if config.activation == "silu":
        return x / (1 + np.exp(-x))
    if config.activation == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)))
    grown = _erf(x * np.float32(math.sqrt(0.5)))
    grown += 1
    grown *= x
    grown *= np.float32(0.5)
    return grown


def _erf(x: np.ndarray) -> np.ndarray:
    """erf, by a straight line in each step of a table; off by at most 1e-7, of which 3e-8 by the lines:

    |error| <= step^2 / 8 * max |erf''|,   max |erf''| = 4 / sqrt(2 pi e) < 1,   step = 8 / 2^14
    """
    table, slopes = _erf_table()
    place = np.clip(x, -_ERF_REACH, _ERF_REACH) * np.float32(1 / _ERF_STEP)
    step = np.floor(place)
    number = step.astype(np.intp)
    place -= step
    place *= slopes[number]  # of negative numbers the last ones
    place += table[number]
    return place


@cache
def _erf_table() -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, " steps"]]:
    """erf at 0 and the steps above it, then at those below it; and how much it grows until the next step."""
    above = np.arange(round(_ERF_REACH / _ERF_STEP) + 1) * _ERF_STEP
    steps = np.concatenate([above, -above[:0:-1]]).tolist()
    table = np.array([math.erf(x) for x in steps])
    return table.astype(np.float32), (np.array([math.erf(x + _ERF_STEP) for x in steps]) - table).astype(np.float32)


def _pool(config: EncoderConfig, hidden: Float[np.ndarray, "L d"]) -> Float[np.ndarray, " d"]:
    if config.pooling == "mean":
        return hidden.mean(axis=0)
    return hidden[0 if config.pooling == "cls" else -1]
