"""A document as HTML: numbered lines and pages, with passages and sentences marked, in time linear in what is shown."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from qrag_jax.chunking.text.spans import merge_spans
from qrag_jax.documents.read import page_label_of, page_of
from qrag_jax.markup import Html, element, join, pieces, start_tag
from qrag_jax.types import Document, Span

_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Marks:
    """The marked characters of a document. Made by `make_marks`.

    Attributes:
        passages: spans to tint, ordered and apart.
        sentences: spans to mark, ordered and apart.
        ids: first character of a marked sentence -> its id.
    """

    passages: Sequence[Span]
    sentences: Sequence[Span]
    ids: Mapping[int, str]


def make_marks(passages: Iterable[Span], sentences: Iterable[Span], ids: Mapping[int, str]) -> Marks:
    """The marks of a document; a sentence is cut where another one with an id begins."""
    cuts = sorted(ids)
    cut = []
    for start, end in merge_spans(sentences):
        inner = cuts[bisect_right(cuts, start) : bisect_left(cuts, end)]
        cut += list(pairwise([start, *inner, end]))
    return Marks(merge_spans(passages), cut, ids)


def parts_around(text: str, spans: Iterable[Span], width: int) -> list[Span]:
    """The text within `width` characters of spans, up to the ends of lines where these are near."""
    parts = []
    for start, end in spans:
        first, last = max(0, start - width), min(len(text), end + width)
        before = text.find("\n", first, start) + 1 if first else 0
        after = text.rfind("\n", end, last) + 1 if last < len(text) else 0
        parts.append((before or first, after or last))
    return merge_spans(parts)


def document_lines(document: Document, parts: Sequence[Span], marks: Marks, prefix: str = "") -> Iterator[Html]:
    """The lines of parts of a document, with the number of characters between them that are not shown.

    Args:
        document: from an index.
        parts: to show; half-open characters, ordered and apart.
        marks: in the document.
        prefix: of the ids of lines and pages.
    """
    text, done, line = document.text, 0, 1
    starts = sorted(set(cast(Sequence[int], document.metadata.get("pages") or ())))
    for start, stop in [*parts, (len(text), len(text))]:
        if done < start:
            yield element("p", f"{start - done:,} characters are not shown here.", class_="message")
        line += sum(1 for _ in _LINE_END.finditer(text, done, start))
        borders = [start, *starts[bisect_right(starts, start) : bisect_left(starts, stop)], stop]
        for begin, end in pairwise(borders) if start < stop else ():
            yield from _page_head(document, begin, prefix, is_whole=begin in starts) if starts else ()
            yield start_tag("ol", start=line, class_="lines")
            for first, last in _lines(text, begin, end):
                is_whole = first == 0 or text[first - 1] in "\r\n"
                inside = _marked(text, (first, last), marks)
                yield join([element("li", inside, id=f"{prefix}line={line}" if is_whole else None), "\n"])
                line += _LINE_END.match(text, last) is not None
            yield Html("</ol>\n")
        done = stop


def _lines(text: str, start: int, stop: int) -> Iterator[Span]:
    for found in _LINE_END.finditer(text, start, stop):
        yield start, found.start()
        start = found.end()
    if start < stop:
        yield start, stop


def _page_head(document: Document, start: int, prefix: str, *, is_whole: bool) -> Iterator[Html]:
    page = page_of(document, start)
    label = page_label_of(document, page)
    title = f"Page {page}{f' ({label})' if label else ''}{'' if is_whole else ', continued'}"
    yield element("h2", title, id=f"{prefix}page={page}", class_="page")


def _marked(text: str, line: Span, marks: Marks) -> Html:
    found = []
    for start, stop, is_passage in pieces(line, _near(marks.passages, line)):
        inside = join(
            element("mark", text[a:b], id=marks.ids.get(a)) if is_sentence else text[a:b]
            for a, b, is_sentence in pieces((start, stop), _near(marks.sentences, (start, stop)))
        )
        found.append(element("span", inside, class_="passage") if is_passage else inside)
    return join(found)


def _near(spans: Sequence[Span], around: Span) -> Sequence[Span]:
    """Those of ordered spans that overlap another one."""
    first = bisect_right(spans, around[0], key=lambda span: span[1])
    last = bisect_left(spans, around[1], key=lambda span: span[0])
    return spans[first:last]
