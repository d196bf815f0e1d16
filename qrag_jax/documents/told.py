"""Warnings about the files that were found: which were left out, read in part, or not looked at."""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping

from qrag_jax.documents.converted import counted, first_few, several
from qrag_jax.documents.found import Found, ReadInPart, Skipped, warn_of_skipped
from qrag_jax.documents.kinds import INSTALL, kind_by_suffix, read_suffixes, suffixes_by_fields
from qrag_jax.documents.left_aside import EXCLUDED
from qrag_jax.types import Arg, InputWarning

_NO_IGNORE = Arg("no_ignore", True, python="qrag_jax.files.reading.read_with(no_ignore=True)")


def warn_of_found(found: Found) -> None:
    """Warns of files that were not read or read in part, and separately of links, if there are any."""
    warn_of_skipped(found.links, stacklevel=4)  # reports the caller of this function's caller
    said: list[str | Arg] = []
    if found.skipped:
        left_out = f"left out {several(len(found.skipped), 'file')} in folders ({named(found.skipped)}); "
        said += ["; ", left_out, Arg("strict", True), " refuses them"]
    if found.lossy:
        of_all = f", left out in all: {counted(total_left_out(found.lossy))}" if len(found.lossy) > 1 else ""
        said += ["; ", f"read {several(len(found.lossy), 'file')} in part{of_all} ({named(found.lossy)})"]
    if found.others:
        number = several(sum(found.others.values()), "file")
        said += ["; ", f"did not read {number} of other types ({of_types(found)})"]
    said += _of_left_aside(found.left_aside)
    if said:
        warnings.warn(InputWarning(tuple(said[1:])), stacklevel=3)


def _of_left_aside(numbers: Mapping[str, int]) -> list[str | Arg]:
    """Numbers of files and folders that were not looked at, after a mark."""
    said: list[str | Arg] = []
    if EXCLUDED in numbers:
        said += ["; ", f"excluded {several(numbers[EXCLUDED], 'name')}"]
    if by_default := {reason: number for reason, number in numbers.items() if reason != EXCLUDED}:
        said += ["; ", f"passed over {several(sum(by_default.values()), 'name')} in folders ("]
        said += [", ".join(f"{number:,} {reason}" for reason, number in by_default.items()), "; ", _NO_IGNORE]
        said += [" reads them)"]
    return said


def total_left_out(parts: Iterable[ReadInPart]) -> dict[str, int]:
    """The missing content of several files: kind -> number, the most first."""
    return dict(sum((Counter(one.left_out) for one in parts), Counter()).most_common())


def named(files: Iterable[Skipped | ReadInPart]) -> str:
    """The first few files with their reasons."""
    return first_few((f"{file.id}: {file.reason}" for file in files), " | ")


def of_types(found: Found) -> str:
    """Numbers of files by suffix, the most frequent first, and how to read some of them."""
    text = first_few(f"{number} {end or 'without an ending'}" for end, number in found.others.items())
    unread = set(kind_by_suffix()).difference(read_suffixes())
    by_fields = found.others.keys() & unread & suffixes_by_fields()
    if by_fields:
        text += (
            f"; a folder's {', '.join(sorted(by_fields))} files are read if you name them or fields of their records"
        )
    uninstalled = unread - suffixes_by_fields()
    return f"{text}: {INSTALL} reads {', '.join(sorted(uninstalled))}" if found.others.keys() & uninstalled else text
