"""Random chunk trees with their documents, and the rules of trees read slowly from their definition."""

import random
from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import Document

ARRAYS = ("start", "end", "level", "parent", "leaves")
_BODIES = [
    "a",
    "bc",
    "Two words.",
    "x\n\ny",
    "\u4eca\u5929\u3002",
    "\U0001f600",
    "e\u0301",
    "\u05e9\u05dc",
    "\x00",
    "\ud800",
]
_GAPS = ["", "", " ", "\n\n", "\u3000", "\x85\t "]


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def make_case(shape: object, seed: int, name: str = "doc") -> tuple[Document, ChunkTree]:
    """The tree of nested lists (at least two in each) whose leaves are texts, with random gaps and skipped levels."""
    chance = random.Random(seed)
    text = chance.choice(_GAPS)
    rows: list[list[int]] = []  # start, end, level, parent
    leaves: list[int] = []

    def add(part: object, level: int, parent: int) -> None:
        nonlocal text
        node = len(rows)
        rows.append([len(text), 0, level, parent])
        if isinstance(part, list):
            below = level + chance.choice([1, 1, 1, 2, 3])
            for place, child in enumerate(part):
                text += chance.choice(_GAPS) if place else ""
                add(child, below, node)
        else:
            leaves.append(node)
            text += str(part)
        rows[node][1] = len(text)

    add(shape, 0, -1)
    text += chance.choice(_GAPS)
    start, end, level, parent = np.array(rows, np.int64).T
    return Document(name, text), ChunkTree(name, start, end, level, parent, np.array(leaves, np.int64))


def cases(max_leaves: int = 8) -> st.SearchStrategy[tuple[Document, ChunkTree]]:
    shapes = st.recursive(
        st.sampled_from(_BODIES), lambda part: st.lists(part, min_size=2, max_size=4), max_leaves=max_leaves
    )
    return st.builds(make_case, shapes, st.integers(0, 2**32))


def fields_of(tree: ChunkTree) -> dict[str, np.ndarray]:
    return {name: getattr(tree, name) for name in ARRAYS}


def obeys(fields: Mapping[str, np.ndarray], text: str | None = None) -> bool:
    """True if the arrays are a tree; with a text, whether also its leaves are stripped and hold all of it."""
    start, end, level, parent, leaves = (fields[name].tolist() for name in ARRAYS)
    size = len(start)
    if not size or {len(end), len(level), len(parent)} != {size} or parent[0] != -1:
        return False
    below = {node: [child for child in range(size) if parent[child] == node] for node in range(size)}

    def visit(node: int) -> list[int]:
        return [node] + [found for child in below[node] for found in visit(child)]

    if visit(0) != list(range(size)) or level[0] != 0 or start[0] < 0:
        return False
    if leaves != [node for node in range(size) if not below[node]]:
        return False
    for node, children in below.items():
        if not children:
            if end[node] <= start[node]:
                return False
            continue
        if len(children) < 2 or start[node] != start[children[0]] or end[node] != end[children[-1]]:
            return False
        if len({level[child] for child in children}) > 1 or level[children[0]] <= level[node]:
            return False
        if any(end[left] > start[right] for left, right in zip(children, children[1:], strict=False)):
            return False
    return text is None or _covers(text, [(start[leaf], end[leaf]) for leaf in leaves])


def _covers(text: str, spans: list[tuple[int, int]]) -> bool:
    if any(end > len(text) or text[start:end] != text[start:end].strip() for start, end in spans):
        return False
    inside = {place for start, end in spans for place in range(start, end)}
    return all(place in inside or text[place].isspace() for place in range(len(text)))
