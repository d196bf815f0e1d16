"""Points: what sources share, and the sources that need nothing but the text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.chunking.text.blocks import make_unit_splitter
from qrag_jax.chunking.text.chunks import Group, SentenceText
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.tree.boundaries import (
    checked_points,
    equal_points,
    heading_points,
    no_points,
    paragraph_points,
    predict_at_once,
    predict_checked,
    rule_points,
    section_levels,
    starts_paragraph,
    strategy_points,
)
from qrag_jax.types import InputError, UsageError

units = make_unit_splitter(split_sentences)


def read(text: str) -> SentenceText:
    return SentenceText(text, tuple(units(text)))


def test_points_in_order_pass():
    assert checked_points([(0, 2), (3, 1)], 4, "a") == [(0, 2), (3, 1)]


@pytest.mark.parametrize(
    "points, message",
    [
        ([(4, 1)], r"a\.md: points\[0\] \(4, 1\): there are only 4 sentences"),
        ([(-1, 1)], r"points\[0\] \(-1, 1\): there are only 4 sentences"),
        ([(1, 1), (1, 2)], r"points\[1\] \(1, 2\): comes after sentence 1; give points in the order"),
        ([(2, 1), (1, 1)], r"points\[1\] \(1, 1\): comes after sentence 2"),
        ([(2, 0)], r"points\[0\] \(2, 0\): levels start at 1, because the document is 0"),
    ],
)
def test_what_is_no_point_is_refused_by_its_place(points, message):
    with pytest.raises(InputError, match=message):
        checked_points(points, 4, "a.md")


def test_a_source_that_forgets_a_text_is_refused():
    with pytest.raises(InputError, match="1 lists for 2 texts; return one for each"):
        predict_checked(lambda texts: [[]], [read("One."), read("Two.")], ["a", "b"])


def test_the_document_of_a_wrong_point_is_named():
    with pytest.raises(InputError, match=r"b: points\[0\] \(7, 1\)"):
        predict_checked(lambda texts: [[], [(7, 1)]], [read("One."), read("Two.")], ["a", "b"])


def test_texts_are_read_together_once():
    calls = []

    def source(texts):
        calls.append(len(texts))
        return [[(0, len(text))] for text in texts]

    texts = [read("One. Two."), read("Three."), read("One. Two. Four.")]
    known = predict_at_once(source, texts, "abc")
    assert [known([text]) for text in reversed(texts)] == [[[(0, 3)]], [[(0, 1)]], [[(0, 2)]]] and calls == [3]


@pytest.mark.parametrize(
    "text, starts",
    [
        ("One. Two.\n\nThree.\nFour.", [1, 0, 1, 0]),  # with blank lines a line break is none
        ("One. Two.\nThree. Four.", [1, 0, 1, 0]),  # without any, it is
        ("One. Two. Three.", [1, 0, 0]),
        ("One.\r\n \t\r\nTwo.", [1, 1]),
        ("\n\nOne. Two.\n\n", [1, 0]),  # what stands around the text is no gap
        ("One.", [1]),
    ],
)
def test_paragraphs_by_hand(text, starts):
    assert starts_paragraph(read(text)).tolist() == [bool(one) for one in starts]
    assert paragraph_points([read(text)]) == [[(i, 1) for i, one in enumerate(starts) if one and i]]


@given(st.lists(st.lists(st.sampled_from(["One.", "Two!", "Three?"]), min_size=1, max_size=4), min_size=2, max_size=5))
@examples(60)
def test_paragraphs_are_those_that_a_split_at_blank_lines_has(paragraphs):
    text = "\n\n".join(map(" ".join, paragraphs))
    spans = tuple(match.span() for match in re.finditer(r"\S+", text))
    slow = [i == 0 for sentences in paragraphs for i in range(len(sentences))]
    assert starts_paragraph(SentenceText(text, spans)).tolist() == slow
    lines = SentenceText(text.replace("\n\n", " \n"), spans)
    assert starts_paragraph(lines).tolist() == slow


def test_the_rule_by_hand():
    twelve, thirteen = " ".join(["word"] * 12), " ".join(["word"] * 13)
    text = f'Methods\n\nWe try. It works.\n\nHow so?\n\nHe said "no."\n\n{twelve}\n\n{thirteen}\n\nLast words\n'
    found = rule_points([read(text)])
    assert [read(text).texts()[i] for i, _ in found[0]] == ["Methods", twelve, "Last words"]
    assert rule_points([read("Methods We try")]) == [[(0, 1)]]  # a text of one line is a line of its own
    assert rule_points([SentenceText("Methods We try.", ((0, 7), (8, 15)))]) == [[]]  # on one line with others
    assert rule_points([SentenceText("wrapped\nline", ((0, 12),))]) == [[]]


def test_headings_have_points_with_levels_of_depth():
    text = "Before.\n# One\nText. More.\n#### Deep\nText.\n\n## Two\n\n- # no heading in a list\n"
    got = read(text)
    assert [(got.texts()[i], level) for i, level in heading_points([got])[0]] == [
        ("# One", 1),
        ("#### Deep", 2),
        ("## Two", 2),
    ]


def test_the_title_of_a_document_is_no_point():
    assert heading_points([read("# Title\n\nText.\n\n## A\n\nText.\n")]) == [[(2, 1)]]
    assert heading_points([read("# A\n\nText.\n\n# B\n\nText.\n")]) == [[(0, 1), (2, 1)]]
    assert heading_points([read("Text.\n\n# Late\n\nText.\n")]) == [[(1, 1)]]


@pytest.mark.parametrize(
    "before", ["---\ntitle: T\n---\n\n", "---\n\n", '<a name="top"></a>\n\n', "<!-- c -->\n\n", "#\n\n"]
)
def test_what_says_nothing_may_stand_before_the_title(before):
    text = read(f"{before}# Title\n\nText.\n\n## A\n\nText.\n")
    assert [(text.texts()[i], level) for i, level in heading_points([text])[0]] == [("## A", 1)]


def test_headings_in_one_sentence_have_the_least_level():
    text = "# A\n\n## B\n\nText. # no heading\n\n# C\n"
    whole = SentenceText(text, ((0, 9), (11, 16), (17, 29), (31, len(text) - 1)))
    assert heading_points([whole]) == [[(0, 1), (3, 1)]]


@pytest.mark.parametrize(
    "written, titles, opens, levels",
    [
        ([1, 4, 2], ["a", "b", "c"], False, [1, 2, 2]),
        ([1, 2, 5, 2], ["t", "a", "b", "c"], True, [0, 1, 2, 1]),
        ([1, 2, 1], ["a", "b", "c"], True, [1, 2, 1]),  # another one is as high: no title
        ([2, 1, 2], ["a", "b", "c"], False, [1, 1, 2]),
        ([2, 2, 2, 2], ["1 A", "2. B", "2.1 C", "2.1.1 D"], False, [1, 1, 2, 3]),
        ([1, 2, 2, 2, 2], ["T", "A.1 X", "A.1.2 Y", "B Z", "Without"], True, [0, 1, 2, 1, 1]),
        ([2, 3], ["1.1 A", "2 B"], False, [1, 2]),  # marks of several levels win over numbers
        ([2, 2], ["1.5 million", "2.1"], False, [1, 1]),  # a number without words says nothing
        ([1], ["T"], True, [0]),
        ([], [], False, []),
    ],
)
def test_levels_by_hand(written, titles, opens, levels):
    assert section_levels(written, titles, opens=opens) == levels


def slow_depth(written: list[int]) -> list[int]:
    """One more than the last heading before that is written higher, read backwards."""
    depths = []
    for i, level in enumerate(written):
        above = next((j for j in range(i - 1, -1, -1) if written[j] < level), None)
        depths.append(1 if above is None else depths[above] + 1)
    return depths


@given(st.lists(st.integers(1, 6), max_size=9))
def test_levels_leave_no_hole_and_keep_the_order_of_what_is_written(written):
    levels = section_levels(written, [""] * len(written), opens=False)
    assert levels == slow_depth(written)
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    deeper = [2 * level for level in written]  # only which is higher matters
    assert section_levels(deeper, [""] * len(written), opens=False) == levels


def test_none_finds_nothing():
    assert no_points([read("One."), read("# Two")]) == [[], []]


SPANS = tuple((2 * i, 2 * i + 1) for i in range(6))
TEXT = SentenceText("a b c d e f", SPANS)


def grouped(*members):
    return strategy_points(lambda text: [Group(tuple(text.sentences[i] for i in group)) for group in members])


def test_borders_of_groups_are_points():
    assert grouped([0, 1], [2, 3, 4], [5])([TEXT]) == [[(2, 1), (5, 1)]]
    assert grouped(range(6))([TEXT, TEXT]) == [[], []]


def test_clusters_that_come_back_have_a_point_at_each_change():
    assert grouped([0, 2], [1, 3, 4, 5])([TEXT]) == [[(1, 1), (2, 1), (3, 1)]]


@pytest.mark.parametrize("length, points", [(1, [1, 2, 3, 4, 5]), (2, [2, 4]), (3, [3]), (6, []), (99, [])])
def test_equal_lengths(length, points):
    assert equal_points(length)([TEXT, SentenceText("a", ((0, 1),))]) == [[(i, 1) for i in points], []]


def test_a_part_of_no_sentence_is_refused():
    with pytest.raises(UsageError, match="num_sentences 0: give at least 1"):
        equal_points(0)
