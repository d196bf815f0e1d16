"""The hard size: cutting on, leaving out what says nothing new, joining what is small."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support.odd_texts import (
    COUNTERS,
    TEXTS,
    count_bytes,
    count_characters,
    count_oddly,
    count_words,
    readable,
)
from support.tiers import examples

from qrag_jax.chunking.size.budget import check_budget, fit_groups, merge_small
from qrag_jax.chunking.size.packing import cut_words
from qrag_jax.chunking.text.chunks import Group, chunk_text, count_spans
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import join_spans
from qrag_jax.types import InputError, UsageError

TEXT = "One two. Three four five. Six. Seven eight nine ten eleven."
SENTENCES = ((0, 8), (9, 25), (26, 30), (31, 59))


def words(text: str) -> tuple[tuple[int, int], ...]:
    return tuple(cut_words(text, (0, len(text))))


def said(text: str, groups) -> list[str]:
    return [chunk_text(text, join_spans(text, group.spans)) for group in groups]


def fit(text: str, max_tokens: int, count, spans=None) -> list[str]:
    group = Group(tuple(spans or split_sentences(text)))
    return said(text, fit_groups(text, [group], max_tokens, count, split_sentences))


@pytest.mark.parametrize(
    ("max_tokens", "min_tokens", "message"),
    [
        (0, None, "max_tokens 0: give at least 1"),
        (None, 0, "min_tokens 0: give at least 1, or leave it out for no minimum"),
        (5, 6, "min_tokens 6 is above max_tokens 5; give a smaller one"),
    ],
)
def test_budgets_that_no_chunk_can_keep_are_refused(max_tokens, min_tokens, message):
    with pytest.raises(UsageError) as caught:
        check_budget(max_tokens, min_tokens)
    assert str(caught.value) == message


def test_budgets_that_a_chunk_can_keep():
    for budget in [(None, None), (1, 1), (1, None), (None, 1), (6, 5)]:
        check_budget(*budget)


def test_a_group_that_fits_stays_as_it_is():
    group = Group(SENTENCES, level=3)
    assert fit_groups(TEXT, [group], 11, count_words, split_sentences) == [group]


def test_a_group_is_cut_between_its_spans_and_keeps_its_level():
    groups = fit_groups(TEXT, [Group(SENTENCES, level=3)], 6, count_words, split_sentences)
    assert groups == [Group(SENTENCES[:3], 3), Group(SENTENCES[3:], 3)]


def test_a_span_is_cut_into_sentences_then_words_then_characters():
    assert fit(TEXT, 6, count_words, [(0, 59)]) == [TEXT[:30], TEXT[31:]]
    assert fit(TEXT, 4, count_words) == ["One two.", "Three four five. Six.", "Seven eight nine ten", "eleven."]
    assert fit("Ab cdefg. Hi.", 3, count_characters) == ["Ab", "cde", "fg.", "Hi."]
    assert fit("Ab cdefg.", 1, count_characters) == list("Abcdefg.")


def test_a_span_with_outer_blank_space_is_cut_without_it():
    assert fit("  abcd  ", 2, count_characters, [(0, 8)]) == ["ab", "cd"]
    assert fit("  ab  ", 2, count_characters, [(0, 6)]) == ["ab"]


def test_spans_that_are_apart_are_counted_with_the_line_break_between_them():
    text = "abc def ghi"
    group = Group(((0, 3), (8, 11)))
    assert said(text, fit_groups(text, [group], 7, count_characters, split_sentences)) == ["abc\nghi"]
    assert said(text, fit_groups(text, [group], 6, count_characters, split_sentences)) == ["abc", "ghi"]


def test_what_lies_between_spans_that_are_apart_is_not_counted():
    text = "abc def ghi jkl mno"
    assert fit(text, 7, count_characters, [(0, 3), (8, 11), (16, 19)]) == ["abc\nghi", "mno"]
    assert fit(text, 10, count_characters, [(0, 3), (4, 7), (12, 15), (16, 19)]) == ["abc def", "jkl mno"]


def test_words_that_have_more_tokens_together_than_apart_still_fill_the_budget():
    # Each word has 3 characters, and a space stands between two: 7 words are 27.
    assert fit(" ".join(["abc"] * 20), 27, count_characters) == [" ".join(["abc"] * n) for n in (7, 7, 6)]


def test_a_word_that_is_one_unknown_token_when_long_is_found_to_fit():
    assert fit("ab " * 3 + "a" * 13, 1, count_oddly) == ["ab", "ab", "ab", "a" * 13]
    assert fit("a" * 12, 2, count_oddly) == ["aaaaaa", "aaaaaa"]


def test_a_character_larger_than_the_budget_is_named():
    with pytest.raises(InputError, match=r"character 3: '\\u3042' has 3 tokens, but max_tokens is 2; raise it|あ"):
        fit("ab あ", 2, count_bytes)


def test_an_endless_word_is_read_a_few_times_not_once_for_each_piece():
    seen = 0

    def count(text: str) -> int:
        nonlocal seen
        seen += len(text)
        return (len(text) + 3) // 4

    word = "x" * 200_000
    pieces = fit(word, 64, count)
    assert [len(piece) for piece in pieces[:-1]] == [256] * (len(pieces) - 1)
    assert "".join(pieces) == word
    assert seen < 4 * len(word)


def test_pieces_inside_another_chunk_are_left_out():
    text = "aa bb cc dd ee"
    spans = words(text)
    groups = [Group(spans[:3]), Group(spans[2:])]  # cc is in both
    assert said(text, fit_groups(text, groups, 2, count_words, split_sentences)) == ["aa bb", "cc dd", "ee"]
    groups = [Group(spans[:3]), Group((spans[2],)), Group((spans[2],), level=2)]
    assert fit_groups(text, groups, 3, count_words, split_sentences) == [groups[0], groups[2]]


@examples(200)
@given(TEXTS, st.integers(1, 12), st.sampled_from(COUNTERS))
@example("a" * 40, 1, count_oddly)
def test_what_is_cut_is_complete_in_order_and_fits(text, max_tokens, count):
    text = readable(text)
    assume(max(map(count, text)) <= max_tokens)
    groups = fit_groups(text, [Group(tuple(split_sentences(text)))], max_tokens, count, split_sentences)
    assert all(count_spans(text, group.spans, count) <= max_tokens for group in groups)
    spans = [span for group in groups for span in group.spans]
    assert spans == sorted(spans)
    assert "".join("".join(text[start:end] for start, end in spans).split()) == "".join(text.split())


def merge(
    sizes: list[int], min_tokens: int, max_tokens: int | None = None, levels: list[int] | None = None
) -> list[int]:
    """Sizes in words after joining groups of so many words."""
    text = " ".join("w" * sum(sizes))
    spans = words(text)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    groups = [
        Group(spans[start : start + size], level)
        for start, size, level in zip(starts, sizes, levels or [1] * len(sizes), strict=True)
    ]
    merged = merge_small(text, groups, min_tokens, max_tokens, count_words)
    assert tuple(span for group in merged for span in group.spans) == spans
    return [len(group.spans) for group in merged]


@pytest.mark.parametrize(
    ("sizes", "min_tokens", "max_tokens", "expected"),
    [
        ([5, 5, 5], 5, None, [5, 5, 5]),
        ([2, 2, 2, 2, 2, 2], 4, None, [4, 4, 4]),  # not all of them in one
        ([2, 2, 2, 2, 2], 4, None, [4, 6]),  # the last one has only the one before
        ([1, 5, 1], 3, None, [7]),
        ([1, 5, 1], 3, 6, [6, 1]),
        ([6, 1, 6], 2, 6, [6, 1, 6]),  # fits with none
        ([5, 1, 6], 2, 6, [6, 6]),  # too large with the next one, fits with the one before
        ([1, 1, 1], 9, None, [3]),
        ([1], 9, None, [1]),
        ([], 9, None, []),
    ],
)
def test_small_groups_are_joined(sizes, min_tokens, max_tokens, expected):
    assert merge(sizes, min_tokens, max_tokens) == expected


def test_groups_of_other_levels_are_not_joined():
    assert merge([1, 1, 1, 1], 9, None, [1, 2, 2, 1]) == [1, 2, 1]


@given(st.lists(st.integers(1, 6), max_size=15), st.integers(1, 12), st.integers(0, 12) | st.none())
def test_joining_leaves_nothing_small_that_could_be_joined(sizes, min_tokens, more):
    max_tokens = None if more is None else max(min_tokens + more, *sizes, 1)
    merged = merge(sizes, min_tokens, max_tokens)
    for left, right in zip(merged, merged[1:], strict=False):
        assert min(left, right) >= min_tokens or (max_tokens is not None and left + right > max_tokens)


def test_groups_that_overlap_are_joined_by_whole_spans_only():
    text = "a b c d e"
    spans = words(text)
    groups = [Group(spans[:3]), Group(spans[2:])]
    assert merge_small(text, groups, 4, None, count_words) == [Group(spans)]
    parts = [Group(((0, 3),)), Group(((2, 5),))]
    assert merge_small(text, parts, 4, None, count_words) == parts
