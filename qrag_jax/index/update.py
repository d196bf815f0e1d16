"""Updates an index from files: only files that have changed are read, cut and embedded.

A change is detected by the bytes of a file, never by its time. Each document is written in one transaction with the
hash of its bytes, so a document in the index is always complete and is not read again. If a file cannot be read any
more (empty, cut off, no permission, another encoding), its document stays as it was, and the index records the reason.
"""

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from qrag_jax.documents.converted import ReadOptions
from qrag_jax.documents.decoding import check_encoding
from qrag_jax.documents.found import ReadInPart
from qrag_jax.documents.read import (
    DocumentFile,
    Found,
    Skipped,
    encoding_of,
    read_bytes,
    read_in_part,
    read_options,
    reader_of,
    refuse_part,
)
from qrag_jax.documents.told import named
from qrag_jax.files import sqlite
from qrag_jax.files.sqlite import Damaged
from qrag_jax.index.folder import (
    CATALOGUE,
    PATIENCE,
    SHARDS,
    finish_merge,
    finished_shards,
    is_index,
    one_writer,
)
from qrag_jax.index.parts.make import refresh
from qrag_jax.index.prepare import Group, KnownVectors, Made, MakeMaker, Maker, Task, prepare
from qrag_jax.index.ray_tasks import RayTasks
from qrag_jax.index.remove import check_place, gone, look_up, with_records
from qrag_jax.index.settings import (
    IndexSettings,
    check_encoder,
    read_settings,
    settings_of,
    write_settings,
)
from qrag_jax.index.store_writer import StoreWriter, with_collection, writing_store
from qrag_jax.index.stores.sqlite.database import create, writing_to
from qrag_jax.index.stores.sqlite.document_rows import (
    LOST,
    LOST_REASON,
    Known,
    Survey,
    look_over,
    put,
    put_beside,
    put_failure,
    remove,
)
from qrag_jax.index.stores.sqlite.entries import Entry, Failure, Origin
from qrag_jax.index.token_size import check_room
from qrag_jax.index.update_notes import KnownTexts, NotesMade, check_notes, reads_all, take_up, update_notes
from qrag_jax.index.workers import Workers
from qrag_jax.names import BuildEngine
from qrag_jax.types import InputError, NoteReader, ReadsTokens, UsageError

# Version of the code that turns text into chunks and embeds them; a new version reads all files again. Version 1
# embedded chunks without their context.
READER = 2
_UTF8 = "utf-8"
_MOST_UNFILED = 25_000  # chunks written before the search files get them
_MAX_FILES, _MAX_BYTES = 16, 100_000  # of a group: enough to embed together, and little to repeat


@dataclass(frozen=True)
class Changes:
    """The results of an update.

    Attributes:
        num_read: number of new or changed documents.
        num_same: number of unchanged documents, which were not read.
        removed: ids of documents whose files are gone.
        failed: files that could not be read, now or earlier with the same bytes; and damaged documents not read again.
        lossy: files of which this update read only a part.
        kept: ids of documents that stay as they were although their file cannot be read (`failed` says why) or was not
            seen (its folder is empty or cannot be read).
        mended: ids of damaged documents that were repaired, and names of damaged notes that were.
        num_embedded: number of chunks embedded.
        num_reused: number of chunks of documents read whose vectors were known from an equal text.
        notes: the notes and their cost; the merge makes those of a shard.
    """

    num_read: int = 0
    num_same: int = 0
    removed: tuple[str, ...] = ()
    failed: tuple[Skipped, ...] = ()
    lossy: tuple[ReadInPart, ...] = ()
    kept: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    num_embedded: int = 0
    num_reused: int = 0
    notes: NotesMade = field(default_factory=NotesMade)

    def after(self, done: "Changes") -> "Changes":
        """The changes of an update that began again, with those that it had made before."""
        return replace(
            self,
            num_read=self.num_read + done.num_read,
            num_same=self.num_same - done.num_read,
            lossy=(*done.lossy, *self.lossy),
            num_embedded=self.num_embedded + done.num_embedded,
            num_reused=self.num_reused + done.num_reused,
        )


@dataclass(frozen=True)
class Plan:
    """How an update runs.

    Attributes:
        mirror: remove documents that are not below the paths; every row is checked.
        verify: check every row, not only those of the paths, and repair what is damaged.
        encoding: of text; None reads a document in its earlier encoding, and new ones in UTF-8.
        strict: a file that cannot be read, or only in part (`refuse_part`), ends the update.
        num_workers: number of processes that read; 0 reads in this process, or on all CPUs of a Ray cluster.
        engine: where these processes run.
        patience: seconds to wait for another writer.
        waits: called with a message that names the other writer.
        progress: called with (files done, files in all).
        makes_notes: make the notes at the end, and write to the store beside the catalogue; the merge does that for
            shards.
        read_notes: writes the notes; None takes the reader of the settings.
        keeps_notes: the writer of notes comes from the index, not from the user. The update is refused if another
            command changes that writer in the meantime.
        note_progress: called with (rows of notes written, rows to write).
        says: called with messages about the size of token vectors, the format of the catalogue, damaged search files
            and approximate search.
    """

    mirror: bool = False
    verify: bool = False
    encoding: str | None = None
    strict: bool = False
    num_workers: int = 0
    engine: BuildEngine = "processes"
    patience: float = PATIENCE
    waits: Callable[[str], object] = field(default=lambda message: None)
    progress: Callable[[int, int], object] = field(default=lambda done, of: None)
    makes_notes: bool = True
    read_notes: NoteReader | None = None
    keeps_notes: bool = False
    note_progress: Callable[[int, int], object] = field(default=lambda done, of: None)
    says: Callable[[str], object] = field(default=lambda message: None)

    def __post_init__(self) -> None:
        if self.encoding is not None:
            check_encoding(self.encoding)


def update_index(
    folder: Path, paths: Sequence[str], found: Found, settings: IndexSettings, make: MakeMaker, plan: Plan
) -> Changes:
    """Makes an index of files, or updates one.

    Args:
        folder: of the index; made if missing.
        settings: how it is made; the fingerprint may be empty.
        make: loads the `Maker` of these settings. Not called if no file needs reading and the encoder has the same name
            as that of the index.
    """
    check_place(folder)
    if not found.files:
        raise UsageError(
            f"{', '.join(paths) or 'no path'}: found no file to read, so nothing was changed; give other paths"
        )
    with one_writer(folder, "qrag index", plan.patience, plan.waits):
        finish_merge(folder)
        if finished_shards(folder):  # a later merge would bring old documents back
            raise UsageError(
                f"{folder}: has shards that are not merged; run `qrag index merge {folder}` first, or remove "
                f"{folder / SHARDS}"
            )
        if plan.makes_notes:
            check_notes(folder, settings, make, plan.read_notes)
        known_settings = settings_of(folder, settings)
        if known_settings is not None and plan.keeps_notes and read_settings(folder).notes != known_settings.notes:
            raise UsageError(
                f"{folder}: another command changed how its notes are made (it was {settings.notes.reader}) after "
                "this one began; run this command again"
            )
        if known_settings is not None and known_settings.model != settings.model:  # even if no file needs reading
            check_encoder(known_settings, make().embed.fingerprint, settings.model)
        try:
            if known_settings is None:
                create(folder)
            settings = with_collection(known_settings or settings)
            before, changes, found = _update(folder, paths, found, settings, make, plan)
        finally:
            if not is_index(folder):  # nothing was written: no encoder, or no file
                sqlite.remove(folder / CATALOGUE)
        if known_settings is None and not is_index(folder):
            raise InputError(
                f"{folder}: none of {len(found.files)} files could be read, so no index was made: "
                f"{named(changes.failed)}"
            )
    seen = {file.id for file in found.files}
    lost = [name for name in before.damaged if name not in seen and not plan.mirror]
    return replace(
        changes,
        failed=(*changes.failed, *(Skipped(name, LOST_REASON) for name in lost)),
        mended=(*(name for name in before.damaged if name in seen), *before.damaged_notes),
    )


def _update(
    folder: Path, paths: Sequence[str], found: Found, settings: IndexSettings, make: MakeMaker, plan: Plan
) -> tuple[Survey, Changes, Found]:
    """Checks what may be replaced, then updates; if that meets damage elsewhere, checks everything and starts again.

    Returns:
        The documents known and damaged before, the changes, and the files with the ids that they have in the index.
    """
    before, known = look_up(folder, plan.says)
    found = with_records(found, paths, known)
    if not plan.mirror:
        found = _with_known_ids(found, known)
    checks_all = plan.mirror or plan.verify or (plan.makes_notes and reads_all(settings, plan.read_notes))
    before = before or look_over(folder, None if checks_all else {file.id for file in found.files}, known)
    done = Changes()
    try:
        with _writing(folder, settings, plan) as (connection, store):
            update = _Update(folder, connection, settings, make, plan, before.known, store)
            try:
                return before, update.run(paths, found), found
            finally:
                done = update.counts
    except Damaged:
        before = look_over(folder, None)
    with _writing(folder, settings, plan) as (connection, store):
        again = _Update(folder, connection, settings, make, plan, before.known, store).run(paths, found)
    return before, again.after(done), found


@contextmanager
def _writing(folder: Path, settings: IndexSettings, plan: Plan) -> Iterator[tuple[sqlite3.Connection, StoreWriter]]:
    """The catalogue and the store; a shard has no store, because the merge puts its vectors there."""
    beside = settings if plan.makes_notes else replace(settings, store="sqlite", uri="")
    with writing_to(folder) as connection, writing_store(folder, connection, beside) as store:
        yield connection, store


def _with_known_ids(found: Found, known: Iterable[str]) -> Found:
    """Files with the ids of the documents that the index has of them by another path: `./a.md`, `/home/ada/a.md`."""
    if {file.id for file in found.files} <= (ids := set(known)):
        return found
    places = {place for file in found.files if file.path is not None and (place := _place(file.path)) is not None}
    by_place = {os.path.realpath(name): name for name in sorted(ids) if _place(name) in places}
    files = [file if file.path is None else replace(file, id=_known_id(file, ids, by_place)) for file in found.files]
    return replace(found, files=tuple(files))


def _place(path: str | os.PathLike) -> tuple[int, int] | None:
    """Device and inode of a file, which other paths of it share; None if there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _known_id(file: DocumentFile, ids: Set[str], by_place: Mapping[str, str]) -> str:
    return file.id if file.id in ids else by_place.get(os.path.realpath(file.path or ""), file.id)


class _Update:
    """One update, while the index is locked."""

    def __init__(
        self,
        folder: Path,
        connection: sqlite3.Connection,
        settings: IndexSettings,
        make: MakeMaker,
        plan: Plan,
        known: Mapping[str, Known],
        store: StoreWriter,
    ) -> None:
        self.folder, self.connection, self.settings, self.make, self.plan = folder, connection, settings, make, plan
        self.store, self.known = store, known
        self.readers = _Readers(known.values())
        self.vectors = KnownVectors(connection, folder, settings.reading, settings.late)
        self.ask = self.vectors if settings.reuses_vectors else None
        self.unseen: list[str] = []  # ids of files that could not be hashed
        self.failed: list[Skipped] = []
        self.kept: list[str] = []
        self.counts = Changes()
        self.num_unfiled = 0  # chunks that searches read from the catalogue
        self.maker: Maker | None = None
        self.note_texts = KnownTexts(connection, folder)

    def run(self, paths: Sequence[str], found: Found) -> Changes:
        of = len(found.files)
        if self.plan.strict and found.skipped:
            raise InputError(f"{found.skipped[0].id}: {found.skipped[0].reason}")
        new = [file for file in found.files if file.id not in self.known]
        if self.settings.late and new:
            encoder = self._load().embed
            assert isinstance(encoder, ReadsTokens)  # of an index that keeps token vectors
            check_room(self.folder, new, encoder.token_dim, self.plan.says)
        for done in self._prepared(self._groups(found.files)):
            for result in done.results:
                self._write(result)
            self.counts = replace(
                self.counts,
                num_embedded=self.counts.num_embedded + done.num_embedded,
                num_reused=self.counts.num_reused + done.num_reused,
            )
            self.num_unfiled += done.num_embedded + done.num_reused
            if self.num_unfiled >= _MOST_UNFILED:
                self._refresh()
                self.num_unfiled = 0
            self.plan.progress(self.counts.num_same + self.counts.num_read + len(self.failed), of)
        removed, kept = (), ()
        if self.plan.mirror:
            removed, kept = gone(self.known, paths, found, self.unseen)
        for name in removed:
            self.note_texts.keep(name)  # the file may have been renamed
            remove(self.connection, self.folder, name)
        self.store.remove(*(self.known[name].number for name in removed))
        notes = self._update_notes()
        self._refresh()
        removed = tuple(name for name in removed if self.known[name].number is not None)  # documents, not failures
        failed = (*found.skipped, *self.failed)
        return replace(self.counts, removed=removed, kept=(*self.kept, *kept), failed=failed, notes=notes)

    def _update_notes(self) -> NotesMade:
        if not is_index(self.folder):  # no file could be read
            return NotesMade()
        if not self.plan.makes_notes:
            take_up(self.folder, self.settings)
            return NotesMade()
        return update_notes(
            self.connection,
            self.folder,
            self.settings,
            self._load,
            self.note_texts,
            self.plan.read_notes,
            self.plan.note_progress,
        )

    def _refresh(self) -> None:
        """Brings the search files up to date; a shard gets them when it is merged."""
        if is_index(self.folder) and self.plan.makes_notes:
            refresh(self.connection, self.folder, self.settings, lambda: self._load().embed, self.plan.says)

    def _groups(self, files: Sequence[DocumentFile]) -> Iterator[Group]:
        """The files that have changed, in groups."""
        group: list[Task] = []
        for file in files:
            task = self._task(file)
            if task is None:
                continue
            group.append(task)
            if len(group) == _MAX_FILES or sum(len(one.raw) for one in group) >= _MAX_BYTES:
                yield tuple(group)
                group = []
        if group:
            yield tuple(group)

    def _task(self, file: DocumentFile) -> Task | None:
        """The task for a file; None if its bytes are known or cannot be read."""
        known = self.known.get(file.id)
        encoding = self.plan.encoding or self.readers.encoding(file.id)
        try:
            raw = read_bytes(file, encoding)
        except InputError as error:
            self.unseen.append(file.id)
            self._fail(Failure(file.id, error.text(with_file=error.file != file.id), LOST))
            return None
        bytes_sha256 = hashlib.sha256(raw).hexdigest()
        if self.plan.encoding is None:
            encoding = self.readers.encoding(file.id, bytes_sha256)
        options = read_options(encoding, self.readers.of(file.id, bytes_sha256))
        origin = Origin(bytes_sha256, _reader(file, raw, options))
        if known is None or origin not in (known.origin, known.tried):
            return Task(file, raw, origin, options)
        if origin == known.tried:
            self._fail(Failure(file.id, known.error, origin))
            return None
        if known.tried is not None:  # the file has its earlier readable bytes again
            put_beside(self.connection, self.folder, file.id, None)
        self.counts = replace(self.counts, num_same=self.counts.num_same + 1)
        return None

    def _prepared(self, groups: Iterator[Group]) -> Iterator[Made]:
        if self.plan.num_workers or self.plan.engine == "ray":
            engine = RayTasks if self.plan.engine == "ray" else Workers
            with engine(self.plan.num_workers, self.make, self._check_encoder, self.ask) as workers:
                yield from workers.run(groups)
            return
        for group in groups:
            maker = self._load()
            self._check_encoder(maker.embed.fingerprint)
            yield prepare(maker, group, self.ask)

    def _load(self) -> Maker:
        self.maker = self.maker or self.make()
        return self.maker

    def _check_encoder(self, fingerprint: str) -> None:
        """Refuses an encoder other than that of the index; a new index takes it."""
        if not self.settings.fingerprint:
            self.settings = replace(self.settings, fingerprint=fingerprint)
            write_settings(self.folder, self.settings)
        check_encoder(self.settings, fingerprint, self.settings.model)

    def _write(self, result: Entry | Failure) -> None:
        if isinstance(result, Failure):
            self._fail(result)
            return
        if self.plan.strict:
            refuse_part(result.document)
        if result.document.id in self.known:
            self.note_texts.keep(result.document.id)  # writing the document removes its notes
        number = put(self.connection, self.folder, result, self.store.put)
        if (before := self.known.get(result.document.id)) is not None:
            self.store.remove(before.number)
        self.vectors.add(number, result)
        if (part := read_in_part(result.document)) is not None:
            self.counts = replace(self.counts, lossy=(*self.counts.lossy, part))
        self.counts = replace(self.counts, num_read=self.counts.num_read + 1)

    def _fail(self, failure: Failure) -> None:
        """Records that a file cannot be read; the document of an earlier state stays."""
        if self.plan.strict:
            raise InputError(f"{failure.id}: {failure.reason}")
        known = self.known.get(failure.id)
        is_kept = known is not None and known.number is not None
        if known is None or (known.tried, known.error) != (failure.origin, failure.reason):
            if is_kept:
                put_beside(self.connection, self.folder, failure.id, failure)
            else:
                put_failure(self.connection, self.folder, failure)
        self.kept += [failure.id] * is_kept
        self.failed.append(Skipped(failure.id, failure.reason))


class _Readers:
    """The earlier reader of a document or of one with the same bytes; its options hold where no others are named."""

    def __init__(self, known: Iterable[Known]) -> None:
        documents = [one for one in known if one.number is not None]
        self._of_documents = {one.id: one.origin.reader for one in documents}
        self._of_bytes = {one.origin.bytes_sha256: one.origin.reader for one in documents}

    def of(self, name: str, bytes_sha256: str = "") -> str:
        return self._of_documents.get(name) or self._of_bytes.get(bytes_sha256, "")

    def encoding(self, name: str, bytes_sha256: str = "") -> str:
        return encoding_of(self.of(name, bytes_sha256)) or _UTF8


def _reader(file: DocumentFile, raw: bytes, options: ReadOptions) -> str:
    """The reader of these bytes. If it changes, for example by installing an extra, they are read again."""
    try:
        return f"{READER} {reader_of(file, raw, options)}"
    except InputError:
        return f"{READER} refused"
