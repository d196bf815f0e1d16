"""Files in folders of documents; links there are skipped with a warning, unless they are asked for."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from qrag_jax.files.reading import reading
from qrag_jax.types import InputError

TEXT_SUFFIXES = (".txt", ".md")  # of documents, in any case of letters
_MOST_NAMED = 3


def files_below(folder: Path, suffixes: tuple[str, ...], skipped: list[Path]) -> list[Path]:
    """Files of a folder and of those in it, sorted by path; a folder is entered once, so that loops of links end.

    Args:
        folder: what starts with a dot in it is left out.
        suffixes: ends of the names, in lower case.
        skipped: links that were not followed are added.

    Raises:
        InputError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); change its rights or leave it out")

    found: list[Path] = []
    entered: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        status = os.stat(root)
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in sorted(folders) if name[0] != "." and _may_read(Path(root, name), skipped)]
        wanted = [name for name in sorted(names) if name[0] != "." and name.lower().endswith(suffixes)]
        found += [Path(root, name) for name in wanted if _may_read(Path(root, name), skipped)]
    return sorted(found, key=lambda file: file.parts)


def _may_read(path: Path, skipped: list[Path]) -> bool:
    """Whether what lies in a folder is read: all but links, which may lead anywhere. A link is added to `skipped`."""
    if reading().follow_links or not path.is_symlink():
        return True
    skipped.append(path)
    return False


def warn_of_skipped(skipped: Sequence[Path]) -> None:
    """One warning of all links that were skipped, if there are any."""
    if skipped:
        named = ", ".join(map(str, skipped[:_MOST_NAMED])) + (", ..." if len(skipped) > _MOST_NAMED else "")
        warnings.warn(
            f"{len(skipped)} links in folders were not followed ({named}): --follow_links follows them, or name what "
            "is to be read itself (Python: qrag_jax.files.reading.read_with)",
            UserWarning,
            stacklevel=3,
        )
