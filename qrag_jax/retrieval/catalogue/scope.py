"""Which documents belong to an index: what lies in a path, what is the index itself, what is gone."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from qrag_jax.data.documents.kinds import KINDS, read_suffixes
from qrag_jax.data.files.documents import Found
from qrag_jax.retrieval.catalogue.place import CATALOGUE, SHARDS, is_index, names_in
from qrag_jax.types import UsageError


def lies_in(name: str, place: str) -> bool:
    """Whether a document is that of a path, or of a file below it."""
    if PurePath(place) == PurePath("."):
        return not PurePath(name).is_absolute()
    return PurePath(name).is_relative_to(place)


def outside(found: Found, paths: Sequence[str], folder: Path) -> tuple[Found, bool]:
    """What was found without the files of the index itself; and whether it lies in a path."""
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
    """Documents that no file stands for any more; and those that stay though their file was not seen.

    Args:
        unread: ids of files that are there and could not be read.

    An empty folder and a link that is not followed hide what lay there, also below a path: an absent disk looks so.
    """
    seen = {file.id for file in found.files}
    blind = [*(skipped.id for skipped in found.skipped), *unread, *map(str, found.links)]
    blind += [path for path in paths if os.path.isdir(path) and not any(lies_in(name, path) for name in seen)]
    unseen = [name for name in known if name not in seen]
    kept = {
        name
        for name in unseen
        if any(lies_in(name, place) for place in blind)
        or _has_no_reader(name)
        or (any(lies_in(name, path) for path in paths) and _has_no_disk(name))
    }
    return tuple(name for name in unseen if name not in kept), tuple(name for name in unseen if name in kept)


def _has_no_reader(name: str) -> bool:
    """Whether a file is there that only the extra `documents` reads, which this environment lacks."""
    suffix = PurePath(name).suffix.lower()
    return suffix in KINDS and suffix not in read_suffixes() and os.path.isfile(name)


def _has_no_disk(name: str) -> bool:
    """Whether a folder on the way is an empty one or a link to nothing: a disk that is not there today looks so."""
    for place in PurePath(name).parents:
        if os.path.isdir(place):
            return not os.listdir(place)
        if os.path.islink(place):
            return True
    return False


def check_place(folder: Path) -> None:
    """Refuses a folder with something else in it."""
    if is_index(folder):
        return
    if os.path.islink(folder) or (os.path.exists(folder) and not os.path.isdir(folder)):
        raise UsageError(f"{folder}: is no folder; give the path of a new one, or of an index")
    if os.path.isdir(folder) and folder.samefile(os.curdir):
        raise UsageError(f"{folder}: is the current folder; give a new folder in it")
    others = [name for name in names_in(folder) if not _is_ours(name)]
    if others:
        raise UsageError(f"{folder}: is a folder with other things in it ({others[0]}); give a new one, or an index")


def _is_ours(name: str) -> bool:
    """Of what a killed writer leaves that had not yet made an index."""
    return name.startswith((CATALOGUE, f".{CATALOGUE}", ".index.json", ".qrag.lock")) or name == SHARDS
