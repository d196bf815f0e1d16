"""Which documents belong to paths, to the index itself or to missing files; and removing documents completely."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from qrag_jax.documents.found import DocumentFile, is_excluded, named_paths
from qrag_jax.documents.kinds import kind_by_suffix, read_suffixes, suffixes_by_fields
from qrag_jax.documents.read import Found
from qrag_jax.files.sqlite import Damaged
from qrag_jax.index.folder import CATALOGUE, PATIENCE, SHARDS, index_folder, is_index, names_in, one_writer
from qrag_jax.index.parts.make import refresh
from qrag_jax.index.prepare import MakeMaker, bring_up_to_format
from qrag_jax.index.settings import IndexSettings, read_settings
from qrag_jax.index.store_writer import with_collection, writing_store
from qrag_jax.index.stores.sqlite.database import reading_from, writing_to
from qrag_jax.index.stores.sqlite.document_rows import Known, Survey, look_over, read_ledger, remove
from qrag_jax.index.update_notes import KnownTexts, check_notes, reads_all, update_notes
from qrag_jax.types import NoteReader, UsageError


def lies_in(name: str, place: str) -> bool:
    """True if a document is the file of a path, or of a file below it."""
    if PurePath(place) == PurePath("."):
        return not PurePath(name).is_absolute()
    return PurePath(name).is_relative_to(place)


def outside(found: Found, paths: Sequence[str], folder: Path) -> tuple[Found, bool]:
    """The files found that are not the index's own; and whether the index is inside one of the paths."""
    own = Path(os.path.realpath(folder))
    if not any(own.is_relative_to(os.path.realpath(path)) for path in paths):
        return found, False
    files = tuple(
        file for file in found.files if file.path is None or not Path(os.path.realpath(file.path)).is_relative_to(own)
    )
    left_out = {file.path for file in found.files} - {file.path for file in files}
    there = (path for path in folder.rglob("*") if path.is_file() and path not in left_out)
    others = Counter(found.others) - Counter(path.suffix.lower() for path in there)
    return replace(found, files=files, others=dict(others.most_common())), True


def gone(
    known: Iterable[str], paths: Sequence[str], found: Found, unread: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Documents without a file; and those that stay although their file was not seen.

    Args:
        unread: ids of files that exist but could not be read.

    An empty folder or a link that is not followed may be a disk that is not mounted, so documents below it stay.
    """
    seen = {file.id for file in found.files}
    blind = [*(skipped.id for skipped in found.skipped), *unread, *map(str, found.links)]
    blind += [path for path in paths if os.path.isdir(path) and not any(lies_in(name, path) for name in seen)]
    unseen = [name for name in known if name not in seen]
    kept = {
        name
        for name in unseen
        if not is_excluded(name)
        and (
            any(lies_in(name, place) for place in blind)
            or _has_no_reader(name)
            or (any(lies_in(name, path) for path in paths) and _has_no_disk(name))
        )
    }
    return tuple(name for name in unseen if name not in kept), tuple(name for name in unseen if name in kept)


def with_records(found: Found, paths: Sequence[str], known: Iterable[str]) -> Found:
    """The files found, and those of records (JSON) that the index has: it knows their fields, though none are named."""
    seen, suffixes = {file.id for file in found.files}, suffixes_by_fields().difference(read_suffixes())
    more = tuple(
        DocumentFile(name, Path(name), named=False)
        for name in known
        if os.path.splitext(name)[1].lower() in suffixes and name not in seen and os.path.isfile(name)
        if any(lies_in(name, path) for path in paths) and not is_excluded(name)
    )
    return replace(found, files=(*found.files, *more))


def _has_no_reader(name: str) -> bool:
    """True if a file exists whose reader needs a missing package."""
    suffix = PurePath(name).suffix.lower()
    return suffix in kind_by_suffix() and suffix not in read_suffixes() and os.path.isfile(name)


def _has_no_disk(name: str) -> bool:
    """True if the path has an empty folder or a dangling link, as for a disk that is not mounted."""
    for place in PurePath(name).parents:
        if os.path.isdir(place):
            return not os.listdir(place)
        if os.path.islink(place):
            return True
    return False


def check_place(folder: Path) -> None:
    """Refuses a folder that contains something other than an index."""
    if is_index(folder):
        return
    if os.path.islink(folder) or (os.path.exists(folder) and not os.path.isdir(folder)):
        raise UsageError(f"{folder}: is not a folder; give the path of a new folder, or of an index")
    if os.path.isdir(folder) and folder.samefile(os.curdir):
        raise UsageError(f"{folder}: is the current folder; give a new folder in it")
    # Left by a writer that was killed before it had made an index.
    ours = (CATALOGUE, f".{CATALOGUE}", ".index.json", ".qrag.lock")
    others = [name for name in names_in(folder) if not name.startswith(ours) and name != SHARDS]
    if others:
        raise UsageError(f"{folder}: contains other files ({others[0]}); give a new folder, or an index")


def remove_documents(
    folder: Path,
    paths: Sequence[str],
    *,
    make: MakeMaker | None = None,
    read_notes: NoteReader | None = None,
    patience: float = PATIENCE,
    waits: Callable[[str], object] = lambda message: None,
) -> tuple[str, ...]:
    """Removes the documents of files and folders. No byte of their text or notes stays in the index.

    Args:
        folder: of the index.
        paths: as they are named in the index; the files need not exist.
        make: loads the encoder for notes that now fit the limit of their chunk; needed if the index has notes
            (`Index.remove` supplies it).
        read_notes: as in `Plan`.
        patience, waits: as in `folder.one_writer`.

    Returns:
        The ids that were removed.

    Raises:
        UsageError: there is no index, a path is blank or has no document, or `make` is missing. Nothing is removed.
        InputError: the disk is full, or the index cannot be repaired.
    """
    paths = named_paths(paths)
    index_folder(folder)
    with one_writer(folder, "qrag index remove", patience, waits):
        settings = read_settings(folder)
        check_notes(folder, settings, make, read_notes)
        _, known = look_up(folder, waits)
        gone: dict[str, None] = {}
        for path in paths:
            here = [name for name in known if lies_in(name, path)]
            if not here:
                raise UsageError(
                    f"{path}: not in the index {folder}; list its documents with `qrag index info {folder} --json`"
                )
            gone |= dict.fromkeys(here)
        settings = with_collection(settings)
        look_over(folder, None if reads_all(settings, read_notes) else gone.keys(), known)
        numbers = [known[name].number for name in gone]
        try:
            _remove(folder, gone, numbers, settings, make, read_notes, waits)
        except Damaged:
            look_over(folder, None)
            _remove(folder, gone, numbers, settings, make, read_notes, waits)
    return tuple(gone)


def look_up(folder: Path, says: Callable[[str], object]) -> tuple[Survey | None, dict[str, Known]]:
    """The documents and failures of an index by their ids, without their rows, in a catalogue of the newest format.

    Args:
        says: as in `bring_up_to_format`.

    Returns:
        The result of a check of every row, if there was a reason for one; and what is known.
    """
    found = bring_up_to_format(folder, says)
    try:
        with reading_from(folder) as connection:
            return found, read_ledger(connection, folder)
    except Damaged:
        found = look_over(folder, None)
        return found, found.known


def _remove(
    folder: Path,
    names: Iterable[str],
    numbers: Iterable[int | None],
    settings: IndexSettings,
    make: MakeMaker | None,
    read: NoteReader | None,
    says: Callable[[str], object],
) -> None:
    with writing_to(folder) as connection, writing_store(folder, connection, settings) as store:
        for name in names:
            remove(connection, folder, name)
        store.remove(*numbers)
        if make is not None:
            update_notes(connection, folder, settings, make, KnownTexts(connection, folder), read)
        refresh(connection, folder, settings, lambda: None if make is None else make().embed, says)
