"""Sentence borders as exact character offsets, from `sentencex` or another library, with guards for their defects.

The guards, each tested: text is split at blank lines first (the library loses a blank line at the inner borders of long
texts). White space outside ASCII is replaced by spaces and lone surrogates by U+FFFD, one character for one (the
library panics on some texts with U+3000 and refuses surrogates). Text that it leaves out becomes a separate sentence.
If it still panics, a plain rule is used for that paragraph. A quotation mark or bracket stays with what it closes or
opens. A point between digits, also a full-width one, ends nothing. `split_guarded` applies all of these except the
panic to any library.

The libraries are `sentencex`, which comes with this package, and NLTK and spaCy if installed. All give the guarantees
of `split_sentences`, and nothing is ever downloaded: NLTK's Punkt uses the given abbreviations instead of a trained
model, and spaCy an empty pipeline with its rule for punctuation.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType

import sentencex

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.spans import cut_text, readable
from qrag_jax.names import SPLITTERS
from qrag_jax.types import Span, UsageError

# One paragraph -> offsets where it may be cut; they need not be sorted, distinct or inside.
FindCuts = Callable[[str], Iterable[int]]

# Two line ends with nothing between them; the groups are atomic, otherwise CR LF would count as two.
BLANK_LINE = re.compile(r"(?>\r\n|[\n\r\u2029])[^\S\n\r\u2029]*(?>\r\n|[\n\r\u2029])\s*")
LINE_BORDER = re.compile(r"[\n\r\v\f\x85\u2028\u2029]")
_PIECE = 5_000  # characters that a library reads at a time
_WIDE_SPACE = re.compile(r"[^\S\x20\t\n\r]")
# Characters that only end sentences: in East Asian text, Arabic and Urdu, and Devanagari.
_ENDS = "\u3002\uff01\uff1f\uff61" + "\u061f\u06d4" + "\u0964\u0965"
_CLOSERS = ")]\u201d\u2019\u300d\u300f\u3011\u3015\u3009\u300b\uff09\uff3d\uff5d\uff63"
_OPENERS = "\u201e\u201c\u2018\u300c\u300e\u3010\u3014\u3008\u300a\uff08\uff3b\uff5b\uff62"
_IN_NUMBER = re.compile(r"\d[.\uff0e]\d")
_ASCII_OPENER = re.compile(r"\s\"")
_PLAIN_STOP = re.compile(rf"[.!?\u2026{_ENDS}]+[\"'{re.escape(_CLOSERS)}]*")
_WIDE_STOP = re.compile(rf"[{_ENDS}][{_ENDS}{re.escape(_CLOSERS)}]*")


def split_sentences(text: str, language: str = "en") -> list[Span]:
    """Sentences of `text` as half-open character offsets, in order and not overlapping.

    `text[start:end]` has no outer white space and is never empty; every character that is not white space is in exactly
    one span. A blank line always ends a sentence.

    Args:
        text: any string, lone surrogates included.
        language: ISO 639-1 code for abbreviations; `sentencex` uses default rules for an unknown one.
    """
    find_cuts = lambda paragraph: _sentencex_cuts(paragraph, language)  # noqa: E731
    return split_guarded(text, lambda paragraph: cuts_by_pieces(paragraph, find_cuts))


def split_guarded(text: str, find_cuts: FindCuts) -> list[Span]:
    """Sentences of `text` by any rule for one paragraph, with the guarantees of `split_sentences`.

    Args:
        text: any string, lone surrogates included.
        find_cuts: gets each paragraph with plain white space and without surrogates; offsets stay the same.
    """
    clean = readable(_WIDE_SPACE.sub(" ", text))
    spans: list[Span] = []
    for start, end in _paragraphs(text):
        paragraph = clean[start:end]
        cuts = {cut for cut in find_cuts(paragraph) if 0 < cut < len(paragraph)}
        inner = {_beside_quotes(paragraph, cut) for cut in cuts if not _IN_NUMBER.match(paragraph, max(cut - 2, 0))}
        spans += cut_text(text, [start + cut for cut in sorted({0, len(paragraph)} | inner)])
    return spans


def cuts_by_pieces(paragraph: str, find_cuts: FindCuts) -> Iterator[int]:
    """The cuts of a rule in successive pieces of a paragraph, each from the last cut of the piece before.

    Some libraries take quadratic time (`sentencex` without spaces, or with only quotation marks) or give up (NLTK after
    5 seconds, which a megabyte takes).
    """
    begin = 0
    while begin < len(paragraph):
        piece = paragraph[begin : begin + _PIECE]
        cuts = sorted(cut for cut in find_cuts(piece) if 0 < cut < len(piece))
        yield from (begin + cut for cut in cuts)
        begin += cuts[-1] if cuts and begin + len(piece) < len(paragraph) else len(piece)


def wide_cuts(paragraph: str) -> Iterator[int]:
    """Offsets after the ends of sentences that are not written in ASCII, with their closing quotation marks."""
    return (match.end() for match in _WIDE_STOP.finditer(paragraph))


def _paragraphs(text: str) -> Iterator[Span]:
    """Pieces between blank lines, with their offsets."""
    start = 0
    for match in BLANK_LINE.finditer(text):
        if match.start() > start:
            yield start, match.start()
        start = match.end()
    if start < len(text):
        yield start, len(text)


def _sentencex_cuts(paragraph: str, language: str) -> Iterable[int]:
    try:
        borders = sentencex.get_sentence_boundaries(language, paragraph)  # pyright: ignore[reportAttributeAccessIssue]
    except BaseException as error:  # pyo3's PanicException is not an Exception and cannot be imported
        if type(error).__name__ != "PanicException":
            raise
        return [match.end() for match in _PLAIN_STOP.finditer(paragraph)]
    return {border[name] for border in borders for name in ("start_index", "end_index")}


def _beside_quotes(paragraph: str, cut: int) -> int:
    """The cut after marks that close the text before it, and before marks that open the text after it.

    The surrounding blanks decide, because German closes with the mark that English opens with, and ASCII has one mark
    for both. A mark closes if no blank is before it, and opens if none is after it.
    """
    if not paragraph[cut - 1].isspace():
        while cut < len(paragraph) and paragraph[cut] in _CLOSERS:
            cut += 1
    if cut < len(paragraph) and not paragraph[cut].isspace():
        while cut > 1 and (paragraph[cut - 1] in _OPENERS or _ASCII_OPENER.match(paragraph, max(cut - 2, 0))):
            cut -= 1
    return cut


# Without a model, Punkt ends a sentence at "Dr.". It needs abbreviations in lower case and without the last dot.
ABBREVIATIONS: tuple[str, ...] = (
    *("mr", "mrs", "ms", "dr", "prof", "rev", "hon", "st", "sr", "jr", "gen", "col", "capt", "lt", "sgt"),
    *("vs", "etc", "e.g", "i.e", "cf", "al", "fig", "figs", "eq", "no", "nos", "vol", "pp", "ed", "inc", "ltd", "co"),
)


def make_splitter(
    name: str = "sentencex", language: str = "en", abbreviations: Sequence[str] = ABBREVIATIONS
) -> SplitSentences:
    """Makes a function from a text to its sentences.

    Args:
        name: the library, one of `SPLITTERS`. `nltk` and `spacy` are imported only here.
        language: ISO 639-1 code; `nltk` ignores it and uses only abbreviations.
        abbreviations: for `nltk`: in lower case, without the last dot.
    """
    if name == "sentencex":
        return lambda text: split_sentences(text, language)
    if name == "nltk":
        return _guarded(_nltk_starts(abbreviations))
    if name == "spacy":
        return _guarded(_spacy_starts(language))
    raise UsageError(f"splitter {name!r}: no such splitter; choose {', '.join(SPLITTERS)}")


def _guarded(find_starts: FindCuts) -> SplitSentences:
    """Also cuts text without spaces after the full stops of its script, which neither library does."""
    return lambda text: split_guarded(
        text, lambda paragraph: {*cuts_by_pieces(paragraph, find_starts), *wide_cuts(paragraph)}
    )


def _nltk_starts(abbreviations: Iterable[str]) -> FindCuts:
    punkt = _imported("nltk.tokenize.punkt", "nltk")
    parameters = punkt.PunktParameters()
    parameters.abbrev_types.update(abbreviations)
    tokenizer = punkt.PunktSentenceTokenizer(parameters)
    return lambda text: [start for start, _ in tokenizer.span_tokenize(text)]


def _spacy_starts(language: str) -> FindCuts:
    spacy = _imported("spacy", "spacy")
    try:
        pipeline = spacy.blank(language)
    except ImportError as error:  # spaCy raises this if it, or a package that it needs, lacks the language
        raise UsageError(f"splitter 'spacy': language {language!r}: {error}") from error
    pipeline.add_pipe("sentencizer")

    return lambda text: [sentence.start_char for sentence in pipeline(text).sents]


def _imported(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise UsageError(f"splitter {package!r}: not installed; run: pip install {package}") from error
