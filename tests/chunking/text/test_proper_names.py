import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.chunking.text.proper_names import MAX_WORDS, NameFinder, find_words, is_term, normal_name, written_names

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
        (" ".join(["word"] * (MAX_WORDS + 1)), None),
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


def test_underscores_of_markdown_are_no_part_of_a_name():
    assert found(["Ann Lee", "Up"], "We met _Ann Lee_ in __Up__ (see ann_lee).") == ["Ann Lee", "Up"]
    assert normal_name("_Ann_Lee_") == ("ann", "lee") and normal_name("____") is None


def found(names, text):
    normal = {name: normal_name(name, 1) for name in names}
    finder = NameFinder(normal.values(), [normal[name] for name in names if is_term(name)])
    return [text[start:end] for _, (start, end) in finder.find(find_words(text))]


def test_the_longest_name_counts_and_none_inside_of_another():
    names = ["New York", "York", "New York Times"]
    assert found(names, "York, new York and the New York Times, in New York's streets.") == [
        "York",
        "new York",
        "New York Times",
        "New York",
    ]


def test_a_name_of_one_word_needs_its_capital_letter():
    assert found(["Heat", "42nd"], "The heat of Heat, on 42nd street.") == ["Heat", "42nd"]


def test_a_name_in_lower_case_is_words_of_the_language():
    text = "The family of the new york, and the Family, of Catch 22 and catch 22."
    assert found(["The Family", "New York", "Catch 22"], text) == ["The family", "the Family", "Catch 22", "catch 22"]


def test_a_term_is_named_in_lower_case_too():
    assert found(["Rain gauge", "Rain Gauge Road", "Gauge"], "A rain gauge, the gauge, a rain gauge road.") == [
        "rain gauge",
        "rain gauge",
    ]


@pytest.mark.parametrize(
    "name, term",
    [
        ("Rain gauge", True),
        ("place of birth", True),
        ("New York", False),
        ("University of the West", False),
        ("The Family (film of 2013)", False),
        ("Catch 22", False),
        ("(the rain)", True),
    ],
)
def test_terms(name, term):
    assert is_term(name) == term


def test_a_script_without_capitals_has_names_of_several_words():
    name = "\u05ea\u05dc \u05d0\u05d1\u05d9\u05d1"
    assert found([name], f"\u05e2\u05dc {name}.") == [name]


def test_a_script_without_blanks_has_names_of_characters():
    assert normal_name("\u5317\u4eac\u5927\u5b66\uff08\u9ad8\u6821\uff09") == tuple("\u5317\u4eac\u5927\u5b66")
    assert found(["\u5317\u4eac\u5927\u5b66"], "\u4ed6\u5728\u5317\u4eac\u5927\u5b66\u8bfb\u4e66\u3002") == [
        "\u5317\u4eac\u5927\u5b66"
    ]
    assert found(["GPT\u6a21\u578b"], "\u7528GPT\u6a21\u578b\u3002") == ["GPT\u6a21\u578b"]
    apart = "\u30ab\u3099\u30a4\u30c8\u3099"  # voice marks of their own, as file names of macOS have them
    assert normal_name(apart) is None and normal_name(apart, 3) == normal_name("\u30ac\u30a4\u30c9", 3)
    thai = "\u0e1b\u0e35\u0e43\u0e2b\u0e21\u0e48"
    assert (
        found([thai], f"\u0e02\u0e32\u0e22{thai}") == [thai] and found([thai], thai.replace("\u0e35", "\u0e39")) == []
    )


def test_no_name_is_found_by_half():
    assert found(["New York"], "In New Yorkshire, a new, York-like place.") == [
        "new, York"
    ]  # words, not what is between


def by_trying(names, terms, words):
    """All names at each word, the longest taken."""
    start, taken = 0, []
    while start < len(words):
        fitting = []
        for name in names:
            there = words[start : start + len(name)]
            capital = any(word.is_capital for word in there)
            if tuple(word.text for word in there) == name and (capital or (name in terms and len(name) > 1)):
                fitting.append(name)
        best = max(fitting, key=len, default=())
        if best:
            taken.append((best, (words[start].span[0], words[start + len(best) - 1].span[1])))
        start += len(best) or 1
    return taken


NAMES = st.sets(st.lists(st.sampled_from(WORDS[:9]), min_size=1, max_size=3).map(lambda n: tuple(w.lower() for w in n)))


@examples(100)
@given(st.lists(st.sampled_from(WORDS), max_size=15), NAMES, NAMES)
def test_names_are_found_as_by_trying_each(words, names, terms):
    text = find_words(" ".join(words))
    assert list(NameFinder(names | terms, terms).find(text)) == by_trying(names | terms, terms, text)


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
