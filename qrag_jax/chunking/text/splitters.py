"""Sentence splitters by name: `sentencex`, which comes with this package, or NLTK or spaCy where the user has them.

Whatever the library, the spans keep the promise of `chunking/text/sentences.py:split_sentences`, and nothing is ever
downloaded: NLTK's Punkt runs on the abbreviations that it is given instead of a trained model, spaCy on an empty
pipeline with its rule for punctuation.
"""

import importlib
from collections.abc import Iterable, Sequence
from types import ModuleType

from qrag_jax.chunking.text.chunks import SplitSentences
from qrag_jax.chunking.text.sentences import FindCuts, cuts_by_pieces, split_guarded, split_sentences, wide_cuts
from qrag_jax.types import UsageError

SPLITTERS = ("sentencex", "nltk", "spacy")


# Punkt without a model takes "Dr." for the end of a sentence. It wants them in lower case and without the last dot.
ABBREVIATIONS: tuple[str, ...] = (
    *("mr", "mrs", "ms", "dr", "prof", "rev", "hon", "st", "sr", "jr", "gen", "col", "capt", "lt", "sgt"),
    *("vs", "etc", "e.g", "i.e", "cf", "al", "fig", "figs", "eq", "no", "nos", "vol", "pp", "ed", "inc", "ltd", "co"),
)


def make_splitter(
    name: str = "sentencex", language: str = "en", abbreviations: Sequence[str] = ABBREVIATIONS
) -> SplitSentences:
    """A function from a text to its sentences.

    Args:
        name: the library, one of `SPLITTERS`. `nltk` and `spacy` are imported here, not before.
        language: ISO 639-1 code. `nltk` has only its abbreviations to know a language by, so the code is not used.
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
    """Neither library cuts text without spaces: it is cut after the full stops of its script as well."""
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
    except ImportError as error:  # spaCy's way to say that it, or a package that it needs, has no such language
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
