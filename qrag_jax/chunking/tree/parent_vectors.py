"""Vectors of the nodes that have children: made from their children, from their text, or not at all.

    best_child   none is stored: a parent scores as high as the best leaf under it
    mean         mean of the children, weighted by their tokens, scaled to length 1
    compressor   from a trained network that reads the children (`qrag train compressor`)
    direct       from the text, as far as the encoder reads
    windows      mean of pieces of the text that the encoder reads whole, scaled to length 1
    summary      from a language model's summary of the text

Vectors from children are made level by level, from the finest to the root, so grandchildren count once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.names import PARENTS, ParentsName
from qrag_jax.types import InputError, UsageError
from qrag_jax.unit_rows import unit_rows

# (vectors of children at length 1, tokens of each, position of its parent: 0, 0, 1, 1, 1, 2, ... without gaps) -> a
# vector of length 1 for each parent, or zeros if its children have no direction.
FromChildren = Callable[
    [Float[np.ndarray, "children dim"], Int[np.ndarray, " children"], Int[np.ndarray, " children"]],
    Float[np.ndarray, "parents dim"],
]
FromTexts = Callable[[Sequence[str]], Float[np.ndarray, "parents dim"]]


@dataclass(frozen=True)
class Parents:
    """How parents get their vectors.

    Attributes:
        name: see the module.
        of_children: makes them from vectors of children; None for other ways.
        of_texts: makes them from text; None for other ways. With neither, no parent has a vector.
        fingerprint: of the compressor or language model that makes them; empty if there is none.
        most_tokens: most tokens that the encoder reads of a parent's text; None is all.
    """

    name: ParentsName
    of_children: FromChildren | None = None
    of_texts: FromTexts | None = None
    fingerprint: str = ""
    most_tokens: int | None = None


def mean_of_children(
    vectors: Float[np.ndarray, "children dim"], num_tokens: Int[np.ndarray, " children"], parent: Int[np.ndarray, " _"]
) -> Float[np.ndarray, "parents dim"]:
    """The mean weighted by tokens, scaled to length 1; a child without tokens counts as one. A `FromChildren`."""
    weights = np.maximum(num_tokens, 1).astype(np.float64)[:, None]
    firsts = np.flatnonzero(np.diff(parent, prepend=-1))
    return unit_rows(np.add.reduceat(weights * vectors, firsts, axis=0).astype(np.float32))


def fill_parents(
    tree: ChunkTree,
    vectors: Float[np.ndarray, "nodes dim"],
    num_tokens: Int[np.ndarray, " nodes"],
    of_children: FromChildren,
) -> Float[np.ndarray, "nodes dim"]:
    """The vectors of all nodes, from those of the leaves.

    Args:
        vectors: of length 1 or 0; those of parents are ignored.
        of_children: makes the vectors of parents.
    """
    found = vectors.astype(np.float32, copy=True)
    fill_levels_above(tree.parent, tree.level, found, num_tokens, of_children, np.ones(len(tree), bool))
    return found


def fill_levels_above(
    parent: Int[np.ndarray, " nodes"],
    level: Int[np.ndarray, " nodes"],
    vectors: Float[np.ndarray, "nodes dim"],
    num_tokens: Int[np.ndarray, " nodes"],
    of_children: FromChildren,
    wanted: Bool[np.ndarray, " nodes"],
) -> None:
    """Fills in the vectors of wanted parents, level by level over all trees, from the finest one.

    Args:
        parent: of each node of one or several trees, -1 for a root.
        vectors: float32, modified in place; all children of wanted parents have one, or are wanted too.
        wanted: which parents; leaves are ignored.
    """
    children = np.flatnonzero(parent >= 0)
    children = children[wanted[parent[children]]]
    children = children[np.argsort(parent[children], kind="stable")]  # those of one parent adjacent, in order
    levels_of = level[parent[children]]
    for now in np.unique(levels_of)[::-1].tolist():
        here = children[levels_of == now]
        parents, place = np.unique(parent[here], return_inverse=True)
        made = of_children(vectors[here], num_tokens[here], place)
        _check_made(made, (len(parents), vectors.shape[1]))
        vectors[parents] = made


def _check_made(made: np.ndarray, shape: tuple[int, int]) -> None:
    if made.shape != shape:
        raise InputError(
            f"parents: made vectors {list(made.shape)} from children, expected {list(shape)}; fix of_children"
        )
    if not np.isfinite(made).all():
        raise InputError(
            "parents: a vector made from children is not finite; fix of_children or train the compressor again"
        )


def check_parents(name: str) -> None:
    """Refuses an unknown way."""
    if name not in PARENTS:
        raise UsageError(f"parents {name!r}: choose one of {', '.join(PARENTS)}")
