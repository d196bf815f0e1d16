"""Notes that stand behind a passage in a prompt: in a fence of their own, each with the place that it comes from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qrag_jax.chunking.text.spans import readable
from qrag_jax.retrieval.corpus.corpus import check_place
from qrag_jax.types import Document, InputError, Note, Span

_MOST_NAME = 200  # characters of a document's name


@dataclass(frozen=True)
class GivenNote:
    """A note that a model is given to read behind a passage.

    Attributes:
        number: what the answer cites; those of notes come after those of all passages.
        passage: number of the passage that it is a note of.
        note: itself.
        asking: id of the document that it comes from.
        answering: id of the document of its passage.
        num_tokens: of its text and the line above it.
    """

    number: int
    passage: int
    note: Note
    asking: str
    answering: str
    num_tokens: int

    @property
    def place(self) -> tuple[str, Span]:
        """Document and span that prove it: of a sentence where it stands, of other notes what they were read from."""
        note = self.note
        return (self.asking, note.source) if note.is_verbatim else (self.answering, note.evidence)

    @property
    def head(self) -> str:
        """The line above it in a prompt: that it is a note, of what, and where it comes from."""
        return note_head(f"[{self.number}] note on [{self.passage}]", self.note, self.asking)


def note_head(begins: str, note: Note, asking: str) -> str:
    """`BEGINS, said in "asking.txt" at 10-42:`; `read in` of what a reader wrote. No name leaves its line."""
    start, end = note.source
    name = json.dumps(readable(asking[:_MOST_NAME]), ensure_ascii=not asking.isprintable())
    return f"{begins}, {'said' if note.is_verbatim else 'read'} in {name} at {start}-{end}:"


def check_given(given: GivenNote, documents: Mapping[str, Document]) -> str:
    """What a note's place says, compared with what the note says of it.

    Returns:
        The text of its place.
    """
    document_id, (start, end) = given.place
    document = documents.get(document_id)
    check_place(document, document_id, [(start, end)])
    assert document is not None
    text = document.text[start:end]
    if text != (given.note.text if given.note.is_verbatim else given.note.quote):
        raise InputError(f"{document_id}: note at {start}-{end}: the document says something else there")
    return text


def is_said_in(note: Note, asking: str, spans: Sequence[tuple[str, Sequence[Span]]]) -> bool:
    """Whether one of these places holds a note, word for word: it would tell it twice.

    Args:
        note: of a chunk of the document `asking`.
    """
    start, end = note.source
    return note.is_verbatim and any(
        name == asking and any(begin <= start and end <= stop for begin, stop in some) for name, some in spans
    )
