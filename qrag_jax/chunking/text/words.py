"""Words of a text as tokens: `plain_tokens` for links between texts and ROUGE, the others for search by words.

Search reads index and question in the same way. A token is a word or number in lower case (`letters.normal_letters`),
or a character of a script without spaces, or an emoji. Beside its parts, a text with an identifier has the identifier:

    v2.3.1 -> v2, 3, 1; v2.3.1, 2.3.1, 2        maxTokens -> maxtokens; maxTokens, max, tokens
    C++ -> c; c++                               don't -> don, t; dont

So the text with exactly what was asked scores above texts that share its parts.
"""

import re
import unicodedata
from collections.abc import Container, Iterator
from functools import cache, lru_cache

from qrag_jax.chunking.text.letters import normal_letters, spellings
from qrag_jax.chunking.text.proper_names import UNSPACED

TOKENS_VERSION = 1  # of `bm25_tokens`: raise it with each change, so that indexes count their words again
# One token for each character, because a whole sentence would be one word; Hangul too, because particles join words.
_UNSPACED = UNSPACED + "\uac00-\ud7a3"
_EMOJI = "\u2600-\u27bf\U0001f000-\U0001faff"
_ALONE = re.compile(f"[{_UNSPACED}{_EMOJI}]")

_ASCII, _PLAIN = re.compile("[a-z0-9]+"), re.compile(r"[^\W_]+")
_ASCII_WORDS = bytes(ord(chr(code).lower()) if chr(code).isalnum() else 32 for code in range(128)) + bytes(128)
# Kinds of ASCII characters, to find identifiers fast: capitals, letters, digits, signs; other alphabets are letters.
_KIND_OF = dict.fromkeys("-_.,/\\@&'^=~:>$", "-") | dict.fromkeys("+#%", "+") | {"(": "(", ")": ")"}
_KINDS = bytes(
    ord("A" if x.isupper() else "a" if x.isalpha() or x == "?" else "0" if x.isdigit() else _KIND_OF.get(x, " "))
    for x in map(chr, range(128))
) + bytes(128)
# Each begins with one literal, which `re` finds fast, and takes the rest of the text up to a blank.
_TELLING = tuple(
    (begin, re.compile(re.escape(begin) + rest + b"[^ ]*"))
    for begin, rest in (
        (b"-", b"[aA0]"),
        (b"+", rb"(?:(?=[aA0])|(?<=[aA0]\+))"),
        (b"()", b""),
        (b"A", b"(?:(?<=aA)|(?<=AA)(?=a))"),
        (b"0", b"(?:(?=[aA])|(?<=[aA]0))"),
    )
)
_SIGNS = r"[-_./\\@&+'^=~:#]"
# Identifiers are split at the signs of paths first, then at dots and hyphens; parts that still have signs count too.
_PATH, _HYPHENS = re.compile(r"[/\\@:=&#~]+"), re.compile(r"[-_+^',>]+")
_HUMPS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_CAMEL, _PLURAL = re.compile("[a-z][A-Z]|[A-Z]{2}[a-z]"), re.compile("[A-Z]{2,}s")
_THOUSANDS = re.compile(r"\d{1,3}(?:[.,'_]\d{3})+")
_WITH_HYPHENS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)+")
_PLUSES = re.compile(r"[^\W_]+\+\+")
_SIGN, _ALL_SIGNS = re.compile(f"{_SIGNS[:-1]},>]"), frozenset("-_./\\@&+'^=~:#,>")
_JOINED_WEIGHT = 0.5  # of `email` for e-mail, beside its parts; chosen on Cranfield, SQuAD and MuSiQue
_NUM_JOINED = 3  # parts: a longer phrase with hyphens is not written as one word
# Short words that French, Italian and Catalan write with an apostrophe.
_ELIDED = frozenset("c d dall dell all gl j jusqu l lorsqu m n nell puisqu qu quest quoiqu s sull t un".split())


@cache
def _marks() -> str:
    """Combining marks, for a character class."""
    marks = (chr(code) for code in range(0x300, 0x1F000) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
    return "".join(map(re.escape, marks))


@lru_cache(maxsize=1 << 16)
def _needs_care(character: str) -> bool:
    """True for what words have besides letters and digits: marks, unspaced characters, emoji; all beyond U+02FF."""
    is_mark = "\u0300" <= character < "\U0001f000" and unicodedata.category(character) in ("Mn", "Mc")
    return is_mark or bool(_ALONE.match(character))


@cache
def _token_pattern() -> re.Pattern[str]:
    """Words, numbers and unspaced characters, each with its combining marks (`\\w` alone breaks Hindi words apart)."""
    marks = _marks()
    return re.compile(f"(?=[{_UNSPACED}])[^\\W_][{marks}]*|(?:(?![{_UNSPACED}])[^\\W_][{marks}]*)+")


@cache
def _search_pattern() -> re.Pattern[str]:
    return re.compile(f"{_token_pattern().pattern}|[{_EMOJI}]")


@cache
def _identifier_pattern(is_ascii: bool) -> re.Pattern[str]:
    """Words with the signs before, between and after them."""
    letter = "[A-Za-z0-9]" if is_ascii else f"(?![{_UNSPACED}])[^\\W_]"
    word = f"{letter}+" if is_ascii else f"(?:{letter}[{_marks()}]*)+"
    before = r"(?<!\w)__|(?<![\w-])--(?=[^\W\d_])|(?<![\w)-])[-+](?=\d)|(?<![\w.])[$#@.~/\u20ac\u00a3\u00a5]"
    between = rf"(?:://|::|->|\^[-+]|\+\+|{_SIGNS}|(?<=\d),(?=\d))"
    return re.compile(rf"({before})?({word}(?:{between}{word})*)(\(\)|(?:\+\+?|[#%]|__)(?!\+|{letter}))?")


def plain_tokens(text: str) -> list[str]:
    """Tokens of a text in order: case-folded words and numbers, and single characters of scripts without spaces.

    Compatibility forms are unified first (NFKC: full-width letters, ligatures). Features of trained runs and ROUGE are
    made of these tokens, so they stay as they are.
    """
    if text.isascii():  # the same tokens, many times as fast
        return _ASCII.findall(text.lower())
    folded = unicodedata.normalize("NFKC", text).casefold()
    pattern = _token_pattern() if any(map(_needs_care, set(folded))) else _PLAIN
    return pattern.findall(folded)


def bm25_tokens(text: str) -> list[str]:
    """Tokens of a text for search; see the module. Words come in order, then other forms of them.

    Words of one letter and stop words are kept, because their IDF already makes them light.
    """
    words, identifiers = _analyse(text)
    words += identifiers
    return words if text.isascii() else words + [form for word in words for form in spellings(word)]


def asked_words(question: str, known: Container[str]) -> dict[str, float]:
    """The weight of each token of a question: how often it is asked for.

    The spellings of a word that texts have share its weight. An identifier that texts have counts as one
    more word beside its parts, its form as one word as half a word.

    Args:
        known: all tokens of the texts.
    """
    words, identifiers = _analyse(question)
    weights: dict[str, float] = {}
    for word in words:
        forms = [form for form in (word, *spellings(word)) if form in known] or [word]
        for form in forms:
            weights[form] = weights.get(form, 0) + 1 / len(forms)
    for form in identifiers:
        if form in known:
            is_word = form.isalnum() and form == form.casefold()
            weights[form] = weights.get(form, 0) + (_JOINED_WEIGHT if is_word else 1)
    return weights


def joined_words(question: str) -> dict[str, list[str]]:
    """The words with hyphens of a question, as one word as in `bm25_tokens`, with their parts (email: e, mail)."""
    found = [word.casefold() for word in _WITH_HYPHENS.findall(normal_letters(question))]
    if not found:
        return {}
    words, identifiers = _analyse(question)
    joined = {word.replace("-", ""): word.split("-") for word in found}
    return {form: parts for form, parts in joined.items() if form in identifiers and form not in words}


def is_identifier(token: str) -> bool:
    """True for a token of search that is no plain word or number: it has signs, capitals, or digits beside letters."""
    return not token.isdigit() and any(sign.isascii() and not sign.islower() for sign in token)


def _analyse(text: str) -> tuple[list[str], list[str]]:
    """The words of a text in order, and the other forms of its identifiers."""
    if not text.isascii():
        text = normal_letters(text)
    if text.isascii():
        return text.encode().translate(_ASCII_WORDS).decode().split(), _identifiers(text)
    folded = text.casefold()
    pattern = _search_pattern() if any(map(_needs_care, set(folded))) else _PLAIN
    return pattern.findall(folded), _identifiers(text)


def _identifiers(text: str) -> list[str]:
    """Whole identifiers, their parts that still have signs, and parts of words such as `maxTokens`."""
    kinds = text.encode("ascii", "replace").translate(_KINDS)
    runs = {}
    for begin, kind in _TELLING:
        if begin in kinds:
            for sign in kind.finditer(kinds):
                start, end = sign.span()
                runs[kinds.rfind(b" ", 0, start) + 1] = end
    forms: list[str] = []
    for start, end in runs.items():
        forms += _forms(text[start:end])
    return forms


@lru_cache(maxsize=1 << 16)
def _forms(run: str) -> tuple[str, ...]:
    """Forms of the identifiers in a text without blanks."""
    forms: list[str] = []
    words: set[str] = set()
    for before, core, after in _identifier_pattern(run.isascii()).findall(run):
        if before or after:
            forms.append(f"{before}{core}{after}".casefold())
        pieces = _SIGN.split(core)
        for piece in pieces:
            if not (piece.isalpha() and (piece.islower() or piece.istitle())):
                forms += _forms_of_word(piece)
        if len(pieces) > 1:
            forms += _forms_of_parts(core, pieces)
        words.update(pieces)
    return tuple(dict.fromkeys(form for form in forms if form not in words or not form.islower()))


def _forms_of_parts(core: str, pieces: list[str]) -> Iterator[str]:
    """Forms of an identifier with signs, and of its parts that still have signs."""
    parts = [core] if len(pieces) == 2 else _parts(core)
    for part in parts:
        signs, words = _ALL_SIGNS.intersection(part), _SIGN.split(part.casefold())
        is_number = all(map(str.isdigit, words))
        if not signs <= {"'"} and (is_number or not signs <= {"-", "'"} or not all(map(str.isalpha, words))):
            yield part.casefold()
            if part[:1] in "vV" and part[1:2].isdigit():
                yield part[1:].casefold()
        joins = signs <= {"-", "'", "_"} and not is_number and len(words) <= _NUM_JOINED
        if "'" in signs and (words[0] in _ELIDED or words[-1] == "s"):
            joins = False
        if joins or _THOUSANDS.fullmatch(part) or (signs == {"."} and max(map(len, words)) == 1 and not is_number):
            yield "".join(words)


def _parts(core: str) -> list[str]:
    """An identifier and its parts with signs: those of a path, of a name with dots, and between hyphens."""
    of_path = _PATH.split(core)
    of_name = [*of_path, *(piece for part in of_path for piece in part.split("."))]
    parts = dict.fromkeys((core, *of_name, *(piece for part in of_name for piece in _HYPHENS.split(part))))
    return [part for part in parts if not _ALL_SIGNS.isdisjoint(part)] + _PLUSES.findall(core)


def _forms_of_word(word: str) -> Iterator[str]:
    """Parts of `maxTokens` and `10km`, the word with its capitals, and `pdf` of `PDFs`."""
    if _PLURAL.fullmatch(word):
        yield word[:-1].lower()
        return
    is_camel = not word.isupper() and _CAMEL.search(word) is not None
    if is_camel:
        yield word
    if is_camel or (word.isascii() and not word.isalpha() and not word.isdigit()):
        humps = _HUMPS.findall(word)
        if is_camel or len(humps) == 2:
            yield from (hump.lower() for hump in humps if len(hump) > 1 or hump.isdigit())
