"""Letters as search compares them: one form for what readers write in several ways or leave out.

Unicode's compatibility forms (NFKC) come first. Then signs that nobody sees are dropped (soft hyphens, marks of writing
direction, variation selectors), the vowel points of Arabic, Hebrew and Syriac, tatweel, the accents of Greek, stress
marks and the nukta of Devanagari. Digits become those of ASCII, and hyphens and apostrophes one sign each.

Accents of Latin letters stay, because they distinguish words in many languages; `spellings` gives the other forms.
"""

import re
import unicodedata
from functools import cache, lru_cache

# Code points of Unicode's property Default_Ignorable_Code_Point (DerivedCoreProperties.txt), and colours of emoji.
_UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U0001f3fb-\U0001f3ff\U000e0000-\U000e0fff"
)
# Scripts whose marks readers leave out: Greek, Hebrew, Arabic, Syriac; and marks on any letter that NFKC did not join.
_MARKED = "\u0300-\u036f\u0370-\u03ff\u0591-\u05ff\u0600-\u074f\u0750-\u077f\u0870-\u08ff\u1f00-\u1fff"
_ARABIC = "\u0620-\u06ff"
_SAME = (
    ("'", "\u2018\u2019\u201b\u2032\u02b9\u02bb\u02bc\u02be\u02bf\u02c8`\u00b4\u00b7\u2027\u05f3\u05f4\ua78c"),
    ("-", "\u2010\u2011\u2012\u2013\u2212\u058a\u05be\u1806"),
    ("/", "\u2044\u2215"),
    (".", "\u066b"), (",", "\u066c"), ("%", "\u066a"),
    ("", "\u0640\u093c"),  # tatweel, nukta
    ("\u0902", "\u0901"),  # both mark a nasal vowel in Devanagari
    ("I", "\u0130"), ("i", "\u0131"),
    ("\u0435", "\u0451\u0450"), ("\u0415", "\u0401\u0400"),
    # Arabic, Persian and Urdu forms of alef, yeh, kaf and heh.
    ("\u0627", "\u0671"), ("\u064a", "\u0649\u06cc"), ("\u0643", "\u06a9"), ("\u0647", "\u0629\u06c1\u06c3"),
    # Letters of Malayalam and Bengali that are also written as two characters.
    ("\u0d23\u0d4d", "\u0d7a"), ("\u0d28\u0d4d", "\u0d7b"), ("\u0d30\u0d4d", "\u0d7c"), ("\u0d32\u0d4d", "\u0d7d"),
    ("\u0d33\u0d4d", "\u0d7e"), ("\u0d15\u0d4d", "\u0d7f"), ("\u09a4\u09cd", "\u09ce"),
)  # fmt: skip
_RAISED = "\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u207a\u207b"
# NFKC would change these meanings: it reads 10² as 102 and 3½ as 31/2, and ends a number at a narrow blank.
_BEFORE = (
    (re.compile(f"[{_RAISED}]+"), lambda found: "^" + unicodedata.normalize("NFKC", found[0])),
    (re.compile("[\u00bc-\u00be\u2150-\u215e]"), lambda found: " " + found[0]),
    (re.compile("(?<=\\d)[\u00a0\u202f\u2009](?=\\d{3}(?!\\d))"), lambda found: ","),
    (re.compile(f'(?<=[{_ARABIC}])\u200c(?=[{_ARABIC}])|(?<=[\u05d0-\u05ea])"(?=[\u05d0-\u05ea])'), lambda found: "'"),
)
_TELLING = re.compile(f'[{_RAISED}\u00bc-\u00be\u2150-\u215e\u00a0\u202f\u2009\u200c]|[\u05d0-\u05ea]"')
_LATIN = "\u00df-\u024f\u0259\u1e00-\u1eff"
_BASES = {"ø": "o", "æ": "ae", "œ": "oe", "đ": "d", "ð": "d", "ł": "l", "þ": "th", "ħ": "h", "ŋ": "n", "ə": "e"}
_SPELLED_OUT = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ø": "oe", "å": "aa"})


def normal_letters(text: str) -> str:
    """The text with the letters of the module; case stays. Other characters stay as NFKC has them."""
    if _TELLING.search(text):
        for pattern, new in _BEFORE:
            text = pattern.sub(new, text)
    text = unicodedata.normalize("NFKC", text)
    changes = _changes()
    for letter in set(text):  # few distinct ones, and `replace` is fast
        if letter in changes:
            text = text.replace(letter, changes[letter])
    return text


@lru_cache(maxsize=1 << 16)
def spellings(word: str) -> tuple[str, ...]:
    """Other ways to write a word with accents, in lower case: without them, and with ae for ä; mostly none."""
    plain = word.translate(_plain_latin())
    if plain == word:
        return ()
    return tuple(dict.fromkeys((plain, word.translate(_SPELLED_OUT).translate(_plain_latin()))))


@cache
def _changes() -> dict[str, str]:
    """New text of each character that changes."""
    digits = filter(str.isdecimal, map(chr, range(0x80, 0x1FC00)))
    changes = {digit: str(unicodedata.decimal(digit)) for digit in digits}
    for letter in map(chr, _in_class(_MARKED)):
        plain = _without_marks(letter)
        if plain != letter:
            changes.setdefault(letter, plain)
    changes |= {letter: new for new, letters in _SAME for letter in letters}
    return changes | {chr(code): "" for code in _in_class(_UNSEEN)}


@cache
def _plain_latin() -> dict[int, str]:
    plain = {code: _BASES.get(chr(code)) or _without_marks(chr(code)) for code in _in_class(_LATIN)}
    return {code: new for code, new in plain.items() if new != chr(code)}


def _without_marks(letter: str) -> str:
    return "".join(x for x in unicodedata.normalize("NFKD", letter) if unicodedata.category(x) != "Mn")


def _in_class(characters: str) -> list[int]:
    """The code points of the content of a character class: single characters and ranges `a-z`."""
    found: list[int] = []
    for part in re.findall("(.)-(.)|(.)", characters, re.DOTALL):
        found += range(ord(part[0]), ord(part[1]) + 1) if part[0] else [ord(part[2])]
    return found
