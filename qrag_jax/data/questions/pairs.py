"""Reader of questions with passages that answer and passages that do not, for training rerankers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.data.dataset_rows import full_text, list_field
from qrag_jax.files.text_files import read_json_lines
from qrag_jax.types import InputError

_EXPECTED = 'lines {"question": str, "positive": str, "negatives": [str, ...]}'


@dataclass(frozen=True)
class PairGroup:
    """A question, a passage that answers it, and passages that do not."""

    question: str
    positive: str
    negatives: tuple[str, ...]


def read_pairs(paths: Sequence[str | Path]) -> list[PairGroup]:
    """Reads JSON Lines with `question`, `positive` and `negatives`; other fields are ignored.

    Without `negatives` (or with an empty list) the passages of other questions serve as such.

    Raises:
        UsageError: there is no such file.
        InputError: a line that is not such an object; the message starts with `file:line` and names the field.
    """
    found: dict[PairGroup, None] = {}
    for path in paths:
        for where, row in read_json_lines(Path(path), _EXPECTED):
            question, positive = (full_text(row.get(name), name, where) for name in ("question", "positive"))
            listed = list_field(row.get("negatives"), "negatives", where)
            negatives = tuple(full_text(one, f"negatives[{number}]", where) for number, one in enumerate(listed))
            if positive in negatives:
                number = negatives.index(positive)
                raise InputError(f"negatives[{number}] is the positive passage; remove it", file=where)
            found.setdefault(PairGroup(question, positive, negatives))
    return list(found)
