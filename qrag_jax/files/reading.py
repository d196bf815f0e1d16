"""Settings for reading inputs: the size limit, links in folders of documents, and optional parts of documents.

They are settings of the user of the process, not of a run or a study: `read_with` sets them for everything read inside
it. So no reader passes them on, and no config file, which may come from somebody else, can change them. Sizes are those
after decompression. An input is refused as soon as it is known to be too large; no more of it is kept in memory.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from qrag_jax.types import Arg, InputError, UsageError

HTML_PARTS = ("page", "article")
MAX_INPUT_BYTES = 4 * 2**30
MAX_JSON_BYTES = 2**27  # of a model, a checkpoint or a run; the largest index of weights has a hundredth of it
MAX_CONFIG_BYTES = 2**20  # of YAML and templates, which people write
_PIECE = 2**22
_TAKEN = {"[": 64, "{": 64, ",": 32, '"': 26}  # bytes of memory in Python for each such character
_MOST_A_BYTE = 64
_LIMIT = Arg("max_input_gb", "N", python="max_input_gb (Python: qrag_jax.files.reading.read_with(max_bytes=N))")


class InputTooLarge(InputError):
    """An input exceeds the size limit; the message names it, the limit, and how to raise it."""


@runtime_checkable
class Source(Protocol):
    """Bytes that are read in order: an open file, plain or unpacked."""

    def read(self, size: int, /) -> bytes:
        """The next bytes: `size`, or fewer at the end."""
        ...


@dataclass(frozen=True)
class Reading:
    """How inputs are read.

    Attributes:
        max_bytes: of one input: a file, or all documents that are given together.
        follow_links: read the targets of links in a folder of documents.
        exclude: patterns of files and folders of documents to leave out.
        no_ignore: read hidden files of a folder too, those of tools, and those that `.gitignore` names.
        html, comments, outputs, fields: as in `documents/converted.py:ReadOptions`. None is the default, or for a
            document of an index the option that it was read with.
    """

    max_bytes: int = MAX_INPUT_BYTES
    follow_links: bool = False
    exclude: tuple[str, ...] = ()
    no_ignore: bool = False
    html: str | None = None
    comments: bool | None = None
    outputs: bool | None = None
    fields: tuple[str, ...] | None = None


_DEFAULTS = Reading()
_reading: ContextVar[Reading] = ContextVar("_reading", default=_DEFAULTS)


def reading() -> Reading:
    """The current settings; a new thread begins with the defaults."""
    return _reading.get()


@contextmanager
def read_with(
    *,
    max_bytes: int | None = None,
    follow_links: bool | None = None,
    exclude: Sequence[str] | None = None,
    no_ignore: bool | None = None,
    html: str | None = None,
    comments: bool | None = None,
    outputs: bool | None = None,
    fields: tuple[str, ...] | None = None,
) -> Iterator[Reading]:
    """Reads inputs with other settings while the context is open.

    Args:
        max_bytes: as in `Reading`, like the others; None does not change it.

    Raises:
        UsageError: `html` is not a part of a page.
    """
    if html is not None and html not in HTML_PARTS:
        raise UsageError("no such part of a page", field="html", value=html, remedy=f"choose {' or '.join(HTML_PARTS)}")
    given = {
        "max_bytes": max_bytes,
        "follow_links": follow_links,
        "exclude": exclude and tuple(exclude),
        "no_ignore": no_ignore,
        "html": html,
        "comments": comments,
        "outputs": outputs,
        "fields": fields,
    }
    token = _reading.set(replace(_reading.get(), **{name: x for name, x in given.items() if x is not None}))
    try:
        yield _reading.get()
    finally:
        _reading.reset(token)


def check_size(num_bytes: int, name: object, most: int | None = None) -> None:
    """Refuses an input that is too large.

    Args:
        num_bytes: of the input, as far as it is known.
        most: for files that are always small; the limit of inputs applies too.

    Raises:
        InputTooLarge: it is above the limit.
    """
    limit = reading().max_bytes
    if most is not None and num_bytes > most and most <= limit:
        raise InputTooLarge(
            f"has more than {most:,} bytes, too many for such a file; it is damaged or hostile", file=name
        )
    if num_bytes > limit:
        raise InputTooLarge(
            f"has more than {limit:,} bytes",
            file=name,
            remedy=("if you trust it and have the memory, raise the limit: ", _LIMIT),
        )


def check_json(content: str | bytes, name: object) -> None:
    """Refuses JSON whose values would exceed the memory limit; for example `[],` takes 64 bytes for three characters.

    Raises:
        InputTooLarge: it would.
    """
    limit, size = reading().max_bytes, 0
    if len(content) * _MOST_A_BYTE > limit:  # otherwise it cannot be too large
        for mark, taken in _TAKEN.items():
            size += taken * (content.count(mark) if isinstance(content, str) else content.count(mark.encode()))
    if size > limit:
        raise InputTooLarge(
            f"its JSON takes about {size:,} bytes of memory, more than {limit:,}",
            file=name,
            remedy=("if you trust it and have that much, raise the limit: ", _LIMIT),
        )


def pieces(file: Source, name: object, most: int | None = None) -> Iterator[bytes]:
    """The content of an open file, piece by piece; an incomplete piece is the last one, as in Python's buffered files.

    Raises:
        InputTooLarge: there is more than `check_size` allows.
    """
    size = 0
    while piece := file.read(_PIECE):
        size += len(piece)
        check_size(size, name, most)
        yield piece
        if len(piece) < _PIECE:  # at a terminal, another read would wait for a second Ctrl-D
            return


def read_limited(path: str | os.PathLike, most: int | None = None) -> bytes:
    """The content of a file. One that is too large is not read; one that grows is read up to the limit.

    Args:
        most: as in `check_size`.

    Raises:
        InputTooLarge: there is more than `check_size` allows.
        OSError: it cannot be read.
    """
    with Path(path).open("rb") as file:
        check_size(os.fstat(file.fileno()).st_size, path, most)
        return b"".join(pieces(file, path, most))


def read_text_limited(path: str | os.PathLike, most: int | None = None, encoding: str = "utf-8") -> str:
    """The text of a file, with line ends as Python reads them (`\\n`).

    Raises:
        InputTooLarge, OSError: as `read_limited`.
        UnicodeDecodeError: it is not in that encoding.
    """
    text = read_limited(path, most).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")
