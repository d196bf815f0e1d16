"""Some documents of many, by patterns of their names."""

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import translate

from qrag_jax.data.files.found import Found
from qrag_jax.types import UsageError

_MOST_SHOWN = 3  # names in a message


class Only:
    """Tells which documents patterns ask for."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Reads patterns.

        Args:
            patterns: `*` stands for any characters, a `/` too, `?` for one, `[ab]` for one of some. A pattern is
                compared with a whole id, and with what follows each `/` of it: `reports/*` takes `docs/reports/a.md`.
                None of them takes every document.
        """
        self.patterns = tuple(patterns)
        self._compiled = [re.compile(translate(pattern)) for pattern in patterns]

    def takes(self, name: str) -> bool:
        """Whether a document of this id is asked for."""
        parts = name.split("/")
        tails = ["/".join(parts[first:]) for first in range(len(parts))]
        return not self._compiled or any(one.match(tail) for one in self._compiled for tail in tails)

    def of_names(self, names: Sequence[str]) -> list[str]:
        """Those of some ids that are asked for, in their order."""
        taken = [name for name in names if self.takes(name)]
        if names and not taken:
            shown = ", ".join(names[:_MOST_SHOWN]) + (", ..." if len(names) > _MOST_SHOWN else "")
            raise UsageError(
                f"--only {' '.join(map(repr, self.patterns))}: fits none of {len(names):,} documents ({shown}): `*` "
                "stands for any characters, as in 'reports/*'"
            )
        return taken

    def of_found(self, found: Found) -> Found:
        """What was found, as if the rest had not been there."""
        if not self._compiled:
            return found
        taken = set(self.of_names([file.id for file in found.files]))
        files = tuple(file for file in found.files if file.id in taken)
        return replace(
            found, files=files, skipped=tuple(file for file in found.skipped if self.takes(file.id)), others={}
        )
