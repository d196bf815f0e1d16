"""Differences between rows, question by question: what may be said of two methods, and what not."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from qrag_jax.eval.retrieval.records import QueryRecord, paired_values
from qrag_jax.measures.aggregate import Difference, holm_p_values, paired_difference

MEASURES = ("fact_em", "fact_f1")


@dataclass(frozen=True)
class Comparison:
    """Mean of `first - second` over the same `n` questions of a task under one protocol.

    `low` and `high` are the 95% bootstrap interval, `p_value` is of the two-sided sign-flip permutation test, `p_holm`
    is corrected (Holm) for the comparisons of one measure on this task and length, all protocols together.
    """

    task: str
    num_chunks: int
    protocol: str
    measure: str
    first: str
    second: str
    difference: float
    low: float
    high: float
    p_value: float
    p_holm: float
    n: int


def compare(task: str, records: Sequence[QueryRecord]) -> list[Comparison]:
    """The trained greedy search against every other method, and each beam width against it, under each protocol.

    Protocols are never compared with each other: they answer with different numbers of chunks.

    Args:
        task: name, for the rows.
        records: of one task at one length and seed.

    Returns:
        Comparisons of both measures; Holm's correction counts those of one measure together.
    """
    groups: dict[tuple[str, str, int], list[QueryRecord]] = {}
    for record in records:
        own = record.setting
        groups.setdefault((own.protocol, own.method, own.beam_width), []).append(record)
    found = []
    for measure in MEASURES:
        rows = [
            _compare(task, measure, groups[base], groups[other])
            for base in groups
            if base[1:] == ("trained", 1)
            for other in groups
            if other[0] == base[0] and other != base
        ]
        found += holm(rows)
    return found


def holm(rows: Sequence[Comparison]) -> list[Comparison]:
    """The rows with Holm's correction (`holm_p_values`) for their number."""
    corrected = holm_p_values([row.p_value for row in rows])
    return [replace(row, p_holm=p_value) for row, p_value in zip(rows, corrected, strict=True)]


def format_comparisons(rows: Sequence[Comparison]) -> str:
    """The comparisons as lines of text."""
    names = {"fact_em": "EM", "fact_f1": "F1", "answer_em": "answer EM", "answer_f1": "answer F1"}
    lines = ["paired differences over the same questions: mean, 95% interval, p of a permutation test, Holm-corrected"]
    for row in rows:
        lines.append(
            f"  {row.task} {row.num_chunks:,} chunks, {row.protocol}, {names[row.measure]}: {row.first} - {row.second} "
            f"{row.difference:+.3f} [{row.low:+.3f}, {row.high:+.3f}], p = {row.p_holm:.4f}, n = {row.n:,}"
        )
    return "\n".join(lines)


def comparison_values(rows: Sequence[Comparison]) -> list[dict[str, object]]:
    """The comparisons as JSON values."""
    return [asdict(row) for row in rows]


def _compare(task: str, measure: str, base: Sequence[QueryRecord], other: Sequence[QueryRecord]) -> Comparison:
    """The trained greedy search minus another method; a beam search minus the greedy one."""
    beams = other[0].setting.method == "trained"
    first, second = (other, base) if beams else (base, other)
    difference = paired_difference(*paired_values(first, second, measure))
    names = [name_of(group[0].setting.method, group[0].setting.beam_width) for group in (first, second)]
    own = base[0].setting
    return make_comparison(task, own.num_chunks, own.protocol, measure, names, difference)


def name_of(method: str, beam_width: int) -> str:
    """The name of a method in a row; a beam search has its width."""
    return f"beam {beam_width}" if beam_width > 1 else method


def make_comparison(
    task: str, num_chunks: int, protocol: str, measure: str, names: Sequence[str], difference: Difference
) -> Comparison:
    """The row of a difference between two methods, first minus second; its p-value is not corrected yet (`holm`)."""
    return Comparison(
        task=task,
        num_chunks=num_chunks,
        protocol=protocol,
        measure=measure,
        first=names[0],
        second=names[1],
        difference=difference.mean,
        low=difference.low,
        high=difference.high,
        p_value=difference.p_value,
        p_holm=difference.p_value,
        n=difference.n,
    )
