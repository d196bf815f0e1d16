"""The output of an evaluation: one JSON line per question, and the rows of `results.json`.

Every value is validated when it is made and when it is read; NaN and infinity raise an error. A file is written under
a temporary name and then renamed: a run that dies leaves the old file or the new one.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from qrag_jax.eval.setting import (
    Setting,
    check_kinds,
    file_fields,
    flat_values,
    parse_json,
    read_text,
    record_of,
    require,
    write_lines,
)
from qrag_jax.files.whole_file import write_whole
from qrag_jax.measures.aggregate import mean_interval
from qrag_jax.measures.facts import NOT_TAKEN, FactScores
from qrag_jax.names import METHODS, PROTOCOLS
from qrag_jax.types import InputError, check_fields

_SLACK = 1e-9  # rounding between a mean and a bound that it may touch


class Repeats(NamedTuple):
    """How often the noise of contexts repeats; sentences that read the same count as one.

    Attributes:
        noise_texts: different sentences of noise in a context, mean over contexts.
        noise_repeats: how often one of them occurs in its context, mean.
        most_repeats: the most that a sentence occurs in a context.
    """

    noise_texts: float
    noise_repeats: float
    most_repeats: int


@dataclass(frozen=True)
class QueryRecord:
    """The picks of one method for one question; in its file, the fields of `setting` are among the others.

    `chosen` holds the chunk indices that the protocol kept, in order of retrieval, `q_values` the value each was picked
    by (Q, or the BM25 score), `texts` the chosen chunks' texts where they are kept, `gold` the indices that answer the
    question.
    """

    query_id: str
    question: str
    setting: Setting
    chosen: tuple[int, ...]
    q_values: tuple[float, ...]
    gold: tuple[int, ...]
    fact_em: float
    fact_f1: float
    texts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_kinds(self)
        _check_method(self.setting)
        check_fields(self, shares=("fact_em", "fact_f1"), error=InputError)
        num_chunks = self.setting.num_chunks
        require(len(self.q_values) == len(self.chosen), "q_values", self.q_values, "needs one value a chosen chunk")
        if self.texts is not None:
            require(len(self.texts) == len(self.chosen), "texts", self.texts, "needs one text a chosen chunk")
        for name in ("chosen", "gold"):
            chunks = getattr(self, name)
            inside = all(0 <= chunk < num_chunks for chunk in chunks) and len(set(chunks)) == len(chunks)
            require(inside, name, chunks, f"must be distinct indices below num_chunks = {num_chunks}")


@dataclass(frozen=True)
class Row:
    """One method at one context length: a row of `results.json`.

    In the file, the fields of `setting` are among the others.

    `fact_em`, `fact_f1` and `f1_ceiling` are means over the `n` questions that were scored, `em_low` and `em_high` the
    95% interval of `fact_em`; `length_factor` is `num_chunks` over the training length; `seconds` is the wall time of
    picking, the same for all protocols of a method; `num_left_out` counts the questions that the task could not pose
    (their story did not fit into `num_chunks` chunks, or their gold is broken).

    `threshold` is the score below which the protocol or a beam stops; `num_taken` is the mean number of picks that
    count. `f1_low`, `f1_high` are the 95% interval of `fact_f1`. `em_ceiling` is the share of questions with at most
    as many gold chunks as picks, the upper bound of the protocol `fixed`; other protocols have none. Old rows without
    a protocol are of `fixed` and have none of these numbers.

    Rows of contexts that are scored in blocks also have costs: `step_ms` is the wall time of a pick, `embed_seconds`
    that of the embedding of the pool by the trained method, `peak_gib` the most memory that the process had until
    then, mapped files included. Where facts are hidden in noise, `noise_texts`, `noise_repeats` and `most_repeats` say
    how often it repeats (`Repeats`). A file leaves these fields out where they are None.
    """

    task: str
    setting: Setting
    length_factor: float
    fact_em: float
    fact_f1: float
    em_low: float
    em_high: float
    n: int
    seconds: float
    f1_ceiling: float
    num_left_out: int
    f1_low: float | None = None
    f1_high: float | None = None
    num_taken: float | None = None
    threshold: float | None = None
    em_ceiling: float | None = None
    step_ms: float | None = None
    embed_seconds: float | None = None
    peak_gib: float | None = None
    noise_texts: float | None = None
    noise_repeats: float | None = None
    most_repeats: int | None = None

    def __post_init__(self) -> None:
        check_kinds(self)
        _check_method(self.setting)
        shares = ("fact_em", "fact_f1", "em_low", "em_high", "f1_ceiling", "f1_low", "f1_high", "em_ceiling")
        least = {"n": 1, "num_left_out": 0, "seconds": 0}
        check_fields(self, shares=shares, at_least=least, within={"length_factor": "(0, inf]"}, error=InputError)
        names = {"task": self.task, "mode": self.setting.mode, "positions": self.setting.positions}
        for name, text in names.items():
            require(bool(text.strip()), name, text, "must not be empty")
        inside = self.em_low - _SLACK <= self.fact_em <= self.em_high + _SLACK
        require(inside, "fact_em", self.fact_em, f"lies outside its interval [{self.em_low}, {self.em_high}]")
        possible = self.fact_f1 <= self.f1_ceiling + _SLACK
        require(possible, "fact_f1", self.fact_f1, f"exceeds its ceiling {self.f1_ceiling}")


def summarise(
    scores: FactScores,
    task: str,
    setting: Setting,
    *,
    length_factor: float,
    seconds: float,
    num_left_out: int = 0,
    threshold: float | None = None,
) -> Row:
    """The row of one method at one length: means over the questions, and the bootstrap intervals of fact EM and F1.

    The resampling always uses seed 0: the interval belongs to the questions, not to the run's `seed`.
    """
    em, f1 = mean_interval(scores.em), mean_interval(scores.f1)
    return Row(
        task=task,
        setting=setting,
        length_factor=float(length_factor),
        fact_em=em.mean,
        fact_f1=f1.mean,
        em_low=em.low,
        em_high=em.high,
        n=em.n,
        seconds=float(seconds),
        f1_ceiling=float(scores.f1_ceiling.mean()),
        num_left_out=int(num_left_out),
        f1_low=f1.low,
        f1_high=f1.high,
        num_taken=float(scores.num_taken.mean()),
        threshold=threshold,
        em_ceiling=float((scores.num_gold <= scores.num_taken).mean()) if setting.protocol == "fixed" else None,
    )


def make_records(
    scores: FactScores,
    setting: Setting,
    asked: Sequence[tuple[str, str]],
    *,
    chosen: Int[np.ndarray, "n T"],
    q_values: Float[np.ndarray, "n T"],
    gold: Bool[np.ndarray, "n M"],
    texts: Sequence[Sequence[str]] | None = None,
) -> list[QueryRecord]:
    """One record a question from the arrays of an evaluation; picks of `NOT_TAKEN` are dropped.

    Args:
        scores: `score_facts(chosen, gold)`.
        setting: that all of them are of.
        asked: query id and question of every row of the arrays.
        texts: for every question the texts of the picks that are kept, or None to keep indices only.
    """
    records = []
    for row, (query_id, question) in enumerate(asked):
        taken = chosen[row] != NOT_TAKEN
        records.append(
            QueryRecord(
                query_id=query_id,
                question=question,
                setting=setting,
                chosen=tuple(chosen[row][taken].tolist()),
                q_values=tuple(q_values[row][taken].tolist()),
                gold=tuple(np.flatnonzero(gold[row]).tolist()),
                fact_em=float(scores.em[row]),
                fact_f1=float(scores.f1[row]),
                texts=None if texts is None else tuple(texts[row]),
            )
        )
    return records


def paired_values(
    first: Sequence[QueryRecord], second: Sequence[QueryRecord], measure: str = "fact_em"
) -> tuple[np.ndarray, np.ndarray]:
    """`measure` of two methods, matched by `query_id`, for `aggregate.paired_difference`."""
    by_query = [{record.query_id: getattr(record, measure) for record in records} for records in (first, second)]
    for records, values in zip((first, second), by_query, strict=True):
        if len(values) != len(records):
            raise InputError("a query occurs twice in one list: compare one method at one length and seed")
    alone = sorted(by_query[0].keys() ^ by_query[1].keys())
    if alone:
        raise InputError(f"{len(alone)} queries have one record only, {alone[0]!r} first: compare the same questions")
    left, right = (np.array([values[query_id] for query_id in by_query[0]], np.float64) for values in by_query)
    return left, right


def write_records(path: str | os.PathLike, records: Iterable[QueryRecord]) -> None:
    """Write one JSON object a line (`record_values`). Parent folders are made."""
    write_lines(path, map(record_values, records))


def record_values(record: QueryRecord) -> dict[str, Any]:
    """A record as JSON values, as its line has them; `texts` is left out where it is None."""
    values = flat_values(record, _RECORD_FIELDS)
    if record.texts is None:
        del values["texts"]
    return values


def read_records(path: str | os.PathLike) -> list[QueryRecord]:
    """Read what `write_records` wrote.

    Raises:
        UsageError: no such file.
        InputError: a malformed line, named by `file:line`.
    """
    lines = read_text(path).split("\n")
    return [
        record_of(QueryRecord, parse_json(line, f"{path}:{number}"), f"{path}:{number}", _RECORD_FIELDS)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def write_rows(path: str | os.PathLike, rows: Iterable[Row]) -> None:
    """Write `results.json`: a JSON list, one row a line. Parent folders are made."""
    lines = [json.dumps(values, ensure_ascii=False, allow_nan=False) for values in row_values(rows)]
    write_whole(path, "[\n" + ",\n".join(lines) + "\n]\n")


def row_values(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows as JSON values, as `results.json` has them."""
    values = [flat_values(row, _ROW_FIELDS) for row in rows]
    return [{name: x for name, x in one.items() if x is not None or name not in _OF_LONG} for one in values]


def read_rows(path: str | os.PathLike) -> list[Row]:
    """Read a `results.json`.

    Raises:
        UsageError: no such file.
        InputError: not JSON, not a list, or a row with a missing, unknown or impossible field (row number named).
    """
    values = parse_json(read_text(path), str(path))
    if not isinstance(values, list):
        raise InputError(f"a results file is a JSON list of rows, got {type(values).__name__}", file=path)
    return [record_of(Row, value, f"{path}: row {number}", _ROW_FIELDS) for number, value in enumerate(values, start=1)]


_OF_LONG = ("step_ms", "embed_seconds", "peak_gib", *Repeats._fields)
_ROW_FIELDS = file_fields(Row, late_after="num_left_out")
_RECORD_FIELDS = file_fields(QueryRecord, late_after="texts")


def _check_method(setting: Setting) -> None:
    for name, known in (("method", METHODS), ("protocol", PROTOCOLS)):
        value = getattr(setting, name)
        require(value in known, name, value, f"must be one of {', '.join(known)}")
