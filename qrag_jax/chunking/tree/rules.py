"""The rules of a chunk tree's arrays: all of the normal form (`chunking/tree/tree.py`) except those about the text."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from qrag_jax.types import InputError


class TreeError(InputError):
    """An invalid tree: the message names document, node, field and value.

    Attributes:
        node: the node at fault; 0 if it is the whole tree.
        field: the field of `ChunkTree` at fault.
    """

    def __init__(self, reason: str, node: int, field: str, document_id: str):
        super().__init__(f"{field} {reason}", file=f"{document_id}: node {node}", field=field)
        self.node = node


class Nodes(NamedTuple):
    """The fields of `chunking/tree/tree.py:ChunkTree`, not checked yet."""

    document_id: str
    start: np.ndarray
    end: np.ndarray
    level: np.ndarray
    parent: np.ndarray
    leaves: np.ndarray

    def fault(self, node: int, field: str, problem: str) -> TreeError:
        """The error of one field of one node."""
        return TreeError(problem, node, field, self.document_id)


def check_nodes(nodes: Nodes) -> tuple[np.ndarray, np.ndarray]:
    """Checks the arrays.

    Returns:
        int64 [N], one after the last node under each node, and int64 [N + 1], the number of leaves before each node.

    Raises:
        TreeError: a rule is broken.
    """
    _check_types(nodes)
    stop = _subtree_stops(nodes)
    is_leaf = stop == np.arange(1, len(stop) + 1)
    _check_leaves(nodes, np.flatnonzero(is_leaf))
    rank = np.concatenate([[0], np.cumsum(is_leaf)])
    _check_levels(nodes)
    _check_spans(nodes, nodes.leaves[rank[:-1]], nodes.leaves[rank[stop] - 1])
    return stop, rank


def _check_types(nodes: Nodes) -> None:
    for name in ("start", "end", "level", "parent", "leaves"):
        value = getattr(nodes, name)
        if not isinstance(value, np.ndarray):
            raise nodes.fault(0, name, f"is a {type(value).__name__}: expected an int64 array of one dimension")
        if value.dtype != np.int64 or value.ndim != 1:
            raise nodes.fault(0, name, f"is {value.dtype} {list(value.shape)}: expected int64 of one dimension")
        if name != "leaves" and len(value) != len(nodes.start):
            raise nodes.fault(0, name, f"has {len(value)} values, start has {len(nodes.start)}")
    if not len(nodes.start):
        raise nodes.fault(0, "start", "is empty: a tree has a root; leave out a document without text")


def _subtree_stops(nodes: Nodes) -> np.ndarray:
    """One after the last node under each node; also checks that nodes are in preorder."""
    if nodes.parent[0] != -1:
        raise nodes.fault(0, "parent", f"{nodes.parent[0]}: must be -1 for the root")
    stop = [len(nodes.parent)] * len(nodes.parent)
    path: list[int] = []  # from the root to the node before
    for node, parent in enumerate(nodes.parent.tolist()):
        while path and path[-1] != parent:
            stop[path.pop()] = node
        if node and not path:
            raise nodes.fault(
                node, "parent", f"{parent}: in preorder it must be node {node - 1} or an ancestor of that"
            )
        path.append(node)
    return np.array(stop, np.int64)


def _check_leaves(nodes: Nodes, expected: np.ndarray) -> None:
    """Checks that `leaves` are the nodes without children, each once and in order."""
    for place, (given, leaf) in enumerate(zip(nodes.leaves.tolist(), expected.tolist(), strict=False)):
        if given != leaf:
            raise nodes.fault(leaf, "leaves", f"[{place}] is {given}: expected {leaf}, the next node without children")
    if len(nodes.leaves) != len(expected):
        node = int(expected[min(len(nodes.leaves), len(expected) - 1)])
        raise nodes.fault(node, "leaves", f"has {len(nodes.leaves)} values, but {len(expected)} nodes have no children")


def _check_levels(nodes: Nodes) -> None:
    """Checks levels, and that no node is an only child."""
    if nodes.level[0] != 0:
        raise nodes.fault(0, "level", f"{nodes.level[0]}: must be 0 for the root")
    level, parent = nodes.level, nodes.parent
    above = level[np.maximum(parent, 0)]
    sibling = np.minimum(parent + 1, len(level) - 1)  # a parent is followed by its first child
    children = np.bincount(parent + 1, minlength=len(level) + 1)
    inner = parent >= 0
    _refuse(
        nodes, inner & (level <= above), "level", lambda i: f"is {level[i]}: must be above its parent's, {above[i]}"
    )
    _refuse(
        nodes,
        inner & (level != level[sibling]),
        "level",
        lambda i: f"is {level[i]}: must equal that of its sibling {sibling[i]}, {level[sibling[i]]}",
    )
    only = inner & (children[parent + 1] == 1)
    _refuse(nodes, only, "parent", lambda i: f"is {parent[i]}: an only child must replace its parent")


def _check_spans(nodes: Nodes, first: np.ndarray, last: np.ndarray) -> None:
    """Checks that leaves are ordered and disjoint, and that parents end with them; so spans nest.

    Args:
        first: int64 [N], the first leaf under each node.
        last: int64 [N], the last one.
    """
    start, end, leaves = nodes.start, nodes.end, nodes.leaves
    outer_start, outer_end = start[first], end[last]
    overlap = np.zeros(len(start), bool)
    overlap[leaves[1:]] = start[leaves[1:]] < end[leaves[:-1]]
    _refuse(nodes, start < 0, "start", lambda i: f"is {start[i]}: must be at least 0")
    _refuse(nodes, end <= start, "end", lambda i: f"is {end[i]}: must be after its start {start[i]}")
    _refuse(nodes, start != outer_start, "start", lambda i: f"is {start[i]}: its first leaf has {outer_start[i]}")
    _refuse(nodes, end != outer_end, "end", lambda i: f"is {end[i]}: its last leaf has {outer_end[i]}")
    _refuse(nodes, overlap, "start", lambda i: f"is {start[i]}: before the end of the leaf before it")


def _refuse(nodes: Nodes, bad: np.ndarray, name: str, problem: Callable[[int], str]) -> None:
    """Raises for the first bad node."""
    if bad.any():
        node = int(np.argmax(bad))
        raise nodes.fault(node, name, problem(node))
