"""Registries of named things of a kind: where each is defined, and its help text. Imports none of them."""

import difflib
import importlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from qrag_jax.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One thing of a kind.

    Attributes:
        name: in configs, flags and functions.
        target: `package.module:NAME`, imported at first use.
        about: what it does, for the help.
        tags: facts needed before it is imported, such as "llm": it asks a language model.
    """

    name: str
    target: str
    about: str = ""
    tags: frozenset[str] = frozenset()


class Registry(Mapping[str, Entry], Generic[T]):
    """All things of a kind, in the order of the help; `load` imports one.

    To add one, write a module with it and a line in `qrag_jax/names.py`; or call `add` in your own program.
    """

    def __init__(self, kind: str, entries: Iterable[Entry]) -> None:
        """Args:
        kind: name of the kind, for errors.
        entries: with distinct names.
        """
        self.kind = kind
        self._entries: dict[str, Entry] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Adds an entry. Config types know only the entries that existed when their module was imported.

        Raises:
            UsageError: the name is taken.
        """
        if entry.name in self._entries:
            taken = self._entries[entry.name].target
            raise UsageError(
                f"already exists, as {taken}", field=self.kind, value=entry.name, remedy="choose another name"
            )
        self._entries[entry.name] = entry

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in order."""
        return tuple(self._entries)

    def choices(self, *tags: str, without: str = "") -> tuple[str, ...]:
        """Names of the entries that have all of these tags, and not `without`."""
        return tuple(
            name for name, entry in self._entries.items() if entry.tags.issuperset(tags) and without not in entry.tags
        )

    def load(self, name: str) -> T:
        """Imports the thing of a name.

        Raises:
            UsageError: the name is unknown.
        """
        if name not in self._entries:
            near = difflib.get_close_matches(name, self.names, n=1)
            remedy = f"did you mean {near[0]}?" if near else ""
            raise UsageError(f"choose one of {', '.join(self.names)}", field=self.kind, value=name, remedy=remedy)
        module, _, attribute = self._entries[name].target.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def help(self) -> str:
        """A paragraph for each entry: its name in a column, then what it does."""
        width = max(map(len, self.names), default=0) + 4
        return "".join(
            textwrap.fill(entry.about, 120, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width)
            + "\n"
            for name, entry in self._entries.items()
        )

    def __getitem__(self, name: str) -> Entry:
        """The entry of a name."""
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        """All names, in order."""
        return iter(self._entries)

    def __len__(self) -> int:
        """The number of entries."""
        return len(self._entries)
