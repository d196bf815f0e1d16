"""Words of a text as tokens, for BM25, links between texts and ROUGE."""

import re
import unicodedata
from functools import cache

from qrag_jax.chunking.text.proper_names import UNSPACED

# One token for each character, because a whole sentence would be one word; Hangul too, because particles join words.
_UNSPACED = UNSPACED + "\uac00-\ud7a3"

_ASCII, _PLAIN = re.compile("[a-z0-9]+"), re.compile(r"[^\W_]+")


@cache
def _marks() -> str:
    """Combining marks, for a character class."""
    marks = (chr(code) for code in range(0x300, 0x1F000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
    return "".join(map(re.escape, marks))


@cache
def _needs_care() -> re.Pattern[str]:
    """Matches text whose words have characters besides letters and digits."""
    return re.compile(f"[{_UNSPACED}{_marks()}]")


@cache
def _token_pattern() -> re.Pattern[str]:
    """Words, numbers and unspaced characters, each with its combining marks (`\\w` alone breaks Hindi words apart)."""
    marks = _marks()
    return re.compile(f"(?=[{_UNSPACED}])[^\\W_][{marks}]*|(?:(?![{_UNSPACED}])[^\\W_][{marks}]*)+")


def bm25_tokens(text: str) -> list[str]:
    """Tokens of a text in order: case-folded words and numbers, and single characters of scripts without spaces.

    Compatibility forms are unified first (NFKC: full-width letters, ligatures). Words of one letter and stop words are
    kept, because their IDF already makes them light.
    """
    if text.isascii():  # the same tokens, many times as fast
        return _ASCII.findall(text.lower())
    folded = unicodedata.normalize("NFKC", text).casefold()
    pattern = _token_pattern() if _needs_care().search("".join(set(folded))) else _PLAIN
    return pattern.findall(folded)
