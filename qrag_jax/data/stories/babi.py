"""Reader of bAbI files: `n sentence`, or `n question<TAB>answer<TAB>numbers of the supporting lines`."""

from pathlib import Path

import numpy as np

from qrag_jax.data.stories.stories import Stories, StoriesBuilder
from qrag_jax.files.text_files import numbered_lines, read_text_file
from qrag_jax.types import InputError

_EXPECTED = "expected `n sentence` or `n question<TAB>answer<TAB>supporting line numbers`"
_MAX_DIGITS = 9


def read_babi(path: str | Path) -> Stories:
    """Reads a bAbI file (.txt or .txt.gz). Line number 1 starts a new story; a question sees the facts above it.

    Supporting line numbers become positions among the facts of the story. Query ids are `FILE:LINE`.

    Raises:
        UsageError: there is no such file.
        InputError: a malformed line, or a support that is missing, below its question or itself a question; the
            message starts with `file:line`. Also an empty file, or one without a question.
    """
    path = Path(path)
    builder = StoriesBuilder()
    story = _Story()
    num_questions = 0
    for line_number, line in numbered_lines(read_text_file(path, "a bAbI file (qaN_*.txt or .txt.gz)")):
        where = f"{path}:{line_number}"
        number, content = _numbered(line, where)
        if number == 1:
            story = _Story()
        elif number != story.last_number + 1:
            raise InputError(
                f"{where}: line number {number} follows {story.last_number}; lines of a story count up by one, "
                "1 starts a new story"
            )
        story.last_number = number
        if "\t" not in content:
            story.position[number] = len(story.facts)
            story.facts.append(builder.intern(content))
            continue
        question, answer, supports = _question_parts(content, where)
        gold = [story.support(support, where) for support in supports]
        builder.add(f"{path.name}:{line_number}", np.asarray(story.facts, np.int32), question, answer, gold)
        num_questions += 1
    if not num_questions:
        raise InputError(f"{path}: no question in this file; {_EXPECTED}")
    return builder.build()


class _Story:
    """Facts of the story read so far, and the position of each numbered line among them."""

    def __init__(self) -> None:
        self.facts: list[int] = []
        self.position: dict[int, int] = {}
        self.last_number = 0

    def support(self, number: int, where: str) -> int:
        if number in self.position:
            return self.position[number]
        what = "is a question" if 0 < number < self.last_number else "does not exist above this question"
        raise InputError(
            f"{where}: support fact {number} {what}; the facts of this story so far are lines {sorted(self.position)}"
        )


def _numbered(line: str, where: str) -> tuple[int, str]:
    number, _, content = line.strip(" ").partition(" ")
    if not _is_number(number) or int(number) < 1 or not content.strip():
        raise InputError(f"{where}: {_EXPECTED}, got {line[:80]!r}")
    return int(number), content.strip(" ")


def _is_number(text: str) -> bool:
    """Python reads no number of thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _question_parts(content: str, where: str) -> tuple[str, str, list[int]]:
    parts = [part.strip() for part in content.split("\t")]
    if len(parts) != 3 or not all(parts):
        raise InputError(f"{where}: {_EXPECTED}, got {len(parts)} tab-separated parts: {content[:80]!r}")
    numbers = parts[2].split()
    if not all(map(_is_number, numbers)):
        raise InputError(f"{where}: supporting line numbers must be integers, got {parts[2][:80]!r}")
    return parts[0], parts[1], [int(number) for number in numbers]
