"""What a converter gives, and what all of them do to text."""

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
        pages: offset of the first character of each page, ascending; None where there are no pages.
        left_out: what of the file is not in the text, and would be missed; whole phrases.
    """

    text: str
    pages: tuple[int, ...] | None = None
    left_out: tuple[str, ...] = ()


def cleaned(text: str) -> str:
    """Text with `\\n` as its line ends and no blanks before them, at most one blank line in a row, no controls."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _LONE.sub("\ufffd", _UNWANTED.sub("", text))
    return _BLANK_LINES.sub("\n\n", _BLANKS_AT_ENDS.sub("", text)).strip("\n")


def several(number: int, what: str) -> str:
    """`1 page`, `2 pages`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
