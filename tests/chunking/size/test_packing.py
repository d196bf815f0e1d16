"""Packing spans into chunks: the search for a size, capped counts, cuts; against slow readings of the definitions."""

from hypothesis import given
from hypothesis import strategies as st
from support.odd_texts import MONOTONE_COUNTERS, TEXTS, count_characters, count_words, readable
from support.tiers import examples

from qrag_jax.chunking.size.packing import (
    capped,
    cut_sentences,
    cut_words,
    longest,
    longest_run,
    pack_spans,
    run_counter,
)
from qrag_jax.chunking.text.chunks import chunk_text, count_spans
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import join_spans


@given(st.integers(0, 70), st.integers(0, 70), st.integers(-5, 100))
def test_longest_is_the_largest_size_that_fits(limit, largest, guess):
    tried = []
    assert longest(lambda size: not tried.append(size) and size <= largest, limit, guess) == min(limit, largest)
    assert all(1 <= size <= limit for size in tried)
    if guess == largest and 1 <= guess <= limit:
        assert len(tried) <= 2


@given(st.lists(st.booleans(), max_size=40), st.integers(-5, 50))
def test_longest_fits_and_the_next_one_does_not(fits, guess):
    size = longest(lambda size: fits[size - 1], len(fits), guess)
    assert size == 0 or fits[size - 1]
    assert size == len(fits) or not fits[size]


def test_a_long_text_is_counted_only_so_far_as_shows_that_it_does_not_fit():
    seen = []

    def count(text: str) -> int:
        seen.append(len(text))
        return len(text.split())

    assert capped(count, 2)("ab " * 1000) > 2
    assert seen == [64]
    seen.clear()
    assert capped(count, 2)("a" * 1000 + " b") == 2
    assert seen == [64, 512, 1002]


@given(st.text(alphabet="ab ", max_size=300), st.integers(1, 5), st.sampled_from(MONOTONE_COUNTERS))
def test_counts_up_to_the_cap_are_exact(text, num_tokens, count):
    found = capped(count, num_tokens)(text)
    assert found == count(text) if count(text) <= num_tokens else num_tokens < found <= count(text)


@examples(200)
@given(TEXTS, st.integers(1, 12), st.sampled_from(MONOTONE_COUNTERS))
def test_packing_takes_spans_as_long_as_they_fit(text, num_tokens, count):
    text = readable(text)
    spans = split_sentences(text)
    slow, packed = [], []
    for span in spans:
        if packed and count_spans(text, [*packed, span], count) > num_tokens:
            slow.append(tuple(packed))
            packed = []
        packed.append(span)
    slow.append(tuple(packed))
    assert list(pack_spans(text, spans, num_tokens, count)) == slow


def test_the_parts_of_a_cut_span_are_not_mixed_with_its_neighbours():
    text = "a. b c d e. f."
    spans = ((0, 2), (3, 11), (12, 14))
    packed = list(pack_spans(text, spans, 3, count_words, (cut_sentences(split_sentences), cut_words)))
    assert [chunk_text(text, join_spans(text, part)) for part in packed] == ["a.", "b c d", "e.", "f."]


def test_a_cut_is_used_again_on_its_own_parts_before_the_next_one():
    def halves(text: str, span: tuple[int, int]) -> list[tuple[int, int]]:
        middle = (span[0] + span[1]) // 2
        return [(span[0], middle), (middle, span[1])] if span[1] - span[0] > 2 else [span]

    def letters(text: str, span: tuple[int, int]) -> list[tuple[int, int]]:
        return [(i, i + 1) for i in range(*span)]

    packed = list(pack_spans("abcdefgh", [(0, 8)], 1, count_characters, (halves, letters)))
    assert packed == [((i, i + 1),) for i in range(8)]
    assert list(pack_spans("abcdefgh", [(0, 8)], 3, count_characters, (halves, letters))) == [
        ((0, 2),), ((2, 4),), ((4, 6),), ((6, 8),)
    ]  # fmt: skip


def test_what_no_cut_makes_smaller_stays_whole():
    assert list(pack_spans("abc de", ((0, 3), (4, 6)), 2, count_characters, (cut_words,))) == [((0, 3),), ((4, 6),)]
    assert list(pack_spans("", (), 2, count_characters)) == []


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 20), st.data())
def test_longest_run_counts_from_any_span_on(lengths, num_tokens, data):
    text = " ".join("x" * length for length in lengths)
    spans = cut_words(text, (0, len(text)))
    first = data.draw(st.integers(0, len(spans) - 1))
    sums = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    fitting = [n for n in range(len(spans) - first + 1) if sum(lengths[first : first + n]) + n - 1 <= num_tokens]
    assert longest_run(run_counter(text, spans, count_characters, num_tokens), first, num_tokens, sums) == max(fitting)
