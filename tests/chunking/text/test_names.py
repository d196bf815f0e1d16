import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from qrag_jax.chunking.text.names import MOST_WORDS, NameFinder, find_words, normal_name, written_names

WORDS = ["New", "York", "Times", "new", "Heat", "heat", "the", "of", "42", "."]


@pytest.mark.parametrize(
    "name, normal",
    [
        ("Mercury (planet)", ("mercury",)),
        ("J. R. Smith", ("j", "r", "smith")),
        ("\uff2d\uff41\uff52\uff53 42", ("mars", "42")),  # full-width letters
        ("The", None),  # three letters
        ("Ur, A", None),
        ("2001", ("2001",)),
        ("Cafe\u0301 Noir", ("caf\u00e9", "noir")),  # an accent of its own, as file names of macOS have it
        ("(brackets)", ("brackets",)),  # what would leave nothing stays
        ("", None),
        ("?!", None),
        (" ".join(["word"] * (MOST_WORDS + 1)), None),
    ],
)
def test_normal_names(name, normal):
    assert normal_name(name) == normal


def test_a_name_of_blanks_takes_no_square():
    start = time.process_time()
    assert normal_name(f"Ann{' ' * 200_000}Lee") == ("ann", "lee")
    assert time.process_time() - start < 5  # quadratic: most of a minute


def test_an_accent_of_its_own_is_part_of_its_letter():
    text = "We met Zoe\u0301 Lee."
    assert found(["Zo\u00e9 Lee"], text) == [text[7:-1]]
    assert found(["Zoe Lee"], text) == []


def found(names, text):
    finder = NameFinder(normal_name(name, 1) for name in names)
    return [text[start:end] for _, (start, end) in finder.find(find_words(text))]


def test_the_longest_name_counts_and_none_inside_of_another():
    names = ["New York", "York", "New York Times"]
    assert found(names, "York, new york and the New York Times, in New York's streets.") == [
        "York",
        "new york",
        "New York Times",
        "New York",
    ]


def test_a_name_of_one_word_needs_its_capital_letter():
    assert found(["Heat", "42nd"], "The heat of Heat, on 42nd street.") == ["Heat", "42nd"]


def test_no_name_is_found_by_half():
    assert found(["New York"], "In New Yorkshire, a new, York-like place.") == [
        "new, York"
    ]  # words, not what is between


def by_trying(names, words):
    """All names at each word, the longest taken."""
    start, taken = 0, []
    while start < len(words):
        fitting = [
            name
            for name in names
            if tuple(word.text for word in words[start : start + len(name)]) == name
            and (len(name) > 1 or words[start].is_capital)
        ]
        best = max(fitting, key=len, default=())
        if best:
            taken.append((best, (words[start].span[0], words[start + len(best) - 1].span[1])))
        start += len(best) or 1
    return taken


@examples(100)
@given(
    st.lists(st.sampled_from(WORDS), max_size=15),
    st.sets(st.lists(st.sampled_from(WORDS[:9]), min_size=1, max_size=3).map(lambda n: tuple(w.lower() for w in n))),
)
def test_names_are_found_as_by_trying_each(words, names):
    text = find_words(" ".join(words))
    assert list(NameFinder(names).find(text)) == by_trying(names, text)


@pytest.mark.parametrize(
    "sentence, names",
    [
        ("The key of Marie Curie was in Paris.", ["marie curie", "paris"]),
        ("Paris is large.", []),  # its capital may be that of the sentence
        ("Marie Curie lived.", ["marie curie"]),
        ("They saw the University of the West of it.", ["university of the west"]),
        ("In 1867 we met J. R. Smith, Ann and 2 Bobs.", ["j r smith", "ann", "2 bobs"]),
        ("", []),
    ],
)
def test_names_that_a_sentence_writes(sentence, names):
    assert [" ".join(name) for name in written_names(sentence, find_words(sentence))] == names
