"""The contents of an index, and whether they are undamaged."""

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from qrag_jax.documents.found import ReadInPart
from qrag_jax.documents.read import Skipped, left_out
from qrag_jax.documents.told import total_left_out
from qrag_jax.index.folder import CATALOGUE, index_folder
from qrag_jax.index.parts.make import damaged_files
from qrag_jax.index.settings import IndexSettings, read_settings
from qrag_jax.index.stores.sqlite.database import advice, looked_through, named, reading_from
from qrag_jax.index.stores.sqlite.document_rows import Survey, split_error, survey
from qrag_jax.index.stores.sqlite.entries import (
    Origin,
    Row,
    has_vectors,
    to_bytes,
    to_text,
    unpack_document,
    unpack_nodes,
)
from qrag_jax.index.stores.sqlite.note_rows import NotesMade, count_notes, current_mark, read_mark
from qrag_jax.index.stores.sqlite.token_rows import count_tokens
from qrag_jax.types import InputError


@dataclass(frozen=True)
class DocumentInfo:
    """A document of an index.

    Attributes:
        id: its path.
        num_chunks: number of chunks.
        num_tokens: total tokens of the chunks.
        num_chunks_cut: number of chunks longer than the encoder's window.
        dim: length of its vectors.
        origin: the file and reader that it was made from.
        num_vectors: number of stored vectors.
        left_out: content of its file that is missing from its text: kind -> number.
    """

    id: str
    num_chunks: int
    num_tokens: int
    num_chunks_cut: int
    dim: int
    origin: Origin
    num_vectors: int
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class IndexInfo:
    """The contents of an index.

    Attributes:
        folder: of the index; None for documents in memory.
        settings: how it is made.
        documents: in the order of their ids.
        failed: files that could not be read at the last try.
        dim: length of a vector; 0 without documents.
        num_bytes: size of all its files.
        damaged: ids of damaged documents; filled only by a check.
        fault: damage of the file itself; filled only by a check.
        notes: their number, and the number left out for each reason; zeros if the index has none.
        are_notes_current: all notes are there; False after an update that was stopped.
        damaged_notes: names of damaged notes; filled only by a check.
        damaged_files: names of damaged search files, which can be made again; filled only by a check.
        late: number of chunks whose token vectors are stored, and bytes of these.
    """

    folder: Path | None
    settings: IndexSettings
    documents: tuple[DocumentInfo, ...]
    failed: tuple[Skipped, ...]
    dim: int
    num_bytes: int
    damaged: tuple[str, ...] = ()
    fault: str = ""
    notes: NotesMade = field(default_factory=NotesMade)
    are_notes_current: bool = True
    damaged_notes: tuple[str, ...] = ()
    damaged_files: tuple[str, ...] = ()
    late: tuple[int, int] = (0, 0)

    @property
    def left_out(self) -> dict[str, int]:
        """Content of all files that is missing from the texts: kind -> number, the most first."""
        return total_left_out(ReadInPart(one.id, one.left_out) for one in self.documents)

    @property
    def kept(self) -> tuple[str, ...]:
        """Ids of documents kept from an earlier state of a file that cannot be read now."""
        there = {one.id for one in self.documents}
        return tuple(one.id for one in self.failed if one.id in there)

    @property
    def is_whole(self) -> bool:
        """No damage was found."""
        return not (self.damaged or self.fault or self.damaged_notes or self.damaged_files)


def index_info(path: str | os.PathLike, *, verify: bool = False) -> IndexInfo:
    """The contents of an index.

    Args:
        path: its folder.
        verify: compare every row with its hash. Damage is reported in the result, not raised.

    Raises:
        UsageError: there is no index.
        InputError: the settings were changed, the format is newer, or the list of documents cannot be read.
    """
    folder = index_folder(path)
    settings = read_settings(folder)
    with looked_through(folder) if verify else nullcontext(), reading_from(folder) as connection:
        found = survey(connection, folder) if verify else None
        # Read the whole rows one by one: a scan of a damaged file would end at the damage.
        names = None if found is None or found.is_whole else list(found.known)
        with named(folder / CATALOGUE):
            rows = list(_rows(connection, names))
            notes, current = _notes(connection, folder, settings, found)
            late = count_tokens(connection) if settings.late and (found is None or found.is_whole) else (0, 0)
    try:
        documents = tuple(_document_info(*row) for row in rows if row[0] is not None)
        failed = tuple(_failure(number, key, error) for number, key, *_, error in rows if error)
        dim = max((one.dim for one in documents), default=0)
    except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise InputError(f"{folder}: its rows are damaged ({error}); {advice(folder)}") from error
    num_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    seen = found or Survey({}, ())
    whole = folder, settings, documents, failed, dim, num_bytes
    files = tuple(str(path.relative_to(folder)) for path in damaged_files(folder)) if verify else ()
    return IndexInfo(*whole, seen.damaged, seen.fault, notes, current, seen.damaged_notes, files, late)


def _notes(
    connection: sqlite3.Connection, folder: Path, settings: IndexSettings, found: Survey | None
) -> tuple[NotesMade, bool]:
    """The notes, and whether they are complete."""
    if not settings.has_notes:
        return NotesMade(), True
    if found is not None and not found.is_whole:
        return NotesMade(count_notes(connection, found.pairs)), False
    mark = read_mark(connection)
    left_out = {} if mark is None else mark.left_out
    return NotesMade(count_notes(connection), 0, left_out), current_mark(
        connection, folder, settings.notes.key
    ) is not None


def _rows(connection: sqlite3.Connection, names: Sequence[str] | None) -> Iterator[tuple]:
    """(number, id, hash of the bytes, reader, ids, nodes, size of vectors, metadata, error) of all or named rows."""
    columns = "number, ledger.id, bytes_sha256, reader, ids, nodes, length(vectors), metadata, error"
    query = f"SELECT {columns} FROM ledger LEFT JOIN documents USING (number)"
    if names is None:
        yield from connection.execute(f"{query} ORDER BY ledger.id")
        return
    for name in names:
        yield from connection.execute(f"{query} WHERE ledger.id = ?", (to_bytes(name),))


def _failure(number: int | None, key: bytes, error: bytes) -> Skipped:
    reason = to_text(error)
    return Skipped(to_text(key), reason if number is None else split_error(reason)[0])


def _document_info(
    _number: int,
    key: bytes,
    bytes_sha256: bytes,
    reader: bytes,
    ids: bytes,
    nodes: bytes,
    num_bytes: int,
    metadata: bytes,
    _: bytes,
) -> DocumentInfo:
    row = Row(b"", metadata, ids, nodes, b"")
    chunks, is_cut = unpack_nodes("", row)
    origin = Origin(bytes_sha256.decode(), reader.decode())
    num_tokens = sum(chunk.num_tokens for chunk in chunks)
    num_vectors = int(has_vectors(row, len(chunks)).sum())
    return DocumentInfo(
        to_text(key),
        len(chunks),
        num_tokens,
        int(is_cut.sum()),
        num_bytes // 4 // num_vectors,
        origin,
        num_vectors,
        left_out(unpack_document("", row)),
    )
