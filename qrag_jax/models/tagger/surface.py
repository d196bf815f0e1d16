"""Features of sentences without vectors: marks and words, positions, paragraphs, repeated words.

Host side, NumPy and `str`. All functions read one document, rows are its sentences, and none looks at another document.
"""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

NUM_CUES = 4096  # buckets that cues are hashed into
CUES_PER_SENTENCE = 10

_SHORT_WORDS, _SHORT_CHARACTERS, _SHORT_CUE = 12, 25, 40
_NEAR, _SOON, _LONG_AGO = 3, 5, 15  # sentences since, or until, a word is there again
_WORD_BLOCKS = (2, 5, 10)  # sentences on each side whose words are compared
_NUM_SHORT = 20  # of the columns of a sentence, those that are also taken of the next one

_WORDS = re.compile(r"[^\W\d_]+")
_TOKENS = re.compile(r"\w+|[^\w\s]")
_DIGIT = re.compile(r"\d")
_NUMBERED = re.compile(r"\(?(\d+(\.\d+)*|[IVX]+)[.)]?\s")
_YEAR = re.compile(r"\b(19|20)\d\d\b")
_FIRST_PERSON = re.compile(r"\b[Ww]e\b|\bour\b")
_SHOWN = re.compile(r"[Tt]able|[Ff]igure")
_PRESENT, _PAST = re.compile(r"\bis\b|\bare\b"), re.compile(r"\bwas\b|\bwere\b")
_ARTICLE = re.compile(r"(The|A|An|In|On|At|After|By|For|As|To)\b")
_DATE = re.compile(r"In \d{4}|In [A-Z]\w+ \d{4}|On ")
_POINTING = frozenset("he she it they this these that those such his her its their".split())
_JOINING = frozenset(
    "however therefore thus moreover furthermore for but and then also hence finally second third similarly instead "
    "note consequently additionally in".split()
)
_COMMON = frozenset(
    "a an the of in on to and or for with by as at from is are was were be been it its this that these those which who "
    "we our they their he she his her not but have has had can may will would also such than then there into between "
    "more most one two other all each some any no if when where while after before during about over under only very "
    "so however".split()
)


@dataclass(frozen=True)
class _Sentence:
    """A sentence and what several columns read of it."""

    text: str

    @cached_property
    def tokens(self) -> list[str]:
        """Between white space."""
        return self.text.split()

    @cached_property
    def words(self) -> list[str]:
        """Letters in a row."""
        return _WORDS.findall(self.text)

    @cached_property
    def lower(self) -> str:
        """The text in lower case."""
        return self.text.lower()

    @property
    def first(self) -> str:
        """The first word in lower case; empty without one."""
        return self.words[0].lower() if self.words else ""

    def share(self, holds: Callable[[str], bool]) -> float:
        """Share of the characters."""
        return sum(map(holds, self.text)) / max(len(self.text), 1)


_OF_SENTENCE: dict[str, Callable[[_Sentence], float]] = {
    "log characters": lambda s: np.log1p(len(s.text)),
    "log words": lambda s: np.log1p(len(s.tokens)),
    "few words": lambda s: len(s.tokens) <= _SHORT_WORDS,
    "few characters": lambda s: len(s.text) < _SHORT_CHARACTERS,
    "opens with a capital": lambda s: s.text[:1].isupper(),
    "opens with a digit": lambda s: s.text[:1].isdigit(),
    "opens in lower case": lambda s: s.text[:1].islower(),
    "opens with a mark": lambda s: not s.text[:1].isalnum(),
    "numbered": lambda s: bool(_NUMBERED.match(s.text)),
    "closing mark": lambda s: s.text[-1:] in tuple(".!?"),
    "colon": lambda s: s.text[-1:] == ":",
    "comma": lambda s: s.text[-1:] in tuple(",;"),
    "bracket": lambda s: s.text[-1:] in tuple(")]"),
    "no mark": lambda s: s.text[-1:].isalnum(),
    "capitals": lambda s: s.share(str.isupper),
    "capital words": lambda s: sum(token[:1].isupper() for token in s.tokens) / max(len(s.tokens), 1),
    "digits": lambda s: s.share(str.isdigit),
    "marks": lambda s: s.share(lambda one: not one.isalnum() and not one.isspace()),
    "year": lambda s: bool(_YEAR.search(s.text)),
    "quotation": lambda s: '"' in s.text or "``" in s.text,
    "opening bracket": lambda s: "(" in s.text,
    "equation": lambda s: "=" in s.text,
    "points back": lambda s: s.first in _POINTING,
    "joins": lambda s: s.first in _JOINING,
    "says section": lambda s: "section" in s.lower,
    "says paper": lambda s: "paper" in s.lower,
    "first person": lambda s: bool(_FIRST_PERSON.search(s.text)),
    "table or figure": lambda s: bool(_SHOWN.search(s.text)),
    "present": lambda s: bool(_PRESENT.search(s.text)),
    "past": lambda s: bool(_PAST.search(s.text)),
    "article": lambda s: bool(_ARTICLE.match(s.text)),
    "date": lambda s: bool(_DATE.match(s.text)),
    "says this section": lambda s: "section" in s.lower and "this" in s.lower,
    "letters a word": lambda s: sum(map(len, s.words)) / max(len(s.words), 1),
}


def sentence_columns(texts: Sequence[str]) -> Float[np.ndarray, "sentences columns"]:
    """The columns of `_OF_SENTENCE` of each sentence, of the one before it, and the first 20 of the one after it."""
    own = np.array([[float(column(_Sentence(text))) for column in _OF_SENTENCE.values()] for text in texts])
    own = own.reshape(len(texts), len(_OF_SENTENCE))
    return np.hstack([own, shifted(own, -1), shifted(own[:, :_NUM_SHORT], 1)])


def shifted(rows: Float[np.ndarray, "sentences columns"], by: int) -> Float[np.ndarray, "sentences columns"]:
    """Row i is row `i + by`; zeros beyond the ends."""
    found = np.zeros_like(rows)
    places = np.arange(len(rows)) + by
    inside = (places >= 0) & (places < len(rows))
    found[inside] = rows[places[inside]]
    return found


def place_columns(num_sentences: int) -> Float[np.ndarray, "sentences columns"]:
    """The position of each sentence: its share of the document, numbers from both ends, and indicators of the outer
    ones."""
    n = num_sentences
    i = np.arange(n)
    left = n - 1 - i
    share = i / max(n, 1)
    columns = [share, share**2, np.log1p(i), np.log1p(left), np.full(n, np.log(max(n, 1))), 1 / (1 + i), 1 / (1 + left)]
    columns += [i == k for k in range(1, 12)]
    columns += [(i >= a) & (i < b) for a, b in ((12, 16), (16, 24), (24, 40), (40, 60))]
    columns += [left == k for k in range(6)]
    columns += [(left >= a) & (left < b) for a, b in ((6, 10), (10, 16), (16, 24), (24, 40))]
    return np.stack(columns, axis=1).astype(np.float64)


def paragraph_columns(starts: Bool[np.ndarray, " sentences"]) -> Float[np.ndarray, "sentences columns"]:
    """Paragraph starts, and the sentences of the paragraph that ends and of the one that begins.

    All zeros if only the first sentence begins a paragraph: such a document has no paragraphs.

    Args:
        starts: which sentences begin a paragraph (`chunking/tree/boundaries.py:starts_paragraph`).
    """
    n = len(starts)
    if not starts[1:].any():
        return np.zeros((n, 8))
    begins = starts.astype(np.float64)
    places = np.flatnonzero(starts)
    i = np.arange(n)
    last = np.searchsorted(places, i, side="left") - 1
    before = i - np.where(last >= 0, places[last], 0)
    coming = np.searchsorted(places, i, side="right")
    after = np.append(places, n)[coming] - i
    columns = [
        begins,
        np.ones(n),
        begins * np.log1p(before),
        begins * np.log1p(after),
        1 - begins,
        begins * (before <= 1),
        begins * (after <= 1),
        begins * begins.mean(),
    ]
    return np.stack(columns, axis=1)


def word_columns(texts: Sequence[str]) -> Float[np.ndarray, "sentences columns"]:
    """Words that are new, come back after long, were there just before or come back soon; words on both sides of a gap.

    Shares are of a sentence's distinct words and one. Common English words and those of one or two letters are left
    out.
    """
    words = [{w for w in map(str.lower, _WORDS.findall(text)) if w not in _COMMON and len(w) > 2} for text in texts]
    n = len(words)
    found = np.zeros((n, 4 + len(_WORD_BLOCKS)))
    seen: dict[str, int] = {}
    for i, own in enumerate(words):
        since = [i - seen[word] for word in own if word in seen]
        counts = len(own) - len(since), sum(s > _LONG_AGO for s in since), sum(s <= _NEAR for s in since)
        found[i, :3] = np.array(counts) / (len(own) + 1)
        seen.update(dict.fromkeys(own, i))
    coming: dict[str, int] = {}
    for i in range(n - 1, -1, -1):
        soon = sum(word in coming and coming[word] - i <= _SOON for word in words[i])
        found[i, 3] = soon / (len(words[i]) + 1)
        coming.update(dict.fromkeys(words[i], i))
    for column, size in enumerate(_WORD_BLOCKS, start=4):
        for i in range(1, n):
            before, after = set().union(*words[max(i - size, 0) : i]), set().union(*words[i : i + size])
            found[i, column] = len(before & after) / (1 + min(len(before), len(after)))
    return found


def cue_ids(texts: Sequence[str]) -> Int[np.ndarray, "sentences cues"]:
    """The words that each sentence opens with, alone and in a row, and its last two, hashed into `NUM_CUES` buckets.

    Digits count as one digit, case does not. The hash is CRC-32: the same on every machine.

    Returns:
        int32 [sentences, `CUES_PER_SENTENCE`].
    """
    found = np.zeros((len(texts), CUES_PER_SENTENCE), np.int32)
    before = ""
    for i, text in enumerate(texts):
        a, b, c, d = [*_plain_tokens(text[:60])[:4], "", "", "", ""][:4]
        end = " ".join(_plain_tokens(text[-30:])[-2:])
        alone = a if len(text) < _SHORT_CUE else "long"
        keys = (f"1|{a}", f"2|{a} {b}", f"3|{a} {b} {c}", f"w|{b}", f"x|{c}", f"y|{b} {c}", f"4|{a} {b} {c} {d}")
        keys += (f"p|{before}", f"l|{end}", f"n|{alone}")
        found[i] = [zlib.crc32(key.encode("utf-8", "surrogatepass")) % NUM_CUES for key in keys]
        before = a
    return found


def _plain_tokens(text: str) -> list[str]:
    return [_DIGIT.sub("0", token.lower()) for token in _TOKENS.findall(text)]
