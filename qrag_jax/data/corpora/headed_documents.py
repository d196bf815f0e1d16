"""Headed documents: texts whose sections are known, read with the headings, with plain lines for them, or without."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.text.spans import join_pieces
from qrag_jax.chunking.tree.boundaries import Point
from qrag_jax.data.corpora.section_readers import (
    Heading,
    Passage,
    Sectioned,
    read_markdown,
    read_scisumm,
    read_wikitext2,
)
from qrag_jax.names import VIEWS, View
from qrag_jax.types import InputError, Span, UsageError

_SOURCES: dict[str, Callable[[str], Iterator[Sectioned]]] = {"scisumm": read_scisumm, "wikitext2": read_wikitext2}
_MAX_NAMED = 3


@dataclass(frozen=True)
class HeadedDocument:
    """A view of a document and the sections that it really has.

    Attributes:
        id: path, id or title in its source; articles may share a title.
        text: of the view; its units are sentences, and each visible heading is a unit.
        points: (unit that begins a section, level from 1), ascending, one a unit. With headings removed that is the
            first unit of the section's text; of several headings at one place the least level counts.
        paths: for each point the titles from the outermost section around it to its own.
    """

    id: str
    text: SentenceText
    points: tuple[Point, ...]
    paths: tuple[tuple[str, ...], ...]


def read_headed(source: str | Sequence[str], view: View = "removed", *, strict: bool = False) -> list[HeadedDocument]:
    """Reads documents with sections.

    The views: `kept` has headings with their marks, as Markdown; `plain` only the words, on a separate line;
    `removed` neither headings nor the document's title nor rules and anchors.

    No gap reveals a removed heading: all pieces are separated by a blank line. In a document without two paragraphs
    in any section (all of `scisumm`), such a gap would reveal the heading, so with headings removed it is one space.

    Args:
        source: `scisumm:PATH` or `wikitext2:PATH`, or a Markdown file or a folder of such; several are read together.
        view: how headings are shown.
        strict: refuse a document without a section, and one that is there twice; else such are left out, with a warning
            that counts them. A copy would count twice, and be known to a tagger from which it is held out.
    """
    if view not in VIEWS:
        raise UsageError(f"view {view!r}: choose one of {', '.join(VIEWS)}")
    known: dict[tuple[SentenceText, tuple[Point, ...]], str] = {}
    return [
        document
        for one in ([source] if isinstance(source, str) else source)
        for document in _read_source(one, view, known, strict=strict)
    ]


def _read_source(
    source: str, view: View, known: dict[tuple[SentenceText, tuple[Point, ...]], str], *, strict: bool
) -> list[HeadedDocument]:
    """The documents of one source but those that are `known`; it learns the ids of all others."""
    kind, path = split_source(source)
    read = read_markdown(path) if kind is None else _SOURCES[kind](path)
    documents, bare, copies = [], list[str](), list[str]()
    for sectioned in read:
        found = view_of(sectioned, "removed")  # what it has then decides, so that all views are of the same documents
        if found is None or not found.points:
            if strict:
                raise InputError(f"{sectioned.id}: no heading with text under it: leave this document out")
            bare.append(sectioned.id)
            continue
        if (key := (found.text, found.points)) in known:
            if strict:
                raise InputError(f"{sectioned.id}: the same document as {known[key]}: leave one of them out")
            copies.append(f"{sectioned.id} (as {known[key]})")
            continue
        known[key] = sectioned.id
        document = found if view == "removed" else view_of(sectioned, view)
        documents += [] if document is None else [document]
    if not documents and not copies:
        raise InputError(f"{source}: none of {len(bare)} documents has a heading with text under it")
    _warn_left_out(source, bare, "without a section")
    _warn_left_out(source, copies, "that repeat another one")
    return documents


def _warn_left_out(source: str, names: Sequence[str], why: str) -> None:
    if names:
        named = ", ".join(names[:_MAX_NAMED]) + (", ..." if len(names) > _MAX_NAMED else "")
        warnings.warn(f"{source}: {len(names)} documents {why} are left out: {named}", stacklevel=4)


def split_source(source: str) -> tuple[str | None, str]:
    """(kind, path) of a source of `read_headed`; None is Markdown."""
    kind, colon, path = source.partition(":")
    return (kind, path) if colon and kind in _SOURCES else (None, source)


@dataclass(frozen=True)
class _Piece:
    """The text between two gaps."""

    text: str
    units: tuple[Span, ...]


def view_of(document: Sectioned, view: View) -> HeadedDocument | None:
    """One view of a document; None where nothing is left of it."""
    pieces: list[_Piece] = []
    num_units = 0
    gold: dict[int, tuple[int, tuple[str, ...]]] = {}  # unit -> level, titles
    path: list[str] = []
    for part in document.parts:
        if isinstance(part, Heading):
            if part.level:
                path = [*path[: part.level - 1], part.title]
                if num_units not in gold or part.level <= gold[num_units][0]:
                    gold[num_units] = part.level, tuple(path)
            words = part.written if view == "kept" else part.title if view == "plain" else ""
            piece = _Piece(words, ((0, len(words)),)) if words else None
        else:
            piece = None if view == "removed" and part.is_mark else _Piece(part.text, part.units)
        if piece is not None:
            pieces.append(piece)
            num_units += len(piece.units)
    if not pieces:
        return None
    gap = "\n\n" if view != "removed" or _has_paragraphs(document) else " "
    text, places = join_pieces([piece.text for piece in pieces], gap)
    spans = zip(pieces, places, strict=True)
    units = tuple((at + start, at + end) for piece, (at, _) in spans for start, end in piece.units)
    kept = [(unit, *found) for unit, found in gold.items() if unit < num_units]
    points = tuple((unit, level) for unit, level, _ in kept)
    return HeadedDocument(document.id, SentenceText(text, units), points, tuple(titles for *_, titles in kept))


def _has_paragraphs(document: Sectioned) -> bool:
    """True if a section has two passages, so a gap between passages does not always mean a heading."""
    run = 0
    for part in document.parts:
        if isinstance(part, Passage):
            run += not part.is_mark
        else:
            run = 0
        if run > 1:
            return True
    return False
