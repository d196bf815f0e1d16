"""Chunks of a fixed size: the paper's rule, its leftover, budgets in tokens, and overlap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.odd_texts import MONOTONE_COUNTERS, TEXTS, count_words, readable
from support.tiers import examples

from qrag_jax.chunking.strategies.fixed import FixedConfig, make_fixed
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.types import UsageError


def lines(*lengths: int) -> SentenceText:
    """Sentences of so many words."""
    text = "\n\n".join(" ".join("w" * length) for length in lengths)
    return SentenceText(text, tuple(split_sentences(text)))


def cut(text: SentenceText, count=count_words, **fields) -> list[list[int]]:
    """Sentence numbers of each chunk."""
    numbers = {span: i for i, span in enumerate(text.sentences)}
    groups = make_fixed(FixedConfig(**fields), count)(text)
    assert {group.level for group in groups} <= {1}
    return [[numbers[span] for span in group.spans] for group in groups]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_chunks": 2, "num_tokens": 9}, "fixed: num_chunks 2 and num_tokens 9: choose only one size"),
        (
            {"sentences_per_chunk": 1, "num_chunks": 2, "num_tokens": 3},
            "fixed: sentences_per_chunk 1 and num_chunks 2 and num_tokens 3: choose only one size",
        ),
        (
            {"sentences_per_chunk": 3, "overlap": 3},
            "fixed.overlap 3: must be below sentences_per_chunk 3",
        ),
        ({"num_tokens": 9, "overlap_tokens": 9}, "fixed.overlap_tokens 9: must be below num_tokens 9"),
        ({"overlap_tokens": 256}, "fixed.overlap_tokens 256: must be below num_tokens 256"),
        (
            {"overlap": 1, "overlap_tokens": 2},
            "fixed.overlap 1 and fixed.overlap_tokens 2: choose only one",
        ),
        (
            {"num_chunks": 3, "overlap_tokens": 2},
            "fixed.overlap_tokens 2: works with num_tokens; use overlap with num_chunks 3",
        ),
    ],
)
def test_refusals_name_the_field(fields, message):
    with pytest.raises(UsageError) as caught:
        make_fixed(FixedConfig(**fields), count_words)
    assert str(caught.value) == message


def test_sentences_per_chunk():
    text = lines(*[1] * 7)
    assert cut(text, sentences_per_chunk=3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert cut(text, sentences_per_chunk=3, overlap=1) == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert cut(text, sentences_per_chunk=3, overlap=2) == [[i, i + 1, i + 2] for i in range(5)]
    assert cut(text, sentences_per_chunk=1) == [[i] for i in range(7)]


def test_a_document_no_longer_than_the_overlap_is_one_chunk():
    for overlap in range(4):
        assert cut(lines(1), sentences_per_chunk=4, overlap=overlap) == [[0]]
        assert cut(lines(1, 1), sentences_per_chunk=4, overlap=overlap) == [[0, 1]]


def test_number_of_chunks_leaves_what_is_over_in_further_chunks():
    text = lines(*[1] * 11)
    assert cut(text, num_chunks=4) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10]]  # 11 // 4 = 2 in each
    assert cut(text, num_chunks=2) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10]]
    assert cut(text, num_chunks=3, overlap=1) == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 10]]
    assert cut(text, num_chunks=1) == [list(range(11))]


def test_chunks_of_one_sentence_do_not_overlap():
    text = lines(*[1] * 5)
    assert cut(text, num_chunks=4, overlap=1) == [[0], [1], [2], [3], [4]]
    assert cut(text, num_chunks=9, overlap=1) == [[0], [1], [2], [3], [4]]
    assert cut(text, num_chunks=2, overlap=7) == [[0, 1], [1, 2], [2, 3], [3, 4]]  # one less than a chunk has


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 1))
def test_the_rule_of_the_papers_authors_word_for_word(num_sentences, num_chunks, overlap):
    """The sentences of each chunk, by their rule: overlap 0 or 1, none where a chunk has one sentence."""
    n_per = max(num_sentences // num_chunks, 1)
    if n_per == 1:
        overlap = 0
    expected = [
        list(range(num_sentences))[start : start + n_per]
        for start in range(0, num_sentences - overlap, n_per - overlap)
    ]
    assert cut(lines(*[1] * num_sentences), num_chunks=num_chunks, overlap=overlap) == expected


def test_budget_in_tokens():
    text = lines(3, 3, 3, 9, 1, 1, 4)
    assert cut(text, num_tokens=6) == [[0, 1], [2], [3], [4, 5, 6]]  # the one of 9 stands alone
    assert cut(text, num_tokens=1) == [[0], [1], [2], [3], [4], [5], [6]]
    assert cut(text) == [[0, 1, 2, 3, 4, 5, 6]]
    assert cut(lines(200, 56, 1)) == [[0, 1], [2]]


def test_budget_in_tokens_with_overlap_in_sentences():
    assert cut(lines(*[2] * 6), num_tokens=6, overlap=1) == [[0, 1, 2], [2, 3, 4], [4, 5]]
    assert cut(lines(*[2] * 6), num_tokens=6, overlap=2) == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert cut(lines(*[2] * 6), num_tokens=6, overlap=9) == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    # Sentence 2 fits with sentence 1 alone, sentence 3 with none.
    assert cut(lines(2, 2, 4, 6, 1), num_tokens=6, overlap=2) == [[0, 1], [1, 2], [3], [4]]
    assert cut(lines(7, 7, 7), num_tokens=6, overlap=1) == [[0], [1], [2]]


def test_budget_in_tokens_with_overlap_in_tokens():
    assert cut(lines(*[2] * 6), num_tokens=6, overlap_tokens=2) == [[0, 1, 2], [2, 3, 4], [4, 5]]
    assert cut(lines(*[2] * 6), num_tokens=6, overlap_tokens=1) == [[0, 1, 2], [3, 4, 5]]
    assert cut(lines(3, 1, 1, 1, 2), num_tokens=6, overlap_tokens=3) == [[0, 1, 2, 3], [1, 2, 3, 4]]
    assert cut(lines(3, 1, 1, 1, 5), num_tokens=6, overlap_tokens=3) == [[0, 1, 2, 3], [3, 4]]


CONFIGS = st.one_of(
    st.builds(FixedConfig, num_tokens=st.integers(1, 15), overlap=st.integers(0, 4)),
    st.integers(1, 15).flatmap(
        lambda size: st.builds(FixedConfig, num_tokens=st.just(size), overlap_tokens=st.integers(0, size - 1))
    ),
)


@examples(200)
@given(TEXTS.map(readable), CONFIGS, st.sampled_from(MONOTONE_COUNTERS))
def test_budgets_equal_a_slow_reading_of_the_definition(text, config, count):
    def tokens(first, end):
        return count(text[sentences[first][0] : sentences[end - 1][1]])

    def repeats(start, end):
        most = (
            end - start <= config.overlap if not config.overlap_tokens else tokens(start, end) <= config.overlap_tokens
        )
        return most and tokens(start, end + 1) <= config.num_tokens

    sentences = tuple(split_sentences(text))
    expected, first, end = [], 0, 0
    while end < len(sentences):
        end = first + 1
        while end < len(sentences) and tokens(first, end + 1) <= config.num_tokens:
            end += 1
        expected.append(sentences[first:end])
        if end < len(sentences):
            first = min([start for start in range(first + 1, end) if repeats(start, end)] + [end])
    groups = make_fixed(config, count)(SentenceText(text, sentences))
    assert [group.spans for group in groups] == expected


def test_progress_where_more_text_has_fewer_tokens():
    text = SentenceText("a b cccc d", ((0, 1), (2, 3), (4, 8), (9, 10)))
    tokens = {"a": 1, "b": 1, "cccc": 5, "d": 1, "a b": 1, "a b cccc": 2, "a b cccc d": 9, "cccc d": 1}
    assert cut(text, tokens.__getitem__, num_tokens=2, overlap=1) == [[0, 1, 2], [2, 3]]
