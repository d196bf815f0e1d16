"""Fields of rows: ids, texts, lists, and what is said of others."""

import pytest

from qrag_jax.data.dataset_rows import any_text, full_text, id_field, int_field, list_field, optional_text
from qrag_jax.types import InputError


@pytest.mark.parametrize(("value", "name"), [("q1", "q1"), (7, "7"), (" a%20b\tc", " a%20b\tc"), ("\ud800", "\ufffd")])
def test_an_id_stays_as_it_is_written(value, name):
    assert id_field(value, "id", "f:1") == name


@pytest.mark.parametrize("value", ["", "  ", True, 1.5, None, ["x"]])
def test_what_is_no_id_is_refused(value):
    with pytest.raises(InputError, match="f:1: _id must be a text or an integer, got "):
        id_field(value, "_id", "f:1")


def test_whole_numbers():
    assert [int_field(value, "start", "f:1") for value in (0, -3, 10**30)] == [0, -3, 10**30]


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(InputError, match=f"f:1: start must be an integer, got {value!r}"):
        int_field(value, "start", "f:1")


def test_texts_and_lists():
    assert (any_text("\ud800", "text", "f:1"), any_text(" ", "text", "f:1")) == ("\ufffd", " ")
    assert full_text(" a\ud800 ", "text", "f:1") == " a\ufffd "
    assert (optional_text(None, "text", "f:1"), optional_text(" ", "text", "f:1")) == ("", " ")
    assert (list_field(None, "pages", "f:1"), list_field([1], "pages", "f:1")) == ([], [1])


@pytest.mark.parametrize("value", ["", " \n", None, 3])
def test_a_full_text_is_not_blank(value):
    with pytest.raises(InputError, match="f:2: text must be a text that is not empty, got "):
        full_text(value, "text", "f:2")


def test_other_types_are_refused():
    with pytest.raises(InputError, match="f:2: title must be a text, got 3"):
        optional_text(3, "title", "f:2")
    with pytest.raises(InputError, match="f:2: title must be a text, got None"):
        any_text(None, "title", "f:2")
    with pytest.raises(InputError, match="f:2: pages must be a list, got 'one'"):
        list_field("one", "pages", "f:2")
