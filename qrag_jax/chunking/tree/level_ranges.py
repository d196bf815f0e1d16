"""Named levels: ranges of them, and the nodes of a tree that represent them.

A level is a number: 0 is the document, larger ones are finer. Its name is that of its parts, from `NAMES`, or the most
tokens of a span (`size_names`). A node represents its own level and those down to just above its children; a leaf
represents all finer ones. So the nodes of any range cover the whole text, whatever levels a document lacks.

A plan is the text of a planner that reasons: a trace of sentences, then one JSON object with the names of the coarsest
and the finest level, and nothing after it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import CountTokens, InputError, UsageError

DOCUMENT = "document"
NAMES = (DOCUMENT, "section", "subsection", "paragraph", "sentence")
SIZES = (1024, 512, 256, 128, 64)
LARGEST, SMALLEST = "largest_chunk_size", "smallest_chunk_size"  # fields of a plan
_OBJECT = re.compile(r"\{[^{}]*\}")  # a plan has no objects inside


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


def format_plan(levels: LevelRange, names: Sequence[str]) -> str:
    """Formats a range as the JSON object that ends a plan."""
    return json.dumps({LARGEST: names[levels.least], SMALLEST: names[levels.most]})


def plan_range(largest: object, smallest: object, names: Sequence[str]) -> LevelRange:
    """The range of two names, from a plan.

    Raises:
        InputError: a name is not a level, or the largest size is finer than the smallest; the message is a reason for
            the model.
    """
    for field, name in ((LARGEST, largest), (SMALLEST, smallest)):
        if name not in names:
            raise InputError(f"{field} must be one of {', '.join(names)}, got {name!r}")
    least, most = names.index(str(largest)), names.index(str(smallest))
    if least > most:
        raise InputError(
            f"{LARGEST} {largest!r} is smaller than {SMALLEST} {smallest!r}: exchange them; from the largest to the "
            f"smallest the sizes are {', '.join(names)}"
        )
    return LevelRange(least, most)


def split_plan(text: str) -> tuple[str, str]:
    """(trace, JSON object) of a plan; the object is not parsed.

    Raises:
        InputError: the text has no object in braces, has several, or continues after it.
    """
    found = list(_OBJECT.finditer(text))
    if len(found) != 1:
        number = "no JSON object" if not found else f"{len(found)} JSON objects"
        raise InputError(f"it has {number}; end with one, with the fields {LARGEST} and {SMALLEST}")
    if after := text[found[0].end() :].strip():
        raise InputError(f"it goes on after the JSON object with {after[:40]!r}; end with the object")
    return text[: found[0].start()].strip(), found[0][0]


def parse_plan(
    text: str, names: Sequence[str], *, max_trace: int | None = None, count: CountTokens | None = None
) -> LevelRange:
    """Parses a plan: a trace of sentences, then one JSON object with two names of levels.

    Args:
        text: a whole answer of a model.
        names: of the levels, the coarsest first.
        max_trace: most tokens of the trace; None is no limit.
        count: text -> its tokens; None counts words.

    Raises:
        InputError: the text is not such a plan; the message is a reason for the model.
    """
    trace, plan = split_plan(text)
    if max_trace is not None and (size := len(trace.split()) if count is None else count(trace)) > max_trace:
        raise InputError(f"its trace has {size:,} tokens, at most {max_trace:,}; write a shorter one")
    try:
        pairs = json.loads(plan, object_pairs_hook=list)
    except ValueError as error:
        raise InputError(f"its JSON object does not parse ({error}); write {{{LARGEST!r}: NAME, ...}}") from error
    if sorted(name for name, _ in pairs) != [LARGEST, SMALLEST]:
        given = ", ".join(name for name, _ in pairs) or "none"
        raise InputError(f"its JSON object has the fields {given}; give {LARGEST} and {SMALLEST}, each once")
    value = dict(pairs)
    return plan_range(value[LARGEST], value[SMALLEST], names)
