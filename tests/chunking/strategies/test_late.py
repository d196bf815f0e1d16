"""Late chunking: windows over a text, tokens taken once, means over spans, and embedders that misbehave."""

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.encoders import TOKENIZERS, random_encoder
from support.tiers import examples

from qrag_jax.chunking.strategies.late import LateConfig, find_windows, late_vectors, make_late
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.types import InputError, UsageError

WORD = re.compile(r"\S+")
CHARACTER = re.compile(r"\S")
SPACED = re.compile(r"\s*\S+")  # as XLM-RoBERTa has them: a token holds the white space before it

WORDS = ["a", "bb", "ccc.", "\u4eca\u65e5\u306f", "\U0001f600", "e\u0301", "x" * 31]
TEXTS = st.lists(st.sampled_from([*WORDS, "y" * 70, " ", "  ", "\n", "\n\n", "\u3000"]), max_size=60).map("".join)
WINDOWS = st.integers(4, 20).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 3)))


def embedder(pattern):
    """Vectors that depend on the token alone: 3 numbers from its characters."""

    def embed(text):
        tokens = [(m.group().strip(), m.span()) for m in pattern.finditer(text)]
        vectors = [[len(word), ord(word[0]) % 97, sum(map(ord, word)) % 31] for word, _ in tokens]
        offsets = [span for _, span in tokens]
        return np.array(vectors, np.float32).reshape(-1, 3), np.array(offsets, np.int64).reshape(-1, 2)

    return embed


def counter(pattern):
    return lambda text: len(pattern.findall(text))


def place_embedder(text):
    """Vectors that tell where a token stands in its window: tokens before it and behind it."""
    spans = [m.span() for m in WORD.finditer(text)]
    vectors = [[i, len(spans) - 1 - i] for i in range(len(spans))]
    return np.array(vectors, np.float32).reshape(-1, 2), np.array(spans, np.int64).reshape(-1, 2)


def slow_vectors(text, spans_of_chunks, embed):
    """The definition: the mean over all tokens of the text that share a character with a span of the chunk."""
    vectors, offsets = embed(text)
    rows = []
    for spans in spans_of_chunks:
        inside = [any(a < end and b > start for start, end in spans) for a, b in offsets.tolist()]
        rows.append(vectors[inside].mean(axis=0) if any(inside) else np.zeros(vectors.shape[1]))
    return np.array(rows, np.float32).reshape(-1, vectors.shape[1])


def spans_of(text, draw_cuts):
    """Chunks of the non-blank pieces between cuts: each piece, all of them, and every second one together."""
    borders = sorted({0, len(text), *(cut for cut in draw_cuts if cut < len(text))})
    pieces = [(a, text[a:b]) for a, b in zip(borders, borders[1:], strict=False) if text[a:b].strip()]
    spans = [(a + len(p) - len(p.lstrip()), a + len(p.rstrip())) for a, p in pieces]
    return [[span] for span in spans] + [spans, spans[::2]] if spans else []


def windows(text, size, overlap, pattern=WORD):
    return [
        (text[w.start : w.end], text[w.after : w.until].split())
        for w in find_windows(text, counter(pattern), size, overlap)
    ]


def test_windows_by_hand():
    # Room for 4 words, 2 of them repeated; of those the first is taken from the left window, the second from the right.
    assert windows("a b c d e f g h", 6, 2) == [
        ("a b c d", ["a", "b", "c"]),
        ("c d e f", ["d", "e"]),
        ("e f g h", ["f", "g", "h"]),
    ]
    assert windows("a b c d e", 6, 0) == [("a b c d", ["a", "b", "c", "d"]), ("e", ["e"])]
    assert windows("a b c d e", 6, 3) == [("a b c d", ["a", "b", "c"]), ("b c d e", ["d", "e"])]
    assert windows(" a b\n", 6, 3) == [("a b", ["a", "b"])]
    assert windows("", 6, 3) == windows(" \n", 6, 3) == []


def test_words_that_are_too_long_are_cut():
    # Halves, until one fits: ab, cde, fg, hij; and no two of them fit together.
    assert [piece for piece, _ in windows("abcdefghij", 6, 1, CHARACTER)] == ["ab", "cde", "fg", "hij"]


def test_tokens_come_from_the_window_where_they_have_more_around_them():
    text = "a b c d e f g h"
    spans = [[m.span()] for m in WORD.finditer(text)]
    found = late_vectors(text, spans, place_embedder, counter(WORD), 6, 2, normalise=False)
    assert found.tolist() == [[0, 3], [1, 2], [2, 1], [1, 2], [2, 1], [1, 2], [2, 1], [3, 0]]


def test_vectors_by_hand():
    text = "ab c. def"
    found = late_vectors(text, [[(0, 5)], [(6, 9)], [(0, 2), (6, 9)]], embedder(WORD), counter(WORD), normalise=False)
    ab, c, d = embedder(WORD)(text)[0].astype(np.float64)
    np.testing.assert_allclose(found, [(ab + c) / 2, d, (ab + d) / 2], rtol=1e-6)
    assert found.dtype == np.float32
    normal = late_vectors(text, [[(6, 9)]], embedder(WORD), counter(WORD))
    np.testing.assert_allclose(normal[0], d / np.linalg.norm(d), rtol=1e-6)


def test_a_token_over_two_chunks_counts_for_both():
    found = late_vectors("abcd", [[(0, 2)], [(2, 4)]], embedder(WORD), counter(WORD), normalise=False)
    assert found[0].tolist() == found[1].tolist() == embedder(WORD)("abcd")[0][0].tolist()


def test_a_token_over_two_spans_of_a_chunk_counts_once():
    found = late_vectors("a bcd", [[(0, 3), (4, 5)]], embedder(WORD), counter(WORD), normalise=False)
    np.testing.assert_allclose(found[0], embedder(WORD)("a bcd")[0].mean(axis=0), rtol=1e-6)


@examples(200)
@given(TEXTS, st.lists(st.integers(0, 300), max_size=8), WINDOWS, st.sampled_from([CHARACTER, WORD, SPACED]))
@example("y" * 70 + " a", [3], (4, 1), CHARACTER)
def test_windows_do_not_matter_to_tokens_without_context(text, cuts, window, pattern):
    if pattern is not CHARACTER:
        text = text.replace("y", "")  # words that a window may cut are other tokens
        text = re.sub(r"\S{32,}", "w", text)
    chunks = spans_of(text, cuts)
    found = late_vectors(text, chunks, embedder(pattern), counter(pattern), *window, normalise=False)
    np.testing.assert_allclose(found, slow_vectors(text, chunks, embedder(pattern)), rtol=1e-5)


@examples(200)
@given(TEXTS, WINDOWS, st.sampled_from([CHARACTER, WORD]))
def test_windows_keep_their_size_and_follow_each_other(text, window, pattern):
    size, overlap = window
    count = counter(pattern)
    found = find_windows(text, count, size, overlap)
    assert bool(found) == bool(text.strip())
    covered = 0
    for i, w in enumerate(found):
        assert 1 <= count(text[w.start : w.end]) <= size - 2
        assert not text[covered : w.start].strip()
        covered = w.end
        assert w.after == (found[i - 1].until if i else 0)
        if i:
            assert found[i - 1].start < w.start and found[i - 1].end < w.end
            assert count(text[w.start : found[i - 1].end]) <= overlap
    assert not text[covered:].strip()
    assert not found or found[-1].until == len(text)


@examples(100)
@given(st.integers(1, 40), WINDOWS)
def test_tokens_have_half_of_the_overlap_around_them(num_words, window):
    text = " ".join("w" * num_words)
    size, overlap = window
    spans = [[m.span()] for m in WORD.finditer(text)]
    found = late_vectors(text, spans, place_embedder, counter(WORD), size, overlap, normalise=False)
    for i, (before, behind) in enumerate(found.tolist()):
        assert before >= min(i, overlap // 2)
        assert behind >= min(num_words - 1 - i, (overlap - 1) // 2)


def test_more_tokens_together_than_apart():
    # White space is counted too, as some byte tokenizers do: only the text of a window tells its size.
    text = "a   b   c d e"
    found = find_windows(text, len, 7, 3)
    assert all(w.end - w.start <= 5 for w in found)
    assert [text[w.start : w.end] for w in found] == ["a   b", "b   c", "c d e"]


@pytest.mark.parametrize("family", list(TOKENIZERS))
@pytest.mark.parametrize("size, overlap", [(10, 4), (13, 9)])
def test_every_token_of_every_tokenizer_is_taken_once(family, size, overlap):
    text = "Where is Mary? Mary went to the kitchen. Daniel  took the \U0001f600 milk.  Then he left. " * 3
    tokenizer = TOKENIZERS[family]([text])
    _, offsets = tokenizer.offsets(text)
    found = find_windows(text, tokenizer.count, size, overlap)
    taken = []
    for w in found:
        ends = w.start + tokenizer.offsets(text[w.start : w.end])[1][:, 1]
        taken += ends[(ends > w.after) & (ends <= w.until)].tolist()

    def blank_ends(ends):
        return [end for end in ends if text[end - 1].strip()]

    assert blank_ends(taken) == blank_ends(offsets[:, 1].tolist())


def test_with_an_encoder():
    text = "Where is Mary? Mary went to the kitchen. Daniel took the milk."
    embed = make_embedder(random_encoder("bert", [text]), window=32)
    vectors, offsets = embed.tokens(text)
    first = offsets[:, 0] < 14
    expected = np.stack([vectors[first].mean(axis=0), vectors[~first].mean(axis=0)])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = late_vectors(text, [[(0, 14)], [(15, len(text))]], embed.tokens, embed.count_tokens, 32, 8)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    narrow = late_vectors(text, [[(0, 14)], [(15, len(text))]], embed.tokens, embed.count_tokens, 10, 4)
    assert np.isfinite(narrow).all() and not np.allclose(narrow, expected, atol=1e-4)


def test_borders_are_those_of_fixed_chunks():
    text = "One two. Three four. Five six seven."
    groups = make_late(LateConfig(num_tokens=4), counter(WORD))(SentenceText(text, tuple(split_sentences(text))))
    assert [[text[a:b] for a, b in group.spans] for group in groups] == [
        ["One two.", "Three four."],
        ["Five six seven."],
    ]


def test_nothing_to_embed():
    embed, count = embedder(WORD), counter(WORD)
    assert late_vectors("a b", [], embed, count).shape == (0, 3)
    assert late_vectors("", [], embed, count).shape == (0, 3)


def test_a_chunk_without_tokens_has_a_vector_of_zeros():
    letters = re.compile("[a-z]+")
    for normalise in (False, True):
        found = late_vectors("a \0 b", [[(0, 1)], [(2, 3)]], embedder(letters), counter(letters), normalise=normalise)
        assert found[1].tolist() == [0, 0, 0] and found[0].any()


def test_lone_surrogates_are_handed_over_as_replacements():
    seen = []

    def embed(text):
        seen.append(text)
        return embedder(WORD)(text)

    late_vectors("a \ud800 b", [[(2, 3)]], embed, counter(WORD))
    assert seen == ["", "a \ufffd b"]


def test_windows_without_a_chunk_are_not_embedded():
    seen = []

    def embed(text):
        seen.append(text)
        return embedder(WORD)(text)

    late_vectors("a b c d e f", [[(4, 5)]], embed, counter(WORD), 4, 0)
    assert seen == ["", "c d"]


@pytest.mark.parametrize(
    "spans, message",
    [
        ([(0, 1), (2, 9)], r"chunk 1: span \(2, 9\) is not in the text of 3 characters"),
        ([(0, 1), (-1, 2)], r"chunk 1: span \(-1, 2\)"),
        ([(0, 1), (1, 1)], r"chunk 1: span \(1, 1\)"),
    ],
)
def test_spans_outside_the_text_are_refused(spans, message):
    with pytest.raises(InputError, match=message):
        late_vectors("a b", [[span] for span in spans], embedder(WORD), counter(WORD))


def test_a_chunk_without_spans_is_refused():
    with pytest.raises(InputError, match="chunk 1: has no span"):
        late_vectors("a b", [[(0, 1)], []], embedder(WORD), counter(WORD))


@pytest.mark.parametrize(
    "vectors, offsets, message",
    [
        (np.array([[1.0, np.nan, 0], [0, 0, 0]]), [[0, 1], [2, 3]], "characters 0 to 3: a token vector is not finite"),
        (np.array([[1.0, np.inf, 0], [0, 0, 0]]), [[0, 1], [2, 3]], "not finite"),
        (np.ones((2, 2)), [[0, 1], [2, 3]], r"shape \[2, 2\] and offsets \[2, 2\], expected \[n, 3\]"),
        (np.ones(3), [[0, 1], [2, 3]], r"shape \[3\]"),
        (np.ones((2, 3)), [[0, 1]], r"offsets \[1, 2\]"),
        (np.ones((2, 3)), [0, 1], r"offsets \[2\]"),
        (np.ones((2, 3)), [[0, 1], [2, 4]], "offsets are not half-open spans of its 3 characters"),
        (np.ones((2, 3)), [[-1, 1], [2, 3]], "offsets are not"),
        (np.ones((2, 3)), [[1, 0], [2, 3]], "offsets are not"),
        (np.ones((2, 3)), [[2, 3], [0, 1]], "not in the order of the text"),
    ],
)
def test_embedders_that_give_something_else_are_refused(vectors, offsets, message):
    def embed(text):
        return (vectors, np.array(offsets)) if text else embedder(WORD)(text)

    with pytest.raises(InputError, match=message):
        late_vectors("a b", [[(0, 1)]], embed, counter(WORD))


def test_an_embedder_of_texts_is_refused():
    with pytest.raises(InputError, match=r"empty text have shape \[3\], expected \[0, dim\]"):
        late_vectors("a b", [[(0, 1)]], lambda text: (np.zeros(3), np.zeros((0, 2))), counter(WORD))


def test_a_character_larger_than_a_window_is_refused():
    with pytest.raises(InputError, match=r"character 2: '\U0001f600' has 4 tokens, but a window has room for 2; raise"):
        find_windows("a \U0001f600", lambda text: len(text.encode()), 4, 0)


@pytest.mark.parametrize(
    "config, message",
    [
        (LateConfig(window_tokens=2), "late.window_tokens 2: give at least 3"),
        (LateConfig(window_tokens=64), "late.overlap_tokens 64: give 0 to 61"),
        (LateConfig(overlap_tokens=-1), "late.overlap_tokens -1: give 0 to 253"),
    ],
)
def test_wrong_values_are_refused(config, message):
    with pytest.raises(UsageError, match=message):
        make_late(config, counter(WORD))


def test_vectors_of_wrong_windows_are_refused():
    with pytest.raises(UsageError, match="late.overlap_tokens 3: give 0 to 2"):
        late_vectors("a", [[(0, 1)]], embedder(WORD), counter(WORD), 5, 3)
