"""Named levels: ranges of them, and the nodes of a tree that represent them.

A level is a number: 0 is the document, larger ones are finer. Its name is that of its parts, from `NAMES`, or the most
tokens of a span (`size_names`). A node represents its own level and those down to just above its children; a leaf
represents all finer ones. So the nodes of any range cover the whole text, whatever levels a document lacks.
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
        UsageError: a level is below 0, or the coarsest one is finer than the finest.
    """

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise UsageError(
                f"levels {self.least} to {self.most}: start at 0, which is the document, and give the coarser one first"
            )


def size_names(sizes: Sequence[int] = SIZES) -> tuple[str, ...]:
    """Names of the levels of `size_tree`: document, then the decreasing sizes."""
    return (DOCUMENT, *map(str, sizes))


def parse_levels(text: str, names: Sequence[str]) -> LevelRange:
    """Parses a range as users write it: `section:sentence`, or one name alone.

    Args:
        text: MIN:MAX by names, the coarser first.
        names: of the levels, the coarsest first.

    Raises:
        UsageError: a name is not a level, or the first one is finer than the second.
    """
    given = [name.strip() for name in text.split(":")]
    for name in given:
        if name not in names:
            raise UsageError(f"levels {text!r}: {name!r} is not a level; choose from {', '.join(names)}")
    if len(given) > 2:
        raise UsageError(f"levels {text!r}: give one level, or two with a colon between them")
    least, most = names.index(given[0]), names.index(given[-1])
    if least > most:
        raise UsageError(f"levels {text!r}: {given[0]} is finer than {given[1]}; write {given[1]}:{given[0]}")
    return LevelRange(least, most)


def format_levels(levels: LevelRange, names: Sequence[str]) -> str:
    """Formats a range for `parse_levels`."""
    return f"{names[levels.least]}:{names[levels.most]}"


def full_range(names: Sequence[str]) -> LevelRange:
    """All levels."""
    return LevelRange(0, len(names) - 1)


def all_ranges(names: Sequence[str]) -> list[LevelRange]:
    """Every range of these levels, by its coarsest and then its finest."""
    return [LevelRange(least, most) for least in range(len(names)) for most in range(least, len(names))]


def nodes_in(tree: ChunkTree, levels: LevelRange, num_levels: int) -> Int[np.ndarray, " _"]:
    """The nodes that represent a level of a range, in the order of the tree; together they cover the text.

    Args:
        tree: of one document. Nodes finer than the last level count as that level.
    """
    if levels.most >= num_levels:
        raise UsageError(f"levels {levels.least} to {levels.most}: there are only {num_levels}, counted from 0")
    finest = num_levels - 1
    level = np.minimum(tree.level, finest)
    until = np.full(len(tree), finest)  # the finest level that a node represents; for leaves, the finest of all
    inner = np.setdiff1d(np.arange(len(tree)), tree.leaves)
    until[inner] = np.maximum(level[inner], np.minimum(tree.level[inner + 1], finest) - 1)  # its first child follows it
    return np.flatnonzero((level <= levels.most) & (until >= levels.least))
