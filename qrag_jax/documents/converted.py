"""The options and the result of a converter, and the cleaning that all results get."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Kinds of content that readers leave out on purpose, so `strict` does not refuse them.
EXPECTED = frozenset(
    {"words of navigation", "hidden words", "pictures", "embedded media", "words outside of the article"}
)

_MAX_SHOWN = 3  # names in a message
_UNWANTED = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_LONE = re.compile("[\ud800-\udfff]")
_BLANK_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+\n")
_BLANKS_AT_ENDS = re.compile(r"[ \t]+$", re.MULTILINE)


@dataclass(frozen=True)
class ReadOptions:
    """How files are converted. A kind of file uses those options that its `FileKind` names.

    Attributes:
        encoding: of text that does not declare its own; any name that Python knows.
        html: the part of an HTML page to read: `page` is all visible text, `article` only its main part.
        comments: read the remarks of reviewers too.
        outputs: read the outputs of notebooks too.
        fields: of JSON records to read; empty is all.
    """

    encoding: str = "utf-8"
    html: str = "page"
    comments: bool = False
    outputs: bool = False
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Converted:
    """A file as text.

    Attributes:
        text: Markdown.
        pages: offset of the first character of each page, ascending; None if there are no pages.
        left_out: content of the file that is missing from the text: kind (a plural noun phrase) -> number.
        page_labels: the numbers that the pages of a PDF bear (`iv`), if not all are 1, 2, ...; else None.
    """

    text: str
    pages: tuple[int, ...] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    page_labels: tuple[str, ...] | None = None


def cleaned(text: str) -> str:
    """Text with `\\n` as line ends, no blanks before them, at most one blank line in a row, and no controls."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _LONE.sub("\ufffd", _UNWANTED.sub("", text))
    return _BLANK_LINES.sub("\n\n", _BLANKS_AT_ENDS.sub("", text)).strip("\n")


def several(number: int, what: str) -> str:
    """`1 page`, `2 pages`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def counted(kinds: Mapping[str, int]) -> str:
    """Kinds of content and their numbers, as `equations: 2, pictures: 1`."""
    return ", ".join(f"{kind}: {number:,}" for kind, number in kinds.items())


def first_few(names: Iterable[str], between: str = ", ") -> str:
    """The first few names."""
    shown = list(names)
    return between.join([*shown[:_MAX_SHOWN], *["..."] * (len(shown) > _MAX_SHOWN)])
