"""Citations `[1]` in an answer: the passages or notes that they name, checked against the documents.

A citation shows that the passage exists, not that it supports the answer.

Not every bracket cites: `array[0]` and `[2019]` are text. A bracket cites if each of its numbers could be that of a
passage: from 1 up to 99, or up to ten times the number of passages if that is more.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.documents.read import page_of
from qrag_jax.search.context.pack import Context, Passage, line_of
from qrag_jax.search.corpus import check_place
from qrag_jax.search.note_texts import GivenNote, check_given
from qrag_jax.types import Document, InputError, Span

_NUMBER = r"\d{1,6}"  # longer ones are not numbers of passages
_PART = rf"{_NUMBER}(?:\s*[-\u2013]\s*{_NUMBER})?"
# [1], [1, 3], [2-4]
_CITATION = re.compile(rf"\[\s*({_PART}(?:\s*[,;]\s*{_PART})*)\s*\]", re.ASCII)
_RANGE = re.compile(rf"({_NUMBER})(?:\s*[-\u2013]\s*({_NUMBER}))?", re.ASCII)
_LONGEST_RANGE = 100
_MAX_MEANT, _TIMES_MEANT = 99, 10


@dataclass(frozen=True)
class Citation:
    """A passage that an answer cites, or the evidence of a note.

    Attributes:
        number: as the answer cites it.
        document_id: of its document.
        spans: half-open character offsets into the document's text, checked.
        line: the 1-based line on which it begins.
        text: of the passage, or of the note's evidence.
        page: the 1-based page on which it begins; None if the document has no pages.
        note: the text of the note; None for a passage.
    """

    number: int
    document_id: str
    spans: tuple[Span, ...]
    line: int
    text: str
    page: int | None = None
    note: str | None = None

    @property
    def place(self) -> str:
        """`file:start-end`; `file:0-9,20-31` for two spans."""
        return f"{self.document_id}:{','.join(f'{start}-{end}' for start, end in self.spans)}"


@dataclass(frozen=True)
class Cited:
    """The citations of an answer.

    Attributes:
        citations: existing passages and notes, in the order in which the answer first names them.
        unknown: made-up numbers, in the same order: they look like citations (see the module), but nothing has them.
    """

    citations: tuple[Citation, ...]
    unknown: tuple[int, ...]


def cite(answer: str, context: Context, documents: Sequence[Document]) -> Cited:
    """Finds the citations of an answer and checks that each one exists.

    Args:
        answer: of a model; `[1]`, `[1, 3]`, `[1][3]` and `[2-4]` cite, `[0]` and `[2019]` mostly do not (see the
            module).
        context: that the model was given.
        documents: of its passages.

    Raises:
        InputError: the document has other text at the place of a passage or note.
    """
    known: dict[int, Passage | GivenNote] = {one.number: one for one in (*context.passages, *context.notes)}
    by_id = {document.id: document for document in documents}
    highest = max(_MAX_MEANT, _TIMES_MEANT * len(known))
    cites = (numbers for _, numbers in _mentions(answer) if all(1 <= number <= highest for number in numbers))
    numbers = list(dict.fromkeys(number for some in cites for number in some))
    found = (
        cite_note(one, by_id) if isinstance(one, GivenNote) else make_citation(one, by_id.get(one.document_id))
        for one in (known[number] for number in numbers if number in known)
    )
    return Cited(tuple(found), tuple(number for number in numbers if number not in known))


def make_citation(passage: Passage, document: Document | None) -> Citation:
    """The citation of a passage; checks its text against the document."""
    check_place(document, passage.document_id, passage.spans)
    assert document is not None
    if chunk_text(document.text, passage.spans) != passage.text:
        raise InputError(
            f"{document.id}: passage at {list(passage.spans)}: the document has other text there; search again"
        )
    start = passage.spans[0][0]
    line, page = line_of(document.text, start), page_of(document, start)
    return Citation(passage.number, passage.document_id, passage.spans, line, passage.text, page)


def cite_note(given: GivenNote, documents: Mapping[str, Document]) -> Citation:
    """The citation of a note: its sentence, or the evidence that it was read from."""
    text = check_given(given, documents)
    document_id, span = given.place
    document = documents[document_id]
    line, page = line_of(document.text, span[0]), page_of(document, span[0])
    return Citation(given.number, document_id, (span,), line, text, page, given.note.text)


def render(answer: str, cited: Cited, name: Callable[[Citation], str] = lambda citation: citation.place) -> str:
    """The answer with the place of each number, `[1 a.txt:120-164]`; a made-up one becomes `[7: no such passage]`.

    Brackets that do not cite stay unchanged.
    """
    names = {citation.number: f"[{citation.number} {name(citation)}]" for citation in cited.citations}
    listed = names.keys() | set(cited.unknown)
    parts, done = [], 0
    for match, numbers in _mentions(answer):
        if not listed.issuperset(numbers):
            continue  # text, not a citation
        parts.append(answer[done : match.start()])
        parts += [names.get(number, f"[{number}: no such passage]") for number in dict.fromkeys(numbers)]
        done = match.end()
    return "".join([*parts, answer[done:]])


def _mentions(answer: str) -> Iterator[tuple[re.Match[str], list[int]]]:
    """Every bracket with numbers that may cite, and the numbers."""
    for match in _CITATION.finditer(answer):
        numbers: list[int] = []
        for first, last in _RANGE.findall(match[1]):
            low, high = int(first), int(last or first)
            whole = low <= high < low + _LONGEST_RANGE
            numbers += range(low, high + 1) if whole else [low, high]
        yield match, numbers
