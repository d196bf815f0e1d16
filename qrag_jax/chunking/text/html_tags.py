"""HTML in other text: spans of its tags, comments, scripts and styles, which are not text to read.

Only known elements count: `<key>`, `List<String>` and `<a@b.org>` are text. Tags in code are text too.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from qrag_jax.chunking.text.sentences import BLANK_LINE
from qrag_jax.types import Span

_NAMES = (
    "a abbr acronym address area article aside audio b base bdi bdo big blockquote body br button canvas "
    "caption center cite code col colgroup data datalist dd del details dfn dialog dir div dl dt em embed "
    "fieldset figcaption figure font footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html i "
    "iframe img input ins kbd label legend li link main map mark menu meta meter nav noscript object ol "
    "optgroup option output p param picture pre progress q rp rt ruby s samp section select slot small source "
    "span strike strong sub summary sup svg table tbody td template textarea tfoot th thead time title tr "
    "track tt u ul var video wbr"
)
_HTML = re.compile(
    rf"<!--|<(script|style)(?:\s[^<>]{{0,2000}})?>|</?(?:{'|'.join(_NAMES.split())})(?:\s[^<>]{{0,2000}})?/?>", re.I
)
_ENDS = {name: re.compile(rf"</{name}\s*>", re.I) for name in ("script", "style")}
_TICKS = re.compile(r"`+")
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+$")
_FILLER = "\ufffd"  # a Markdown parser reads it as text; it is neither letter nor white space


def find_tags(text: str, code: Sequence[Span] = ()) -> list[Span]:
    """Spans of tags, and of comments, scripts and styles with their contents, in order.

    Args:
        code: blocks of code in it, in order; tags that begin there or in inline code are text.
    """
    if "<" not in text or not _HTML.search(text):
        return []
    code = sorted([*code, *_inline_code(text)])
    starts = [start for start, _ in code]
    found, place, endless = [], 0, set()
    while match := _HTML.search(text, place):
        number = bisect_right(starts, match.start()) - 1
        if number >= 0 and match.start() < code[number][1]:
            place = code[number][1]
            continue
        kind = "comment" if match[0] == "<!--" else (match[1] or "").lower()
        end = match.end() if not kind else -1 if kind in endless else _end(text, kind, match.end())
        if end < 0:  # not searched for again
            endless.add(kind)
            place = match.end()
            continue
        found.append((match.start(), end))
        place = end
    return found


def without(text: str, spans: Sequence[Span], filler: str = " ") -> str:
    """The text with spans replaced by blanks of the same length; line ends stay."""
    parts, done = [], 0
    for start, end in spans:
        parts += [text[done:start], re.sub(r"[^\r\n]", filler, text[start:end])]
        done = end
    return "".join([*parts, text[done:]])


def masked(text: str, tags: Sequence[Span]) -> str:
    """The text for a Markdown parser, character for character: lines with only tags are blank.

    Other tags become a filler, because blanks at the beginning of a line would turn the rest into code.
    """
    lines = zip(*(_LINE.findall(without(text, tags, filler)) for filler in (" ", _FILLER)), strict=True)
    return "".join(empty if not empty.strip() else other for empty, other in lines)


def _end(text: str, kind: str, start: int) -> int:
    """The end of a comment, script or style; -1 if it has none."""
    if kind == "comment":
        found = text.find("-->", start)
        return found + 3 if found >= 0 else -1
    match = _ENDS[kind].search(text, start)
    return match.end() if match else -1


def _inline_code(text: str) -> Iterator[Span]:
    """Code between equal numbers of backticks in one paragraph, as CommonMark pairs them."""
    borders = [0, *(gap.end() for gap in BLANK_LINE.finditer(text)), len(text)]
    for first, last in pairwise(borders):
        runs = [match.span() for match in _TICKS.finditer(text, first, last)]
        following: dict[int, list[int]] = {}
        for number in range(len(runs) - 1, -1, -1):
            following.setdefault(runs[number][1] - runs[number][0], []).append(number)
        number = 0
        while number < len(runs):
            same = following[runs[number][1] - runs[number][0]]
            while same and same[-1] <= number:
                same.pop()
            if same:
                yield runs[number][0], runs[same[-1]][1]
                number = same[-1]
            number += 1
