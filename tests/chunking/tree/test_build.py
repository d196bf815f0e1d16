"""Trees from sections and points; collapse, level cap and refinement."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support.passages import count as words
from support.tiers import examples
from support.trees import cases, fields_of, obeys

from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.tree.build import (
    cap_levels,
    refine_leaves,
    tree_from_points,
    tree_from_sections,
)
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import Document, InputError, UsageError

_SENTENCES = ["One is.", "a b c d", "\u4eca\u5929\u597d\u3002", "\U0001f600!", "e\u0301\u0301?", "\ud800 x", "\x00"]
_GAPS = ["", " ", "\n\n", "\u3000"]


def characters(text: str) -> int:
    return len(text)


def join(pieces: list[str], gaps: list[str]) -> SentenceText:
    """Sentences with gaps before each of them and one at the end."""
    text, spans = "", []
    for piece, gap in zip(pieces, gaps, strict=False):
        text += gap
        spans.append((len(text), len(text) + len(piece)))
        text += piece
    return SentenceText(text + gaps[len(pieces)], tuple(spans))


@st.composite
def texts(draw, most=9):
    pieces = draw(st.lists(st.sampled_from(_SENTENCES), min_size=1, max_size=most))
    gaps = draw(st.lists(st.sampled_from(_GAPS), min_size=len(pieces) + 1, max_size=len(pieces) + 1))
    return join(pieces, gaps)


@st.composite
def pointed_texts(draw):
    text = draw(texts())
    point = st.tuples(st.integers(0, len(text) - 1), st.integers(1, 5))
    return text, draw(st.lists(point, max_size=10))


def check(tree: ChunkTree, text: SentenceText) -> None:
    tree.check_document(Document(tree.document_id, text.text))
    assert obeys(fields_of(tree), text.text)


def spans_and_levels(tree: ChunkTree) -> dict[tuple[int, int], int]:
    return {tree.span(node): int(tree.level[node]) for node in range(len(tree))}


def slow_outline(text: SentenceText, points: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Spans and levels of the tree, each read from the definition of parts, without building a tree.

    A part ends before the next point of its level or less. Equal spans are one node. Text of a part before the first
    point inside it is a node too. Siblings, which have the same smallest span around them, have the least level.
    """
    size = len(text)
    parts = {(0, size): 0}
    for sentence, level in sorted(points, key=lambda p: -p[1]):
        after = [s for s, k in points if s > sentence and k <= level]
        span = (sentence, min(after, default=size))
        parts[span] = level if span != (0, size) else 0
    own = {}
    for first, stop in parts:
        inner = [s for s, _ in parts if first < s < stop]
        heads = [span for span in parts if span[0] == first and span[1] < stop]
        if inner and not heads:
            own[first, min(inner)] = 10**6
    spans = {**own, **parts}

    def around(span: tuple[int, int]) -> tuple[int, int] | None:
        outer = [o for o in spans if o != span and o[0] <= span[0] and span[1] <= o[1]]
        return min(outer, key=lambda o: o[1] - o[0], default=None)

    return {
        (text.sentences[span[0]][0], text.sentences[span[1] - 1][1]): min(
            level for other, level in spans.items() if around(other) == around(span)
        )
        for span in spans
    }


def test_hand_worked_points():
    """Title; intro. A (level 1): own text, then A1 and A2 (level 2). B (level 1), with a lone level 2 and 3 in it."""
    text = join(["t", "a", "a1", "a1.", "a2", "b", "b."], [""] + [" "] * 6 + [""])
    tree = tree_from_points(text, [(1, 1), (2, 2), (4, 2), (5, 1), (5, 2), (5, 3)], "doc")
    assert [text.text[slice(*tree.span(node))] for node in range(len(tree))] == [
        "t a a1 a1. a2 b b.",
        "t",
        "a a1 a1. a2",
        "a",
        "a1 a1.",
        "a2",
        "b b.",
    ]
    assert tree.level.tolist() == [0, 1, 1, 2, 2, 2, 1]
    assert tree.parent.tolist() == [-1, 0, 0, 2, 2, 2, 0]
    assert tree.leaves.tolist() == [1, 3, 4, 5, 6]
    check(tree, text)


def test_a_deeper_part_before_a_higher_one_is_its_sibling():
    text = join(["a", "b", "c"], ["", " ", " ", ""])
    tree = tree_from_points(text, [(0, 3), (1, 2), (2, 4)], "doc")
    assert spans_and_levels(tree) == {(0, 5): 0, (0, 1): 2, (2, 5): 2, (2, 3): 4, (4, 5): 4}


@examples(300)
@given(pointed_texts())
@example((join(["x"], ["", ""]), []))
@example((join(["x"], [" ", "\n"]), [(0, 1), (0, 2)]))
def test_points_give_the_parts_of_the_definition(case):
    text, points = case
    tree = tree_from_points(text, points, "doc")
    check(tree, text)
    assert spans_and_levels(tree) == slow_outline(text, points)
    assert tree == tree_from_points(text, points[::-1] + points, "doc")


@examples(200)
@given(texts(), st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 4)), max_size=8))
def test_sections_may_begin_anywhere(text, sections):
    """Also inside sentences and in blank space; every section that has text begins a node there."""
    sections = [(place % len(text.text), level) for place, level in sections]
    tree = tree_from_sections(text, sections, "doc")
    check(tree, text)
    begins = {start for start, _ in spans_and_levels(tree)}
    for place, _ in sections:
        rest = text.text[place:]
        if rest.strip():
            assert place + len(rest) - len(rest.lstrip()) in begins
    borders = {place for place, _ in sections}
    for leaf in tree.leaves.tolist():
        start, end = tree.span(leaf)
        assert not any(start < place < end for place in borders)


def test_a_section_without_text_is_left_out():
    text = SentenceText("a\n \nb", ((0, 1), (4, 5)))
    tree = tree_from_sections(text, [(0, 1), (2, 1), (3, 1)], "doc")
    assert spans_and_levels(tree) == {(0, 5): 0, (0, 1): 1, (4, 5): 1}


@examples(200)
@given(cases(), st.integers(0, 9))
def test_cap_keeps_the_nodes_above_and_all_text(case, most):
    document, tree = case
    capped = cap_levels(tree, most)
    capped.check_document(document)
    kept = {span: level for span, level in spans_and_levels(tree).items() if level <= most}
    assert spans_and_levels(capped) == kept
    assert [capped.span(int(leaf)) for leaf in capped.leaves] == [tree.span(int(node)) for node in tree.cut(most)]
    assert cap_levels(capped, most) == capped
    if most >= tree.level.max():
        assert capped == tree


@examples(200)
@given(cases(), st.integers(1, 6))
def test_refined_leaves_keep_the_budget_and_all_text(case, max_tokens):
    document, tree = case
    text = SentenceText(document.text, tuple(split_sentences(document.text)))
    fine = refine_leaves(tree, text, max_tokens, characters, split_sentences)
    fine.check_document(document)
    assert obeys(fields_of(fine), document.text)
    assert all(end - start <= max_tokens for start, end in (fine.span(int(leaf)) for leaf in fine.leaves))
    before, after = spans_and_levels(tree), spans_and_levels(fine)
    assert before.items() <= after.items()
    large = [
        tree.span(int(leaf))
        for leaf in tree.leaves
        if characters(document.text[slice(*tree.span(int(leaf)))]) > max_tokens
    ]
    for span in after.keys() - before.keys():
        (outer,) = [leaf for leaf in large if leaf[0] <= span[0] and span[1] <= leaf[1]]
        assert after[span] == before[outer] + 1
    assert refine_leaves(fine, text, max_tokens, characters, split_sentences) == fine
    assert refine_leaves(tree, text, len(document.text) + 1, characters, split_sentences) == tree


def test_refinement_fills_leaves_with_sentences_and_cuts_what_crosses_their_borders():
    text = join(["a b c.", "d e.", "f.", "g h i j k."], ["", " ", " ", "\n", ""])
    tree = tree_from_sections(text, [(0, 1), (9, 1)], "doc")  # the border is inside the second sentence
    fine = refine_leaves(tree, text, 3, words, split_sentences)
    assert [text.text[slice(*fine.span(int(leaf)))] for leaf in fine.leaves] == [
        "a b c.",
        "d",
        "e. f.",
        "g h i",
        "j k.",
    ]
    assert fine.level.tolist() == [0, 1, 2, 2, 1, 2, 2, 2]


def test_a_document_of_one_leaf_is_refined_too():
    text = join(["a b", "c d"], ["", " ", ""])
    fine = refine_leaves(tree_from_points(text, [], "doc"), text, 2, words, split_sentences)
    assert fine == tree_from_points(text, [(0, 1), (1, 1)], "doc")


def test_a_splitter_that_loses_text_is_noticed():
    text = join(["a b c d"], ["", ""])
    tree = tree_from_points(text, [], "doc")
    with pytest.raises(InputError, match="doc: node 2: end is 3: text from there to 7 is in no leaf"):
        refine_leaves(tree, text, 1, words, lambda part: [(0, 1), (2, 3)])


def test_refining_another_text_is_refused():
    text = join(["a b", "c d"], ["", " ", ""])
    tree = tree_from_points(text, [], "doc")
    with pytest.raises(InputError, match="doc: node 0: end is 7: text from there to 11 is in no leaf"):
        refine_leaves(tree, join(["a b", "c d", "e f"], ["", " ", " ", ""]), 2, words, split_sentences)


TWO = join(["a", "b", "c"], ["", " ", " ", ""])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tree_from_points(TWO, [(3, 1)], "doc"), r"doc: point \(3, 1\): there are only 3 sentences"),
        (lambda: tree_from_points(TWO, [(-1, 1)], "doc"), r"doc: point \(-1, 1\): there are only 3 sentences"),
        (lambda: tree_from_points(TWO, [(1, 0)], "doc"), r"doc: point \(1, 0\): levels start at 1"),
        (lambda: tree_from_sections(TWO, [(5, 1)], "doc"), "doc: section at 5: not in the text of 5 characters"),
        (lambda: tree_from_sections(TWO, [(-1, 1)], "doc"), "doc: section at -1: not in the text of 5 characters"),
        (lambda: tree_from_sections(TWO, [(1, -2)], "doc"), "doc: section at 1: level -2: levels start at 1"),
        (lambda: tree_from_points(SentenceText("", ()), [], "doc"), "doc: empty document; leave it out"),
        (lambda: tree_from_points(SentenceText(" \n", ()), [], "doc"), "doc: empty document; leave it out"),
        (lambda: cap_levels(tree_from_points(TWO, [], "doc"), -1), "most -1: give at least 0"),
        (
            lambda: refine_leaves(tree_from_points(TWO, [], "doc"), TWO, 0, words, split_sentences),
            "max_tokens 0: give at least 1",
        ),
        (
            lambda: refine_leaves(tree_from_points(TWO, [], "doc"), TWO, 1, lambda t: 2 * len(t), split_sentences),
            "character 0: 'a' has 2 tokens, but max_tokens is 1",
        ),
    ],
)
def test_refusals(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_wrong_settings_are_wrong_usage():
    with pytest.raises(UsageError, match="most -1"):
        cap_levels(tree_from_points(TWO, [], "doc"), -1)


@given(pointed_texts(), st.integers(1, 4))
def test_cap_is_leaving_deeper_points_out_where_no_level_is_skipped(case, most):
    text, points = case
    levels = [0, *(level for _, level in sorted(points))]
    assume(all(below <= above + 1 for above, below in zip(levels, levels[1:], strict=False)))
    kept = [(sentence, level) for sentence, level in points if level <= most]
    assert cap_levels(tree_from_points(text, points, "doc"), most) == tree_from_points(text, kept, "doc")


def even_text(number: int) -> SentenceText:
    return SentenceText("a b. " * number, tuple((5 * i, 5 * i + 4) for i in range(number)))


@pytest.mark.slow
def test_a_hundred_thousand_nodes():
    number = 100_000
    text = even_text(number)
    tree = tree_from_points(text, [(i, 1 if i % 100 == 0 else 2) for i in range(number)], "doc")
    assert len(tree) == 1 + number // 100 + number
    assert len(cap_levels(tree, 1)) == 1 + number // 100


@pytest.mark.slow
def test_refining_one_leaf_of_twenty_thousand_sentences():
    text = even_text(20_000)
    fine = refine_leaves(tree_from_points(text, [], "doc"), text, 10, words, split_sentences)
    assert len(fine) == 1 + 4_000
