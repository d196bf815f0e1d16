"""One file with questions, what was found for them, and the documents, so that each link leads to its place."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from qrag_jax.documents.converted import several
from qrag_jax.index.options import Found
from qrag_jax.markup import Html, element, join
from qrag_jax.page.answers import answer_section, passages_section
from qrag_jax.page.documents import document_lines, make_marks, parts_around
from qrag_jax.page.frame import begin, end
from qrag_jax.page.passages import View
from qrag_jax.page.steps import found_section
from qrag_jax.search.answer import Answer
from qrag_jax.types import Document, Place, Span

_MAX_QUESTIONS = 5_000_000  # characters of HTML of all questions
_MAX_DOCUMENTS = 3_000_000  # characters of all documents
_WIDTHS = (1 << 60, 20_000, 2_000)  # characters around a passage, the most that fit


def trace_page(results: Sequence[Found | Answer], document: Callable[[str], Document], title: str = "qrag") -> str:
    """A page that needs no other file: each question with what was found, then the documents of the passages.

    Its own policy allows no script, no request and no style but its own. What does not fit is left out, and the page
    says so: the rest of the questions, and text of documents far from the passages.

    Args:
        results: of the questions, in their order.
        document: id -> a document that was searched (`Index.document`).
        title: of the page.
    """
    documents = _Documents(results, document)
    sections, size = [], 0
    for number, result in enumerate(results, start=1):
        section = _question(result, number, documents)
        size += len(section)
        if size > _MAX_QUESTIONS and sections:
            break
        sections.append(section)
    left = len(results) - len(sections)
    return join(
        [
            begin(title, element("h1", title), own_style=True),
            *_contents(results[: len(sections)]),
            *sections,
            *_left_out(left, "question"),
            *documents.sections(),
            end(),
        ]
    )


def _left_out(number: int, what: str) -> Iterator[Html]:
    if number:
        told = f"Left out, because this file would be too large: {several(number, what)}."
        yield element("p", told, class_="message")


def _contents(results: Sequence[Found | Answer]) -> Iterator[Html]:
    """Links to the questions, if there are several."""
    if len(results) > 1:
        links = (element("a", one.question, href=f"#q{number}") for number, one in enumerate(results, start=1))
        items = element("ol", *(element("li", link) for link in links))
        yield element(
            "nav", element("details", element("summary", f"{len(results):,} questions"), items), aria_label="Questions"
        )


def _question(result: Found | Answer, number: int, documents: "_Documents") -> Html:
    """A question, and the answer, passages or steps below it."""
    view = View(documents.link, level=3, prefix=f"q{number}-")
    question = element("h2", result.question, id=f"q{number}", class_="question", dir="auto")
    if isinstance(result, Found):
        return join([question, found_section(result, view)])
    answer = answer_section(result, view) if result.given and result.model is not None else ""
    return join([question, answer, passages_section(result, view)])


class _Documents:
    """The documents of passages, as far as they are shown, and the places that links lead to."""

    def __init__(self, results: Iterable[Found | Answer], document: Callable[[str], Document]) -> None:
        places: defaultdict[str, list[Span]] = defaultdict(list)
        for place in (place for result in results for place in _places(result)):
            places[place.document].append((place.start, place.end))
        self._documents = {name: document(name) for name in places}
        self._parts = _fitting({name: (self._documents[name].text, spans) for name, spans in places.items()})
        self._numbers = {name: number for number, name in enumerate(places, start=1)}
        self._passages: defaultdict[str, list[Span]] = defaultdict(list)
        self._sentences: defaultdict[str, list[Span]] = defaultdict(list)

    def link(self, place: Place, spans: Sequence[Span]) -> str | None:
        """The place in its document below, which is marked there; None if it is not shown."""
        name = place.document
        if not any(start <= place.start < end for start, end in self._parts.get(name, ())):
            return None
        self._passages[name] += spans
        self._sentences[name].append((place.start, place.end))
        return f"#{self._anchor(name, place.start)}"

    def sections(self) -> Iterator[Html]:
        """The documents that links lead to."""
        for name, sentences in self._sentences.items():
            number, document = self._numbers[name], self._documents[name]
            ids = {start: self._anchor(name, start) for start, _ in sentences}
            lines = document_lines(
                document, self._parts[name], make_marks(self._passages[name], sentences, ids), f"doc-{number}-"
            )
            title = element("h2", element("bdi", name, class_="name"), id=f"doc-{number}")
            yield element("section", title, *lines, class_="document")
        yield from _left_out(len(self._documents) - len(self._parts), "document")

    def _anchor(self, name: str, start: int) -> str:
        return f"doc-{self._numbers[name]}-at-{start}"


def _places(result: Found | Answer) -> Iterator[Place]:
    """The sentences of the passages of a result."""
    for one in result.hits if isinstance(result, Found) else (*result.given, *result.given_notes):
        yield one.sentence.place


def _fitting(places: dict[str, tuple[str, list[Span]]]) -> dict[str, list[Span]]:
    """The parts of documents that are shown: all, or as much around the passages as fits, the first documents first."""
    parts: dict[str, list[Span]] = {}
    for width in _WIDTHS:
        parts = {name: parts_around(text, spans, width) for name, (text, spans) in places.items()}
        if sum(end - start for some in parts.values() for start, end in some) <= _MAX_DOCUMENTS:
            return parts
    left, shown = _MAX_DOCUMENTS, {}
    for name, some in parts.items():
        left -= sum(end - start for start, end in some)
        if left >= 0:
            shown[name] = some
    return shown
