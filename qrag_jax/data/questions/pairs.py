"""Reader of questions with passages that answer and passages that do not, for training rerankers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.chunking.text.spans import readable
from qrag_jax.data.dataset_rows import must_be
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
            texts = {}
            for field in ("question", "positive"):
                texts[field] = row.get(field)
                if not isinstance(texts[field], str) or not texts[field].strip():
                    raise must_be(where, field, "a text that is not empty", texts[field])
            negatives = row.get("negatives")
            negatives = [] if negatives is None else negatives
            if not isinstance(negatives, list):
                raise must_be(where, "negatives", "a list of texts", negatives)
            for number, negative in enumerate(negatives):
                if not isinstance(negative, str) or not negative.strip():
                    raise must_be(where, f"negatives[{number}]", "a text that is not empty", negative)
                if negative == texts["positive"]:
                    raise InputError(f"negatives[{number}] is the positive passage; remove it", file=where)
            question, positive = readable(texts["question"]), readable(texts["positive"])
            group = PairGroup(question, positive, tuple(map(readable, negatives)))
            found.setdefault(group)
    return list(found)
