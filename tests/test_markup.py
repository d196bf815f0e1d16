import hypothesis.strategies as st
import pytest
from hypothesis import given
from support.pages import PAYLOADS, Read, as_shown

from qrag_jax.markup import Html, card, element, escape, join, marked, pieces


@pytest.mark.parametrize("payload", PAYLOADS)
def test_text_and_attributes_stay_what_they_are(payload):
    found = Read(element("p", payload, title=payload, class_="a"))
    assert (found.elements, found.attributes, found.text) == ({"p"}, {"title", "class"}, as_shown(payload))


def test_what_is_unseen_or_turns_the_text_is_replaced_and_what_scripts_need_stays():
    assert escape("a\ud800<b>\x00\x1b\t\n\x0c") == "a\ufffd&lt;b&gt;\ufffd\ufffd\t\n\x0c"
    assert escape("\u202e\u2066\U000e0041") == "\ufffd" * 3
    kept = "caf\u00e9 \u200d \u200f \u00a0 \u3000 \u00ad \U0001f469\u200d\U0001f680 \u05d0\u05d1"
    assert escape(kept) == kept


def test_html_is_escaped_once_and_a_plain_string_always():
    bold = element("b", "1 < 2")
    assert bold == "<b>1 &lt; 2</b>" and element("i", bold) == "<i><b>1 &lt; 2</b></i>"
    assert element("i", bold + "") == "<i>&lt;b&gt;1 &amp;lt; 2&lt;/b&gt;</i>"  # a sum is a plain string
    assert join(["<", bold], "&") == "&lt;&amp;<b>1 &lt; 2</b>"
    assert isinstance(join([]), Html)


def test_attributes_and_elements_without_an_end():
    assert element("input", for_="a", aria_label="b", required=True, checked=False, value=None) == (
        '<input for="a" aria-label="b" required>'
    )
    assert element("td", colspan=0) == '<td colspan="0"></td>'


def test_marks_are_at_their_characters():
    assert marked("a<b cd", [(1, 3), (4, 5)]) == "a<mark>&lt;b</mark> <mark>c</mark>d"
    assert marked("abc", [(1, 2), (0, 2), (2, 9)]) == "<mark>ab</mark><mark>c</mark>"
    assert marked("abc", [(1, 1), (5, 9)]) == "abc"


spans = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=5)


@given(spans)
def test_pieces_cover_a_span_once_and_say_what_is_inside(inner):
    found = list(pieces((2, 10), inner))
    assert [at for start, end, _ in found for at in range(start, end)] == list(range(2, 10))
    for start, end, is_inside in found:
        assert all(any(a <= at < b for a, b in inner) == is_inside for at in range(start, end))


def test_a_card_has_no_ids_and_no_colour_of_its_own():
    page = card("<name>", element("p", "text"))
    assert "&lt;name&gt;" in page and "id=" not in page and "currentColor" in page and "#" not in page
