"""Quotes and where they stand: word for word, nearly so, at several places; and the sentence most like a text."""

import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.annotate.quotes import most_like, near_places, quote_places, whole_sentences

TEXT = "Mary took\nthe milk. It rained all day long.\n\nMary went to the kitchen. The other day it rained."
WHOLE = ((0, len(TEXT)),)


def quoted(quote, text=TEXT, spans=None):
    return [text[start:end] for start, end in quote_places(quote, text, spans or ((0, len(text)),))]


@pytest.mark.parametrize(
    "quote, places",
    [
        ("It rained all day", ["It rained all day"]),
        (" Mary took  the milk. ", ["Mary took\nthe milk."]),  # blanks are equal
        ("day", ["day", "day"]),
        ("he", []),  # only within words
        ("the", ["the", "the"]),
        ("Mary", ["Mary", "Mary"]),
        ("Mary sold the milk.", []),  # too few words to be looked for by similarity
        (" \n", []),
    ],
)
def test_quotes_by_hand(quote, places):
    assert quoted(quote) == places


def test_overlapping_places_are_two_and_scripts_without_blanks_are_found_within():
    assert quoted("a b a", "a b a b a") == ["a b a", "a b a"]
    assert quoted("\u6771\u4eac", "\u79c1\u306f\u6771\u4eac\u306b\u3044\u308b") == ["\u6771\u4eac"]


def test_a_quote_stands_within_one_span_of_the_chunk():
    first, second = (0, 19), (45, 70)
    assert TEXT[slice(*first)].endswith("milk.") and TEXT[slice(*second)].startswith("Mary went")
    assert quoted("Mary", TEXT, (second,)) == ["Mary"]
    assert quote_places("Mary", TEXT, (first, second)) == [(0, 4), (45, 49)]
    assert quoted("the milk. Mary went", TEXT, (first, second)) == []
    assert quoted("It rained", TEXT, (first, second)) == []


LONG = "The old lighthouse on the northern cliff was built in 1887 by Ann Lee and her brother."


def test_a_long_quote_may_differ_in_a_few_letters():
    text = f"It is grey. {LONG} It fell down."
    assert quoted("the old lighthouse on the northern cliff was built in 1887 by Anne Lee", text) == [
        "he old lighthouse on the northern cliff was built in 1887 by Ann Lee"
    ]
    assert quoted("The new lighthouse on a southern rock was bought in 1990 by Ann Lee", text) == []
    assert quoted("old lighthouse on the northern clif", text) == []  # six words


def test_a_long_quote_that_is_near_to_two_places_has_two():
    text = f"{LONG} {LONG.replace('1887', '1888')}"
    assert len(quoted(LONG.replace("1887", "1889"), text)) == 2


def distance(one, other):
    """Characters to take out and to put in, by the table of Wagner and Fischer."""
    table = np.add.outer(np.arange(len(one) + 1), np.arange(len(other) + 1))
    for i, a in enumerate(one, 1):
        for j, b in enumerate(other, 1):
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + 2 * (a != b))
    return int(table[-1, -1])


@examples(40)
@given(st.text("ab c", min_size=1, max_size=6), st.text("ab c", min_size=1, max_size=9))
def test_near_places_are_the_nearest_parts_of_all(quote, text):
    """The most similar place is at least as near as any part of the text; what counts is as similar as it says."""
    parts = [(a, b) for a in range(len(text)) for b in range(a + 1, len(text) + 1)]
    ratios = {(a, b): 1 - distance(quote, text[a:b]) / (len(quote) + b - a) for a, b in parts}
    least = 0.6
    found = near_places(quote, text, least)
    assert all(ratios[place] >= least - 1e-12 for place in found)
    assert all(b <= c or d <= a for i, (a, b) in enumerate(found) for c, d in found[:i])
    nearest = min(distance(quote, text[a:b]) for a, b in parts)
    at_nearest = [place for place in parts if distance(quote, text[slice(*place)]) == nearest]
    if all(ratios[place] >= least for place in at_nearest):
        assert min(distance(quote, text[a:b]) for a, b in found) >= nearest
        assert found
    if max(ratios.values()) < least:
        assert not found


def test_evidence_is_whole_sentences():
    def sentence(quote):
        (place,) = quote_places(quote, TEXT, WHOLE)
        start, end = whole_sentences(place, TEXT, WHOLE)
        return TEXT[start:end]

    assert sentence("all day") == "It rained all day long."
    assert sentence("the milk. It") == "Mary took\nthe milk. It rained all day long."


@examples(60)
@given(st.data())
def test_words_of_a_chunk_are_found_where_they_stand(data):
    """A quote of whole words is found at its place among others, and its sentences hold it and lie in the chunk."""
    words = st.lists(st.sampled_from(["Ann", "saw", "it.", "No", "way!", "\n\n", "b"]), min_size=3, max_size=30)
    text = " ".join(data.draw(words))
    border = data.draw(st.integers(1, len(text) - 1))
    spans = ((0, border), (border, len(text)))
    a, b = data.draw(st.sampled_from(spans))
    tokens = [found.span() for found in re.finditer(r"\S+", text) if a <= found.start() and found.end() <= b]
    assume(tokens)
    first = data.draw(st.integers(0, len(tokens) - 1))
    last = data.draw(st.integers(first, len(tokens) - 1))
    place = tokens[first][0], tokens[last][1]
    found = quote_places(text[slice(*place)].replace("\n", " "), text, spans)
    assert place in found
    start, end = whole_sentences(place, text, spans)
    assert a <= start <= place[0] < place[1] <= end <= b and text[start:end] == text[start:end].strip()


def test_the_sentence_most_like_a_text():
    def like(told):
        place = most_like(told, TEXT, WHOLE)
        return place and TEXT[slice(*place)]

    assert like("Where did MARY, who took the milk, go?") == "Mary took\nthe milk."
    assert like("Who is Mary?") == "Mary took\nthe milk."  # the first of equals
    assert like("Did it rain the other day?") == "The other day it rained."
    assert like("Nothing else.") is None
    assert most_like("kitchen", TEXT, ((0, 19),)) is None
