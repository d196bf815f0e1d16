"""The text of notes: checks that each is at its place, inserts notes into chunks, and formats notes for a prompt.

In a chunk, notes follow their sentence, within a limit of tokens. In a prompt, a note follows its passage between its
own marks, with the place that it comes from.
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
    """Refuses a note whose text is not at its place.

    Args:
        number: of the note, for the message.
        chunks: the leaves, which may have notes, by id.
        documents: of the chunks, by id.
    """
    where = f"note {number} ({note.text[:40]!r})"
    for name, key, (start, end) in (("asking", note.asking, note.source), ("answering", note.answering, note.evidence)):
        chunk = chunks.get(key)
        if chunk is None:
            raise InputError(
                f"{where}: its {name} chunk {key!r} is not a leaf of the corpus; make the notes from its leaves"
            )
        if not any(a <= start < end <= b for a, b in chunk.spans):
            raise InputError(
                f"{where}: [{start}, {end}) is not in its {name} chunk at {list(chunk.spans)} of "
                f"{chunk.document_id!r}; make the notes again"
            )
        text = documents[chunk.document_id].text[start:end]
        wanted = note.quote if name == "answering" else note.text if note.is_verbatim else text
        if text != wanted:
            raise InputError(
                f"{where}: {chunk.document_id!r} has {text[:60]!r} at [{start}, {end}), not {wanted[:60]!r}; the "
                "document has changed; make the notes again"
            )


def insert_notes(text: str, notes: Sequence[tuple[int, str]]) -> str:
    """The text with each note in brackets after its sentence.

    Sentences are cut by `split_sentences`, so no note is inside one. Notes on the same sentence share one pair of
    brackets, in the given order. Without the brackets and their contents the text is unchanged.

    Args:
        notes: (offset of a character in the sentence, text of the note).
    """
    ends = [end for _, end in split_sentences(text)]
    joined: defaultdict[int, list[str]] = defaultdict(list)
    for offset, note in notes:
        if not 0 <= offset < len(text):
            raise UsageError(f"note {note[:60]!r}: character {offset} is not in a text of {len(text)}; give one in it")
        joined[next((end for end in ends if end > offset), len(text))].append(note)
    parts, done = [], 0
    for end in sorted(joined):
        parts += [text[done:end], f" ({' '.join(joined[end])})"]
        done = end
    return "".join([*parts, text[done:]])


def fitting_notes(num_tokens: Sequence[int], most: float) -> list[int]:
    """Which notes fit into `most` tokens together. Each is taken in turn if there is room for it.

    A note that is too long is left out; a shorter one after it may still fit.
    """
    taken, left = [], most
    for place, number in enumerate(num_tokens):
        if number <= left:
            taken.append(place)
            left -= number
    return taken


def offset_in_chunk(spans: Sequence[Span], offset: int) -> int:
    """The offset in the text of a chunk (`chunk_text`: spans joined by a line break) of a character of a document."""
    done = 0
    for start, end in spans:
        if start <= offset < end:
            return done + offset - start
        done += end - start + 1
    raise UsageError(f"character {offset} of the document: not in the chunk's spans {list(spans)}; give one in them")


_MAX_NAME = 200  # characters of a document's name


@dataclass(frozen=True)
class GivenNote:
    """A note after a passage in a prompt.

    Attributes:
        number: what the answer cites; notes are numbered after all passages.
        passage: number of its passage.
        note: the note.
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
        """Document and span of its evidence: the sentence itself, or what the note was read from."""
        note = self.note
        return (self.asking, note.source) if note.is_verbatim else (self.answering, note.evidence)

    @property
    def head(self) -> str:
        """The line above it in a prompt: it names the passage and the place that the note comes from."""
        return note_head(f"[{self.number}] note on [{self.passage}]", self.note, self.asking)


def note_head(begins: str, note: Note, asking: str) -> str:
    """`BEGINS, said in "asking.txt" at 10-42:`; `read in` if a reader wrote the note. Names stay on one line."""
    start, end = note.source
    name = json.dumps(readable(asking[:_MAX_NAME]), ensure_ascii=not asking.isprintable())
    return f"{begins}, {'said' if note.is_verbatim else 'read'} in {name} at {start}-{end}:"


def check_given(given: GivenNote, documents: Mapping[str, Document]) -> str:
    """Checks the text at a note's place against the note.

    Returns:
        The text at its place.
    """
    document_id, (start, end) = given.place
    document = documents.get(document_id)
    check_place(document, document_id, [(start, end)])
    assert document is not None
    text = document.text[start:end]
    if text != (given.note.text if given.note.is_verbatim else given.note.quote):
        raise InputError(f"{document_id}: note at {start}-{end}: the document has other text there; make notes again")
    return text


def is_said_in(note: Note, asking: str, spans: Sequence[tuple[str, Sequence[Span]]]) -> bool:
    """True if one of these places already contains a note word for word.

    Args:
        note: of a chunk of the document `asking`.
    """
    start, end = note.source
    return note.is_verbatim and any(
        name == asking and any(begin <= start and end <= stop for begin, stop in some) for name, some in spans
    )
