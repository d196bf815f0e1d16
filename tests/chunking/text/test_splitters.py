"""Sentence splitters by name: over stand-ins of the libraries, spans keep the promise; errors say what to do."""

import importlib
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.markdown_text import MARKDOWN, check_cover
from support.tiers import examples

from qrag_jax.chunking.text.sentences import ABBREVIATIONS, make_splitter, split_sentences
from qrag_jax.names import SPLITTERS
from qrag_jax.types import UsageError


class Punkt:
    """As NLTK's: ends at a full stop and a blank, unless the word before is an abbreviation."""

    def __init__(self, parameters):
        self.abbreviations = parameters.abbrev_types

    def span_tokenize(self, text):
        start = 0
        for match in re.finditer(r"[.!?]\s+", text):
            *_, word = text[start : match.start()].rsplit(maxsplit=1) or [""]
            if word.lower() not in self.abbreviations:
                yield start, match.start() + 1
                start = match.end()
        if start < len(text):
            yield start, len(text)


def fake_nltk():
    module = ModuleType("nltk.tokenize.punkt")
    module.PunktParameters = lambda: SimpleNamespace(abbrev_types=set())
    module.PunktSentenceTokenizer = Punkt
    return {"nltk": ModuleType("nltk"), "nltk.tokenize": ModuleType("nltk.tokenize"), module.__name__: module}


class Pipeline:
    """As spaCy's: empty until the sentencizer is added, which ends a sentence at every full stop."""

    def __init__(self, language):
        if language == "qq":
            raise ImportError("[E048] Can't import language qq")
        self.parts = []

    def add_pipe(self, name):
        self.parts.append(name)

    def __call__(self, text):
        assert self.parts == ["sentencizer"]
        starts = [0, *(match.end() for match in re.finditer(r"[.!?]", text))]
        return SimpleNamespace(sents=iter([SimpleNamespace(start_char=start) for start in starts]))


def fake_spacy():
    module = ModuleType("spacy")
    module.blank = Pipeline
    return {"spacy": module}


@pytest.fixture
def libraries(monkeypatch):
    for name, module in (fake_nltk() | fake_spacy()).items():
        monkeypatch.setitem(sys.modules, name, module)


def pieces(split, text):
    return [text[start:end] for start, end in split(text)]


def test_sentencex_is_the_default():
    text = "Dr. Smith went. He slept.\n\nA heading"
    assert make_splitter()(text) == make_splitter("sentencex")(text) == split_sentences(text)
    assert make_splitter("sentencex", "de")("z.B. so. Ende.") == split_sentences("z.B. so. Ende.", "de")


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("name", SPLITTERS)
def test_blank_lines_and_other_scripts(name):
    text = "One here. Two here.\n\nA heading\n \t\nEnd. \u4ed6\u8bf4\u201c\u597d\u3002\u201d\u8d70\u3002\u3000\ud800"
    expected = [
        "One here.",
        "Two here.",
        "A heading",
        "End.",
        "\u4ed6\u8bf4\u201c\u597d\u3002\u201d",
        "\u8d70\u3002",
        "\ud800",
    ]
    assert pieces(make_splitter(name), text) == expected


@pytest.mark.usefixtures("libraries")
def test_abbreviations_of_nltk():
    text = "Dr. Smith slept. Z.b. so."
    assert pieces(make_splitter("nltk"), text) == ["Dr. Smith slept.", "Z.b.", "so."]
    assert pieces(make_splitter("nltk", abbreviations=["z.b"]), text) == ["Dr.", "Smith slept.", "Z.b. so."]
    assert all(word == word.lower() and not word.endswith(".") for word in ABBREVIATIONS)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("name", ["nltk", "spacy"])
def test_long_paragraphs_are_read_in_pieces(name):
    # The first sentence is longer than a piece, so is the last; every border between is found.
    expected = ["a" * 25_000 + ".", *(f"Number {i} is here." for i in range(2000)), "b" * 25_000]
    assert pieces(make_splitter(name), " ".join(expected)) == expected


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("name", ["nltk", "spacy"])
def test_no_piece_is_longer_than_promised(name, monkeypatch):
    sizes = []

    def record(original):
        def run(self, text):
            sizes.append(len(text))
            return original(self, text)

        return run

    monkeypatch.setattr(Punkt, "span_tokenize", record(Punkt.span_tokenize))
    monkeypatch.setattr(Pipeline, "__call__", record(Pipeline.__call__))
    text = "a" * 30_000 + ". " + "One two. " * 3000
    check_cover(text, make_splitter(name)(text))
    assert max(sizes) == 5_000


@pytest.mark.parametrize("name", ["nltk", "spacy"])
def test_nothing_is_lost(name):
    with pytest.MonkeyPatch.context() as patch:
        for module, stand_in in (fake_nltk() | fake_spacy()).items():
            patch.setitem(sys.modules, module, stand_in)
        split = make_splitter(name)

    @examples(150)
    @given(st.one_of(MARKDOWN, st.text(max_size=100)))
    def check(text):
        check_cover(text, split(text))

    check()


@pytest.mark.parametrize("name", ["nltk", "spacy"])
def test_what_is_not_installed_is_named(name, monkeypatch):
    def missing(module):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module.partition(".")[0])

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UsageError, match=f"splitter '{name}': not installed; run: pip install {name}"):
        make_splitter(name)


def test_a_library_that_lacks_a_part_of_its_own_says_so_itself(monkeypatch):
    def broken(module):
        raise ModuleNotFoundError("No module named 'regex'", name="regex")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="regex"):
        make_splitter("nltk")


@pytest.mark.usefixtures("libraries")
def test_a_language_that_spacy_does_not_have():
    with pytest.raises(UsageError, match=r"splitter 'spacy': language 'qq': \[E048\]"):
        make_splitter("spacy", "qq")


def test_other_names_are_refused():
    with pytest.raises(UsageError, match="splitter 'punkt': no such splitter; choose sentencex, nltk, spacy"):
        make_splitter("punkt")
