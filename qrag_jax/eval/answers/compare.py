"""Paired tests between methods on the answers that both gave: the same reader, other chunks."""

from collections.abc import Sequence

import numpy as np

from qrag_jax.eval.answers.records import AnswerRecord
from qrag_jax.eval.measures.aggregate import paired_difference
from qrag_jax.eval.picks.compare import Comparison, holm, make_comparison, name_of
from qrag_jax.types import InputError

_Group = tuple[str, str, int]  # protocol, method, beam width


def compare_answers(task: str, records: Sequence[AnswerRecord], score: str = "f1") -> list[Comparison]:
    """The trained greedy search against every other method, and each beam width against it, under each protocol.

    As `compare.py:compare`, but over the questions that both methods have a score of: a failed call is no 0, so it can
    be no difference. `n` says how many that are; two methods without a common question are not compared.

    Args:
        records: of one task at one length and seed.
        score: of `records.SCORES`.

    Returns:
        Comparisons of the measure `answer_SCORE`, Holm's correction counting all of them together.
    """
    groups: dict[_Group, dict[str, float]] = {}
    seen: set[tuple[_Group, str]] = set()
    for record in records:
        own = record.setting
        group = (own.protocol, own.method, own.beam_width)
        if (group, record.query_id) in seen:
            raise InputError(f"{task}: query {record.query_id} occurs twice under {own.method}: give one length")
        seen.add((group, record.query_id))
        values = groups.setdefault(group, {})
        if score in record.scores:
            values[record.query_id] = record.scores[score]
    num_chunks = records[0].setting.num_chunks if records else 0
    rows = [
        row
        for base in groups
        if base[1:] == ("trained", 1)
        for other in groups
        if other[0] == base[0] and other != base
        if (row := _compare(task, num_chunks, score, groups, base, other)) is not None
    ]
    return holm(rows)


def _compare(
    task: str, num_chunks: int, score: str, groups: dict[_Group, dict[str, float]], base: _Group, other: _Group
) -> Comparison | None:
    """The trained greedy search minus another method; a beam search minus the greedy one."""
    first, second = (other, base) if other[1] == "trained" else (base, other)
    both = [query for query in groups[first] if query in groups[second]]
    if not both:
        return None
    values = (np.array([groups[group][query] for query in both], np.float64) for group in (first, second))
    difference = paired_difference(*values)
    names = [name_of(method, width) for _, method, width in (first, second)]
    return make_comparison(task, num_chunks, base[0], f"answer_{score}", names, difference)
