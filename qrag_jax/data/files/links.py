"""Files in folders of documents; links there are skipped with a warning, unless they are asked for."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from qrag_jax.files.reading import reading
from qrag_jax.types import InputError

_MOST_NAMED = 3


def files_below(folder: Path, suffixes: tuple[str, ...], skipped: list[Path]) -> list[Path]:
    """Files of a folder and of those in it, sorted by path; a folder is entered once, so that loops of links end.

    Args:
        folder: what starts with a dot in it is left out.
        suffixes: ends of the names, in lower case.
        skipped: links that were not followed are added.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); change its rights or leave it out")

    wanted = (path for path in all_below(folder, skipped, refuse) if path.name.lower().endswith(suffixes))
    return sorted((path for path in wanted if may_read(path, skipped)), key=lambda file: file.parts)


def all_below(folder: Path, skipped: list[Path], unreadable: Callable[[OSError], object]) -> Iterator[Path]:
    """What is no folder in a folder and in those below it, links among it; a folder is entered once.

    Args:
        folder: what starts with a dot in it is left out.
        skipped: links to folders that were not followed are added.
        unreadable: told of a folder that cannot be read.
    """
    entered: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, onerror=unreadable, followlinks=True):
        status = os.stat(root)
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in sorted(folders) if name[0] != "." and may_read(Path(root, name), skipped)]
        yield from (Path(root, name) for name in sorted(names) if name[0] != ".")


def may_read(path: Path, skipped: list[Path]) -> bool:
    """Whether what lies in a folder is read: all but links, which may lead anywhere. A link is added to `skipped`."""
    if reading().follow_links or not os.path.islink(path):  # of Path it raises where it may not look
        return True
    skipped.append(path)
    return False


def warn_of_skipped(skipped: Sequence[Path], stacklevel: int = 3) -> None:
    """One warning of all links that were skipped, if there are any; `stacklevel` as of `warnings.warn`."""
    if skipped:
        named = ", ".join(map(str, skipped[:_MOST_NAMED])) + (", ..." if len(skipped) > _MOST_NAMED else "")
        warnings.warn(
            f"{len(skipped)} links in folders were not followed ({named}): --follow_links follows them, or name what "
            "is to be read itself (Python: qrag_jax.files.reading.read_with)",
            UserWarning,
            stacklevel=stacklevel,
        )
