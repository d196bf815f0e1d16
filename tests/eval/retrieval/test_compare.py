import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answers import LATENT, replace

from qrag_jax.eval.retrieval.compare import Comparison, compare, comparison_values, format_comparisons, holm
from qrag_jax.eval.retrieval.records import QueryRecord
from qrag_jax.types import InputError

RECORD = QueryRecord("q0", "Where?", LATENT, (3,), (0.5,), (3,), 1.0, 1.0)
COMPARISON = Comparison("t", 20, "fixed", "fact_em", "trained", "bm25", 0.1, 0.0, 0.2, 0.5, 0.5, 8)


def records(method, em, f1=None, protocol="fixed", beam_width=1):
    """One record a question with the given measures."""
    return [
        replace(
            RECORD, query_id=f"q{i}", method=method, fact_em=value, fact_f1=(f1 or em)[i], protocol=protocol,
            beam_width=beam_width,
        )
        for i, value in enumerate(em)
    ]  # fmt: skip


def sign_flips(differences):
    """Share of all ways to flip signs that give a sum as far from 0."""
    sums = [abs(np.dot(signs, differences)) for signs in itertools.product((-1, 1), repeat=len(differences))]
    return float(np.mean([s >= abs(sum(differences)) - 1e-9 for s in sums]))


# --- differences


def test_differences_by_hand():
    """EM of 8 questions: 6 of them differ, all in favour of the trained one: p = 2 / 2^6."""
    trained = records("trained", [1.0] * 8, [0.8] * 8)
    bm25 = records("bm25", [1.0, 0.0] + [0.0] * 5 + [1.0], [0.8, 0.4] + [0.4] * 5 + [0.8])
    em, f1 = compare("two facts", [*trained, *bm25])
    assert (em.task, em.num_chunks, em.protocol, em.n) == ("two facts", 20, "fixed", 8)
    assert (em.measure, em.first, em.second) == ("fact_em", "trained", "bm25")
    assert em.difference == 6 / 8 and em.p_value == pytest.approx(2 / 64) == em.p_holm
    assert em.low <= em.difference <= em.high
    assert f1.measure == "fact_f1" and f1.difference == pytest.approx(0.3) and f1.p_value == pytest.approx(2 / 64)


def test_questions_are_matched_by_their_id_not_by_their_place():
    em, other = [1.0, 0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0, 0.0]
    one, shuffled = records("trained", em), records("bm25", other)
    (straight, _), (mixed, _) = compare("t", one + shuffled), compare("t", one + shuffled[::-1])
    assert straight == mixed
    assert straight.difference == pytest.approx(1 / 5)
    assert straight.p_value == pytest.approx(sign_flips([1, -1, 1]))


def test_every_other_method_is_held_against_the_trained_one_and_holm_counts_each_measure_alone():
    """Three comparisons a measure; differing questions 6, 5 and 1: p 1/32, 1/16 and 1, times 3, 2 and 1."""
    better = [1.0] * 6
    rows = compare(
        "t",
        [
            *records("trained", better),
            *records("untrained", [0.0] * 6),
            *records("single_step", [1.0] + [0.0] * 5),
            *records("bm25", [1.0] * 5 + [0.0]),
        ],
    )
    assert [row.measure for row in rows] == ["fact_em"] * 3 + ["fact_f1"] * 3
    assert [(row.first, row.second) for row in rows[:3]] == [
        ("trained", "untrained"), ("trained", "single_step"), ("trained", "bm25")
    ]  # fmt: skip
    np.testing.assert_allclose([row.p_value for row in rows[:3]], [1 / 32, 1 / 16, 1])
    np.testing.assert_allclose([row.p_holm for row in rows[:3]], [3 / 32, 2 / 16, 1])


def test_a_beam_is_held_against_the_greedy_search():
    greedy, beam = records("trained", [0.0, 0.0, 1.0]), records("trained", [1.0, 0.0, 1.0], beam_width=4)
    em, _ = compare("t", [*greedy, *beam, *records("bm25", [0.0, 0.0, 0.0])])[:2]
    assert (em.first, em.second, em.difference) == ("beam 4", "trained", pytest.approx(1 / 3))
    # Beams are held against nothing but the greedy search.
    rows = compare("t", [*beam, *greedy, *records("bm25", [0.0, 0.0, 0.0])])
    assert {(row.first, row.second) for row in rows} == {("beam 4", "trained"), ("trained", "bm25")}


def test_protocols_are_never_mixed():
    found = [
        *records("trained", [1.0, 1.0, 0.0]),
        *records("bm25", [0.0, 1.0, 0.0]),
        *records("trained", [0.0, 1.0, 0.0], protocol="threshold"),
        *records("trained", [1.0, 1.0, 1.0], protocol="oracle"),
        *records("bm25", [1.0, 0.0, 0.0], protocol="oracle"),
        *records("trained", [0.0, 0.0, 1.0], protocol="oracle", beam_width=2),
    ]
    rows = [row for row in compare("t", found) if row.measure == "fact_em"]
    assert [(row.protocol, row.first, row.second) for row in rows] == [
        ("fixed", "trained", "bm25"), ("oracle", "trained", "bm25"), ("oracle", "beam 2", "trained")
    ]  # fmt: skip
    np.testing.assert_allclose([row.difference for row in rows], [1 / 3, 2 / 3, -2 / 3])


def test_nothing_is_compared_without_a_trained_search():
    assert compare("t", records("bm25", [1.0]) + records("untrained", [0.0])) == []
    assert compare("t", records("trained", [1.0])) == []


def test_other_questions_are_refused():
    with pytest.raises(InputError, match="compare the same questions"):
        compare("t", records("trained", [1.0, 0.0]) + records("bm25", [1.0]))


# --- Holm


def with_p(values):
    return [replace(COMPARISON, p_value=p, p_holm=p) for p in values]


def test_holm_by_hand():
    """.01 * 3; .03 * 2; .04 * 1 is less than what ranks before it: .06."""
    assert [row.p_holm for row in holm(with_p([0.01, 0.04, 0.03]))] == pytest.approx([0.03, 0.06, 0.06])
    assert [row.p_holm for row in holm(with_p([0.5]))] == [0.5]
    assert [row.p_holm for row in holm(with_p([0.6, 0.9]))] == [1.0, 1.0]
    assert holm([]) == []


def rejected(p_values, level):
    """Holm's procedure: smallest first, each against level / (hypotheses left), up to the first that is kept."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    out = set()
    for rank, index in enumerate(order):
        if p_values[index] > level / (len(p_values) - rank):
            break
        out.add(index)
    return out


@given(st.lists(st.integers(0, 100).map(lambda k: k / 100), min_size=1, max_size=8), st.randoms())
def test_holm_against_the_procedure(p_values, rnd):
    """A corrected p-value is the smallest level at which the procedure rejects; order and other fields stay."""
    rows = with_p(p_values)
    corrected = [row.p_holm for row in holm(rows)]
    for level in {*corrected, rnd.random()} - {0.0}:
        for shift in (-1e-6, 1e-6):  # never at the border, where rounding decides
            if level + shift < 1:
                assert rejected(p_values, level + shift) == {i for i, p in enumerate(corrected) if p <= level + shift}
    assert [row.p_value for row in holm(rows)] == p_values
    assert all(p <= c <= 1 for p, c in zip(p_values, corrected, strict=True))


# --- what is written


def test_lines_of_text_and_json_values():
    rows = [replace(COMPARISON, num_chunks=1280, difference=-0.25, low=-0.3, high=-0.2, p_holm=0.01234, n=1000)]
    lines = format_comparisons(rows).split("\n")
    assert "permutation test, Holm-corrected" in lines[0]
    assert lines[1:] == ["  t 1,280 chunks, fixed, EM: trained - bm25 -0.250 [-0.300, -0.200], p = 0.0123, n = 1,000"]
    assert comparison_values(rows)[0]["p_holm"] == 0.01234
    assert list(comparison_values(rows)[0])[:5] == ["task", "num_chunks", "protocol", "measure", "first"]
