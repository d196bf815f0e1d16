"""Passages of a search as HTML: place, score, the sentence that answers marked in its context, copies, notes."""

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlencode

from qrag_jax.index.options import Found
from qrag_jax.markup import Html, element, marked
from qrag_jax.page.frame import ANCHOR, DOCUMENT_PATH, place_text, spans_text
from qrag_jax.search.citations import Citation
from qrag_jax.types import Hit, NoteHit, Place, Sentence, Span, span_in_text

# (place, spans of its passage) -> where a click leads; None where there is nothing to show.
Link = Callable[[Place, Sequence[Span]], str | None]

_LONG = 1_500  # characters of a passage; a longer one is folded


def server_link(index: str | None) -> Link:
    """Links to the pages of the documents of an index: `/document?index=&id=&at=START-END&spans=START-END,...#hit`."""

    def link(place: Place, spans: Sequence[Span]) -> str:
        named = {} if index is None else {"index": index}
        query = named | {"id": place.document, "at": f"{place.start}-{place.end}", "spans": spans_text(spans)}
        # A lone surrogate of a file name becomes the byte that it stands for.
        return f"{DOCUMENT_PATH}?{urlencode(query, errors='surrogateescape')}#{ANCHOR}"

    return link


def linked(place: Place, spans: Sequence[Span], link: Link, **attributes: str) -> Html:
    """A place as a link to its document there, or as text."""
    target = link(place, spans)
    return place_text(place) if target is None else element("a", place_text(place), href=target, **attributes)


def hits_section(found: Found, link: Link, *, name: str = "", prefix: str = "") -> Html:
    """The passages that a search found.

    Args:
        found: of one index, by another method than a run.
        link: to documents.
        name: of the index, if there are several.
        prefix: of anchors, unlike those of other sections of the page.
    """
    if not found.hits:
        return nothing_found(found.num_chunks)
    count = f"{len(found.hits):,} of {found.num_chunks:,} passages"
    title = element("h2", *([element("bdi", name), ": "] if name else []), count)
    notes = element("p", _cut(found), class_="about") if found.num_chunks_cut else ""
    articles = (hit_article(hit, link, prefix) for hit in found.hits)
    return element("section", title, notes, *articles, class_="passages")


def nothing_found(num_chunks: int) -> Html:
    """What a page says if no passage shares a word with the question."""
    text = f"None of {num_chunks:,} passages shares a word with the question. Use words of the text."
    return element("section", element("p", text, class_="message"), class_="passages")


def hit_article(hit: Hit, link: Link, prefix: str = "") -> Html:
    """A passage that a search found."""
    head = element(
        "h3",
        element("span", f"{hit.rank}", class_="rank"),
        " ",
        linked(hit.sentence.place, hit.spans, link),
        element("span", f"score {hit.score:.3g}", class_="score"),
    )
    notes = [note_part(note, link) for note in hit.notes]
    return element(
        "article",
        head,
        *passage_text(hit.text, hit.spans, hit.sentence, hit.context),
        *[*copies_part(hit.copies, link), *left_out_part(hit.left_out), *notes],
        id=f"{prefix}passage-{hit.rank}",
    )


def citation_article(citation: Citation, link: Link, prefix: str = "") -> Html:
    """A numbered passage or note of an answer."""
    head = element(
        "h3",
        element("span", f"[{citation.number}]", class_="rank"),
        " ",
        linked(citation.sentence.place, citation.spans, link),
    )
    note = [element("p", element("strong", "note: "), citation.note, class_="note")] if citation.note else []
    return element(
        "article",
        head,
        *note,
        *passage_text(citation.text, citation.spans, citation.sentence, citation.context),
        *[*copies_part(citation.copies, link), *left_out_part(citation.left_out)],
        id=f"{prefix}passage-{citation.number}",
    )


def passage_text(text: str, spans: Sequence[Span], sentence: Sentence, context: str = "") -> list[Html]:
    """The text of a passage with its sentence marked, below its context; a long one is folded around the sentence."""
    span = span_in_text(spans, (sentence.place.start, sentence.place.end))
    whole = element("p", marked(text, [span] if span else []), class_="text")
    above = [element("p", element("span", "in: ", class_="label"), context, class_="context")] if context else []
    if len(text) <= _LONG:
        return [*above, whole]
    summary = element("summary", f"the whole passage, {len(text):,} characters")
    return [*above, element("p", element("mark", sentence.text), class_="text"), element("details", summary, whole)]


def note_part(note: NoteHit, link: Link) -> Html:
    """A note that led to a passage, with its source."""
    label = element("strong", f"note by {note.reader}, from ")
    source = linked(note.source, [(note.source.start, note.source.end)], link)
    return element("p", label, source, ": ", note.text, class_="note")


def copies_part(copies: Sequence[Place], link: Link) -> list[Html]:
    """The other places of a passage."""
    if not copies:
        return []
    places = [linked(place, [(place.start, place.end)], link) for place in dict.fromkeys(copies)]
    if len(places) == 1:
        return [element("p", "also in ", places[0], class_="about")]
    items = element("ul", *(element("li", place) for place in places))
    return [element("details", element("summary", f"also in {len(places):,} places"), items, class_="about")]


def left_out_part(left_out: Mapping[str, int]) -> list[Html]:
    """What the reader of the document left out of its text."""
    if not left_out:
        return []
    told = ", ".join(f"{kind}: {number:,}" for kind, number in left_out.items())
    return [element("p", f"left out of the text of this document: {told}", class_="about")]


def _cut(found: Found) -> str:
    return (
        f"{found.num_chunks_cut:,} of {found.num_chunks:,} passages are longer than the encoder reads; only their "
        "beginning was searched."
    )
