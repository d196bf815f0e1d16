"""Where a text stands: by hand, and against slow readings of what is promised."""

from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.data.places import find_letters, find_text


def test_exact_places_before_others():
    assert find_text("a b. A b, a  b.", "a b") == ((0, 3),)  # the wrapped one does not count beside an exact one
    assert find_text("One\ntwo three. One two", "two  three") == ((4, 13),)
    assert find_text("x x x", " x ") == ((0, 1), (2, 3))  # two are enough
    assert find_text("aaa", "aa") == ((0, 2), (1, 3))
    assert find_text("a\u00a0b", "a b") == ((0, 3),)
    assert find_text("1.5 (x)", "1x5") == find_text("abc", "  ") == find_text("", "a") == ()


def test_letters_and_digits_only():
    page = "Stockholders\u2019 \ufb01nal equity:\n$ 1,234 \u2014 \u2014 (5)"
    place = find_letters(page, "STOCKHOLDERS FINAL EQUITY\n1 234 5")
    assert place == (0, len(page) - 1)
    assert find_letters("a1 b2 a1 b2", "b.2") == (3, 5)
    assert find_letters("abc", "...") is None
    assert find_letters("abc", "abd") is None


def test_a_letter_that_becomes_several_keeps_its_place():
    assert find_letters("x \ufb03 y", "ffi y") == (2, 5)
    assert find_letters("Stra\u00dfe 5", "STRASSE") == (0, 6)


SHORT = st.text("ab \n.", max_size=12)


@given(SHORT, SHORT)
def test_what_is_found_says_what_was_wanted(text, wanted):
    places = find_text(text, wanted)
    assert len(places) <= 2 and list(places) == sorted(places)
    for start, end in places:
        assert text[start:end].split() == wanted.split()
    starts = {i for i in range(len(text)) for j in range(i + 1, len(text) + 1) if text[i:j].split() == wanted.split()}
    assert bool(places) == bool(starts and wanted.split())


@given(SHORT, SHORT)
def test_letters_found_are_the_first(text, wanted):
    def letters(part):
        return [letter for letter in part if letter.isalnum()]

    want = letters(wanted)
    slow = [
        (i, j)
        for i in range(len(text))
        for j in range(i + 1, len(text) + 1)
        if letters(text[i:j]) == want and text[i].isalnum() and text[j - 1].isalnum()
    ]
    assert find_letters(text, wanted) == (slow[0] if want and slow else None)
