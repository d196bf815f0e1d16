"""The result of a converter, and the cleaning that all results get."""

import re
from dataclasses import dataclass

_UNWANTED = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_LONE = re.compile("[\ud800-\udfff]")
_BLANK_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+\n")
_BLANKS_AT_ENDS = re.compile(r"[ \t]+$", re.MULTILINE)


@dataclass(frozen=True)
class Converted:
    """A file as text.

    Attributes:
        text: Markdown.
        pages: offset of the first character of each page, ascending; None if there are no pages.
        left_out: phrases for content of the file that is missing from the text.
    """

    text: str
    pages: tuple[int, ...] | None = None
    left_out: tuple[str, ...] = ()


def cleaned(text: str) -> str:
    """Text with `\\n` as line ends, no blanks before them, at most one blank line in a row, and no controls."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _LONE.sub("\ufffd", _UNWANTED.sub("", text))
    return _BLANK_LINES.sub("\n\n", _BLANKS_AT_ENDS.sub("", text)).strip("\n")


def several(number: int, what: str) -> str:
    """`1 page`, `2 pages`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
