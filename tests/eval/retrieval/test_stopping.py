import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.eval.retrieval.protocols import keep, kept_by_oracle, kept_by_threshold
from qrag_jax.eval.retrieval.stopping import (
    APP_B_THRESHOLDS,
    Roc,
    analyse,
    auc,
    auc_within_reach,
    budget_rows,
    roc,
    stop_point,
    stopping_curve,
)
from qrag_jax.measures.aggregate import mean_interval
from qrag_jax.measures.facts import f1_ceiling, score_facts
from qrag_jax.types import InputError

# Four questions of 6, 6, 5 and 6 chunks, three picks each, two gold chunks each: gold is complete after 2, 3 and 3
# picks, and never in the last one.
CHOSEN = np.array([[4, 1, 0], [2, 3, 5], [0, 1, 2], [5, 0, 1]])
GOLD = np.zeros((4, 6), bool)
for _row, _chunks in enumerate([(1, 4), (2, 5), (1, 2), (4, 5)]):
    GOLD[_row, list(_chunks)] = True
SCORES = np.array([[0.9, 0.8, 0.1], [0.9, 0.2, 0.7], [0.3, 0.9, 0.9], [0.6, 0.1, 0.0]])
NUM_CHUNKS = np.array([6, 6, 5, 6])  # 23 chunks, 8 of them gold

# The columns TPR and FPR of the paper's table 4 (HotpotQA), strict thresholds first.
TABLE_4_TPR = (0, .105, .611, .840, .891, .903, .910, .919, .927, .937, .952, .976, .983)  # fmt: skip
TABLE_4_FPR = (0, 0, .006, .017, .023, .024, .025, .027, .029, .032, .041, .110, .380)  # fmt: skip


def random_path(seed, n=6, num_steps=4, num_chunks=8, levels=None):
    """Random picks, scores (on a coarse grid where `levels` is given), gold and padded contexts."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(num_steps, num_chunks + 1, n)
    chosen = np.stack([rng.permutation(size)[:num_steps] for size in sizes])
    scores = rng.normal(size=(n, num_steps)) if levels is None else rng.integers(0, levels, (n, num_steps)) / 8
    gold = np.zeros((n, num_chunks), bool)
    for row, size in enumerate(sizes):
        gold[row, rng.permutation(size)[: rng.integers(1, num_steps)]] = True
    return chosen, scores, gold, sizes


paths = st.tuples(
    st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 4), st.integers(5, 8), st.sampled_from([None, 2, 5])
)


def test_the_papers_grids():
    assert APP_B_THRESHOLDS == (-0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)


@pytest.mark.parametrize(
    ("threshold", "stops", "early", "perfect", "late", "gold_taken", "others_taken", "em"),
    [
        (0.0, (3, 3, 3, 3), 0, 2, 1, 7, 5, 3),
        (0.2, (2, 3, 3, 1), 0, 3, 0, 7, 2, 3),
        (0.3, (2, 1, 3, 1), 1, 2, 0, 6, 1, 2),
        (0.85, (1, 1, 0, 0), 3, 0, 0, 2, 0, 0),
        (1.1, (0, 0, 0, 0), 3, 0, 0, 0, 0, 0),
    ],
)
def test_curve_by_hand(threshold, stops, early, perfect, late, gold_taken, others_taken, em):
    (point,) = stopping_curve(CHOSEN, SCORES, GOLD, NUM_CHUNKS, [threshold])
    assert point.threshold == threshold
    assert (point.early, point.perfect, point.late) == pytest.approx((early / 3, perfect / 3, late / 3))
    assert (point.tpr, point.fpr) == pytest.approx((gold_taken / 8, others_taken / 15))
    assert point.episode_length == sum(stops) / 4
    assert (point.fact_em, point.n, point.num_complete) == (em / 4, 4, 3)
    assert point.fact_f1 == pytest.approx(score_facts(keep(CHOSEN, np.array(stops)), GOLD).f1.mean())


def test_the_curve_has_a_point_a_threshold_in_their_order():
    points = stopping_curve(CHOSEN, SCORES, GOLD, NUM_CHUNKS, [0.5, 0.1, 0.9])
    assert [point.threshold for point in points] == [0.5, 0.1, 0.9]
    assert len(stopping_curve(CHOSEN, SCORES, GOLD, NUM_CHUNKS)) == 13


def test_oracle_stops_perfectly():
    point = stop_point(CHOSEN, GOLD, NUM_CHUNKS, kept_by_oracle(CHOSEN, GOLD))
    assert (point.threshold, point.early, point.perfect, point.late) == (None, 0.0, 1.0, 0.0)
    assert (point.tpr, point.fpr, point.episode_length) == (7 / 8, 4 / 15, 11 / 4)


def test_without_a_complete_question_the_shares_are_0():
    (point,) = stopping_curve(CHOSEN[3:], SCORES[3:], GOLD[3:], NUM_CHUNKS[3:], [0.5])
    assert (point.early, point.perfect, point.late, point.num_complete) == (0, 0, 0, 0)
    assert (point.tpr, point.fpr) == (0.5, 0.0)


def test_a_fixed_number_of_picks_has_the_fpr_of_arithmetic():
    # All gold among T picks of M chunks with g gold: (T - g) / (M - g). With T = 5, M = 10, g = 2 that is 3/8, and
    # table 4 has .380 where 4.99 picks are taken and the TPR is .983.
    rng = np.random.default_rng(0)
    chosen = np.stack([rng.permutation(10)[:5] for _ in range(30)])
    gold = np.zeros((30, 10), bool)
    np.put_along_axis(gold, rng.permuted(chosen, axis=1)[:, :2], True, axis=1)
    point = stop_point(chosen, gold, np.full(30, 10), np.full(30, 5))
    assert (point.tpr, point.fpr, point.fact_em) == (1.0, 3 / 8, 1.0)
    assert (4.99 - 2 * 0.983) / 8 == pytest.approx(0.380, abs=0.003)


@given(paths)
def test_relations_of_a_curve(path):
    chosen, scores, gold, num_chunks = random_path(*path)
    thresholds = sorted([*np.unique(scores).tolist(), -3.5, 0.3, 3.5])
    points = stopping_curve(chosen, scores, gold, num_chunks, thresholds)
    for lax, strict in zip(points, points[1:], strict=False):
        assert lax.tpr >= strict.tpr and lax.fpr >= strict.fpr
        assert lax.early <= strict.early and lax.late >= strict.late
        assert lax.episode_length >= strict.episode_length and lax.fact_em >= strict.fact_em
    for point in points:
        assert point.early + point.perfect + point.late == pytest.approx(1.0 if point.num_complete else 0.0)
        share = point.num_complete / point.n
        assert point.fact_em == pytest.approx(share * (point.perfect + point.late))
        taken = point.tpr * gold.sum() + point.fpr * (num_chunks.sum() - gold.sum())
        assert taken == pytest.approx(point.episode_length * point.n)
    fixed = score_facts(chosen, gold)
    assert (points[0].fact_f1, points[0].fact_em) == pytest.approx((fixed.f1.mean(), fixed.em.mean()))


@given(paths)
def test_roc_goes_through_the_curve(path):
    chosen, scores, gold, num_chunks = random_path(*path)
    curve = roc(chosen, scores, gold, num_chunks)
    points = stopping_curve(chosen, scores, gold, num_chunks, curve.threshold.tolist())
    np.testing.assert_allclose(curve.fpr, [0.0, *(point.fpr for point in points), 1.0], atol=1e-12)
    np.testing.assert_allclose(curve.tpr, [0.0, *(point.tpr for point in points), 1.0], atol=1e-12)
    assert (np.diff(curve.threshold) < 0).all() and (np.diff(curve.fpr) >= 0).all() and (np.diff(curve.tpr) >= 0).all()
    between = (curve.threshold[1:] + curve.threshold[:-1]) / 2  # no other threshold behaves differently
    lengths = [kept_by_threshold(scores, float(t), least=0).sum() for t in between]
    assert lengths == [kept_by_threshold(scores, float(t), least=0).sum() for t in curve.threshold[:-1]]


@given(paths)
def test_auc_is_the_share_of_pairs_in_order(path):
    chosen, scores, gold, num_chunks = random_path(*path)
    values = np.full(gold.shape, -np.inf)
    np.put_along_axis(values, chosen, np.minimum.accumulate(scores, axis=1), axis=1)
    real = np.arange(gold.shape[1]) < num_chunks[:, None]
    good, other = values[gold][:, None], values[real & ~gold][None]
    pairs = (good > other) + 0.5 * (good == other)
    assert auc(roc(chosen, scores, gold, num_chunks)) == pytest.approx(pairs.mean(), abs=1e-12)


def test_auc_by_hand():
    # Minima: gold .9 .8 | .9 .2 | .3 .3 | .6, others .1 | .2 | .3 | .1 0. Down to .6: 4 of 8 gold, no other; at .3:
    # +2 and +1; at .2: +1 and +1; at .1: 0 and +2; at 0: 0 and +1; then 1 gold and 10 others without a pick.
    curve = roc(CHOSEN, SCORES, GOLD, NUM_CHUNKS)
    np.testing.assert_allclose(curve.threshold, [0.9, 0.8, 0.6, 0.3, 0.2, 0.1, 0.0])
    np.testing.assert_allclose(curve.tpr * 8, [0, 2, 3, 4, 6, 7, 7, 7, 8])
    np.testing.assert_allclose(curve.fpr * 15, [0, 0, 0, 0, 1, 2, 4, 5, 15], atol=1e-12)
    within = 5 + 6.5 + 2 * 7 + 7
    assert auc(curve) == pytest.approx((within + 10 * 7.5) / 120)
    assert auc_within_reach(curve) == pytest.approx(within / (5 * 8))


def test_auc_of_a_perfect_separation():
    chosen, gold = np.array([[2, 0, 1], [1, 3, 0]]), np.array([[1, 0, 1, 0], [0, 1, 0, 1]], bool)
    scores, sizes = np.array([[0.9, 0.8, 0.1], [0.7, 0.6, 0.2]]), np.array([4, 4])
    curve = roc(chosen, scores, gold, sizes)
    assert auc(curve) == auc_within_reach(curve) == 1.0
    only_gold = roc(chosen[:, :1], scores[:, :1], gold, sizes)  # one of two gold chunks, nothing else: no width
    assert (auc(only_gold), auc_within_reach(only_gold)) == (0.75, 0.5)


def test_equal_scores_are_a_straight_line():
    curve = roc(CHOSEN, np.full(CHOSEN.shape, 0.5), GOLD, NUM_CHUNKS)
    np.testing.assert_allclose(curve.tpr, [0, 7 / 8, 1])
    assert auc(curve) == pytest.approx(7 / 8 * 5 / 15 / 2 + (7 / 8 + 1) / 2 * 10 / 15)


def test_areas_of_the_papers_table_4():
    curve = Roc(np.zeros(12), np.array([*TABLE_4_FPR, 1.0]), np.array([*TABLE_4_TPR, 1.0]))
    assert auc(curve) == pytest.approx(0.978, abs=5e-4)
    assert auc_within_reach(curve) == pytest.approx(0.96, abs=5e-3)  # the number that the paper prints


def test_budget_rows():
    rows = budget_rows(CHOSEN, GOLD, (3, 1), NUM_CHUNKS)
    assert [row.num_steps for row in rows] == [3, 1]
    for row in rows:
        measures = score_facts(CHOSEN[:, : row.num_steps], GOLD)
        em, f1 = mean_interval(measures.em), mean_interval(measures.f1)
        assert (row.fact_em, row.em_low, row.em_high) == (em.mean, em.low, em.high)
        assert (row.fact_f1, row.f1_low, row.f1_high) == (f1.mean, f1.low, f1.high)
        assert (row.f1_ceiling, row.n) == (pytest.approx(f1_ceiling(2, row.num_steps)), 4)
    assert rows[0].fact_em == 0.75


def test_fact_em_never_falls_with_the_budget():
    chosen, _, gold, sizes = random_path(3, n=40)
    rows = budget_rows(chosen, gold, (1, 2, 3, 4), sizes)
    assert [row.fact_em for row in rows] == sorted(row.fact_em for row in rows)
    assert all(row.fact_f1 <= row.f1_ceiling for row in rows)


def test_analyse_puts_the_parts_together():
    analysis = analyse(CHOSEN, SCORES, GOLD, NUM_CHUNKS)
    assert list(analysis.curve) == stopping_curve(CHOSEN, SCORES, GOLD, NUM_CHUNKS)
    assert analysis.oracle == stop_point(CHOSEN, GOLD, NUM_CHUNKS, kept_by_oracle(CHOSEN, GOLD))
    assert list(analysis.budgets) == budget_rows(CHOSEN, GOLD, (1, 2, 3), NUM_CHUNKS)
    np.testing.assert_array_equal(analysis.roc.fpr, roc(CHOSEN, SCORES, GOLD, NUM_CHUNKS).fpr)


def test_padding_changes_nothing():
    wider = np.pad(GOLD, ((0, 0), (0, 9)))
    assert stopping_curve(CHOSEN, SCORES, wider, NUM_CHUNKS) == stopping_curve(CHOSEN, SCORES, GOLD, NUM_CHUNKS)
    assert auc(roc(CHOSEN, SCORES, wider, NUM_CHUNKS)) == auc(roc(CHOSEN, SCORES, GOLD, NUM_CHUNKS))


def test_steps_beyond_a_short_context_take_nothing():
    # Two chunks, gold 0; the third step finds none left. By hand: 3 gold taken of 3, others 1 + 1 of 1 + 3.
    chosen, gold = np.array([[0, 1, 6], [2, 1, 3]]), np.zeros((2, 7), bool)
    gold[0, 0] = gold[1, 1] = gold[1, 2] = True
    scores, sizes = np.array([[0.9, 0.4, -1.0], [0.8, 0.7, 0.2]]), np.array([2, 5])
    analysis = analyse(chosen, scores, gold, sizes)
    everything, strict = stopping_curve(chosen, scores, gold, sizes, (-2.0, 0.3))
    assert (everything.tpr, everything.fpr, everything.episode_length) == (1.0, 2 / 4, 2.5)
    assert (everything.fact_f1, everything.late) == (pytest.approx((2 / 3 + 4 / 5) / 2), 1.0)
    assert (strict.fpr, strict.late, strict.perfect) == (1 / 4, 0.5, 0.5)
    assert (analysis.roc.fpr[-2], analysis.roc.tpr[-2]) == (2 / 4, 1.0)
    assert [row.fact_f1 for row in analysis.budgets] == pytest.approx(
        [(1 + 2 / 3) / 2, (2 / 3 + 1) / 2, (2 / 3 + 4 / 5) / 2]
    )
    assert analysis.budgets[2].f1_ceiling == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_contexts_of_gold_only_have_no_fpr():
    chosen, gold = np.array([[0, 1]]), np.ones((1, 2), bool)
    with pytest.raises(InputError, match="no false positive rate"):
        roc(chosen, np.zeros((1, 2)), gold, np.array([2]))
