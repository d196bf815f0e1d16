"""Things of a kind by their names: where each is found, and what the help says of it. Imports none of them."""

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
        target: `package.module:NAME`, imported when it is first used.
        about: what it does, for the help.
        tags: what has to be known of it before it is imported, such as "llm": it asks a language model.
    """

    name: str
    target: str
    about: str = ""
    tags: frozenset[str] = frozenset()


class Registry(Mapping[str, Entry], Generic[T]):
    """All things of a kind, in the order of the help; `load` gives one.

    Another one is a module with the thing, and a line of `qrag_jax/names.py`; or `add`, in a program of one's own.
    """

    def __init__(self, kind: str, entries: Iterable[Entry]) -> None:
        """Args:
        kind: what the things are called, for errors.
        entries: each name once.
        """
        self.kind = kind
        self._entries: dict[str, Entry] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Takes in another one. Config types know those that were there when their module was imported.

        Raises:
            UsageError: the name is taken.
        """
        if entry.name in self._entries:
            taken = self._entries[entry.name].target
            raise UsageError(
                f"is there already, as {taken}", field=self.kind, value=entry.name, remedy="choose another name"
            )
        self._entries[entry.name] = entry

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in order."""
        return tuple(self._entries)

    def choices(self, *tags: str, without: str = "") -> tuple[str, ...]:
        """Names of those that have all of these tags, and not that one."""
        return tuple(
            name for name, entry in self._entries.items() if entry.tags.issuperset(tags) and without not in entry.tags
        )

    def load(self, name: str) -> T:
        """The thing of a name, imported now.

        Raises:
            UsageError: there is none of this name.
        """
        if name not in self._entries:
            near = difflib.get_close_matches(name, self.names, n=1)
            remedy = f"did you mean {near[0]}?" if near else ""
            raise UsageError(f"choose one of {', '.join(self.names)}", field=self.kind, value=name, remedy=remedy)
        module, _, attribute = self._entries[name].target.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def help(self) -> str:
        """A paragraph for each: its name in a column, and what it does beside it."""
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
