"""A trained compressor as a way in which parents get vectors: parents of alike many children go together."""

from collections.abc import Mapping
from functools import cache, partial

import jax
import numpy as np
from jaxtyping import Float, Int

from qrag_jax.models.compressor.network import compress
from qrag_jax.models.compressor.weights import Compressor
from qrag_jax.retrieval.corpus.parents import Parents
from qrag_jax.types import InputError

_LEAST_CHILDREN = 8  # what a parent is filled up to; so many shapes fewer
_CELLS = 4096  # children at a time, or those of one parent


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
            "it was trained with, or train a compressor on this one (qrag fit compressor)"
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
        vectors: of children, of length 1 or 0; those of one parent stand side by side.
        parent: place of its parent from 0, never decreasing.
    """
    width = (params["child"] if "child" in params else params["score_child"]).shape[0]
    if len(vectors) and vectors.shape[1] != width:
        raise InputError(
            f"compressor: made for vectors of {width} numbers, these have {vectors.shape[1]}: give the encoder that it "
            "was trained with, or train a compressor on this one (qrag fit compressor)"
        )
    number = np.bincount(parent) if len(parent) else np.zeros(0, np.int64)
    first = np.cumsum(number) - number
    found = np.zeros((len(number), vectors.shape[1]), np.float32)
    sizes = np.maximum(_power_of_two(number), _LEAST_CHILDREN)
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
    """Of parents whose children begin at `first`, at most `size` each; filled up to a power of two of parents."""
    places = np.arange(size)
    mask = np.zeros((int(_power_of_two(np.array([len(first)]))[0]), size), bool)
    mask[: len(first)] = places < number[:, None]
    taken = np.zeros(mask.shape, np.int64)
    taken[: len(first)] = np.minimum(first[:, None] + places, len(vectors) - 1)
    children = np.where(mask[..., None], vectors[taken], 0).astype(np.float32)
    tokens = np.where(mask, num_tokens[taken], 0).astype(np.int32)
    return np.asarray(_compiled()(dict(params), children, tokens, mask))[: len(first)]


def _power_of_two(numbers: np.ndarray) -> np.ndarray:
    """The least power of two that is no smaller, of integers."""
    return np.array([1 << max(int(one) - 1, 0).bit_length() for one in numbers], np.int64)


@cache
def _compiled():
    return jax.jit(jax.vmap(compress, in_axes=(None, 0, 0, 0)))
