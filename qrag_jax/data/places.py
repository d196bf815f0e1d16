"""Where a text stands in a longer one: exactly, with other white space, or by its letters and digits only."""

import re
import unicodedata

from qrag_jax.types import Span


def find_text(text: str, wanted: str) -> tuple[Span, ...]:
    """The first places of `wanted` in `text`, at most two: enough to tell whether there is one.

    White space at its ends does not count. Where it does not stand exactly so, any run of white space stands for any
    other (a text that was wrapped in another way). Places may overlap.

    Returns:
        Half-open character offsets; empty where it is nowhere, or `wanted` is blank.
    """
    words = wanted.split()
    if not words or max(words, key=len) not in text:  # far faster than a pattern, and most texts end here
        return ()
    return _first_two(text, re.escape(wanted.strip())) or _first_two(text, r"\s+".join(map(re.escape, words)))


def find_letters(text: str, wanted: str) -> Span | None:
    """The first place where the letters and digits of `wanted` follow one another in `text`, whatever else is between.

    Compared are compatibility forms without case (NFKC), so that ligatures, full-width digits, quotation marks, dashes
    and white space may differ: what two programs make of one page.

    Returns:
        Half-open offsets from the first to the last such character; None where there is no such place, or no letter.
    """
    here, offsets = _letters(text)
    there, _ = _letters(wanted)
    first = here.find(there) if there else -1
    return None if first < 0 else (offsets[first], offsets[first + len(there) - 1] + 1)


def _first_two(text: str, pattern: str) -> tuple[Span, ...]:
    compiled = re.compile(pattern)
    places: list[Span] = []
    match = compiled.search(text)
    while match and len(places) < 2:
        places.append(match.span())
        match = compiled.search(text, match.start() + 1)
    return tuple(places)


def _letters(text: str) -> tuple[str, list[int]]:
    """Letters and digits, and for each the offset that it comes from."""
    pairs = [
        (letter, offset)
        for offset, character in enumerate(text)
        for letter in unicodedata.normalize("NFKC", character).casefold()
        if letter.isalnum()
    ]
    return "".join(letter for letter, _ in pairs), [offset for _, offset in pairs]
