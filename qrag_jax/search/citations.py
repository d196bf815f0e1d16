"""Citations `[1]` in an answer: the passages or notes that they name, checked against the documents.

A citation shows that the passage exists, not that it supports the answer.

Not every bracket cites: `array[0]` and `[2019]` are text. A bracket cites if each of its numbers could be that of a
passage: from 1 up to 99, or up to ten times the number of passages if that is more.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.documents.read import left_out
from qrag_jax.search.context.pack import Context, Passage
from qrag_jax.search.corpus import check_place
from qrag_jax.search.note_texts import GivenNote, check_given
from qrag_jax.search.sentences import copy_places, make_sentence, score_sentences
from qrag_jax.types import Document, InputError, Place, Sentence, Span

_NUMBER = r"\d{1,6}+(?!\d)"  # in digits of any script; longer ones are not numbers of passages
_DASH = r"\s*+[-\u2010-\u2015\u2212\uff0d~\uff5e\u301c]\s*+"
_WORD = (
    r"(?:(?:passages?|documents?|docs?|sources?|references?|refs?|citations?|excerpts?|contexts?|chunks?|quellen?"
    r"|dokumente?|fuentes?|documentos?|fontes?|\u6bb5\u843d|\u6587\u6863|\u6587\u732e|\u8d44\u6599|\u6765\u6e90"
    r"|\u51fa\u5178|\u6587\u66f8|\ucd9c\ucc98|\ubb38\uc11c)[\s_:.#-]{0,3}+|[\^#])"
)
_PART = rf"{_WORD}?{_NUMBER}(?:{_DASH}{_NUMBER})?+"
_AND = r"\s*+(?:[,;&\u3001\uff0c\uff1b\u060c]|and\b|und\b)\s*+"
_OPENING, _CLOSING = r"\[\u3010\uff3b\u3014\u3016\u27e6\u301a", r"\]\u3011\uff3d\u3015\u3017\u27e7\u301b"
# [1], [1, 3], [2-4], [^1], [Passage 1], and in brackets of other scripts, with a source behind a dagger
_CITATION = re.compile(
    rf"[{_OPENING}]\s*+({_PART}(?:{_AND}{_PART})*+)\s*+(?:\u2020[^{_OPENING}{_CLOSING}\n]{{0,99}}+)?[{_CLOSING}]",
    re.IGNORECASE,
)
_RANGE = re.compile(rf"({_NUMBER})(?:{_DASH}({_NUMBER}))?")
_LONGEST_RANGE = 100
_MAX_MEANT, _TIMES_MEANT = 99, 10
_MAX_STATEMENT = 500  # characters of an answer that are looked at before and after a bracket
_END = re.compile(r"[.!?\n]")


@dataclass(frozen=True)
class Citation:
    """A passage that an answer cites, or the evidence of a note.

    Attributes:
        number: as the answer cites it.
        document_id: of its document.
        spans: half-open character offsets into the document's text, checked.
        text: of the passage, or of the note's evidence.
        sentence: the one of the passage that says what is cited, with its own place; of a note, its evidence.
        note: the text of the note; None for a passage.
        copies: where else the same text stands, as in `Hit`.
        left_out: what the reader of the document left out of its text: kind -> number.
        context: that the model was given above the passage; mostly empty.
    """

    number: int
    document_id: str
    spans: tuple[Span, ...]
    text: str
    sentence: Sentence
    note: str | None = None
    copies: tuple[Place, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    context: str = ""

    @property
    def line(self) -> int:
        """The 1-based line on which the sentence begins."""
        return self.sentence.place.line

    @property
    def page(self) -> int | None:
        """The 1-based page on which the sentence begins; None if the document has no pages."""
        return self.sentence.place.page

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


def cite(answer: str, context: Context, documents: Mapping[str, Document], question: str = "") -> Cited:
    """Finds the citations of an answer and checks that each one exists.

    Args:
        answer: of a model; `[1]`, `[1, 3]`, `[1][3]` and `[2-4]` cite, as `[^1]`, `[Passage 1]` and brackets and
            digits of other scripts do; `(1)`, `[0]` and `[2019]` mostly do not (see the module).
        context: that the model was given.
        documents: by id; at least those of its passages.
        question: that was answered; it chooses the sentence of a passage where the words of the answer do not.

    Raises:
        InputError: the document has other text at the place of a passage or note.
    """
    known: dict[int, Passage | GivenNote] = {one.number: one for one in (*context.passages, *context.notes)}
    highest = max(_MAX_MEANT, _TIMES_MEANT * len(known))
    statements: dict[int, str] = {}
    for match, numbers in _mentions(answer):
        if all(1 <= number <= highest for number in numbers):
            for number in numbers:
                statements.setdefault(number, _statement(answer, match))
    found = (
        cite_note(one, documents)
        if isinstance(one, GivenNote)
        else make_citation(one, documents, statements[one.number], question)
        for one in (known[number] for number in statements if number in known)
    )
    return Cited(tuple(found), tuple(number for number in statements if number not in known))


def _statement(answer: str, match: re.Match[str]) -> str:
    """The sentence of an answer that a bracket belongs to: the one around it, or before it if that has ended."""
    before = _CITATION.sub("", answer[max(0, match.start() - _MAX_STATEMENT) : match.start()]).rstrip()
    spans = split_sentences(before)
    last = before[slice(*spans[-1])] if spans else ""
    after = answer[match.end() : match.end() + _MAX_STATEMENT]
    return last if last.endswith((".", "!", "?")) else last + _END.split(after, maxsplit=1)[0]


def make_citation(passage: Passage, documents: Mapping[str, Document], *asked: str) -> Citation:
    """The citation of a passage; checks its text against the document.

    Args:
        documents: of the passage and its copies, by id.
        asked: texts whose words choose the sentence; each later one chooses among equal ones.
    """
    document = documents.get(passage.document_id)
    check_place(document, passage.document_id, passage.spans)
    assert document is not None
    if chunk_text(document.text, passage.spans) != passage.text:
        raise InputError(
            f"{document.id}: passage at {list(passage.spans)}: the document has other text there; search again"
        )
    scores = [score_sentences(text, [passage], documents)[0] for text in (*asked, "")]
    span = max(scores[0], key=lambda span: [some[span] for some in scores])
    sentence = make_sentence(document, span, scores[0][span])
    return Citation(
        passage.number,
        document.id,
        passage.spans,
        passage.text,
        sentence,
        copies=copy_places(passage.copies, documents, sentence),
        left_out=left_out(document),
        context=passage.context,
    )


def cite_note(given: GivenNote, documents: Mapping[str, Document]) -> Citation:
    """The citation of a note: its sentence, or the evidence that it was read from."""
    text = check_given(given, documents)
    document_id, span = given.place
    document = documents[document_id]
    sentence, missing = make_sentence(document, span), left_out(document)
    return Citation(given.number, document_id, (span,), text, sentence, given.note.text, left_out=missing)


def render(answer: str, cited: Cited, name: Callable[[Citation], str] = lambda citation: citation.place) -> str:
    """The answer with the place of each number, `[1 a.txt:120-164]`; a made-up one becomes `[7: no such passage]`.

    Brackets that do not cite stay unchanged.
    """
    names = {citation.number: f"[{citation.number} {name(citation)}]" for citation in cited.citations}

    def shown(part: str | tuple[int, ...]) -> str:
        if isinstance(part, str):
            return part
        return "".join(names.get(number, f"[{number}: no such passage]") for number in part)

    return "".join(map(shown, split_answer(answer, cited)))


def split_answer(answer: str, cited: Cited) -> Iterator[str | tuple[int, ...]]:
    """The parts of an answer in order: its text, and the numbers of each bracket that cites, made-up ones included."""
    listed = {citation.number for citation in cited.citations} | set(cited.unknown)
    done = 0
    for match, numbers in _mentions(answer):
        if not listed.issuperset(numbers):
            continue  # text, not a citation
        yield answer[done : match.start()]
        yield tuple(dict.fromkeys(numbers))
        done = match.end()
    yield answer[done:]


def _mentions(answer: str) -> Iterator[tuple[re.Match[str], list[int]]]:
    """Every bracket with numbers that may cite, and the numbers."""
    for match in _CITATION.finditer(answer):
        numbers: list[int] = []
        for first, last in _RANGE.findall(match[1]):
            low, high = int(first), int(last or first)
            whole = low <= high < low + _LONGEST_RANGE
            numbers += range(low, high + 1) if whole else [low, high]
        yield match, numbers
