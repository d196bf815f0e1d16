"""Converts indexes, passages and chunks for the adapters of other libraries."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.text.chunks import chunk_id, chunk_text
from qrag_jax.index.index import open_index
from qrag_jax.index.methods import single_step_method
from qrag_jax.types import Document, Hit, Retriever, Span

_LEVEL = 1  # of chunks that belong to no tree, so their ids are those of the chunkers


class Piece(NamedTuple):
    """A chunk of a text.

    Attributes:
        id: of its place.
        text: of its span, or of several joined by line breaks.
        metadata: `start_index` and `end_index`, half-open characters of the text; `spans` if there are several.
    """

    id: str
    text: str
    metadata: dict[str, Any]


def open_retriever(index: Any) -> Retriever:
    """A retriever as it is; anything else as `open_index` opens it: paths, documents or a corpus."""
    return index if isinstance(index, Retriever) else open_index(index)


def hit_id(hit: Hit) -> str:
    """An id for the place of a passage; two places never share one, even if their texts are equal."""
    return chunk_id(hit.place.document, hit.spans, _LEVEL)


def hit_metadata(hit: Hit) -> dict[str, Any]:
    """The facts about a passage besides its text and its score, as JSON values; empty values are left out.

    `source`, `start_index`, `end_index`, `line` and `page` tell where the passage is: its document, half-open
    characters of the text of the document, and the line and page of its beginning, both from 1. `sentence` is the
    sentence that answers best, `place` its place for people. `spans`, `context`, `notes`, `copies` and `left_out` are
    those of `Hit`; `spans` only if there are several.
    """
    known = {
        **_place_metadata(hit.spans),
        "source": hit.place.document,
        "line": hit.place.line,
        "page": hit.place.page,
        "place": str(hit.sentence.place),
        "sentence": hit.sentence.text,
        "context": hit.context,
        "notes": [note.text for note in hit.notes],
        "copies": [str(place) for place in hit.copies],
        "left_out": dict(hit.left_out),
    }
    return {name: value for name, value in known.items() if value not in (None, "", [], {})}


def make_cut(chunking: ChunkConfig, encoder: str) -> Callable[[str, str], list[Piece]]:
    """Makes a function (id of a document, its text) -> its chunks. A blank text has none. Threads may share it.

    Args:
        chunking: how to cut.
        encoder: counts tokens; its weights are loaded only if the strategy compares vectors.
    """
    cut, turn = single_step_method("bm25", encoder, chunking).chunk, threading.Lock()

    def pieces(name: str, text: str) -> list[Piece]:
        with turn:  # a chunker remembers counts of one document at a time
            chunks = cut(Document(name, text)) if text.strip() else []
        return [Piece(one.id, chunk_text(text, one.spans), _place_metadata(one.spans)) for one in chunks]

    return pieces


def _place_metadata(spans: tuple[Span, ...]) -> dict[str, Any]:
    whole = {"start_index": spans[0][0], "end_index": spans[-1][1]}
    return whole if len(spans) == 1 else {**whole, "spans": [list(span) for span in spans]}
