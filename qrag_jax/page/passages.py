"""Passages of a search as HTML: place, score, the sentence that answers marked in its context, copies, notes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from qrag_jax.documents.converted import counted
from qrag_jax.index.options import Found
from qrag_jax.markup import Html, element, join
from qrag_jax.page.frame import ANCHOR, DOCUMENT_PATH, spans_text
from qrag_jax.search.citations import Citation
from qrag_jax.types import Hit, NoteHit, Place, Span, marked_passage

_LONG = 1_500  # characters of a passage; a longer one is folded


@dataclass(frozen=True)
class View:
    """How a section is shown.

    Attributes:
        link: (place, spans of its passage) -> where a click leads; None where there is nothing to show.
        title: of the section; None is what is in it.
        level: of the title; the headings of passages are one below.
        prefix: of ids, unlike that of other sections of the page.
    """

    link: Callable[[Place, Sequence[Span]], str | None]
    title: str | None = None
    level: int = 2
    prefix: str = ""

    def head(self, *inside: str) -> Html:
        """The heading of a passage."""
        return element(f"h{self.level + 1}", *inside)

    def section(self, *inside: str, kind: str = "passages", title: str = "Passages") -> Html:
        """A section with its title, which `self.title` replaces."""
        return element("section", element(f"h{self.level}", self.title or title), *inside, class_=kind)

    def linked(self, place: Place, spans: Sequence[Span] = ()) -> Html:
        """A place as a link to its document there, or as text."""
        target = self.link(place, spans or [(place.start, place.end)])
        return place_text(place) if target is None else element("a", place_text(place), href=target)


def server_view(index: str | None, title: str | None = None, prefix: str = "") -> View:
    """A view whose links lead to the documents of an index."""

    def link(place: Place, spans: Sequence[Span]) -> str:
        return f"{document_address(index, place.document, (place.start, place.end), spans)}#{ANCHOR}"

    return View(link, title, prefix=prefix)


def document_address(index: str | None, document: str, at: Span, spans: Sequence[Span] = ()) -> str:
    """The address of a document: `/document?index=NAME&id=ID&at=START-END&spans=START-END,...`.

    Args:
        at: the characters to show, such as a sentence.
        spans: of its passage.
    """
    query = {"index": index, "id": document, "at": spans_text([at]), "spans": spans_text(spans)}
    given = {key: value for key, value in query.items() if value}
    return f"{DOCUMENT_PATH}?{urlencode(given, errors='surrogatepass')}"


def place_text(place: Place) -> Html:
    """A place as text: the name of the document, and its page or line."""
    if place.page is not None:
        where = f"page {place.page:,}{f' ({place.page_label})' if place.page_label else ''}"
    else:
        where = f"line {place.line:,}{'' if place.converted is None else ' of the text'}"
    return join([element("bdi", place.document, class_="name"), ", ", where])


def hits_section(found: Found, view: View) -> Html:
    """The passages that a search found."""
    if not found.hits:
        return nothing_found(found.num_chunks, view)
    count = f"{len(found.hits):,} of {found.num_chunks:,}, by {found.retriever}."
    about = element("p", count, *_cut(found), class_="about")
    return view.section(about, *(hit_article(hit, view) for hit in found.hits))


def nothing_found(num_chunks: int, view: View) -> Html:
    """A sentence for a page without passages: none shares a word with the question."""
    text = f"None of {num_chunks:,} passages shares a word with the question. Use words of the text."
    return view.section(element("p", text, class_="message"))


def hit_article(hit: Hit, view: View, *more: str, label: str = "", score: str = "") -> Html:
    """A passage that a search found.

    Args:
        more: shown below it.
        label, score: instead of its rank and score.
    """
    rank = element("span", label or str(hit.rank), class_="rank")
    told = element("span", score or f"score {hit.score:.3g}", class_="score")
    head = view.head(rank, " ", view.linked(hit.sentence.place, hit.spans), " ", told)
    notes = [note_part(note, view) for note in hit.notes]
    return element("article", head, *passage_parts(hit, view), *notes, *more, id=f"{view.prefix}passage-{hit.rank}")


def citation_article(citation: Citation, view: View) -> Html:
    """A numbered passage or note of an answer."""
    place = view.linked(citation.sentence.place, citation.spans)
    head = view.head(element("span", f"[{citation.number}]", class_="rank"), " ", place)
    note = [element("p", element("strong", "note: "), citation.note, class_="note")] if citation.note else []
    name = f"{view.prefix}passage-{citation.number}"
    return element("article", head, *note, *passage_parts(citation, view), id=name)


def passage_parts(one: Hit | Citation, view: View) -> Iterator[Html]:
    """The context of a passage, its text with the sentence marked, its copies, and what its document left out.

    A long text is folded below its sentence.
    """
    if one.context:
        yield element("p", "in: ", one.context, class_="context")
    whole = element("p", marked_passage(one.text, one.spans, one.sentence), class_="text")
    if len(one.text) > _LONG:
        yield element("p", element("mark", one.sentence.text), class_="text")
        whole = element("details", element("summary", f"the whole passage, {len(one.text):,} characters"), whole)
    yield whole
    yield from _copies(one.copies, view)
    yield from _left_out(one.left_out)


def note_part(note: NoteHit, view: View) -> Html:
    """A note that led to a passage, with its source."""
    label = element("strong", f"note by {note.reader}, from ")
    return element("p", label, view.linked(note.source), ": ", note.text, class_="note")


def _copies(copies: Sequence[Place], view: View) -> Iterator[Html]:
    places = [view.linked(place) for place in dict.fromkeys(copies)]
    if len(places) == 1:
        yield element("p", "also in ", places[0], class_="about")
    elif places:
        items = element("ul", *(element("li", place) for place in places))
        yield element("details", element("summary", f"also in {len(places):,} places"), items, class_="about")


def _left_out(left_out: Mapping[str, int]) -> Iterator[Html]:
    if left_out:
        yield element("p", f"left out of the text of this document: {counted(left_out)}", class_="about")


def _cut(found: Found) -> Iterator[str]:
    if found.num_chunks_cut:
        yield (
            f" {found.num_chunks_cut:,} of {found.num_chunks:,} passages are longer than the encoder reads; only their "
            "beginning was searched."
        )
