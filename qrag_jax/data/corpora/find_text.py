"""Finds a text in a longer one: exactly, with other white space, or by its letters and digits only.

Each `find` gives the first places of the wanted text as half-open character offsets, at most two: enough to tell
whether there is one. Places may overlap; a text with nothing to look for is nowhere.
"""

import re
import unicodedata
from collections.abc import Mapping

from qrag_jax.types import Span

_NO_LETTER = re.compile(r"[\W_]+")


def search(wanted: str, texts: Mapping[str, str]) -> list[tuple[str, Span]]:
    """(name, place) of `wanted` in all texts, at most two for each.

    Exactly; only if no text has it so, with other white space; if none has it so either, by its letters and digits.
    """
    for find in (find_exact, find_words, find_letters):
        found = [(name, span) for name, text in texts.items() for span in find(text, wanted)]
        if found:
            return found
    return []


def find_exact(text: str, wanted: str) -> tuple[Span, ...]:
    """The first two places of `wanted` without the white space at its ends."""
    wanted = wanted.strip()
    first = text.find(wanted) if wanted else -1
    if first < 0:
        return ()
    second = text.find(wanted, first + 1)
    return tuple((start, start + len(wanted)) for start in (first, second) if start >= 0)


def find_words(text: str, wanted: str) -> tuple[Span, ...]:
    """The first two places of `wanted`, where any white space matches any other, as in wrapped text."""
    words = wanted.split()
    if not words or max(words, key=len) not in text:  # far faster than a pattern, and most texts end here
        return ()
    pattern = re.compile(r"\s+".join(map(re.escape, words)))
    places: list[Span] = []
    match = pattern.search(text)
    while match and len(places) < 2:
        places.append(match.span())
        match = pattern.search(text, match.start() + 1)
    return tuple(places)


def find_letters(text: str, wanted: str) -> tuple[Span, ...]:
    """The first two places where the letters and digits of `wanted` follow one another, whatever else is between.

    Compared are decomposed compatibility forms (NFKD) without case and accents, so that ligatures, full-width digits,
    quotation marks, dashes, white space and the Unicode form may differ: what two programs make of one page. A place
    runs from the first to the last such character, and begins and ends where a word does: `ART` is not in `start`.
    """
    there = _letters(wanted)
    here = _letters(text)
    if not there or there not in here:  # far faster than the offsets, and most texts end here
        return ()
    sizes = {character: len(_letters(character)) for character in set(text)}
    offsets = [offset for offset, character in enumerate(text) for _ in range(sizes[character])]
    places: list[Span] = []
    first = here.find(there)
    while first >= 0 and len(places) < 2:
        start, end = offsets[first], offsets[first + len(there) - 1] + 1
        if not text[start - 1 : start].isalnum() and not text[end : end + 1].isalnum() and (start, end) not in places:
            places.append((start, end))
        first = here.find(there, first + 1)
    return tuple(places)


def _letters(text: str) -> str:
    return _NO_LETTER.sub("", unicodedata.normalize("NFKD", text).casefold())
