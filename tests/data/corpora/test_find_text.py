"""Where a text stands: by hand, and against slow readings of what is promised."""

from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.data.corpora.find_text import find_exact, find_letters, find_words, search


def test_exact_places():
    assert find_exact("x x x", " x ") == ((0, 1), (2, 3))  # two are enough
    assert find_exact("aaa", "aa") == ((0, 2), (1, 3))
    assert find_exact("a  b", "a b") == find_exact("abc", "  ") == find_exact("", "a") == ()


def test_other_white_space():
    assert find_words("One\ntwo three. One two", "two  three") == ((4, 13),)
    assert find_words("a b. A b, a  b. a\tb", "a b") == ((0, 3), (10, 14))
    assert find_words("a\u00a0b", "a b") == ((0, 3),)
    assert find_words("1.5 (x)", "1x5") == find_words("abc", "  ") == find_words("", "a") == ()


def test_letters_and_digits_only():
    page = "Stockholders\u2019 \ufb01nal equity:\n$ 1,234 \u2014 \u2014 (5)"
    assert find_letters(page, "STOCKHOLDERS FINAL EQUITY\n1 234 5") == ((0, len(page) - 1),)
    assert find_letters("a1 b2 a1 b2 b2", "b.2") == ((3, 5), (9, 11))
    assert find_letters("abc", "...") == find_letters("abc", "abd") == ()


def test_letters_are_whole_words():
    assert find_letters("Start. Ada knows here Canada", "ART") == ()
    assert find_letters("Start. Canada. Ada", "ada") == ((15, 18),)
    assert find_letters("I know here", "Nowhere") == ()
    assert find_letters("It costs 1.5, not 15.", "1,5") == ((9, 12), (18, 20))


def test_a_letter_that_becomes_several_keeps_its_place():
    assert find_letters("x \ufb03 y", "ffi y") == ((2, 5),)
    assert find_letters("Stra\u00dfe 5", "STRASSE") == ((0, 6),)
    assert find_letters("\ufb00", "f") == ((0, 1),)  # both of its letters: one place


def test_accents_in_either_unicode_form():
    for text in ("Zo\u00eb\u2019s caf\u00e9 opens", "Zoe\u0308's cafe\u0301 opens"):
        for wanted in ("Zo\u00eb's caf\u00e9 opens", "Zoe\u0308\u2019s cafe\u0301 opens"):
            assert find_letters(text, wanted) == ((0, len(text)),)


def test_one_way_for_all_texts():
    texts = {"a": "One\ntwo. Four\nfive", "b": "One two. \u2018Six\u2019", "c": "One, two."}
    assert search("One two.", texts) == [("b", (0, 8))]
    assert search("Four five", texts) == [("a", (9, 18))]
    assert search("'Six'", texts) == [("b", (10, 13))]
    assert search('"One two"', texts) == [("a", (0, 7)), ("b", (0, 7)), ("c", (0, 8))]
    assert search("Seven", texts) == search(" ", texts) == []


SHORT = st.text("ab \n.", max_size=12)


def _slow(text, fits):
    return tuple((i, j) for i in range(len(text)) for j in range(i + 1, len(text) + 1) if fits(i, j))


@given(SHORT, SHORT)
def test_exact_places_are_the_first(text, wanted):
    assert find_exact(text, wanted) == _slow(text, lambda i, j: text[i:j] == wanted.strip())[:2]


@given(SHORT, SHORT)
def test_places_of_words_are_the_first(text, wanted):
    def fits(i, j):
        return text[i:j] == text[i:j].strip() and text[i:j].split() == wanted.split()

    assert find_words(text, wanted) == (_slow(text, fits)[:2] if wanted.strip() else ())


@given(SHORT, SHORT)
def test_places_of_letters_are_the_first(text, wanted):
    def letters(part):
        return [letter for letter in part if letter.isalnum()]

    def fits(i, j):
        outside = text[i - 1 : i] + text[j : j + 1]
        return (
            letters(text[i:j]) == letters(wanted)
            and text[i].isalnum()
            and text[j - 1].isalnum()
            and not any(map(str.isalnum, outside))
        )

    assert find_letters(text, wanted) == (_slow(text, fits)[:2] if letters(wanted) else ())
