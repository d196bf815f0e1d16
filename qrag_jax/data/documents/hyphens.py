"""Words that a PDF divides at the end of a line, joined as the rest of the document writes them."""

import re

DIVIDED = "\ufffe"  # what pdfium writes for a hyphen at the end of a line, whose break it leaves out

_LEAST, _LEAST_AFTER = 4, 6  # letters of two parts, of which the second is no word of the document
# English words that begin longer ones without a hyphen.
_BEGINNINGS = frozenset(
    "after back down every fore here how in inter more never not off on out over some super there through under up "
    "where with".split()
)
_WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_PLACE = re.compile(rf"([^\W_]+(?:-[^\W_]+)*)?{DIVIDED}\s?([^\W_]+)?")


def words_of(texts: list[str]) -> frozenset[str]:
    """The words of texts in lower case, those with hyphens whole and as their parts; divided ones are left out."""
    found: set[str] = set()
    for text in texts:
        for word in _WORD.findall(_PLACE.sub(" ", text)):
            found.add(word.lower())
            found.update(word.lower().split("-"))
    return frozenset(found)


def joined(text: str, words: frozenset[str]) -> str:
    """A text without marks of divided words.

    A hyphen at the end of a line divides a word (`exam|ple`) or belongs to it (`well|known`). What the document has
    elsewhere tells: the whole word, then the word with its hyphen, then both parts as words of their own, or the first
    if both are long (`conversation|centric`). Beside numbers and before a capital letter inside of a name it belongs to
    the word; where nothing tells, it divides.

    Args:
        text: with `DIVIDED` for such hyphens.
        words: of the document, by `words_of`.
    """
    return _PLACE.sub(lambda place: _join(place[1] or "", place[2] or "", words), text)


def _join(left: str, right: str, words: frozenset[str]) -> str:
    if not left or not right:  # a dash between words
        return f"{left}-{'' if left or not right else ' '}{right}"
    before, after = left.lower().rpartition("-")[2], right.lower()
    if before + after in words:
        return left + right
    is_name = right[0].isupper() and not left.isupper()
    is_compound = before in words and (after in words or (len(before) >= _LEAST and len(after) >= _LEAST_AFTER))
    is_whole = f"{before}-{after}" in words or (is_compound and before not in _BEGINNINGS)
    return f"{left}-{right}" if is_whole or is_name or before.isdigit() or after.isdigit() else left + right
