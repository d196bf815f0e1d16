"""Sentence spans: exact offsets, nothing lost, and the known defects of sentencex guarded."""

import pytest
import sentencex
from hypothesis import example, given
from hypothesis import strategies as st
from support.markdown_text import check_cover
from support.tiers import examples

from qrag_jax.chunking.text.sentences import split_guarded, split_sentences

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


@examples(300)
@given(st.lists(_PIECES, max_size=40).map("".join))
@example("a.\u3000b\u3002\u3000\u3000c")
@example("\ud800. x \udfff")
def test_nothing_is_lost(text):
    check_cover(text, split_sentences(text))


@pytest.mark.parametrize("text", ["x" * 100_000, "\u4eca" * 30_000, "\n \n" * 20_000, "\x0b" * 50_000, "a. " * 20_000])
def test_long_text_without_structure(text):
    check_cover(text, split_sentences(text))


def test_long_text_keeps_blank_lines_at_inner_borders():
    text = "\n\n".join(f"Paragraph {i} speaks. It says {'words ' * (i % 40)}here." for i in range(400))
    assert len(text) > 40_000
    check_cover(text, split_sentences(text))
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


# Full stops of East Asian text, what stays inside a sentence, marks that close or open, and other scripts' ends.
MANY_SCRIPTS = [
    [
        "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002",
        "\u6211\u4eec\u53bb\u516c\u56ed\u5427\uff01",
        "\u4f60\u53bb\u5417\uff1f",
        "\u597d\u7684",
    ],
    ["\u4ed6\u8bf4\uff1a\u201c\u6211\u6765\u4e86\u3002\u201d", "\u7136\u540e\u8d70\u4e86\u3002"],
    ["\u201c\u4f60\u597d\u3002\u201d", "\u201c\u518d\u89c1\u3002\u201d"],
    ["\u4ed6\u8bf4\u3002", "\u201c\u518d\u89c1\u3002\u201d"],
    ["\u300c\u884c\u304f\u3088\u3002\u300d", "\u5f7c\u306f\u8a00\u3063\u305f\u3002"],
    ["\u300e\u672c\u5f53\uff1f\u300f", "\u5f7c\u306f\u805e\u3044\u305f\u3002"],
    ["\u3010\u6ce8\u610f\uff01\u3011", "\u8bf7\u770b\u3002"],
    ["\u771f\u7684\u5417\uff1f\uff01", "\u662f\u7684\u3002"],
    ["\u4ed6\uff0c\u5979\u3001\u6211\uff1b\u4f60\uff1a\u8d70\u2026\u2026\u4e86\u3002"],
    ["\u4fa1\u683c\u306f\uff13\uff0e\uff15\u5186\u3001www.example.com\u3067\u3059\u3002", "\u6b21\u3002"],
    ["\u534a\u89d2\uff61", "\u30c6\u30b9\u30c8\uff61"],
    [
        "\u092f\u0939 \u090f\u0915 \u0935\u093e\u0915\u094d\u092f \u0939\u0948\u0964",
        "\u092f\u0939 \u0926\u0942\u0938\u0930\u093e \u0939\u0948\u0965",
        "\u0924\u0940\u0938\u0930\u093e\u0964",
    ],
    ["\u0643\u064a\u0641 \u062d\u0627\u0644\u0643\u061f", "\u0623\u0646\u0627 \u0628\u062e\u064a\u0631."],
    ["\u0627\u0631\u062f\u0648 \u062c\u0645\u0644\u06c1\u06d4", "\u062f\u0648\u0633\u0631\u0627"],
]


@pytest.mark.parametrize("space", ["", " ", "\n", "\u3000"])
@pytest.mark.parametrize("expected", MANY_SCRIPTS, ids=ascii)
def test_sentence_ends_of_other_scripts(expected, space):
    assert pieces(space.join(expected)) == expected


@pytest.mark.parametrize("language", ["en", "zh", "ja", "de"])
def test_chinese_is_cut_at_full_stops_in_long_paragraphs(language):
    # Longer than the 10 KB pieces that sentencex works in.
    expected = [f"\u7b2c{i}\u53e5\uff0c\u5f88\u957f" + "\u7684" * (i % 30) + "\u3002" for i in range(1500)]
    text = "".join(expected)
    assert [text[start:end] for start, end in split_sentences(text, language)] == expected


def test_marks_stay_with_what_they_close_or_open(monkeypatch):
    text = '(Hi.) \u201eWas?\u201c er. "So." he'
    wrong = [4, 7, 18]  # before the bracket that closes, after the marks that open
    assert [text[cut - 1 : cut + 1] for cut in wrong] == [".)", "\u201eW", '"S']
    borders = [{"start_index": 0, "end_index": cut} for cut in wrong]
    monkeypatch.setattr(sentencex, "get_sentence_boundaries", lambda language, text: borders)
    assert pieces(text) == ["(Hi.)", "\u201eWas?\u201c er.", '"So." he']


def test_a_point_in_a_number_ends_no_sentence():
    text = "\uff13\uff0e\uff15 or 3.5. \uff13\uff0e So."
    marks = [i + 1 for i, character in enumerate(text) if character in ".\uff0e"]
    found = [text[start:end] for start, end in split_guarded(text, lambda paragraph: marks)]
    assert found == ["\uff13\uff0e\uff15 or 3.5.", "\uff13\uff0e", "So."]


def test_any_rule_keeps_the_promise():
    text = "a\u3000b\n\nc \ud800"
    seen = []

    def rule(paragraph):
        seen.append(paragraph)
        return [2, -1, 0, 2, 99]

    assert split_guarded(text, rule) == [(0, 1), (2, 3), (5, 6), (7, 8)]
    assert seen == ["a b", "c \ufffd"]


@examples(200)
@given(st.lists(_PIECES, max_size=20).map("".join), st.lists(st.integers(-2, 80), max_size=8))
def test_nothing_is_lost_by_any_rule(text, cuts):
    check_cover(text, split_guarded(text, lambda paragraph: cuts))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\u2029"])
def test_blank_lines_of_any_line_end(end):
    text = f"A title{end}{end}goes on{end}and on. {end} {end}The end"
    assert pieces(text) == ["A title", f"goes on{end}and on.", "The end"]
