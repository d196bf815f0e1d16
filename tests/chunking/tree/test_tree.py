"""The chunk tree: what it refuses (every single wrong value), and how it is read."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.passages import count as words
from support.tiers import examples
from support.trees import ARRAYS, cases, fields_of, int64, make_case, obeys

from qrag_jax.chunking.text.chunks import chunk_text, make_chunk
from qrag_jax.chunking.tree.rules import TreeError
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import Document, InputError, UsageError

#          0    0 1 1         2 2     3
#          0    5 7 9         9 1     7
TEXT = "\nIntro. A b c. A d e.\n\nB.\n"
DOCUMENT = Document("paper", TEXT)
# 0 the document; 1 its introduction; 2 section A with sentences 3, 4; 5 section B
HAND = {
    "start": int64(1, 1, 8, 8, 15, 23),
    "end": int64(25, 7, 21, 14, 21, 25),
    "level": int64(0, 1, 1, 3, 3, 1),
    "parent": int64(-1, 0, 0, 2, 2, 0),
    "leaves": int64(1, 3, 4, 5),
}


def hand_tree() -> ChunkTree:
    return ChunkTree("paper", **HAND)


def stands(fields: dict[str, np.ndarray], name: str, document: Document | None = None) -> bool:
    """True if a tree can be built, and, with a document, is of that document."""
    try:
        tree = ChunkTree(name, **fields)
        if document is not None:
            tree.check_document(document)
    except TreeError:
        return False
    return True


def with_value(fields: dict[str, np.ndarray], name: str, place: int, value: int) -> dict[str, np.ndarray]:
    changed = fields[name].copy()
    changed[place] = value
    return {**fields, name: changed}


def free_values(tree: ChunkTree, name: str, node: int) -> range:
    """The values that a border of a leaf could have for all that the arrays tell: in the gap, or inside the leaf.

    They tell more where a parent begins or ends with the leaf.
    """
    leaves = tree.leaves.tolist()
    if name not in ("start", "end") or node not in leaves:
        return range(0)
    place, parent = leaves.index(node), int(tree.parent[node])
    own, last = tree.span(node), len(leaves) - 1
    if parent >= 0 and getattr(tree, name)[parent] == getattr(tree, name)[node]:
        return range(0)
    if name == "start":
        return range(tree.span(leaves[place - 1])[1] if place else 0, own[1])
    return range(own[0] + 1, tree.span(leaves[place + 1])[0] + 1 if place < last else 10**6)


def test_hand_worked_tree():
    tree = hand_tree()
    tree.check_document(DOCUMENT)
    assert [TEXT[slice(*tree.span(int(leaf)))] for leaf in tree.leaves] == ["Intro.", "A b c.", "A d e.", "B."]
    assert len(tree) == 6
    assert tree.children(0) == [1, 2, 5] and tree.children(2) == [3, 4] and tree.children(5) == []
    assert tree.ancestors(4) == [2, 0] and tree.path(4) == [0, 2, 4] and tree.ancestors(0) == []
    assert [tree.leaf_range(node) for node in range(6)] == [(0, 4), (0, 1), (1, 3), (1, 2), (2, 3), (3, 4)]
    assert [tree.cut(level).tolist() for level in range(5)] == [[0], [1, 2, 5], [1, 2, 5], [1, 3, 4, 5], [1, 3, 4, 5]]


def test_chunks_are_those_of_the_leaves_or_of_a_level():
    tree = hand_tree()
    assert tree.chunks(DOCUMENT, words) == [
        make_chunk(DOCUMENT, [(1, 7)], 1, words),
        make_chunk(DOCUMENT, [(8, 14)], 3, words),
        make_chunk(DOCUMENT, [(15, 21)], 3, words),
        make_chunk(DOCUMENT, [(23, 25)], 1, words),
    ]
    (whole,) = tree.chunks(DOCUMENT, words, level=0)
    assert (whole.spans, whole.level, whole.num_tokens) == (((1, 25),), 0, 8)
    assert [chunk.num_tokens for chunk in tree.chunks(DOCUMENT, words, level=2)] == [1, 6, 1]


@examples(200)
@given(cases())
def test_random_trees_stand_and_read_like_their_parents(case):
    document, tree = case
    tree.check_document(document)
    assert obeys(fields_of(tree), document.text)
    parent, leaves, level = tree.parent.tolist(), tree.leaves.tolist(), tree.level.tolist()
    for node in range(len(tree)):
        above = [node]
        while parent[above[-1]] >= 0:
            above.append(parent[above[-1]])
        assert tree.ancestors(node) == above[1:]
        assert tree.path(node) == above[::-1]
        assert tree.children(node) == [child for child in range(len(tree)) if parent[child] == node]
        first, last = tree.leaf_range(node)
        assert leaves[first:last] == [leaf for leaf in leaves if node in tree.path(leaf)]
    for most in range(max(level) + 2):
        cut = tree.cut(most).tolist()
        spans = [tree.leaf_range(node) for node in cut]
        assert spans[0][0] == 0 and spans[-1][1] == len(leaves)
        assert all(left[1] == right[0] for left, right in zip(spans, spans[1:], strict=False))
        assert all(level[node] <= most for node in cut)
        assert all(level[child] > most for node in cut for child in tree.children(node))
    assert tree.cut(0).tolist() == [0]
    assert tree.cut(max(level)).tolist() == leaves


@examples(200)
@given(cases())
def test_chunks_say_their_text_and_a_level_says_it_once(case):
    document, tree = case
    for level in [None, *range(int(tree.level.max()) + 1)]:
        chunks = tree.chunks(document, words, level)
        said = "".join(chunk_text(document.text, chunk.spans) for chunk in chunks)
        assert "".join(said.split()) == "".join(document.text.split())
        assert all(chunk.document_id == document.id and len(chunk.spans) == 1 for chunk in chunks)
        assert len({chunk.id for chunk in chunks}) == len(chunks)


@examples(200)
@given(cases(max_leaves=6), st.integers(-3, 60))
def test_every_single_wrong_value_is_refused(case, chosen):
    """With the text all are; the arrays alone tell all but `free_values`. Both as the slow reading says."""
    document, tree = case
    fields = fields_of(tree)
    for name in ARRAYS:
        for place, value in enumerate(fields[name].tolist()):
            for other in {value - 1, value + 1, -1, 0, chosen} - {value}:
                changed = with_value(fields, name, place, other)
                alone = other in free_values(tree, name, place)
                assert stands(changed, document.id) == obeys(changed) == alone, (name, place, other)
                assert not stands(changed, document.id, document), (name, place, other)
                assert not obeys(changed, document.text)


def test_every_single_wrong_value_of_a_small_range_is_refused():
    tree = hand_tree()
    for name in ARRAYS:
        for place, value in enumerate(HAND[name].tolist()):
            for other in [*range(-3, len(TEXT) + 3), 2**63 - 1, -(2**63)]:
                if other != value:
                    changed = with_value(HAND, name, place, other)
                    assert stands(changed, "paper") == (other in free_values(tree, name, place)), (name, place, other)
                    assert not stands(changed, "paper", DOCUMENT), (name, place, other)


@examples(200)
@given(cases())
def test_a_lost_a_doubled_and_a_swapped_value_are_refused(case):
    document, tree = case
    fields = fields_of(tree)
    for name in ARRAYS:
        values = fields[name]
        for place in range(len(values)):
            assert not stands({**fields, name: np.delete(values, place)}, document.id)
            assert not stands({**fields, name: np.insert(values, place, values[place])}, document.id)
            if place and values[place] != values[place - 1]:
                swapped = values.copy()
                swapped[[place - 1, place]] = values[[place, place - 1]]
                assert not stands({**fields, name: swapped}, document.id, document)


@examples(200)
@given(cases())
def test_a_lost_or_doubled_node_is_refused(case):
    """The same place of the four arrays that have one value a node, `leaves` as before."""
    document, tree = case
    fields = fields_of(tree)
    for node in range(len(tree)):
        rows = {name: np.delete(fields[name], node) for name in ARRAYS[:4]}
        assert not stands({**rows, "leaves": fields["leaves"]}, document.id, document)
        rows = {name: np.insert(fields[name], node, fields[name][node]) for name in ARRAYS[:4]}
        assert not stands({**rows, "leaves": fields["leaves"]}, document.id, document)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"start": [1]}, "node 0: start is a list: expected an int64 array"),
        ({"end": HAND["end"].astype(np.int32)}, "node 0: end is int32 [6]: expected int64"),
        ({"level": HAND["level"].astype(float)}, "node 0: level is float64 [6]: expected int64"),
        ({"leaves": HAND["leaves"][:, None]}, "node 0: leaves is int64 [4, 1]: expected int64"),
        ({"parent": HAND["parent"][:-1]}, "node 0: parent has 5 values, start has 6"),
        ({name: int64() for name in ARRAYS}, "node 0: start is empty: a tree has a root"),
        ({"parent": int64(3, 0, 0, 2, 2, 0)}, "node 0: parent 3: must be -1 for the root"),
        ({"parent": int64(-1, 0, 0, 2, 1, 0)}, "node 4: parent 1: in preorder it must be node 3 or an ancestor"),
        ({"parent": int64(-1, 0, -1, 2, 2, 0)}, "node 2: parent -1: in preorder it must be node 1 or an ancestor"),
        ({"leaves": int64(1, 3, 5, 4)}, "node 4: leaves [2] is 5: expected 4, the next node without children"),
        ({"leaves": int64(1, 3, 4)}, "node 5: leaves has 3 values, but 4 nodes have no children"),
        ({"level": int64(1, 1, 1, 3, 3, 1)}, "node 0: level 1: must be 0 for the root"),
        ({"level": int64(0, 1, 1, 1, 3, 1)}, "node 3: level is 1: must be above its parent's, 1"),
        ({"level": int64(0, 1, 2, 3, 3, 1)}, "node 2: level is 2: must equal that of its sibling 1, 1"),
        ({"start": int64(1, 1, 9, 8, 15, 23)}, "node 2: start is 9: its first leaf has 8"),
        ({"end": int64(24, 7, 21, 14, 21, 25)}, "node 0: end is 24: its last leaf has 25"),
        ({"start": int64(1, 1, 8, 8, 13, 23)}, "node 4: start is 13: before the end of the leaf before it"),
        ({"start": int64(-1, -1, 8, 8, 15, 23)}, "node 0: start is -1: must be at least 0"),
        ({"end": int64(25, 1, 21, 14, 21, 25)}, "node 1: end is 1: must be after its start 1"),
    ],
)
def test_refusals_name_document_node_field_and_value(changed, message):
    with pytest.raises(TreeError, match=re.escape(f"paper: {message}")):
        ChunkTree("paper", **{**HAND, **changed})


def test_an_only_child_is_refused():
    with pytest.raises(TreeError, match="doc: node 1: parent is 0: an only child must replace its parent") as caught:
        ChunkTree("doc", int64(0, 0), int64(3, 3), int64(0, 1), int64(-1, 0), int64(1))
    assert (caught.value.node, caught.value.field) == (1, "parent")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (Document("other", TEXT), "node 0: document_id is not that of the document, 'other'"),
        (Document("paper", TEXT[:24]), "node 5: end is 25: the text has 24 characters"),
        (Document("paper", "x" + TEXT[1:]), "node 1: start is 1: text from 0 to there is in no leaf"),
        (Document("paper", TEXT[:21] + "x" + TEXT[22:]), "node 5: start is 23: text from 21 to there is in no leaf"),
        (Document("paper", TEXT + "x"), "node 5: end is 25: text from there to 27 is in no leaf"),
        (Document("paper", TEXT.replace("I", " ")), "node 1: start is 1: this character is blank"),
        (Document("paper", TEXT.replace("e.", "e ")), "node 4: end is 21: the character before it is blank"),
    ],
)
def test_another_document_is_refused(document, message):
    for check in (lambda: hand_tree().check_document(document), lambda: hand_tree().chunks(document, words)):
        with pytest.raises(TreeError, match=re.escape(f"paper: {message}")):
            check()


def test_nodes_and_levels_that_are_not_there():
    tree = hand_tree()
    for read in (tree.span, tree.ancestors, tree.path, tree.children, tree.leaf_range):
        for node in (-1, 6):
            with pytest.raises(InputError, match=f"paper: node {node}: not in the tree, which has nodes 0 to 5"):
                read(node)
    with pytest.raises(UsageError, match="level -1: give at least 0"):
        tree.cut(-1)


def test_arrays_are_its_own():
    given_ = {name: values.copy() for name, values in HAND.items()}
    tree = ChunkTree("paper", **given_)
    given_["start"][0] = 5
    assert tree.start[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        tree.start[0] = 5


def test_equal_trees_are_equal():
    assert hand_tree() == hand_tree()
    assert hand_tree() != ChunkTree("other", **HAND)
    assert hand_tree() != make_case("a", 0)[1]
    assert hand_tree() != "paper"
    changed = {**HAND, "level": int64(0, 1, 1, 2, 2, 1)}
    assert hand_tree() != ChunkTree("paper", **changed)


def test_a_hundred_thousand_nodes():
    parts, inside = 1000, 99
    parent = [-1]
    for part in range(parts):
        parent += [0] + [1 + part * (inside + 1)] * inside
    parent = np.array(parent, np.int64)
    level = np.where(parent < 0, 0, np.where(parent == 0, 1, 2))
    leaves = np.flatnonzero(level == 2)
    start, end = np.zeros((2, len(parent)), np.int64)
    start[leaves] = np.arange(len(leaves)) * 2
    end[leaves] = start[leaves] + 1
    heads = np.flatnonzero(level == 1)
    start[heads], end[heads] = start[heads + 1], end[heads + inside]
    end[0] = end[-1]
    tree = ChunkTree("long", start, end, level, parent, leaves)
    document = Document("long", "a " * len(leaves))
    tree.check_document(document)
    assert len(tree) == 100_001
    assert tree.leaf_range(int(heads[-1])) == (99 * 999, 99_000)
    assert len(tree.chunks(document, words, level=1)) == parts


def test_a_chain_of_a_hundred_thousand_levels():
    """Each inner node has a leaf and the next inner node: no step may take the depth for each node, nor recurse."""
    depth = 50_000
    size = 2 * depth + 1
    number = np.arange(size)
    is_leaf = (number % 2 == 1) | (number == size - 1)
    level = (number + 1) // 2
    parent = np.where(number % 2 == 1, number - 1, number - 2)
    parent[0] = -1
    start = number // 2 * 2
    end = np.where(number % 2 == 1, start + 1, 2 * depth + 1)
    tree = ChunkTree("deep", start, end, level, parent, np.flatnonzero(is_leaf))
    assert len(tree.ancestors(size - 1)) == depth
    assert tree.leaf_range(2) == (1, depth + 1)
