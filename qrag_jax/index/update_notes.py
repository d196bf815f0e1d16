"""Updates the notes of an index after its documents have changed.

The notes depend on all documents together: a new document may say what a chunk is about, or make a name too common. So
a language model writes all notes again, and only text without a vector is embedded; notes by names are updated by what
changed (`mentioned.py`). Notes are removed together with a changed document (`note_rows`), and every row has its own
hash. A mark that the notes are complete is written last, so a killed writer loses nothing and the next one continues.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qrag_jax.annotate.mentions import READER, mention_notes
from qrag_jax.chunking.text.spans import readable
from qrag_jax.files.sqlite import Damaged
from qrag_jax.index.folder import CATALOGUE
from qrag_jax.index.mentioned import NamesUpdate
from qrag_jax.index.prepare import MakeMaker, Maker
from qrag_jax.index.settings import (
    IndexSettings,
    NotesSetting,
    check_encoder,
    read_settings,
    write_settings,
)
from qrag_jax.index.stores.sqlite.database import advice, transaction
from qrag_jax.index.stores.sqlite.document_rows import read_leaves
from qrag_jax.index.stores.sqlite.mention_rows import clear_mentions
from qrag_jax.index.stores.sqlite.note_rows import (
    Mark,
    NoteRow,
    NotesMade,
    Pair,
    clear_notes,
    current_mark,
    delete_pair,
    documents_sha256,
    pack_notes,
    pack_vectors,
    put_note_row,
    read_note_row,
    read_notes_of,
    read_pairs,
    rows_from,
    texts_of,
    unpack_notes,
    write_mark,
)
from qrag_jax.search.corpus import embed_texts
from qrag_jax.search.note_texts import check_note
from qrag_jax.types import Chunk, Document, InputError, Note, NoteReader, UsageError

_MAX_ROWS = 256  # rows in a transaction: their new text is embedded together, and a killed writer loses only these


def note_reader(setting: NotesSetting) -> NoteReader:
    """The reader of a setting, if it needs nothing but its name."""
    if setting.reader == READER:
        return mention_notes
    raise UsageError(
        f"notes by {setting.model or setting.reader}: a language model must write them; give `read_notes` "
        "(`annotate.make_llm_reader`), or choose mentions or none"
    )


def check_notes(folder: Path, settings: IndexSettings, make: object | None, read: NoteReader | None) -> None:
    """Refuses, before any change, an update that could not make its notes; see `update_notes`."""
    if settings.has_notes and make is None:
        raise UsageError(f"{folder}: has notes, which depend on all documents; give `make` to embed new ones")
    if settings.has_notes and read is None:
        note_reader(settings.notes)


def reads_all(settings: IndexSettings, read: NoteReader | None) -> bool:
    """True if the reader of notes reads all documents at every change; notes by names need only what changed."""
    return settings.has_notes and (settings.notes.reader != READER or read is not None)


@dataclass
class KnownTexts:
    """Vectors and token counts of the text of notes, both stored now and removed during this update."""

    connection: sqlite3.Connection
    folder: Path
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    num_tokens: dict[str, int] = field(default_factory=dict)

    def keep(self, document_id: str) -> None:
        """Keeps the notes of a document in memory before it is written again.

        Raises:
            Damaged: a row was changed.
        """
        read = self.connection, self.folder, document_id
        for row in (*read_notes_of(*read), *rows_from(*read)):
            self._enter(row)

    def look_up(self, texts: Collection[str], stored: Mapping[Pair, bytes]) -> None:
        """Reads vectors and token counts of texts from the stored rows."""
        wanted = set(texts) - self.vectors.keys()
        for pair, content in stored.items():
            if wanted and not wanted.isdisjoint(texts_of(_notes(content))):
                row = read_note_row(self.connection, pair)
                assert row is not None
                self._enter(row)
                wanted -= self.vectors.keys()

    def look_up_from(self, wanted: Mapping[Pair, bytes]) -> None:
        """Reads vectors and token counts of the texts of rows: from their earlier contents, and from notes of others.

        Raises:
            Damaged: a row was changed.
        """
        for pair in wanted:
            for row in rows_from(self.connection, self.folder, pair[1], pair[0]):
                self._enter(row)
        missing = {pair[1] for pair, content in wanted.items() if self._lacks(content)}
        for asking in missing:
            for row in rows_from(self.connection, self.folder, asking):
                self._enter(row)

    def _lacks(self, content: bytes) -> bool:
        return not self.vectors.keys() >= set(texts_of(_notes(content)))

    def _enter(self, row: NoteRow) -> None:
        num_tokens, vectors = row.unpack_vectors()
        self.vectors |= zip(row.texts, vectors, strict=True)
        self.num_tokens |= zip((note.text for _, note in row.placed), num_tokens.tolist(), strict=True)


def update_notes(
    connection: sqlite3.Connection,
    folder: Path,
    settings: IndexSettings,
    make: MakeMaker,
    known: KnownTexts,
    read: NoteReader | None = None,
    progress: Callable[[int, int], object] = lambda done, of: None,
) -> NotesMade:
    """Makes the notes of an index match its documents.

    Args:
        connection: may write; every row was checked (`look_over`) if `reads_all`.
        make: loads the encoder; not called if no text is new.
        known: texts whose vectors are known, in addition to the rows.
        read: writes the notes; None takes the reader of the setting.
        progress: called with (rows written, rows to write).
    """
    if not settings.has_notes:
        take_up(folder, settings)
        clear_notes(connection, folder)
        return NotesMade()
    mark = current_mark(connection, folder, settings.notes.key)
    if mark is not None and mark.is_complete:
        take_up(folder, settings)
        return NotesMade(mark.num_notes, 0, mark.left_out)
    if not reads_all(settings, read):
        return _update_by_names(connection, folder, settings, make, known, progress)
    documents, leaves = read_leaves(connection, folder)
    found = (read or note_reader(settings.notes))(documents, leaves)
    take_up(folder, settings)  # after the reader: if it is stopped, the index keeps its notes and their setting
    wanted = {pair: pack_notes(notes) for pair, notes in _by_pair(found.notes, documents, leaves).items()}
    stored = read_pairs(connection, folder)
    changed = {pair: content for pair, content in wanted.items() if stored.get(pair) != content}
    known.look_up({text for content in changed.values() for text in texts_of(_notes(content))}, stored)
    num_embedded = _write(connection, folder, changed, _Embedder(settings, make, known), progress)
    made = NotesMade(len(found.notes), num_embedded, dict(sorted(found.left_out.items())))
    with transaction(connection, folder / CATALOGUE):
        clear_mentions(connection)
        for pair in stored.keys() - wanted.keys():
            delete_pair(connection, pair)
        _mark(connection, settings.notes, made, is_complete=found.is_complete)
    return made


def _update_by_names(
    connection: sqlite3.Connection,
    folder: Path,
    settings: IndexSettings,
    make: MakeMaker,
    known: KnownTexts,
    progress: Callable[[int, int], object],
) -> NotesMade:
    """As `update_notes`, for the notes that `mention_notes` would write; costs in proportion to what changed."""
    update = NamesUpdate(connection, folder, settings.notes.key)
    try:
        update.read_names()
        changed = update.stale_notes()
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, IndexError) as error:  # right checksums, wrong contents
        raise Damaged(f"{folder}: its list of names is damaged ({error!r}); {advice(folder)}") from error
    take_up(folder, settings)
    written = {pair: content for pair, content in changed.items() if content}
    known.look_up_from(written)
    num_embedded = _write(connection, folder, written, _Embedder(settings, make, known), progress)
    with transaction(connection, folder / CATALOGUE):
        for pair in changed.keys() - written.keys():
            delete_pair(connection, pair)
        num_notes, left_out = update.finish()
        made = NotesMade(num_notes, num_embedded, left_out)
        _mark(connection, settings.notes, made)
    return made


def _mark(connection: sqlite3.Connection, setting: NotesSetting, made: NotesMade, *, is_complete: bool = True) -> None:
    of = documents_sha256(connection), setting.key
    write_mark(connection, Mark(*of, made.num_notes, made.left_out, is_complete))


def take_up(folder: Path, settings: IndexSettings) -> None:
    """Records a changed writer of notes; notes of the earlier writer then count as out of date."""
    if settings != read_settings(folder):
        write_settings(folder, settings)


def _by_pair(
    notes: Sequence[Note], documents: Sequence[Document], leaves: Sequence[Chunk]
) -> dict[Pair, list[tuple[int, Note]]]:
    """The notes of each row, each with its position among those of its chunk."""
    by_id, chunks = {document.id: document for document in documents}, {leaf.id: leaf for leaf in leaves}
    num_before: Counter[str] = Counter()
    rows: defaultdict[Pair, list[tuple[int, Note]]] = defaultdict(list)
    for number, note in enumerate(notes):
        check_note(note, number, chunks, by_id)
        pair = chunks[note.answering].document_id, chunks[note.asking].document_id
        rows[pair].append((num_before[note.answering], note))
        num_before[note.answering] += 1
    return rows


def _notes(content: bytes) -> list[Note]:
    return [note for _, note in unpack_notes(content)]


@dataclass
class _Embedder:
    """Vectors and token counts of texts, stored or new; loads the encoder when the first text is new."""

    settings: IndexSettings
    make: MakeMaker
    known: KnownTexts
    num_embedded: int = 0
    _maker: Maker | None = None

    def __call__(self, notes: Sequence[Note]) -> None:
        missing = [text for text in dict.fromkeys(texts_of(notes)) if text not in self.known.vectors]
        if missing:
            self.known.vectors |= zip(missing, embed_texts(self._loaded().embed, missing), strict=True)
            self.num_embedded += len(missing)
        for note in notes:
            if note.text not in self.known.num_tokens:
                self.known.num_tokens[note.text] = self._loaded().count(readable(f"({note.text})"))

    def _loaded(self) -> Maker:
        if self._maker is None:
            self._maker = self.make()
            check_encoder(self.settings, self._maker.embed.fingerprint, self.settings.model)
        return self._maker


def _write(
    connection: sqlite3.Connection,
    folder: Path,
    changed: Mapping[Pair, bytes],
    embed: _Embedder,
    progress: Callable[[int, int], object],
) -> int:
    """Writes rows in groups; returns the number of texts embedded."""
    pairs = sorted(changed)
    for start in range(0, len(pairs), _MAX_ROWS):
        group = {pair: _notes(changed[pair]) for pair in pairs[start : start + _MAX_ROWS]}
        embed([note for notes in group.values() for note in notes])
        with transaction(connection, folder / CATALOGUE):
            for pair, notes in group.items():
                num_tokens = [embed.known.num_tokens[note.text] for note in notes]
                vectors = [embed.known.vectors[text] for text in texts_of(notes)]
                put_note_row(connection, NoteRow(pair, changed[pair], *pack_vectors(num_tokens, vectors)))
        progress(start + len(group), len(pairs))
    return embed.num_embedded
