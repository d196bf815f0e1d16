"""Vectors of the nodes that have children: made of their children's, of their text, or not at all.

    best_child   none is kept: a parent is as good as the best leaf under it
    mean         of the children, each counting as much as it has tokens, at length 1
    compressor   by a trained network that reads the children (`qrag train compressor`)
    direct       the text, as far as the encoder reads
    windows      the text in pieces that the encoder reads whole, averaged, at length 1
    summary      what a language model says of the text in short

What is made of children takes one pass a level, from the finest to the root, so that grandchildren count once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.names import PARENTS, ParentsName
from qrag_jax.types import InputError, UsageError
from qrag_jax.unit_rows import unit_rows

# (vectors of children at length 1, tokens of each, place of its parent: 0, 0, 1, 1, 1, 2, ... without gaps) -> a vector
# of length 1 of each parent, or zeros where its children have no direction.
FromChildren = Callable[
    [Float[np.ndarray, "children dim"], Int[np.ndarray, " children"], Int[np.ndarray, " children"]],
    Float[np.ndarray, "parents dim"],
]
FromTexts = Callable[[Sequence[str]], Float[np.ndarray, "parents dim"]]


@dataclass(frozen=True)
class Parents:
    """How parents get their vectors.

    Attributes:
        name: of the module.
        of_children: makes them of children's; None where it does not.
        of_texts: makes them of texts; likewise. With neither no parent has a vector.
        fingerprint: of what makes them beside the encoder (of a compressor, of a language model); empty: nothing.
        most_tokens: that the encoder reads of a parent's text; None: all.
    """

    name: ParentsName
    of_children: FromChildren | None = None
    of_texts: FromTexts | None = None
    fingerprint: str = ""
    most_tokens: int | None = None


def mean_of_children(
    vectors: Float[np.ndarray, "children dim"], num_tokens: Int[np.ndarray, " children"], parent: Int[np.ndarray, " _"]
) -> Float[np.ndarray, "parents dim"]:
    """The mean by tokens, at length 1; a child without a token counts as one. A `FromChildren`."""
    weights = np.maximum(num_tokens, 1).astype(np.float64)[:, None]
    firsts = np.flatnonzero(np.diff(parent, prepend=-1))
    return unit_rows(np.add.reduceat(weights * vectors, firsts, axis=0).astype(np.float32))


def fill_parents(
    tree: ChunkTree,
    vectors: Float[np.ndarray, "nodes dim"],
    num_tokens: Int[np.ndarray, " nodes"],
    of_children: FromChildren,
) -> Float[np.ndarray, "nodes dim"]:
    """The vectors of all nodes, of which those of leaves are given.

    Args:
        vectors: of length 1 or 0; those of parents count for nothing.
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
    """Writes the vectors of wanted parents, one pass a level over all trees, from the finest one.

    Args:
        parent: of each node of one tree or several, -1 of a root.
        vectors: float32; those of all children of wanted parents are there, or are wanted too. Written into.
        wanted: which parents; leaves are left alone.
    """
    children = np.flatnonzero(parent >= 0)
    children = children[wanted[parent[children]]]
    children = children[np.argsort(parent[children], kind="stable")]  # those of one parent side by side, in order
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
            f"parents: children gave vectors {list(made.shape)}, wanted are vectors {list(shape)}; mend the way"
        )
    if not np.isfinite(made).all():
        raise InputError("parents: a vector made of children is not finite; mend the way, or train the compressor anew")


def check_parents(name: str) -> None:
    """Refuses a way that is none."""
    if name not in PARENTS:
        raise UsageError(f"parents {name!r}: choose one of {', '.join(PARENTS)}")
