"""Recursive chunks: the coarsest borders that fit, and never across a coarser one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.odd_texts import (
    MONOTONE_COUNTERS,
    TEXTS,
    count_characters,
    count_words,
    readable,
)
from support.tiers import examples

from qrag_jax.chunking.strategies.recursive import RecursiveConfig, make_recursive
from qrag_jax.chunking.text.chunks import SentenceText, chunk_text, count_spans
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import join_spans


def groups_of(text: str, num_tokens: int, count=count_words):
    strategy = make_recursive(RecursiveConfig(num_tokens), count, split_sentences)
    return strategy(SentenceText(text, tuple(split_sentences(text))))


def cut(text: str, num_tokens: int, count=count_words) -> list[str]:
    groups = groups_of(text, num_tokens, count)
    assert {group.level for group in groups} <= {1}
    return [chunk_text(text, join_spans(text, group.spans)) for group in groups]


TEXT = "One two.\n\nThree four.\n\nFive six\nseven. Eight nine.\nTen eleven twelve.\n\nEnd."


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        (99, [TEXT]),
        # The third paragraph has 8 words: it fits alone, and with the last one.
        (9, ["One two.\n\nThree four.", "Five six\nseven. Eight nine.\nTen eleven twelve.\n\nEnd."]),
        (8, ["One two.\n\nThree four.", "Five six\nseven. Eight nine.\nTen eleven twelve.", "End."]),
        # It does not fit: its lines are packed among themselves, though "End." would fit with the last of them.
        (7, ["One two.\n\nThree four.", "Five six\nseven. Eight nine.", "Ten eleven twelve.", "End."]),
        (4, ["One two.\n\nThree four.", "Five six", "seven. Eight nine.", "Ten eleven twelve.", "End."]),
        # Lines of three words are cut into sentences, and a sentence of three into words.
        (
            2,
            ["One two.", "Three four.", "Five six", "seven.", "Eight nine.", "Ten eleven", "twelve.", "End."],
        ),
        (
            1,
            [
                "One",
                "two.",
                "Three",
                "four.",
                "Five",
                "six",
                "seven.",
                "Eight",
                "nine.",
                "Ten",
                "eleven",
                "twelve.",
                "End.",
            ],
        ),
    ],
)
def test_coarse_borders_come_first(num_tokens, expected):
    assert cut(TEXT, num_tokens) == expected


def test_a_word_that_is_too_long_stays_whole():
    assert cut("ab abcdef cd", 4, count_characters) == ["ab", "abcdef", "cd"]


def test_paragraphs_and_lines_end_at_every_kind_of_line_break():
    assert cut("a b\r\n\r\nc d\n \t\ne f", 2) == ["a b", "c d", "e f"]
    assert cut("a b\rc d\u2028e f\x0cg h\x85i j\u2029k l", 2) == ["a b", "c d", "e f", "g h", "i j", "k l"]
    assert cut("\n\n\n a \n\n\n\n\n b \n\n", 1) == ["a", "b"]


def test_spans_are_where_a_chunk_may_be_cut_on():
    assert [group.spans for group in groups_of("One two.\n\nThree four.\n\nFive.", 4)] == [
        ((0, 8), (10, 21)),
        ((23, 28),),
    ]


def pack_slowly(text, parts, num_tokens, count, finer):
    """The definition read word by word: grow a chunk while it fits, take apart what is too large alone."""
    packed, chunks = [], []
    for part in parts:
        smaller = [i for i, cut in enumerate(finer) if cut(text, part) != [part]]
        if count_spans(text, [part], count) > num_tokens and smaller:
            chunks += [packed] if packed else []
            packed = []
            chunks += pack_slowly(text, finer[smaller[0]](text, part), num_tokens, count, finer[smaller[0] :])
            continue
        if packed and count_spans(text, [*packed, part], count) > num_tokens:
            chunks.append(packed)
            packed = []
        packed.append(part)
    return chunks + ([packed] if packed else [])


def between(border: str):
    """Pieces between matches of a pattern, without outer white space, by walking over the text."""

    def parts(text, span):
        found, start = [], span[0]
        for match in [*re.compile(border).finditer(text, *span), None]:
            end = match.start() if match else span[1]
            body = text[start:end].strip()
            if body:
                first = text.index(body, start)
                found.append((first, first + len(body)))
            start = match.end() if match else end
        return found

    return parts


def sentences(text, span):
    return [(span[0] + start, span[0] + end) for start, end in split_sentences(text[span[0] : span[1]])]


@examples(200)
@given(TEXTS.map(readable), st.integers(1, 15), st.sampled_from(MONOTONE_COUNTERS))
def test_equals_a_slow_reading_of_the_definition(text, num_tokens, count):
    finer = [between("[\n\r\v\f\x85\u2028\u2029]"), sentences, between(r"\s")]
    paragraphs = between(r"\n[^\S\n]*\n")(text, (0, len(text)))
    expected = [tuple(chunk) for chunk in pack_slowly(text, paragraphs, num_tokens, count, finer)]
    assert [group.spans for group in groups_of(text, num_tokens, count)] == expected


def test_the_text_is_counted_a_few_times_not_once_for_each_chunk():
    seen = 0

    def count(text: str) -> int:
        nonlocal seen
        seen += len(text)
        return len(text.split())

    text = "\n\n".join(["A sentence of seven words stands here. " * 12] * 100 + ["w " * 20_000])
    assert len(cut(text, 64, count)) > 400
    assert seen < 12 * len(text)
