"""Names in text: their normal form, the places of known names, and the names that a text itself writes."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from qrag_jax.types import Span

Name = tuple[str, ...]  # the normal form: words in lower case

# Characters of scripts without blanks, for a character class: each counts as a word.
UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Myanmar, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
# Vowels and tones of these scripts that are marks on a letter, and the voice marks of kana.
_MARKS = (
    "\u3099\u309a\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"
    "\u102b-\u103e\u1056-\u1059\u17b4-\u17d3"
)
# Accents may be separate characters, as in file names of macOS; Markdown puts underscores around words.
_WORD = re.compile(
    rf"(?=[{UNSPACED}])[^\W_][{_MARKS}]*|(?![{UNSPACED}])[^\W_](?:(?![{UNSPACED}])[^\W_]|[\u0300-\u036f])*"
)
# "Mercury (planet)" is also called "Mercury". Starts at the first of many blanks: otherwise it takes quadratic time.
_WHICH_ONE = re.compile(r"(?<!\s)\s*[(\uff08][^()\uff08\uff09]*[)\uff09]\s*$")
# Small words inside a name, never at its ends.
_BETWEEN = frozenset(("of", "the", "de", "la", "le", "von", "van", "der", "di", "du"))
_TOUCHING = frozenset((" ", "-", "\u2019", "'", ". "))  # allowed between two words of a name ("J. R. Smith")
MAX_WORDS = 12  # a longer title is a sentence, and nobody writes it word for word


class Word(NamedTuple):
    """A word of a text, normalised, with its place; a tuple, because there is one for each word of all documents."""

    text: str
    span: Span
    is_capital: bool


def find_words(text: str) -> list[Word]:
    """Words between blanks and punctuation, in order; in scripts without blanks, each character (`UNSPACED`)."""
    return [
        Word(_normal(found[0]), found.span(), found[0][0].isupper() or found[0][0].isdigit())
        for found in _WORD.finditer(text)
    ]


def without_bracket(name: str) -> str:
    """A name without brackets at its end, which distinguish it from others of the same name."""
    return _WHICH_ONE.sub("", name)


def normal_name(name: str, min_chars: int = 4) -> Name | None:
    """The normal form of a name: words in lower case (NFKC), without brackets at its end.

    Returns:
        None if it has fewer than `min_chars` letters and digits, or more than `MAX_WORDS` words.
    """
    words = tuple(_normal(word) for word in _WORD.findall(without_bracket(name) or name))
    return words if sum(map(len, words)) >= min_chars and len(words) <= MAX_WORDS else None


def is_term(name: str) -> bool:
    """True if a name has a word in lower case, such as "Rain gauge" or "place of birth"; small words do not count."""
    return any(not word.is_capital and word.text not in _BETWEEN for word in find_words(without_bracket(name) or name))


class NameFinder:
    """Finds known names in text: at each word the longest one, and none inside another.

    A name of one word needs a capital letter or digit at its start: "Heat" but not "heat". A name of several words
    needs that in one of them, or a script without capitals: "the Family" but not "the family". Terms of several words
    also count in lower case: "rain gauge". Time is proportional to the text, whatever the number of names.

    Args:
        terms: the names that are terms (`is_term`).
    """

    def __init__(self, names: Iterable[Name], terms: Iterable[Name] = ()):
        lengths: defaultdict[Name, set[int]] = defaultdict(set)
        self._names, self._terms = frozenset(names), frozenset(terms)
        for name in self._names:
            lengths[name[:2]].add(len(name))  # by two words, because many names begin with "the"
        self._lengths = {begin: sorted(found, reverse=True) for begin, found in lengths.items()}
        self._firsts = frozenset(name[0] for name in self._names)

    def find(self, words: Sequence[Word]) -> Iterator[tuple[Name, Span]]:
        """The names in the words of a text, in order, with their half-open character offsets."""
        start = 0
        while start < len(words):
            name = self._at(words, start) if words[start].text in self._firsts else ()
            if name:
                yield name, (words[start].span[0], words[start + len(name) - 1].span[1])
            start += len(name) or 1

    def _at(self, words: Sequence[Word], start: int) -> Name:
        begin = tuple(word.text for word in words[start : start + 2])
        for length in self._lengths.get(begin, ()):
            name = tuple(word.text for word in words[start : start + length])
            if name in self._names and len(name) > 1 and self._counts(name, words[start : start + length]):
                return name
        return begin[:1] if words[start].is_capital and begin[:1] in self._names else ()

    def _counts(self, name: Name, written: Sequence[Word]) -> bool:
        return name in self._terms or any(word.is_capital or not word.text[0].islower() for word in written)


def written_names(sentence: str, words: Sequence[Word]) -> Iterator[Name]:
    """Runs of words that a sentence writes as a name: each has a capital letter, apart from small words between.

    The first word of a sentence always has a capital, so it is not a name alone or with a number; nor are numbers.

    Args:
        sentence: that contains the words.
        words: from `find_words`.
    """
    runs: list[list[Word]] = []
    for word in words:
        if runs and runs[-1] and _continues(sentence, runs[-1][-1], word):
            runs[-1].append(word)
        else:
            runs.append([word] if word.is_capital else [])
    for run in runs:
        while run and not run[-1].is_capital:  # "the University of" ends with its last capital letter
            run.pop()
        telling = [word for word in run if word is not words[0] and not word.text.isdigit()]
        if len(run) <= MAX_WORDS and telling:
            yield tuple(word.text for word in run)


def _continues(sentence: str, last: Word, word: Word) -> bool:
    return sentence[last.span[1] : word.span[0]] in _TOUCHING and (word.is_capital or word.text in _BETWEEN)


def _normal(word: str) -> str:
    return word.lower() if word.isascii() else unicodedata.normalize("NFKC", word).casefold()
