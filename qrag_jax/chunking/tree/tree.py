"""The chunk tree: a document, its sections, their parts, down to leaves that cover the text, as a struct of arrays.

A tree has one normal form, so every wrong value can be detected:

    nodes     are in preorder; node 0 is the root, a parent comes before its children
    leaves    are the nodes without children: not blank at either end, in document order, disjoint
    parents   have at least two children, begin with their first leaf and end with their last one
    levels    0 for the root; children of one parent have the same level, at least one more than the parent's
    text      outside all leaves is blank (checked by `ChunkTree.check_document`, which needs the text)

So text of a section before its first subsection is a separate leaf, and a level may be skipped.
"""

from dataclasses import dataclass, field, fields

import numpy as np

from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.chunking.tree.rules import Nodes, check_nodes
from qrag_jax.markup import card, element, quiet_part
from qrag_jax.types import Chunk, CountTokens, Document, InputError, Span, UsageError

_MAX_DRAWN = 2_000  # nodes in a notebook


@dataclass(frozen=True, eq=False)
class ChunkTree:
    """Nested spans of one document; `len(tree)` is N, the number of nodes. Arrays are copied and read-only.

    Construction checks everything except the text. `check_document` also finds a wrong `document_id`, and leaves that
    miss text or contain blank space at an end.

    Attributes:
        document_id: its document.
        start: int64 [N], first character of each node in the document.
        end: int64 [N], one after the last character.
        level: int64 [N], 0 for the root, deeper is more; see the module.
        parent: int64 [N], -1 for the root.
        leaves: int64 [L], the nodes without children, in document order.

    Raises:
        TreeError: a rule of the module is broken.
    """

    document_id: str
    start: np.ndarray
    end: np.ndarray
    level: np.ndarray
    parent: np.ndarray
    leaves: np.ndarray
    _stop: np.ndarray = field(init=False, repr=False)  # [N], one after the last node under each node
    _rank: np.ndarray = field(init=False, repr=False)  # [N + 1], leaves before each node

    def __post_init__(self) -> None:
        nodes = self._nodes()
        stop, rank = check_nodes(nodes)
        copies = {name: value.copy() for name, value in nodes._asdict().items() if name != "document_id"}
        for name, array in {**copies, "_stop": stop, "_rank": rank}.items():
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def _nodes(self) -> Nodes:
        return Nodes(self.document_id, self.start, self.end, self.level, self.parent, self.leaves)

    def __len__(self) -> int:
        return len(self.start)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChunkTree):
            return NotImplemented
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self) if f.init)

    def _repr_html_(self) -> str:
        """Draws the tree in a notebook: a row for each level, as wide as the document."""
        width, depth = max(1, int(self.end[0] - self.start[0])), int(self.level.max()) + 1
        bars = []
        for node in range(min(len(self), _MAX_DRAWN)):
            start, end = self.span(node)
            title = element("title", f"node {node}, level {self.level[node]}: characters {start:,} to {end:,}")
            x, y = 1000 * (start - self.start[0]) / width, 20 * self.level[node]
            place = {"x": f"{x:.2f}", "y": int(y), "width": f"{max(1000 * (end - start) / width - 1, 0.5):.2f}"}
            bars.append(element("rect", title, height=18, fill="currentColor", fill_opacity=0.3, **place))
        told = f"{len(self):,} nodes, {len(self.leaves):,} leaves, {depth} levels"
        told += f"; the first {_MAX_DRAWN:,} nodes are drawn" if len(self) > _MAX_DRAWN else ""
        drawing = element("svg", *bars, viewBox=f"0 0 1000 {20 * depth}", width="100%")
        return card(self.document_id, quiet_part(told), drawing)

    def span(self, node: int) -> Span:
        """The span of a node in its document."""
        self._check_node(node)
        return int(self.start[node]), int(self.end[node])

    @property
    def stops(self) -> np.ndarray:
        """int64 [N], one after the last node under each node."""
        return self._stop

    def ancestors(self, node: int) -> list[int]:
        """The nodes around a node, its parent first and the root last; O(depth)."""
        self._check_node(node)
        found = []
        while (node := int(self.parent[node])) >= 0:
            found.append(node)
        return found

    def path(self, node: int) -> list[int]:
        """The nodes from the root down to the node itself; O(depth)."""
        return [*reversed(self.ancestors(node)), node]

    def children(self, node: int) -> list[int]:
        """The direct children of a node in document order, empty for a leaf; O(their number)."""
        self._check_node(node)
        found, child = [], node + 1
        while child < self._stop[node]:
            found.append(child)
            child = int(self._stop[child])
        return found

    def leaf_range(self, node: int) -> Span:
        """Half-open range in `leaves` of the leaves under a node; for a leaf, of itself; O(1)."""
        self._check_node(node)
        return int(self._rank[node]), int(self._rank[self._stop[node]])

    def cut(self, level: int) -> np.ndarray:
        """The nodes that cut the tree at a level: as fine as possible without going deeper than that level.

        They are the nodes at or above the level that have no children, or only children below it; together they cover
        the text once. So a node also represents the levels between its own and that of its children.

        Args:
            level: 0 gives the root, the deepest level gives the leaves.

        Returns:
            int64, nodes in document order.
        """
        if level < 0:
            raise UsageError(f"level {level}: give at least 0, which is the whole document")
        is_leaf = np.diff(self._rank) == 1
        below = np.append(self.level[1:], 0)  # of a node's first child, which follows it
        return np.flatnonzero((self.level <= level) & (is_leaf | (below > level)))

    def chunks(self, document: Document, count: CountTokens, level: int | None = None) -> list[Chunk]:
        """The leaves as chunks, or the nodes of the cut at a level; each has the level of its node.

        Raises:
            TreeError: the tree belongs to another document (`check_document`).
        """
        return self._chunks(document, count, self.leaves if level is None else self.cut(level))

    def node_chunks(self, document: Document, count: CountTokens) -> list[Chunk]:
        """Every node as a chunk, in the order of the nodes: parents before their children.

        Raises:
            TreeError: the tree belongs to another document (`check_document`).
        """
        return self._chunks(document, count, np.arange(len(self)))

    def _chunks(self, document: Document, count: CountTokens, nodes: np.ndarray) -> list[Chunk]:
        self.check_document(document)
        return [make_chunk(document, [self.span(int(i))], int(self.level[i]), count) for i in nodes]

    def check_document(self, document: Document) -> None:
        """Checks the tree against its document: its id, and that only blank space is outside the leaves.

        Raises:
            TreeError: names the leaf, its field and value, or the characters that are in no leaf.
        """
        text, fault = document.text, self._nodes().fault
        if document.id != self.document_id:
            raise fault(0, "document_id", f"is not that of the document, {document.id!r}")
        covered = 0
        starts, ends = self.start[self.leaves].tolist(), self.end[self.leaves].tolist()
        for leaf, start, end in zip(self.leaves.tolist(), starts, ends, strict=True):
            if end > len(text):
                raise fault(leaf, "end", f"is {end}: the text has {len(text)} characters")
            if text[covered:start].strip():
                raise fault(leaf, "start", f"is {start}: text from {covered} to there is in no leaf")
            if text[start].isspace():
                raise fault(leaf, "start", f"is {start}: this character is blank; leave it out")
            if text[end - 1].isspace():
                raise fault(leaf, "end", f"is {end}: the character before it is blank; leave it out")
            covered = end
        if text[covered:].strip():
            raise fault(int(self.leaves[-1]), "end", f"is {covered}: text from there to {len(text)} is in no leaf")

    def _check_node(self, node: int) -> None:
        if not 0 <= node < len(self):
            raise InputError(f"{self.document_id}: node {node}: not in the tree, which has nodes 0 to {len(self) - 1}")
