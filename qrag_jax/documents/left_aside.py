"""Passes over files of a folder: hidden ones, those of tools and of `.gitignore`, and those that the user excludes."""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrag_jax.files.reading import reading

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

EXCLUDED, HIDDEN, OF_TOOLS, OF_GIT = "excluded", "hidden", "of tools", "in .gitignore"  # reasons
_GITIGNORE = ".gitignore"
_MAX_BYTES, _MAX_PATH = 2**17, 1_000  # of a `.gitignore` that somebody wrote; of a path that rules are asked about
_MAX_STARS = 3  # of a rule: each further one multiplies its time by the length of the name
# Package managers, compilers and minifiers write these.
_FOLDERS = frozenset(("node_modules", "__pycache__", "site-packages"))
_FILES = (".min.js", ".min.css", "package-lock.json", "pnpm-lock.yaml")
_OF_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")  # in the folder of a virtual environment
_Rules = tuple[tuple[Path, "GitIgnoreSpec"], ...]


class LeftAside:
    """Decides about the files and folders of one walk, and counts those that are left out."""

    def __init__(
        self, root: Path, excludes: Callable[[str], bool], suffixes: Sequence[str], counts: Counter[str]
    ) -> None:
        """Begins a walk.

        Args:
            root: the folder that the user named. It is read whatever its name is.
            excludes: path -> whether the user excludes it.
            suffixes: of files that are read, in lower case; others are not counted.
            counts: reason -> number of files and folders; the content of a folder that is left out is not counted.
        """
        self._excludes, self._suffixes, self._counts = excludes, frozenset(suffixes), counts
        self._rules: dict[Path, _Rules] = {root.parent: ()} if root.name else {}

    def takes(self, path: Path, is_folder: bool) -> bool:
        """True if a file or folder in the root is left out."""
        reason = self._reason(path, is_folder)
        if reason == EXCLUDED or (reason and (is_folder or path.suffix.lower() in self._suffixes)):
            self._counts[reason] += 1
        return reason != ""

    def _reason(self, path: Path, is_folder: bool) -> str:
        if self._excludes(str(path)) or (is_folder and self._excludes(f"{path}/")):
            return EXCLUDED
        if reading().no_ignore:
            return ""
        if path.name.startswith("."):
            return HIDDEN
        if is_folder and (path.name in _FOLDERS or any(os.path.exists(path / name) for name in _OF_ENVIRONMENT)):
            return OF_TOOLS
        if not is_folder and path.name.endswith(_FILES):
            return OF_TOOLS
        return OF_GIT if self._is_ignored(path, is_folder) else ""

    def _is_ignored(self, path: Path, is_folder: bool) -> bool:
        """True if the last matching rule says so; rules of a deeper folder come later."""
        for folder, rules in reversed(self._rules_of(path.parent)):
            below = path.relative_to(folder).as_posix() + "/" * is_folder
            found = rules.check_file(below).include if len(below) <= _MAX_PATH else None
            if found is not None:
                return found
        return False

    def _rules_of(self, folder: Path) -> _Rules:
        """The rules for the content of a folder, those of the root first."""
        if folder not in self._rules:
            above = self._rules_of(folder.parent) if folder != folder.parent else ()
            own = _read_rules(folder / _GITIGNORE)
            self._rules[folder] = (*above, (folder, own)) if own else above
        return self._rules[folder]


def _read_rules(file: Path) -> "GitIgnoreSpec | None":
    """The rules of a `.gitignore`; None if there is none that can be read."""
    from pathspec import GitIgnoreSpec

    if not os.path.isfile(file) or os.path.islink(file) or os.path.getsize(file) > _MAX_BYTES:
        return None
    try:
        lines = file.read_bytes().decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    return GitIgnoreSpec([rule for line in lines for rule in _rules(line)])


def _rules(line: str) -> Sequence[Any]:
    """The rule of a line; none for a line that is no rule, which git skips too, or that takes long."""
    from pathspec import GitIgnoreSpec

    if len(re.findall(r"\*+", line)) > _MAX_STARS:
        return ()
    try:
        return GitIgnoreSpec.from_lines([line]).patterns
    except (ValueError, re.error):
        return ()
