"""Builds an index in shards, by processes or machines that share only a folder, and merges them at the end.

    INDEX/shards/3-of-8            a finished shard: a complete index of its part of the documents
    INDEX/shards/3-of-8.building   an unfinished shard; a later run continues it

The id of a document decides its shard, so every machine finds the same parts.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from qrag_jax.documents.read import Found
from qrag_jax.files.manifest import sync_folder
from qrag_jax.index.folder import (
    CATALOGUE,
    JOINED,
    SHARDS,
    finish_merge,
    finished_shards,
    is_index,
    one_writer,
)
from qrag_jax.index.parts.make import refresh
from qrag_jax.index.prepare import MakeMaker, bring_up_to_format
from qrag_jax.index.settings import IndexSettings, read_settings, write_settings
from qrag_jax.index.store_writer import with_collection, writing_store
from qrag_jax.index.stores.sqlite.database import create, named, reading_from, writing_to
from qrag_jax.index.stores.sqlite.document_rows import copy, mend, read_all
from qrag_jax.index.stores.sqlite.entries import to_bytes
from qrag_jax.index.update import Changes, Plan, update_index
from qrag_jax.index.update_notes import KnownTexts, check_notes, update_notes
from qrag_jax.types import Arg, InputError, UsageError

_BUILDING = ".building"
MakeOf = Callable[[IndexSettings], MakeMaker]


def build_shard(
    folder: Path,
    paths: Sequence[str],
    found: Found,
    settings: IndexSettings,
    make: MakeMaker,
    plan: Plan,
    shard: int,
    num_shards: int,
) -> Changes | None:
    """Builds one shard of a new index; returns None if it is already finished.

    Args:
        paths, found, settings, make, plan: as in `update_index`.
        shard: from 0.
    """
    if not 0 <= shard < num_shards:
        raise UsageError(f"with {num_shards} shards, give 0 to {num_shards - 1}", field="shard", value=shard)
    if is_index(folder):
        remedy = ("shards need a new folder: give one, or build without ", Arg("shard"))
        raise UsageError("is already an index", file=folder, remedy=remedy)
    for name in finished_shards(folder):
        if not name.endswith(f"-of-{num_shards}"):
            raise UsageError(
                f"{folder}: has shards of a build with another number of shards ({name}); use that number, or remove "
                f"{SHARDS}/"
            )
    done = folder / SHARDS / f"{shard}-of-{num_shards}"
    if done.exists():
        return None
    building = done.with_name(f"{done.name}{_BUILDING}")
    own = replace(found, files=tuple(file for file in found.files if shard_of(file.id, num_shards) == shard))
    with one_writer(folder / SHARDS / f".{done.name}.lock", "qrag index build --shard", plan.patience, plan.waits):
        if done.exists():
            return None
        if own.files:
            changes = update_index(building, paths, own, settings, make, replace(plan, mirror=True, makes_notes=False))
        else:
            changes = Changes()
            building.mkdir(parents=True, exist_ok=True)
        os.rename(building, done)
        sync_folder(done.parent)
    return changes


def shard_of(document_id: str, num_shards: int) -> int:
    """The shard of a document, from 0."""
    return int.from_bytes(hashlib.sha256(to_bytes(document_id)).digest()[:8], "big") % num_shards


def merge_shards(
    folder: Path,
    *,
    make: MakeOf | None = None,
    waits: Callable[[str], object] = lambda message: None,
) -> int:
    """Merges finished shards into the index and removes them; returns the number of documents.

    A merge that was stopped starts again and gives the same result. Notes of all documents are made last.

    Args:
        make: settings -> a function that loads the encoder; needed if chunks get notes.
        waits: as in `folder.one_writer`.
    """
    with one_writer(folder, "qrag index merge", waits=waits):
        was_joined = finish_merge(folder)
        names = sorted(finished_shards(folder))
        if not names and was_joined:
            return _num_documents(folder)
        if not names:
            build = f"build one with `qrag index build {folder} PATHS... --num_shards N --shard I`"
            raise UsageError("has no shards", file=folder, remedy=build)
        number = int(names[0].rpartition("-")[2])
        missing = [str(shard) for shard in range(number) if f"{shard}-of-{number}" not in names]
        if missing:
            which, them = (
                (f"shards {', '.join(missing)}", "them") if len(missing) > 1 else (f"shard {missing[0]}", "it")
            )
            raise UsageError(
                f"{which} of {number} {'is' if them == 'it' else 'are'} not finished",
                file=folder,
                remedy=f"build {them} first (`qrag index build {folder} PATHS... --num_shards {number} --shard "
                f"{missing[0]}`)",
            )
        if len(names) != number:
            other = next(name for name in names if not name.endswith(f"-of-{number}"))
            raise UsageError(
                f"has shards of builds with different numbers of shards ({names[0]} and {other})",
                file=folder,
                remedy=f"remove those of one build from {SHARDS}/",
            )
        shards = [shard for name in names if is_index(shard := folder / SHARDS / name)]
        settings = _common([(shard, read_settings(shard)) for shard in shards], folder)
        known_as = read_settings(folder).collection if is_index(folder) else settings.collection
        if is_index(folder) and (there := read_settings(folder)).without_places != settings.without_places:
            raise UsageError(
                (
                    "is already an index, made with ",
                    *there.cutting,
                    " or another encoder than its shards (",
                    *settings.cutting,
                    ")",
                ),
                file=folder,
                remedy=f"remove {SHARDS}/ to keep it, or move {SHARDS}/ into a new folder and merge that",
            )
        check_notes(folder, settings, make, None)
        create(folder)
        known = (bring_up_to_format(folder, waits) or mend(folder)).known
        with writing_to(folder) as connection:
            for shard in shards:
                with reading_from(shard) as source:
                    for one in read_all(source, shard):
                        if one.id not in known or known[one.id].origin != one.origin:
                            copy(connection, folder, one, source)
                            known[one.id] = one
            settings = with_collection(replace(settings, collection=known_as))
            write_settings(folder, settings)
            with writing_store(folder, connection, settings):
                pass  # puts the vectors of the new documents
            if settings.has_notes:
                assert make is not None
                update_notes(connection, folder, settings, make(settings), KnownTexts(connection, folder))
            refresh(connection, folder, settings, lambda: None if make is None else make(settings)().embed, waits)
        os.rename(folder / SHARDS, folder / JOINED)  # in one step: a half-removed folder would look unfinished
        sync_folder(folder)
        finish_merge(folder)
        return _num_documents(folder)


def _num_documents(folder: Path) -> int:
    with reading_from(folder) as connection, named(folder / CATALOGUE):
        (count,) = connection.execute("SELECT count(*) FROM documents").fetchone()
    return count


def _common(shards: Sequence[tuple[Path, IndexSettings]], folder: Path) -> IndexSettings:
    if not shards:
        raise InputError(f"{folder}: its shards have no documents; build them from other files")
    (first, settings), *others = shards
    for shard, other in others:
        if other.without_places != settings.without_places:
            raise InputError(
                f"{shard}: was made with other settings or another encoder than {first}; remove one and build it again"
            )
    return settings
