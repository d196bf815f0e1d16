import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.chunking.text.words import plain_tokens
from qrag_jax.qrag import text_links as links_module
from qrag_jax.qrag.text_links import LINKS, link_features, names_in, shared_words, title_of

QUESTION = "Who directed Red River?"
CHUNKS = (
    "Red River (film): Red River was directed by Howard Hawks.",
    "Howard Hawks: Howard Hawks was born in Goshen.",
    "Goshen: a city by the river.",
)


def idf(df, n=3):
    return math.log(1 + (n - df + 0.5) / (df + 0.5))


def link(source, chunk, name, links=None):
    return float((link_features(QUESTION, CHUNKS) if links is None else links)[source, chunk, LINKS.index(name)])


def test_the_question_by_hand():
    # who: in no chunk; directed, red: in one; river: in chunks 0 and 2.
    total = idf(0) + 2 * idf(1) + idf(2)
    assert [link(0, j, "shared") for j in range(3)] == pytest.approx([(2 * idf(1) + idf(2)) / total, 0, idf(2) / total])
    # Its names are Who, Red and River.
    names = idf(0) + idf(1) + idf(2)
    assert [link(0, j, "names") for j in range(3)] == pytest.approx([(idf(1) + idf(2)) / names, 0, idf(2) / names])
    assert [link(0, j, "named") for j in range(3)] == [1, 0, 0]  # as "Red River", without "(film)"
    assert [link(0, j, "title") for j in range(3)] == pytest.approx([1, 0, 0])
    for name in ("names_it", "own_title", "same_title", "new_names"):  # a question has no title, and nothing new
        assert not link_features(QUESTION, CHUNKS)[0, :, LINKS.index(name)].any(), name


def test_chunks_by_hand():
    assert link(1, 1, "named") == link(2, 2, "named") == 1  # the film names Howard Hawks, he names Goshen
    assert link(2, 1, "named") == 0  # nothing is said of a text itself
    assert link(1, 2, "named") == link(2, 0, "named") == 0
    assert link(2, 0, "names_it") == 1  # the film names him, from his side
    assert link(2, 0, "own_title") == pytest.approx(1)
    # "Red River": red stands in chunk 0 alone, river in chunk 2 too.
    assert link(1, 2, "own_title") == pytest.approx(idf(2) / (idf(1) + idf(2)))
    assert link(3, 0, "title") == pytest.approx(idf(2) / (idf(1) + idf(2)))
    # Names of chunk 0 that the question does not have: Howard, Hawks.
    assert link(1, 1, "new_names") == pytest.approx(1)
    assert link(1, 2, "new_names") == 0
    # Of chunk 1: Howard, Hawks (two chunks each), Goshen (two chunks).
    assert link(2, 2, "new_names") == pytest.approx(1 / 3)


def test_paragraphs_of_one_page_have_one_title():
    links = link_features("q", ["Mercury (planet): near", "Mercury: hot", "Venus: hot", "no title", "none either"])
    assert links[1:, :, LINKS.index("same_title")].tolist() == [
        [0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0] * 5, [0] * 5, [0] * 5,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Goshen: a city", "Goshen"),
        ("Mercury (planet): small", "Mercury"),
        ("Alien (1979) (film): it", "Alien (1979)"),
        ("Star Trek: Voyager: a ship", "Star Trek"),
        ("at 10:30 it rained", ""),
        ("x" * 100 + ": y", "x" * 100),
        ("x" * 101 + ": y", ""),
        ("no colon", ""),
    ],
)
def test_titles(text, title):
    assert title_of(text) == title


def test_names_are_words_with_a_capital_or_a_digit_in_front():
    assert names_in("In 1979 the Ähre of O'Brien, iPod") == ["in", "1979", "ähre", "o", "brien"]


def slowly(question, chunks):
    """`shared`, `title` and `named` pair by pair, from Python's sets."""
    n = len(chunks)
    found = {}
    for chunk in chunks:
        for word in set(plain_tokens(chunk)):
            found[word] = found.get(word, 0) + 1
    mass = lambda words: sum(idf(found.get(word, 0), n) for word in words)  # noqa: E731
    share = lambda a, b: mass(set(a) & set(b)) / mass(set(a)) if a else 0.0  # noqa: E731
    links = np.zeros((1 + n, n, 3))
    for i, source in enumerate([question, *chunks]):
        said = plain_tokens(source)
        for j, chunk in enumerate(chunks):
            title = plain_tokens(title_of(chunk))
            runs = [said[k : k + len(title)] for k in range(len(said))]
            links[i, j] = share(said, plain_tokens(chunk)), share(title, said), bool(title) and title in runs
            if i == j + 1:
                links[i, j] = 0
    return links


TEXT = st.lists(st.sampled_from(["Ada", "ada", "Bo:", "(x):", "of", "1979", "été", "the", "Ko"]), min_size=1).map(
    " ".join
)


@given(TEXT, st.lists(TEXT, min_size=1, max_size=5), st.randoms())
def test_against_the_slow_reading_and_whatever_the_order(question, chunks, random):
    links = link_features(question, chunks)
    assert links.shape == (1 + len(chunks), len(chunks), len(LINKS))
    assert links.dtype == np.float32
    assert (links >= 0).all()
    assert (links <= 1).all()
    own = [LINKS.index(name) for name in ("shared", "title", "named")]
    np.testing.assert_allclose(links[..., own], slowly(question, chunks), atol=1e-6)
    order = list(range(len(chunks)))
    random.shuffle(order)
    moved = link_features(question, [chunks[i] for i in order])
    np.testing.assert_allclose(moved, links[[0, *(1 + i for i in order)]][:, order], atol=1e-6)


def test_texts_without_words():
    assert not link_features("?", ["...", "!"]).any()
    assert not shared_words("?", ["...", "!"]).any()


FACTS = ("leo is a star", "a star shines", "stone")


def test_shared_words_by_hand():
    """A word of one text alone counts in the whole, and has no column."""
    words = shared_words("leo Shines", FACTS)
    own = [set(plain_tokens(text)) for text in ("leo Shines", *FACTS)]
    found = {word: sum(word in tokens for tokens in own[1:]) for word in set().union(*own)}
    shared = {word for word in found if sum(word in tokens for tokens in own) > 1}
    assert {"leo", "star", "shines"} <= shared
    assert not {"is", "stone"} & shared
    for row, tokens in zip(words, own, strict=True):
        total = sum(idf(found[word]) for word in tokens)
        expected = sorted(idf(found[word]) / total for word in tokens & shared)
        np.testing.assert_allclose(np.sort(row[row > 0]), expected, rtol=1e-6)
    # One column a word: leo is the question's and chunk 0's, shines the question's and chunk 1's.
    has = words > 0
    assert (has[0] & has[1]).sum() == (has[0] & has[2]).sum() == 1
    assert not has[3].any()


def test_more_shared_words_than_columns_share_them(monkeypatch):
    whole = shared_words("leo Shines", FACTS)
    monkeypatch.setattr(links_module, "MAX_WORDS", 2)
    few = shared_words("leo Shines", FACTS)
    assert few.shape == (4, 2)
    np.testing.assert_allclose(few.sum(axis=1), whole.sum(axis=1), rtol=1e-6)
