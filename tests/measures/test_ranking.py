import math
import os
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.measures.trec import (
    average_precision,
    ndcg,
    precision_at,
    rank_documents,
    read_qrels,
    read_run,
    recall_at,
    reciprocal_rank,
    score_run,
)
from qrag_jax.types import InputError

JUDGED = {"a": 2, "b": 1, "c": 0, "d": 3, "e": -1}
RANKING = ["c", "a", "x", "e", "b"]  # relevant at ranks 2 and 5; d is missed


def log2_sum(gains):
    return sum(gain / math.log2(i + 2) for i, gain in enumerate(gains))


# --- by hand


def test_precision_recall_and_rank_by_hand():
    assert [precision_at(RANKING, JUDGED, k) for k in (1, 2, 5, 10)] == [0, 1 / 2, 2 / 5, 2 / 10]
    assert [recall_at(RANKING, JUDGED, k) for k in (1, 2, 5, 10)] == [0, 1 / 3, 2 / 3, 2 / 3]
    assert reciprocal_rank(RANKING, JUDGED) == 1 / 2
    assert average_precision(RANKING, JUDGED) == pytest.approx((1 / 2 + 2 / 5) / 3)


def test_ndcg_by_hand():
    """Gains 0 2 0 0 1 against the best order 3 2 1; a negative judgement is no loss."""
    best = 3 + 2 / math.log2(3) + 1 / 2
    assert ndcg(RANKING, JUDGED) == pytest.approx((2 / math.log2(3) + 1 / math.log2(6)) / best)
    assert ndcg(RANKING, JUDGED, 2) == pytest.approx((2 / math.log2(3)) / (3 + 2 / math.log2(3)))
    assert ndcg(RANKING, JUDGED, 1) == 0
    assert ndcg(["d", "a", "b"], JUDGED) == ndcg(["d"], JUDGED, 1) == 1


def test_nothing_relevant_or_nothing_ranked_is_zero():
    for ranking, judged in ((RANKING, {"c": 0, "e": -1}), ([], JUDGED), (RANKING, {})):
        found = (precision_at(ranking, judged, 5), recall_at(ranking, judged, 5), reciprocal_rank(ranking, judged))
        assert (*found, average_precision(ranking, judged), ndcg(ranking, judged), ndcg(ranking, judged, 5)) == (0,) * 6


def test_ties_go_to_the_largest_id():
    assert rank_documents({"a": 1.0, "c": 1.0, "b": 1.0, "d": 0.5, "e": 2.0}) == ["e", "c", "b", "a", "d"]
    assert rank_documents({"B": 0.0, "a": 0.0, "é": -0.0, "10": 0.0, "9": 0.0}) == ["é", "a", "B", "9", "10"]
    assert rank_documents({}) == []


def test_scores_that_are_equal_as_32_bit_floats_are_a_tie():
    assert rank_documents({"a": 0.5 + 1e-9, "b": 0.5}) == ["b", "a"]
    assert rank_documents({"a": 0.5 + 1e-7, "b": 0.5}) == ["a", "b"]
    assert rank_documents({"a": 2e300, "b": 1e300, "c": -1e300}) == ["b", "a", "c"]


def test_a_run_is_scored_over_every_judged_query():
    run = {"q2": {"a": 1.0, "x": 2.0}, "unjudged": {"a": 1.0}}
    found = score_run(run, {"q1": {"a": 1}, "q2": {"a": 1, "b": 1}}, [1, 2])
    assert list(found) == ["q1", "q2"]
    assert set(found["q1"].values()) == {0.0}  # not in the run: nothing found
    ndcg_2 = (1 / math.log2(3)) / (1 + 1 / math.log2(3))
    assert found["q2"] == pytest.approx(
        {"map": 1 / 4, "recip_rank": 1 / 2, "ndcg": ndcg_2, "P_1": 0, "recall_1": 0, "ndcg_cut_1": 0}
        | {"P_2": 1 / 2, "recall_2": 1 / 2, "ndcg_cut_2": ndcg_2}
    )


# --- against definitions read slowly, and relations

rankings = st.lists(st.sampled_from("abcdefghij"), unique=True)
judgements = st.dictionaries(st.sampled_from("abcdefghijkl"), st.integers(-1, 3))


@given(rankings, judgements, st.integers(1, 12))
def test_against_the_definitions(ranking, judged, k):
    relevant = {document for document, value in judged.items() if value > 0}
    right = [document in relevant for document in ranking]
    num_relevant = max(1, len(relevant))
    assert precision_at(ranking, judged, k) == pytest.approx(sum(right[:k]) / k)
    assert recall_at(ranking, judged, k) == pytest.approx(len(relevant & set(ranking[:k])) / num_relevant)
    assert reciprocal_rank(ranking, judged) == max([1 / (i + 1) for i, hit in enumerate(right) if hit], default=0)
    precisions = [sum(right[: i + 1]) / (i + 1) for i, hit in enumerate(right) if hit]
    assert average_precision(ranking, judged) == pytest.approx(sum(precisions) / num_relevant)
    gains = [max(0, judged.get(document, 0)) for document in ranking]
    best = sorted((max(0, value) for value in judged.values()), reverse=True)
    assert ndcg(ranking, judged, k) == pytest.approx(log2_sum(gains[:k]) / (log2_sum(best[:k]) or 1))
    assert ndcg(ranking, judged) == pytest.approx(log2_sum(gains) / (log2_sum(best) or 1))


@given(rankings, judgements)
def test_the_best_order_is_perfect_and_no_order_is_better(ranking, judged):
    best = sorted(judged, key=lambda document: -judged[document])
    if any(value > 0 for value in judged.values()):
        assert ndcg(best, judged) == average_precision(best, judged) == reciprocal_rank(best, judged) == 1
        assert recall_at(best, judged, max(1, len(best))) == 1
    for score in (average_precision(ranking, judged), ndcg(ranking, judged)):
        assert 0 <= score <= 1


@given(st.dictionaries(st.text(max_size=3), st.sampled_from([0.0, 0.25, 1.0])), st.randoms())
def test_a_ranking_does_not_depend_on_the_order_of_its_scores(scores, rnd):
    shuffled = list(scores)
    rnd.shuffle(shuffled)
    assert rank_documents({document: scores[document] for document in shuffled}) == rank_documents(scores)


# --- refusals


def test_what_is_no_ranking_is_refused():
    with pytest.raises(InputError, match="document 'b': score NaN has no rank"):
        rank_documents({"a": 1.0, "b": float("nan")})
    with pytest.raises(InputError, match="document 'a' is ranked twice"):
        average_precision(["a", "b", "a"], JUDGED)
    for measure in (precision_at, recall_at, ndcg):
        with pytest.raises(InputError, match="k 0: give at least 1"):
            measure(RANKING, JUDGED, 0)
    with pytest.raises(InputError, match=r"share no query: \['1'\] and \['q1'\]"):
        score_run({"1": {"a": 1.0}}, {"q1": {"a": 1}}, [5])


# --- trec_eval's own test: QRAG_GOLDEN names the folder of its results.test, qrels.test and out.test.*

KS = (5, 10, 15, 20, 30, 100, 200, 500, 1000)


def expected(path, names):
    """Query (or "all") -> measure -> what trec_eval printed."""
    found = defaultdict(dict)
    for line in path.read_text().splitlines():
        name, query, value = line.split(None, 2)
        if name in names:
            found[query][name] = value
    return found


def golden_run(folder, name, most=None):
    """Query -> document -> score; results.trunc has remarks behind its columns, which we refuse to read."""
    rows = [line.split()[:6] for line in (folder / name).read_text().splitlines()]
    run = defaultdict(dict)
    for query, _, document, _, score, _ in sorted(rows, key=lambda row: (-float(row[4]), row[2])):
        if most is None or len(run[query]) < most:
            run[query][document] = float(score)
    return dict(run)


@pytest.mark.skipif(not os.environ.get("QRAG_GOLDEN"), reason="QRAG_GOLDEN names no folder of trec_eval's tests")
@pytest.mark.parametrize(
    ("output", "results", "qrels", "most", "level"),
    [
        ("out.test.aq", "results.test", "qrels.test", None, 1),
        ("out.test.aqc", "results.trunc", "qrels.test", None, 1),  # flag -c: query 302 has no results
        ("out.test.aqcM", "results.trunc", "qrels.test", 100, 1),  # flag -M: the best 100 only
        ("out.test.aql", "results.test", "qrels.rel_level", None, 2),  # flag -l: relevant from 2
        ("out.test.meas_params", "results.test", "qrels.test", None, 1),
    ],
)
def test_trec_evals_own_expectations(output, results, qrels, most, level):
    folder = Path(os.environ["QRAG_GOLDEN"])
    ks = (2, 3, 5, 7, 10, 20, 23, 2000) if output == "out.test.meas_params" else KS
    judged = read_qrels(folder / qrels)
    run = golden_run(folder, results, most)
    if results == "results.test":
        assert read_run(folder / results) == {query: dict(scores) for query, scores in run.items()}
    scores = score_run(run, judged, ks)
    if level > 1:  # nDCG takes every gain all the same
        cut = {query: {d: value if value >= level else 0 for d, value in row.items()} for query, row in judged.items()}
        binary = score_run(run, cut, ks)
        scores = {
            query: {name: (row if "ndcg" in name else binary[query])[name] for name in row}
            for query, row in scores.items()
        }
    scores["all"] = {name: sum(row[name] for row in scores.values()) / len(scores) for name in scores["301"]}
    wanted = expected(folder / output, set(scores["all"]))
    assert set(wanted) == {"all", "301", "302", "303"}
    compared = 0
    for query, row in wanted.items():
        for name, value in row.items():
            assert f"{scores[query][name]:.4f}" == value, (query, name, scores[query][name])
            compared += 1
    assert compared == 4 * len(wanted["all"]) >= 4 * 8
    print(f"{output}: {compared} values of {len(wanted['all'])} measures agree")
