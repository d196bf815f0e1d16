"""The notes of an index brought up to date with its documents.

Which notes there are all documents decide together: another one may name what a chunk is about, or make a name too
common. So the reader is asked for all of them, and what is stored is made equal to that; only texts without a vector
are embedded. Notes of a document that changes go with it (`note_rows`), and what is left proves itself; that they are
all there are is written last. So a writer that is killed before that loses nothing, and the next one goes on.
"""

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from qrag_jax.annotate.mentions import mention_notes
from qrag_jax.chunking.text.spans import readable
from qrag_jax.index.folder import CATALOGUE
from qrag_jax.index.prepare import MakeMaker, Maker
from qrag_jax.index.settings import (
    IndexSettings,
    NotesSetting,
    check_encoder,
    read_settings,
    write_settings,
)
from qrag_jax.index.stores.sqlite.database import named, transaction
from qrag_jax.index.stores.sqlite.document_rows import read_leaves
from qrag_jax.index.stores.sqlite.note_rows import (
    Mark,
    NoteRow,
    Pair,
    clear_notes,
    delete_pair,
    documents_sha256,
    pack_notes,
    pack_vectors,
    put_note_row,
    read_mark,
    read_note_row,
    read_pairs,
    rows_of,
    texts_of,
    unpack_notes,
    write_mark,
)
from qrag_jax.search.corpus import embed_texts
from qrag_jax.search.note_texts import check_note
from qrag_jax.types import Chunk, Document, Note, NoteReader, UsageError

VERSION = 1  # of what makes notes: another one makes them anew
_FIRST_FIELDS = ("reader", "model", "prompts_sha256")  # of a setting, when indices first had notes
_MAX_ROWS = 256  # of a transaction: their new texts are embedded together, and are what a killed writer loses


@dataclass(frozen=True)
class NotesMade:
    """What an update of the notes has done.

    Attributes:
        num_notes: that the index has now.
        num_embedded: texts of notes whose vectors were computed.
        left_out: how many were not written or kept, by reason.
    """

    num_notes: int = 0
    num_embedded: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)


def note_reader(setting: NotesSetting) -> NoteReader:
    """The reader of a setting whose name says all of it."""
    if setting.reader == "mentions":
        return mention_notes
    raise UsageError(
        f"notes by {setting.model or setting.reader}: a language model writes them, which is to be handed in: give "
        "`read_notes` (`annotate.make_llm_reader`), or take mentions, or none"
    )


def check_notes(folder: Path, settings: IndexSettings, make: object | None, read: NoteReader | None) -> None:
    """Refuses, before anything is changed, notes that could not be made then; see `update_notes`."""
    if settings.has_notes and make is None:
        raise UsageError(f"{folder}: has notes, which are made anew of all documents: give `make`, to embed new ones")
    if settings.has_notes and read is None:
        note_reader(settings.notes)


def setting_key(setting: NotesSetting) -> str:
    """What notes were made by, as the catalogue says it: other notes come of another one."""
    # A field that came later is left out where it says nothing: indices that were written before have it so.
    said = {name: value for name, value in asdict(setting).items() if value or name in _FIRST_FIELDS}
    return json.dumps({**said, "version": VERSION}, sort_keys=True)


def current_mark(connection: sqlite3.Connection, folder: Path, setting: NotesSetting) -> Mark | None:
    """What the notes were made of, if that is the documents as they are, and the setting; else None.

    Raises:
        Damaged: the file is.
    """
    with named(folder / CATALOGUE):
        mark = read_mark(connection)
        if mark is None or mark.setting != setting_key(setting) or mark.documents != documents_sha256(connection):
            return None
    return mark


@dataclass
class KnownTexts:
    """Vectors of texts of notes, and tokens, by the text: of what the index has, and of what it had a moment ago."""

    connection: sqlite3.Connection
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    num_tokens: dict[str, int] = field(default_factory=dict)

    def keep(self, document_id: str) -> None:
        """Keeps in memory what goes with a document that is to be written anew."""
        for row in rows_of(self.connection, document_id):
            self._enter(row)

    def look_up(self, texts: Collection[str], stored: Mapping[Pair, bytes]) -> None:
        """Takes up what the stored rows say of texts."""
        wanted = set(texts) - self.vectors.keys()
        for pair, content in stored.items():
            if wanted and not wanted.isdisjoint(texts_of(_notes(content))):
                row = read_note_row(self.connection, pair)
                assert row is not None
                self._enter(row)
                wanted -= self.vectors.keys()

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
    """Makes the notes of an index those of its documents as they are.

    Args:
        connection: that writes; every row was looked at (`mend`).
        make: loads what embeds; not called where no text is new.
        known: texts whose vectors are known, more than the rows have.
        read: writes the notes; None takes the reader of the setting.
        progress: called with (rows written, rows to write).
    """
    if not settings.has_notes:
        take_up(folder, settings)
        clear_notes(connection, folder)
        return NotesMade()
    mark = current_mark(connection, folder, settings.notes)
    if mark is not None and mark.is_complete:
        take_up(folder, settings)
        return NotesMade(mark.num_notes, 0, mark.left_out)
    documents, leaves = read_leaves(connection, folder)
    found = (read or note_reader(settings.notes))(documents, leaves)
    take_up(folder, settings)  # not before: a reader that was stopped leaves an index whose notes are what they were
    wanted = {pair: pack_notes(notes) for pair, notes in _by_pair(found.notes, documents, leaves).items()}
    stored = read_pairs(connection, folder)
    changed = {pair: content for pair, content in wanted.items() if stored.get(pair) != content}
    known.look_up({text for content in changed.values() for text in texts_of(_notes(content))}, stored)
    num_embedded = _write(connection, folder, changed, _Embedder(settings, make, known), progress)
    made = NotesMade(len(found.notes), num_embedded, dict(sorted(found.left_out.items())))
    with transaction(connection, folder / CATALOGUE):
        for pair in stored.keys() - wanted.keys():
            delete_pair(connection, pair)
        of = documents_sha256(connection), setting_key(settings.notes)
        write_mark(connection, Mark(*of, made.num_notes, made.left_out, found.is_complete))
    return made


def take_up(folder: Path, settings: IndexSettings) -> None:
    """Writes who the notes are by where that changes; from here on those of others are not current, and say so."""
    if settings != read_settings(folder):
        write_settings(folder, settings)


def _by_pair(
    notes: Sequence[Note], documents: Sequence[Document], leaves: Sequence[Chunk]
) -> dict[Pair, list[tuple[int, Note]]]:
    """The notes of each row, each with its place among those of its chunk."""
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
    """Vectors and tokens of texts, known or made; loads nothing before a text is new."""

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
    """Writes rows, some at a time; gives how many texts were embedded."""
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
