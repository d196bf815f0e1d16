"""Levels with names: ranges of them, the nodes of a tree that stand for them, and trees that have them all.

A level is a number: 0 is the document, larger ones are finer. Its name is that of the parts it has, as of `NAMES`, or
the most tokens of a span (`size_names`). A node stands for its own level and for those down to the one above its
children; a leaf stands for all finer ones. So the nodes of any range cover the whole text, whatever levels a document
lacks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import UsageError

DOCUMENT = "document"
NAMES = (DOCUMENT, "section", "subsection", "paragraph", "sentence")
SIZES = (1024, 512, 256, 128, 64)


@dataclass(frozen=True, order=True)
class LevelRange:
    """The levels from a coarsest to a finest one, both included.

    Attributes:
        least: the coarsest, 0 is the document.
        most: the finest.

    Raises:
        UsageError: a level below 0, or the coarsest one is finer than the finest.
    """

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise UsageError(
                f"levels {self.least} to {self.most}: count from 0, which is the document, and name the coarser first"
            )


def size_names(sizes: Sequence[int] = SIZES) -> tuple[str, ...]:
    """Names of the levels of `size_tree`: document, and then the sizes, which decrease."""
    return (DOCUMENT, *map(str, sizes))


def parse_levels(text: str, names: Sequence[str]) -> LevelRange:
    """A range as users write it: `section:sentence`, or one name alone.

    Args:
        text: MIN:MAX by names, the coarser first.
        names: of the levels, the coarsest first.

    Raises:
        UsageError: a name that is no level, or the first one is finer than the second.
    """
    given = [name.strip() for name in text.split(":")]
    for name in given:
        if name not in names:
            raise UsageError(f"levels {text!r}: {name!r} is no level; choose of {', '.join(names)}, as {names[-1]!r}")
    if len(given) > 2:
        raise UsageError(f"levels {text!r}: one level, or two with a colon between them")
    least, most = names.index(given[0]), names.index(given[-1])
    if least > most:
        raise UsageError(f"levels {text!r}: {given[0]} is finer than {given[1]}: write {given[1]}:{given[0]}")
    return LevelRange(least, most)


def format_levels(levels: LevelRange, names: Sequence[str]) -> str:
    """What `parse_levels` reads."""
    return f"{names[levels.least]}:{names[levels.most]}"


def full_range(names: Sequence[str]) -> LevelRange:
    """All levels."""
    return LevelRange(0, len(names) - 1)


def all_ranges(names: Sequence[str]) -> list[LevelRange]:
    """Every range of these levels, by its coarsest and then its finest."""
    return [LevelRange(least, most) for least in range(len(names)) for most in range(least, len(names))]


def nodes_in(tree: ChunkTree, levels: LevelRange, num_levels: int) -> Int[np.ndarray, " _"]:
    """The nodes that stand for a level of a range, in the order of the tree; together they cover the text.

    Args:
        tree: of one document. Nodes finer than the last level count as of that.
    """
    if levels.most >= num_levels:
        raise UsageError(f"levels {levels.least} to {levels.most}: there are {num_levels}, from 0")
    finest = num_levels - 1
    level = np.minimum(tree.level, finest)
    until = np.full(len(tree), finest)  # the finest level that a node stands for: of leaves all
    inner = np.setdiff1d(np.arange(len(tree)), tree.leaves)
    until[inner] = np.maximum(level[inner], np.minimum(tree.level[inner + 1], finest) - 1)  # its first child follows it
    return np.flatnonzero((level <= levels.most) & (until >= levels.least))
