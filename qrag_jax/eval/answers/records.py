"""The output of an evaluation of answers: one JSON line per answer, and rows with means and intervals.

Both are checked when they are made and when they are read back.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from qrag_jax.eval.setting import (
    Setting,
    check_kinds,
    file_fields,
    flat_values,
    parse_json,
    read_text,
    record_of,
    write_lines,
)
from qrag_jax.llm.judges import Agreement
from qrag_jax.names import ANSWER_MEASURES
from qrag_jax.types import InputError, check_fields

# What answers may be scored by, and the scores that each measure gives, all of them in [0, 1].
MEASURES: Mapping[str, tuple[str, ...]] = {name: (name,) for name in ANSWER_MEASURES} | {
    "claims": ("claim_precision", "claim_recall", "claim_f1")
}
SCORES: tuple[str, ...] = tuple(score for scores in MEASURES.values() for score in scores)


@dataclass(frozen=True)
class AnswerRecord:
    """The answer to one question from the chunks that one method chose.

    Attributes:
        query_id, question: of the task.
        setting: of the `QueryRecord` that chose the chunks; in the file, its fields are among the others.
        chosen: places of the chunks in the context, in document order, as they stood in the prompt.
        references: right answers.
        answer: None if the call failed.
        error: why there is no answer; None where there is one.
        finish_reason: "stop", "length" or "error".
        prompt_tokens, completion_tokens: of the call.
        scores: by name, of `SCORES`; empty where there is no answer.
        errors: measure -> why the answer has no score of it, of `MEASURES`.
        model: who answered.
        prompt_sha256: of the templates of the answer's prompt.
    """

    query_id: str
    question: str
    setting: Setting
    chosen: tuple[int, ...]
    references: tuple[str, ...]
    answer: str | None
    error: str | None
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    scores: dict[str, float]
    errors: dict[str, str]
    model: str
    prompt_sha256: str

    def __post_init__(self) -> None:
        check_kinds(self)
        where = f"query {self.query_id}, {self.setting.method}"
        if (self.answer is None) == (self.error is None):
            raise InputError(f"answer {self.answer!r} and error {self.error!r}: give exactly one of them", file=where)
        if self.error is not None and (self.scores or self.errors):
            raise InputError("a call that failed has no score: leave scores and errors empty", file=where)
        _check_names(where, "scores", self.scores, SCORES)
        _check_names(where, "errors", self.errors, MEASURES)
        check_fields(self, shares=("scores",), error=InputError)


@dataclass(frozen=True)
class Score:
    """A mean over the `n` answers that have this score, and its 95% interval; None of no answers.

    `num_failed` counts answers that the measure could not score (a judge failed); failed answers are not among them.
    """

    mean: float | None
    low: float | None
    high: float | None
    n: int
    num_failed: int


@dataclass(frozen=True)
class AnswerRow:
    """The answers of one method under one protocol at one context length.

    A failed call counts in `num_failed` and in no mean: it is no empty answer and no 0. Methods are comparable by their
    means only where none failed; else by the questions that both answered (`answering.py`).

    Attributes:
        task, setting: of the `Row` of its facts; in the file, the fields of the setting are among the others.
        n: questions asked, all of which have a reference answer.
        num_answered, num_failed: calls that gave an answer, maybe an empty one, and calls that gave none.
        num_cut: of the answered, those that ended at `max_tokens`.
        num_without_reference: questions that were not asked because they have no reference answer.
        fact_em, fact_f1: means over the questions asked, for the chunks in the prompt.
        scores: by name.
        prompt_tokens, completion_tokens: of all calls of the row, as if nothing had been answered before; calls that
            several rows share count in each.
        model, prompt_sha256, max_tokens, temperature: who answered, and how it was asked.
        convention: of F1, `answer_scores.CONVENTIONS`.
        judges: models that judged; none where no measure needs one.
        agreement: measure -> agreement of its judges over the answers of all rows of the task.
    """

    task: str
    setting: Setting
    n: int
    num_answered: int
    num_failed: int
    num_cut: int
    num_without_reference: int
    fact_em: float
    fact_f1: float
    scores: dict[str, Score]
    prompt_tokens: int
    completion_tokens: int
    model: str
    prompt_sha256: str
    max_tokens: int
    temperature: float
    convention: str
    judges: tuple[str, ...] = ()
    agreement: dict[str, Agreement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_answered + self.num_failed != self.n:
            raise InputError(
                f"{self.setting.method}: {self.num_answered} answered + {self.num_failed} failed must be the n = "
                f"{self.n} asked"
            )
        _check_names(self.setting.method, "scores", self.scores, SCORES)


def write_answer_records(path: str | os.PathLike, records: Iterable[AnswerRecord]) -> None:
    """Writes one JSON object a line, the whole file or nothing. Parent folders are made."""
    write_lines(path, (flat_values(record, _RECORD_FIELDS) for record in records))


def read_answer_records(path: str | os.PathLike) -> list[AnswerRecord]:
    """Reads what `write_answer_records` wrote."""
    lines = read_text(path).split("\n")
    return [
        record_of(AnswerRecord, parse_json(line, f"{path}:{number}"), f"{path}:{number}", _RECORD_FIELDS)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def answer_row_values(rows: Sequence[AnswerRow]) -> list[dict[str, object]]:
    """The rows as JSON values."""
    return [flat_values(row, _ROW_FIELDS) for row in rows]


_RECORD_FIELDS, _ROW_FIELDS = file_fields(AnswerRecord), file_fields(AnswerRow)


def _check_names(where: str, what: str, names: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise InputError(f"{what} {', '.join(unknown)}: no such name; they are {', '.join(known)}", file=where)
