"""Words of a text as tokens: what BM25, links between texts and ROUGE count."""

import re
import unicodedata
from functools import cache

from qrag_jax.chunking.text.proper_names import UNSPACED

# One token a character, or a whole sentence would be a single word; Hangul too, as particles are glued to the word.
_UNSPACED = UNSPACED + "\uac00-\ud7a3"

_ASCII, _PLAIN = re.compile("[a-z0-9]+"), re.compile(r"[^\W_]+")


@cache
def _marks() -> str:
    """Combining marks, for a set of a pattern."""
    marks = (chr(code) for code in range(0x300, 0x1F000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
    return "".join(map(re.escape, marks))


@cache
def _needs_care() -> re.Pattern[str]:
    """What is in no text whose words are letters and digits alone."""
    return re.compile(f"[{_UNSPACED}{_marks()}]")


@cache
def _token_pattern() -> re.Pattern[str]:
    """Words, numbers and unspaced characters, each with its combining marks (`\\w` alone breaks Hindi words apart)."""
    marks = _marks()
    return re.compile(f"(?=[{_UNSPACED}])[^\\W_][{marks}]*|(?:(?![{_UNSPACED}])[^\\W_][{marks}]*)+")


def bm25_tokens(text: str) -> list[str]:
    """Tokens of a text in order: case-folded words and numbers; characters one by one where words are not spaced.

    Compatibility forms are unified first (NFKC: full-width letters, ligatures). Words of one letter and stop words
    are kept: their IDF already makes them light.
    """
    if text.isascii():  # the same tokens, many times as fast
        return _ASCII.findall(text.lower())
    folded = unicodedata.normalize("NFKC", text).casefold()
    pattern = _token_pattern() if _needs_care().search("".join(set(folded))) else _PLAIN
    return pattern.findall(folded)
