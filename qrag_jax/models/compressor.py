"""A trained compressor as one object, and how that of a run is checked.

The compressor's networks: pure functions of one parent; `jax.vmap` makes them of many.

Of children c_i of t_i tokens, w_i = t_i / sum t:

    mean        m = sum_i w_i c_i / |sum_i w_i c_i|
    mlp         y = m + W gelu(U sum_i w_i f(c_i) + b),     f(c) = gelu(A c + a)
    attention   y = sum_i softmax_i(log t_i + s_i) c_i,     s_i = v . gelu(C c_i + M m + F x_i + d)
    both the attention's y instead of m, plus the mlp's correction

x_i contains the similarity of child i to the mean, log t_i and the logarithm of the number of children. The parent is
y / |y|. W and v are zero at first, so an untrained network gives the mean. The order of the children has no effect.

A trained compressor as a way in which parents get vectors: parents of alike many children go together.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.chunking.tree.parent_vectors import Parents
from qrag_jax.names import COMPRESSOR_KINDS, CompressorKind
from qrag_jax.types import InputError, UsageError

NUM_FEATURES = 3
_LEAST = -1e30  # a score that takes part in nothing
Params = dict[str, Any]

# Names of the parameters of each part, with their shapes by `dim` and `hidden`.
_MLP = {"child": "dh", "child_bias": "h", "inner": "hh", "inner_bias": "h", "out": "hd"}
_ATTENTION = {"score_child": "dh", "score_mean": "dh", "score_features": "fh", "score_bias": "h", "score_out": "h"}
_ZERO = ("out", "score_out", "child_bias", "inner_bias", "score_bias")


def shapes(kind: CompressorKind, dim: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its name."""
    sizes = {"d": dim, "h": hidden, "f": NUM_FEATURES}
    named = (_MLP if kind != "attention" else {}) | (_ATTENTION if kind != "mlp" else {})
    return {name: tuple(sizes[letter] for letter in letters) for name, letters in named.items()}


def init(key: Array, kind: CompressorKind, dim: int, hidden: int) -> Params:
    """Parameters of a compressor that is the mean.

    Args:
        key: consumed.
        hidden: units of each inner layer.
    """
    wanted = shapes(kind, dim, hidden)
    keys = jax.random.split(key, len(wanted))
    return {
        name: jnp.zeros(shape) if name in _ZERO else jax.random.normal(own, shape) / math.sqrt(shape[0])
        for own, (name, shape) in zip(keys, wanted.items(), strict=True)
    }


def compress(
    params: Params,
    children: Float[Array, "children dim"],
    num_tokens: Int[Array, " children"],
    mask: Bool[Array, " children"],
) -> Float[Array, " dim"]:
    """The vector of one parent, of length 1; zeros where its children have no direction.

    Args:
        params: of `init`; they say which network it is.
        children: of length 1 or 0; those that are not in `mask` are any finite numbers.
        num_tokens: of each child; one without a token counts as one.
        mask: which children are there; at least one, or the parent has no direction.
    """
    kept = jnp.where(mask[:, None], children, 0.0)
    tokens = jnp.where(mask, jnp.maximum(num_tokens, 1), 0).astype(kept.dtype)
    weights = tokens / jnp.maximum(tokens.sum(), 1.0)
    mean = unit(weights @ kept)
    pooled = mean if "score_out" not in params else _attend(params, kept, tokens, mask, mean)
    return unit(pooled if "out" not in params else pooled + _correction(params, kept, weights))


def _correction(
    params: Params, children: Float[Array, "children dim"], weights: Float[Array, " children"]
) -> Float[Array, " dim"]:
    """W gelu(U sum_i w_i f(c_i) + b), f(c) = gelu(A c + a)."""
    told = weights @ jax.nn.gelu(children @ params["child"] + params["child_bias"])
    return jax.nn.gelu(told @ params["inner"] + params["inner_bias"]) @ params["out"]


def _attend(
    params: Params,
    children: Float[Array, "children dim"],
    tokens: Float[Array, " children"],
    mask: Bool[Array, " children"],
    mean: Float[Array, " dim"],
) -> Float[Array, " dim"]:
    """sum_i softmax_i(log t_i + s_i) c_i at length 1, s_i = v . gelu(C c_i + M m + F x_i + d)."""
    log_tokens = jnp.log(jnp.maximum(tokens, 1.0))
    number = jnp.broadcast_to(jnp.log(jnp.maximum(mask.sum(), 1).astype(children.dtype)), tokens.shape)
    features = jnp.stack([children @ mean, log_tokens, number], axis=1)
    inner = children @ params["score_child"] + mean @ params["score_mean"] + features @ params["score_features"]
    scores = log_tokens + jax.nn.gelu(inner + params["score_bias"]) @ params["score_out"]
    weights = jax.nn.softmax(jnp.where(mask, scores, _LEAST))  # finite, so that a parent without children is no NaN
    return unit(weights @ children)


def unit(vector: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """A vector at length 1; one of (nearly) no length is zeros, and has no gradient."""
    squared = jnp.sum(jnp.square(vector))
    has_length = squared > 1e-24
    return jnp.where(has_length, vector / jnp.sqrt(jnp.where(has_length, squared, 1.0)), 0.0)


KIND = "compressor"  # in the metadata of a run
_FORMAT = 1
_FIELDS = {"format": int, "network": str, "dim": int, "hidden": int, "fingerprint": str, "encoder": str}
_FIELDS |= {"trained_on": dict}


@dataclass(frozen=True)
class Compressor:
    """Computes the vector of a parent from those of its children.

    Attributes:
        params: of `network.init`, float32 arrays.
        kind: of the network.
        fingerprint: of the encoder whose vectors it was trained on.
        encoder: where that encoder comes from, as `load_encoder` takes it.
        trained_on: description of the documents and of the training.
    """

    params: Mapping[str, np.ndarray]
    kind: CompressorKind
    fingerprint: str
    encoder: str
    trained_on: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Equal for equal vectors of parents: a hash of the network and its parameters."""
        digest = hashlib.sha256(self.kind.encode())
        for name in sorted(self.params):
            digest.update(np.ascontiguousarray(self.params[name], np.float32).tobytes())
        return digest.hexdigest()


def load_compressor(run: str | Path) -> Compressor:
    """The compressor of a run folder of `qrag train compressor`.

    Raises:
        UsageError: there is no such folder, or the run is not one of a compressor.
        InputError: it is damaged.
    """
    path = Path(run)
    if not path.is_dir():
        raise UsageError("no such folder; give one that `qrag train compressor --out` wrote", file=path)
    saved = load_checkpoint(path, groups=lambda about: [KIND] if about.get("kind") == KIND else [])
    about = saved.metadata
    if about.get("kind") != KIND:
        raise UsageError("is not a compressor: give a folder that `qrag train compressor --out` wrote", file=path)
    arrays = saved.arrays[KIND]
    if faults := _faults(arrays, about):
        raise InputError(f"damaged: {'; '.join(faults)}; copy it again, or train it again", file=saved.folder)
    params = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    return Compressor(params, about["network"], about["fingerprint"], about["encoder"], about["trained_on"])


def describe_compressor(compressor: Compressor) -> dict[str, Any]:
    """The fields of a compressor besides its parameters, as JSON values."""
    dim, hidden = compressor.params["child" if "child" in compressor.params else "score_child"].shape
    return {
        "kind": KIND,
        "format": _FORMAT,
        "network": compressor.kind,
        "dim": dim,
        "hidden": hidden,
        "fingerprint": compressor.fingerprint,
        "encoder": compressor.encoder,
        "trained_on": dict(compressor.trained_on),
    }


def _faults(arrays: Any, about: Mapping[str, Any]) -> list[str]:
    faults = [f"{name} is not a {kind.__name__}" for name, kind in _FIELDS.items() if type(about.get(name)) is not kind]
    if faults:
        return faults
    if about["format"] != _FORMAT:
        return [f"format {about['format']}, this version reads {_FORMAT}"]
    if about["network"] not in COMPRESSOR_KINDS:
        return [f"network {about['network']!r} is not one of {', '.join(COMPRESSOR_KINDS)}"]
    wanted = shapes(about["network"], about["dim"], about["hidden"])
    if not isinstance(arrays, Mapping) or set(arrays) != set(wanted):
        return [f"parameters are not {', '.join(wanted)}"]
    for name, shape in wanted.items():
        array = np.asarray(arrays[name])
        if array.shape != shape:
            faults.append(f"{name} is {list(array.shape)} and not {list(shape)}")
        elif array.dtype.kind != "f" or not np.isfinite(array).all():
            faults.append(f"{name} is not finite")
    return faults


_MIN_CHILDREN = 8  # what a parent is filled up to; so many shapes fewer
_CELLS = 4096  # children at a time, or those of one parent
_compress = jax.jit(jax.vmap(compress, in_axes=(None, 0, 0, 0)))


def compressor_parents(compressor: Compressor, fingerprint: str) -> Parents:
    """The vectors of parents that a compressor makes, by the encoder that it was trained with.

    Args:
        compressor: of `load_compressor`.
        fingerprint: of the encoder whose vectors the children have.

    Raises:
        InputError: it is another encoder.
    """
    if fingerprint != compressor.fingerprint:
        raise InputError(
            f"compressor: trained on vectors of the encoder {compressor.encoder!r} (fingerprint "
            f"{compressor.fingerprint[:12]}), this one has the fingerprint {fingerprint[:12]}: give the encoder that "
            "it was trained with, or train a compressor on this one (qrag train compressor)"
        )
    made = partial(compress_parents, compressor.params)
    return Parents("compressor", of_children=made, fingerprint=compressor.identity)


def compress_parents(
    params: Mapping[str, np.ndarray],
    vectors: Float[np.ndarray, "children dim"],
    num_tokens: Int[np.ndarray, " children"],
    parent: Int[np.ndarray, " children"],
) -> Float[np.ndarray, "parents dim"]:
    """The vector of each parent, of length 1, or zeros where its children have no direction.

    Args:
        params: of `network.init`.
        vectors: of children, of length 1 or 0; those of one parent are consecutive.
        parent: place of its parent from 0, never decreasing.
    """
    number = np.bincount(parent) if len(parent) else np.zeros(0, np.int64)
    first = np.cumsum(number) - number
    found = np.zeros((len(number), vectors.shape[1]), np.float32)
    sizes = np.maximum(_power_of_two(number), _MIN_CHILDREN)
    for size in np.unique(sizes).tolist():
        members = np.flatnonzero((sizes == size) & (number > 0))
        most = max(_CELLS // size, 1)
        for at in range(0, len(members), most):
            rows = members[at : at + most]
            found[rows] = _compress_block(params, vectors, num_tokens, first[rows], number[rows], size)
    return found


def _compress_block(
    params: Mapping[str, np.ndarray],
    vectors: np.ndarray,
    num_tokens: np.ndarray,
    first: np.ndarray,
    number: np.ndarray,
    size: int,
) -> np.ndarray:
    """Compresses parents whose children begin at `first`, at most `size` each; padded to a power of two of parents."""
    places = np.arange(size)
    mask = np.zeros((int(_power_of_two(np.array([len(first)]))[0]), size), bool)
    mask[: len(first)] = places < number[:, None]
    taken = np.zeros(mask.shape, np.int64)
    taken[: len(first)] = np.minimum(first[:, None] + places, len(vectors) - 1)
    children = np.where(mask[..., None], vectors[taken], 0).astype(np.float32)
    tokens = np.where(mask, num_tokens[taken], 0).astype(np.int32)
    return np.asarray(_compress(dict(params), children, tokens, mask))[: len(first)]


def _power_of_two(numbers: np.ndarray) -> np.ndarray:
    """The least power of two that is no smaller, of integers."""
    return np.array([1 << max(int(one) - 1, 0).bit_length() for one in numbers], np.int64)
