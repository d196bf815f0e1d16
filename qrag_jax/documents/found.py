"""Finds the files below the paths of a user, reports those that are not read, and selects documents by patterns.

Links in folders are skipped with a warning, unless the user asks to follow them.
"""

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from pathlib import Path, PurePath
from unicodedata import normalize

from qrag_jax.documents.converted import counted, first_few
from qrag_jax.documents.kinds import TEXT_NAMES, read_suffixes
from qrag_jax.documents.left_aside import EXCLUDED, LeftAside
from qrag_jax.files.reading import reading
from qrag_jax.types import Arg, InputError, InputWarning, UsageError

_FOLLOW_LINKS = Arg("follow_links", True, python="qrag_jax.files.reading.read_with(follow_links=True)")


def files_below(folder: Path, suffixes: tuple[str, ...], skipped: list[Path]) -> list[Path]:
    """Files in a folder and below, sorted by path. Each folder is entered once, so loops of links end.

    Args:
        folder: names in it that start with a dot are left out.
        suffixes: ends of the names, in lower case.
        skipped: links that were not followed are added to this list.
    """

    def refuse(error: OSError) -> None:
        raise InputError(
            f"cannot be read ({error.strerror}); change its permissions or leave it out", file=error.filename
        )

    wanted = (path for path in all_below(folder, skipped, refuse, _is_hidden) if path.name.lower().endswith(suffixes))
    return sorted((path for path in wanted if may_read(path, skipped)), key=lambda file: file.parts)


def _is_hidden(path: Path, is_folder: bool) -> bool:
    return path.name.startswith(".")


def all_below(
    folder: Path,
    skipped: list[Path],
    unreadable: Callable[[OSError], object],
    left_out: Callable[[Path, bool], bool],
) -> Iterator[Path]:
    """Everything in a folder and below that is not a folder, links included; each folder is entered once.

    Args:
        skipped: links to folders that were not followed are added to this list.
        unreadable: called for a folder that cannot be read.
        left_out: (path, whether it is a folder) -> whether it is left out.
    """
    entered: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, onerror=unreadable, followlinks=True):
        status = os.stat(root)
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        below = [Path(root, name) for name in sorted(folders)]
        folders[:] = [path.name for path in below if not left_out(path, True) and may_read(path, skipped)]
        yield from (path for name in sorted(names) if not left_out(path := Path(root, name), False))


def may_read(path: Path, skipped: list[Path]) -> bool:
    """True if a path in a folder is read. Links are not, because they may lead anywhere; they go to `skipped`."""
    if reading().follow_links or not os.path.islink(path):  # Path.is_symlink raises without permission
        return True
    skipped.append(path)
    return False


def warn_of_skipped(skipped: Sequence[Path], stacklevel: int = 3) -> None:
    """Warns once of all skipped links, if there are any; `stacklevel` as in `warnings.warn`."""
    if skipped:
        warnings.warn(
            InputWarning(
                f"{len(skipped)} links in folders were not followed ({first_few(map(str, skipped))})",
                remedy=("use ", _FOLLOW_LINKS, " to follow them, or name their targets"),
            ),
            stacklevel=stacklevel,
        )


STDIN = "-"  # the path that means standard input, and the id of its document


@dataclass(frozen=True)
class DocumentFile:
    """A file to read.

    Attributes:
        id: of its document: its path as it was found.
        path: None is standard input.
        named: the user named the file itself, not its folder, so a bad file is an error.
    """

    id: str
    path: Path | None
    named: bool


@dataclass(frozen=True)
class Skipped:
    """A file in a folder that was not read.

    Attributes:
        id: its path.
        reason: why, and what to do.
    """

    id: str
    reason: str


@dataclass(frozen=True)
class ReadInPart:
    """A file of which content is missing from the text of its document.

    Attributes:
        id: its path.
        left_out: kind of content -> number.
    """

    id: str
    left_out: Mapping[str, int]

    @property
    def reason(self) -> str:
        """The missing content, in words."""
        return f"left out: {counted(self.left_out)}"


@dataclass(frozen=True)
class Found:
    """The files that the paths of a user lead to.

    Attributes:
        files: to be read, in the order of the paths, those of a folder sorted.
        skipped: bad files in folders.
        others: number of files of other types in the folders, by their suffix in lower case.
        links: in folders, which were not followed.
        lossy: files that were read in part.
        left_aside: number of files and folders in the folders that were not looked at, by the reason.
    """

    files: tuple[DocumentFile, ...]
    skipped: tuple[Skipped, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)
    links: tuple[Path, ...] = ()
    lossy: tuple[ReadInPart, ...] = ()
    left_aside: Mapping[str, int] = field(default_factory=dict)


def find_files(paths: str | os.PathLike | Iterable[str | os.PathLike], exclude: Sequence[str] = ()) -> Found:
    """Finds the files of paths and folders; opens none of them but `.gitignore`.

    A folder gives the files of all types that docs/how_to/read_documents.md lists, including those of its subfolders,
    sorted by path. Left out are hidden names, folders of tools (`node_modules`, virtual environments) and what a
    `.gitignore` in the folder names, unless `files.reading.read_with(no_ignore=True)` is active; and links, unless
    `read_with(follow_links=True)` is. A path that you name is taken with any suffix, also a link. "-" is standard input
    ("./-" is a file of that name). A file that is reached twice (by a link, or named next to its folder) is taken once.

    Args:
        exclude: patterns, as in `Only`, of files and folders to leave out, besides those of `read_with`. A pattern that
            ends in `/` matches only folders.

    Raises:
        UsageError: a path is blank, does not exist, or is neither a file nor a folder.
        InputError: a folder that you name cannot be read.
    """
    paths = named_paths(paths)
    files: dict[str, DocumentFile] = {}  # by their real paths
    skipped: list[Skipped] = []
    links: list[Path] = []
    others: Counter[str] = Counter()
    patterns = (*exclude, *reading().exclude)
    aside = Counter({EXCLUDED: 0} if patterns else {})
    excludes = _excludes(patterns)
    is_named = {os.path.realpath(path) for path in paths if path != STDIN and os.path.isfile(path)}
    for path in paths:
        if path == STDIN:
            files.setdefault(STDIN, DocumentFile(STDIN, None, True))
            continue
        if os.path.isfile(path):
            members = [] if is_excluded(path, excludes) else [Path(path)]
            aside.update([EXCLUDED] * (not members))
        else:
            members = _members(
                Path(path), skipped, others, links, LeftAside(Path(path), excludes, read_suffixes(), aside)
            )
        for member in members:
            real = os.path.realpath(member)
            name = f"./{member}" if str(member) == STDIN else str(member)
            files.setdefault(real, DocumentFile(name, member, real in is_named))
    return Found(
        tuple(files.values()),
        tuple(skipped),
        dict(others.most_common()),
        tuple(links),
        left_aside=dict(aside.most_common()),
    )


def _excludes(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Path -> whether one of the patterns matches it."""
    return Only(patterns).takes if patterns else lambda name: False


def is_excluded(name: str, excludes: Callable[[str], bool] | None = None) -> bool:
    """True if the user's excludes match a file or a folder that it is in.

    Args:
        excludes: path -> whether it is excluded itself; None is by the patterns of `read_with`.
    """
    takes = excludes or _excludes(reading().exclude)
    return takes(name) or any(takes(str(one)) or takes(f"{one}/") for one in PurePath(name).parents)


def named_paths(paths: str | os.PathLike | Iterable[str | os.PathLike]) -> list[str]:
    """The paths as strings. Refuses a blank one, because it is an unset variable and not the working folder."""
    named = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not all(path.strip() for path in named):
        raise UsageError("is blank; name a file or folder ('.' is the working folder)", field="paths", value="")
    return named


def _members(
    folder: Path, skipped: list[Skipped], others: Counter[str], links: list[Path], aside: LeftAside
) -> list[Path]:
    """Files of a folder, sorted; see `find_files`."""
    if not os.path.exists(folder):
        raise UsageError("no such file or folder; check the path", file=folder)
    if not os.path.isdir(folder):
        raise UsageError("neither a file nor a folder; name a text file or a folder that contains some", file=folder)

    def unreadable(error: OSError) -> None:
        reason = f"cannot be read ({error.strerror}); change its permissions or leave it out"
        if str(error.filename) == str(folder):
            raise InputError(reason, file=folder)
        skipped.append(Skipped(str(error.filename), reason))

    suffixes, wanted = read_suffixes(), []
    for path in all_below(folder, links, unreadable, aside.takes):
        if path.suffix.lower() not in suffixes and path.name.lower() not in TEXT_NAMES:
            others[path.suffix.lower()] += 1
        elif may_read(path, links):
            wanted.append(path)
    return sorted(wanted, key=lambda file: file.parts)


class Only:
    """Selects documents by patterns."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Reads patterns.

        Args:
            patterns: `*` matches any characters, also `/`; `?` matches one; `[ab]` matches one of those. A pattern is
                compared with the whole id, and with the rest after each `/`: `reports/*` matches `docs/reports/a.md`.
                Accents match in either form of Unicode.
                An empty sequence matches every document.
        """
        self.patterns = tuple(patterns)
        self._compiled = [re.compile(translate(normalize("NFC", pattern))) for pattern in patterns]

    def takes(self, name: str) -> bool:
        """True if the patterns match this id."""
        parts = normalize("NFC", name).split("/")
        tails = ["/".join(parts[first:]) for first in range(len(parts))]
        return not self._compiled or any(one.match(tail) for one in self._compiled for tail in tails)

    def of_names(self, names: Sequence[str]) -> list[str]:
        """The ids that the patterns match, in their order."""
        taken = [name for name in names if self.takes(name)]
        if names and not taken:
            raise UsageError(
                f"matches none of {len(names):,} documents ({first_few(names)})",
                field="only",
                value=self.patterns,
                remedy="use * for any characters, as in 'reports/*'",
            )
        return taken

    def of_found(self, found: Found) -> Found:
        """The found files without those that the patterns leave out."""
        if not self._compiled:
            return found
        taken = set(self.of_names([file.id for file in found.files]))
        files = tuple(file for file in found.files if file.id in taken)
        skipped = tuple(file for file in found.skipped if self.takes(file.id))
        return replace(found, files=files, skipped=skipped, others={}, left_aside={})
