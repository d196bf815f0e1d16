import numpy as np
from support.answers import ANSWERED, FAILED, replace

from qrag_jax.eval.answers.answering import compare_answers
from qrag_jax.eval.retrieval.compare import format_comparisons
from qrag_jax.measures.aggregate import holm_p_values, paired_difference


def make_records(method, values, protocol="fixed", beam_width=1):
    """Answers of one method to questions 0, 1, ...; None is a failed call."""
    records = []
    for query, value in enumerate(values):
        base = FAILED if value is None else replace(ANSWERED, scores={"f1": float(value)}, errors={})
        names = {"query_id": str(query), "method": method, "protocol": protocol, "beam_width": beam_width}
        records.append(replace(base, **names))
    return records


def test_methods_are_compared_on_the_questions_that_both_answered():
    trained, bm25 = [1, 0.5, None, 1, 0.25, 1], [0, 0.5, 0, None, 0, 0.5]
    (found,) = compare_answers("t", [*make_records("trained", trained), *make_records("bm25", bm25)])
    both = [0, 1, 4, 5]
    expected = paired_difference(*(np.array([values[i] for i in both], float) for values in (trained, bm25)))
    assert (found.difference, found.low, found.high) == (expected.mean, expected.low, expected.high)
    assert (found.p_value, found.p_holm, found.n) == (expected.p_value, expected.p_value, 4)
    assert (found.first, found.second, found.measure, found.protocol) == ("trained", "bm25", "answer_f1", "fixed")
    assert "answer F1: trained - bm25 +" in format_comparisons([found]) and "n = 4" in format_comparisons([found])


def test_all_tests_of_a_task_are_corrected_together():
    records = make_records("trained", [1.0] * 6) + make_records("bm25", [0.0] * 6)
    records += make_records("single_step", [0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    records += make_records("trained", [1.0] * 6, "stop") + make_records("bm25", [0.5] * 6, "stop")
    records += make_records("trained", [0.5] * 6, beam_width=4)
    found = compare_answers("t", records)
    assert [(c.protocol, c.first, c.second) for c in found] == [
        ("fixed", "trained", "bm25"),
        ("fixed", "trained", "single_step"),
        ("fixed", "beam 4", "trained"),
        ("stop", "trained", "bm25"),
    ]
    assert [c.p_holm for c in found] == holm_p_values([c.p_value for c in found])
    assert found[2].difference == -0.5


def test_methods_without_a_common_question_are_not_compared():
    records = make_records("trained", [1.0, None]) + make_records("bm25", [None, 1.0])
    assert compare_answers("t", records) == [] == compare_answers("t", [])
    assert compare_answers("t", make_records("bm25", [1.0])) == []


def test_bounds_are_no_methods():
    records = make_records("trained", [1.0, 0.0]) + make_records("gold_chunks", [1.0, 1.0], "none")
    assert compare_answers("t", records) == []
