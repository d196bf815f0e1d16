"""Sentence spans: exact offsets, nothing lost, and the known defects of sentencex guarded."""

import pytest
import sentencex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qrag_jax.chunking.sentences import split_sentences

_SPACES = ["\n\n", "\n", "\r\n", " ", "\t", "\u3000", "\u2003", "\x0b", "\x85"]
_WORDS = [
    "Dr. ",
    "Hello there. ",
    "Where? ",
    '"Hi." ',
    "1.5",
    "...",
    "a" * 50,
    "\u4eca\u5929",
    "\u3002",
    "\u300c",
    "\u300d",
]
_ODD = [
    "\ud800",
    "\udfff",
    "\u202e",
    "e\u0301",
    "\U0001f600",
    "\u05e9\u05dc\u05d5\u05dd. ",
    "\u0645\u0631\u062d\u061f ",
]
_PIECES = st.sampled_from(_SPACES + _WORDS + _ODD)


def pieces(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


def check_spans(text: str) -> None:
    """Spans are ordered, disjoint, stripped and not empty, and cover every character that is not white space."""
    covered = 0
    for start, end in split_sentences(text):
        assert covered <= start < end <= len(text)
        assert not text[covered:start].strip()
        assert text[start:end] == text[start:end].strip()
        covered = end
    assert not text[covered:].strip()


def test_known_sentences():
    text = 'Mr. Smith went  home.\nHe slept!  "Hi."\n\n  Then what?'
    assert pieces(text) == ["Mr. Smith went  home.", "He slept!", '"Hi."', "Then what?"]


def test_offsets_count_characters_not_bytes():
    text = "\u4eca\u5929\u597d\u3002\u4f60\u597d\u5417\uff1f \U0001f600 ok."
    assert split_sentences(text)[0] == (0, 4)
    assert split_sentences(text)[1] == (4, 8)


def test_no_sentence_without_characters():
    assert split_sentences("") == []
    assert split_sentences(" \n\n\t\u3000 ") == []


def test_a_blank_line_ends_a_sentence_and_a_line_break_does_not():
    assert pieces("A heading\n \t\nsome text\nthat goes on.") == ["A heading", "some text\nthat goes on."]
    assert pieces("one\r\n\r\ntwo") == ["one", "two"]


@settings(max_examples=300, deadline=None)
@given(st.lists(_PIECES, max_size=40).map("".join))
@example("a.\u3000b\u3002\u3000\u3000c")
@example("\ud800. x \udfff")
def test_nothing_is_lost(text):
    check_spans(text)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_nothing_is_lost_in_any_text(text):
    check_spans(text)


@pytest.mark.parametrize("text", ["x" * 100_000, "\u4eca" * 30_000, "\n \n" * 20_000, "\x0b" * 50_000, "a. " * 20_000])
def test_long_text_without_structure(text):
    check_spans(text)


def test_long_text_keeps_blank_lines_at_inner_borders():
    text = "\n\n".join(f"Paragraph {i} speaks. It says {'words ' * (i % 40)}here." for i in range(400))
    assert len(text) > 40_000
    check_spans(text)
    assert len(split_sentences(text)) == 800


def test_a_panic_falls_back_to_plain_rules(monkeypatch):
    class PanicException(BaseException):  # pyo3 raises one of this name, and it is no Exception
        pass

    def panic(language, text):
        raise PanicException("byte index 3 is not a char boundary")

    monkeypatch.setattr(sentencex, "get_sentence_boundaries", panic)
    assert pieces("One. Two! \u4e09\u3002Four") == ["One.", "Two!", "\u4e09\u3002", "Four"]


def test_other_base_exceptions_pass(monkeypatch):
    def interrupted(language, text):
        raise KeyboardInterrupt

    monkeypatch.setattr(sentencex, "get_sentence_boundaries", interrupted)
    with pytest.raises(KeyboardInterrupt):
        split_sentences("One. Two.")


def test_gaps_of_the_library_become_sentences(monkeypatch):
    borders = [{"start_index": 0, "end_index": 4}, {"start_index": 10, "end_index": 14}]
    monkeypatch.setattr(sentencex, "get_sentence_boundaries", lambda language, text: borders)
    assert pieces("One. lost Two.") == ["One.", "lost", "Two."]
