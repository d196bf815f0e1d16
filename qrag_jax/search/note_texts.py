"""Notes that stand behind a passage in a prompt: in a fence of their own, each with the place that it comes from.

A note proves itself: what it says stands where it says, in chunks that are searched.

Notes put into the text of a chunk: between two sentences, joined where they meet, no more than the chunk bears.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import readable
from qrag_jax.search.corpus import check_place
from qrag_jax.types import Chunk, Document, InputError, Note, Span, UsageError


def check_note(note: Note, number: int, chunks: Mapping[str, Chunk], documents: Mapping[str, Document]) -> None:
    """Refuses a note that does not prove itself.

    Args:
        number: of it, for the message.
        chunks: that may have notes, by their ids: the leaves.
        documents: of the chunks, by theirs.
    """
    where = f"note {number} ({note.text[:40]!r})"
    for name, key, (start, end) in (("asking", note.asking, note.source), ("answering", note.answering, note.evidence)):
        chunk = chunks.get(key)
        if chunk is None:
            raise InputError(
                f"{where}: its {name} chunk {key!r} is no leaf of the corpus; read the notes of its leaves"
            )
        if not any(a <= start < end <= b for a, b in chunk.spans):
            raise InputError(
                f"{where}: [{start}, {end}) is not in its {name} chunk at {list(chunk.spans)} of "
                f"{chunk.document_id!r}; read the notes again"
            )
        text = documents[chunk.document_id].text[start:end]
        wanted = note.quote if name == "answering" else note.text if note.is_verbatim else text
        if text != wanted:
            raise InputError(
                f"{where}: {chunk.document_id!r} has {text[:60]!r} at [{start}, {end}), not {wanted[:60]!r}; the "
                "document has changed: read the notes again"
            )


def insert_notes(text: str, notes: Sequence[tuple[int, str]]) -> str:
    """The text with each note in brackets behind the sentence that it belongs to.

    Sentences are cut by `split_sentences`, so that no note stands inside of one; notes behind one sentence share one
    pair of brackets, in the order that they are given in, which keeps them out of each other. Without the brackets
    and what is in them the text is what it was.

    Args:
        notes: (offset of a character of the sentence that it belongs to, text of the note).
    """
    ends = [end for _, end in split_sentences(text)]
    joined: defaultdict[int, list[str]] = defaultdict(list)
    for offset, note in notes:
        if not 0 <= offset < len(text):
            raise UsageError(f"note {note[:60]!r}: at character {offset} of a text of {len(text)}; give a place in it")
        joined[next((end for end in ends if end > offset), len(text))].append(note)
    parts, done = [], 0
    for end in sorted(joined):
        parts += [text[done:end], f" ({' '.join(joined[end])})"]
        done = end
    return "".join([*parts, text[done:]])


def fitting_notes(num_tokens: Sequence[int], most: float) -> list[int]:
    """Which notes fit into `most` tokens together: each in its turn, if there is room left for it.

    A note that is too long is left out, and a shorter one behind it may still come in.
    """
    taken, left = [], most
    for place, number in enumerate(num_tokens):
        if number <= left:
            taken.append(place)
            left -= number
    return taken


def offset_in_chunk(spans: Sequence[Span], offset: int) -> int:
    """Where a character of a document stands in the text of a chunk (`chunk_text`: spans joined by a line break)."""
    done = 0
    for start, end in spans:
        if start <= offset < end:
            return done + offset - start
        done += end - start + 1
    raise UsageError(f"character {offset} of the document: outside of the chunk's spans {list(spans)}")


_MAX_NAME = 200  # characters of a document's name


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
    name = json.dumps(readable(asking[:_MAX_NAME]), ensure_ascii=not asking.isprintable())
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
