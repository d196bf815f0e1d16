"""A note proves itself: what it says stands where it says, in chunks that are searched."""

from collections.abc import Mapping

from qrag_jax.types import Chunk, Document, InputError, Note


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
