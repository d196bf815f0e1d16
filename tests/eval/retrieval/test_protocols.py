import json
from dataclasses import asdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.eval.retrieval.protocols import (
    calibrate_threshold,
    check_apart,
    earliest_complete,
    keep,
    kept_by_oracle,
    kept_by_threshold,
    scores_by_budget,
)
from qrag_jax.measures.facts import score_facts
from qrag_jax.types import InputError, UsageError

# Four questions of six chunks, three picks each; two gold chunks each.
#   0: both gold at once, then a miss      1: a miss between the gold chunks
#   2: gold is complete at the last pick   3: the second gold chunk is never found
CHOSEN = np.array([[4, 1, 0], [2, 3, 5], [0, 1, 2], [5, 0, 1]])
GOLD = np.zeros((4, 6), bool)
for _row, _chunks in enumerate([(1, 4), (2, 5), (1, 2), (4, 5)]):
    GOLD[_row, list(_chunks)] = True
SCORES = np.array([[0.9, 0.8, 0.1], [0.9, 0.2, 0.7], [0.3, 0.9, 0.9], [0.6, 0.1, 0.0]])


def random_path(seed, n=5, num_steps=3, num_chunks=6, levels=None):
    """Random picks, scores (on a coarse grid where `levels` is given, so that there are ties) and gold."""
    rng = np.random.default_rng(seed)
    chosen = np.stack([rng.permutation(num_chunks)[:num_steps] for _ in range(n)])
    scores = rng.normal(size=(n, num_steps)) if levels is None else rng.integers(0, levels, (n, num_steps)) / 8
    gold = np.zeros((n, num_chunks), bool)
    for row in range(n):
        gold[row, rng.permutation(num_chunks)[: rng.integers(1, 4)]] = True
    return chosen, scores, gold


def mean_f1(chosen, scores, gold, threshold, least):
    return score_facts(keep(chosen, kept_by_threshold(scores, threshold, least)), gold).f1.mean()


@pytest.mark.parametrize(
    ("threshold", "least", "kept"),
    [
        (0.5, 0, [2, 1, 0, 1]),  # question 1 stops at .2 and never sees the .7 behind it; question 2 before its .9
        (0.5, 1, [2, 1, 1, 1]),
        (0.5, 2, [2, 2, 2, 2]),
        (0.2, 0, [2, 3, 3, 1]),  # a pick at the threshold itself is kept
        (np.nextafter(0.2, 1), 0, [2, 1, 3, 1]),
        (0.95, 0, [0, 0, 0, 0]),
        (0.0, 0, [3, 3, 3, 3]),
        (-np.inf, 0, [3, 3, 3, 3]),  # fixed T
        (np.inf, 1, [1, 1, 1, 1]),
    ],
)
def test_threshold_by_hand(threshold, least, kept):
    np.testing.assert_array_equal(kept_by_threshold(SCORES, float(threshold), least), kept)


def test_the_first_pick_is_kept_by_default():
    np.testing.assert_array_equal(kept_by_threshold(SCORES, 2.0), [1, 1, 1, 1])


def test_a_threshold_is_not_rounded_to_the_scores_float32():
    scores = np.array([[0.1]], np.float32)  # 0.10000000149
    assert kept_by_threshold(scores, 0.1000000014, least=0)[0] == 1
    assert kept_by_threshold(scores, 0.1000000016, least=0)[0] == 0  # float32(0.1000000016) == float32(0.1)


def test_oracle_by_hand():
    np.testing.assert_array_equal(earliest_complete(CHOSEN, GOLD), [2, 3, 3, 0])
    np.testing.assert_array_equal(kept_by_oracle(CHOSEN, GOLD), [2, 3, 3, 3])


def test_earliest_complete_equals_the_loop_over_prefixes():
    chosen, _, gold = random_path(0, n=80, num_steps=4)
    for row, earliest in enumerate(earliest_complete(chosen, gold)):
        truth = set(np.flatnonzero(gold[row]).tolist())
        complete = [t for t in range(1, 5) if truth <= set(chosen[row, :t].tolist())]
        assert earliest == (complete[0] if complete else 0)


def test_keep_by_hand():
    kept = keep(CHOSEN, np.array([2, 0, 3, 1]))
    assert kept.tolist() == [[4, 1, -1], [-1, -1, -1], [0, 1, 2], [5, -1, -1]]
    assert keep(CHOSEN.astype(np.int32), np.zeros(4, int)).dtype == np.int32
    assert keep(kept, np.array([3, 3, 3, 3])).tolist() == kept.tolist()  # cutting later than a stop changes nothing


def test_scores_by_budget_are_those_of_the_cut_picks():
    measures = scores_by_budget(CHOSEN, GOLD)
    assert [entry.num_taken.tolist() for entry in measures] == [[t] * 4 for t in range(4)]
    np.testing.assert_allclose(measures[2].f1, [1.0, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal(measures[3].em, [1, 1, 1, 0])


def test_calibration_by_hand():
    # least 0. Minima of the scores: .9 .8 .1 | .9 .2 .2 | .3 .3 .3 | .6 .1 0; F1 after 0..3 picks:
    #   0: 0 2/3 1 .8     1: 0 2/3 1/2 .8     2: 0 0 1/2 .8     3: 0 2/3 1/2 .4
    # sum for thresholds up to   .9: 4/3   .8: 5/3   .6: 7/3   .3: 47/15   .2: 49/15   .1: 2.9   0: 2.8
    best = calibrate_threshold(CHOSEN, SCORES, GOLD, least=0)
    assert best.threshold == pytest.approx(0.15)  # midway between .1 and .2
    assert (best.fact_f1, best.fact_em, best.n) == (pytest.approx(49 / 60), 0.75, 4)


def test_a_plateau_counts_as_one_piece():
    # The first pick is always kept and right, the others are wrong: all thresholds above .3 are equally good, and the
    # bound on the other side is the largest score and the mean gap: (.3 + .9 + .3) / 2.
    chosen, gold = np.array([[0, 1], [0, 2]]), np.eye(3, dtype=bool)[[0, 0]]
    best = calibrate_threshold(chosen, np.array([[0.9, 0.3], [0.6, 0.3]]), gold)
    assert best.threshold == pytest.approx(0.75)
    assert best.fact_f1 == 1.0


def slow_calibration(chosen, scores, gold, least):
    """The definition, read slowly: exact F1 of every piece, then the widest run of best pieces and its middle."""
    minima = sorted({min(row[: t + 1]) for row in scores.tolist() for t in range(len(row))}, reverse=True)
    gap = (minima[0] - minima[-1]) / (len(minima) - 1) if len(minima) > 1 else max(1.0, abs(minima[0]))
    bounds = [minima[0] + gap, *minima, minima[-1] - gap]
    sums = []
    for threshold in bounds[:-1]:  # the upper end of each piece belongs to it
        total = Fraction(0)
        for row in range(len(chosen)):
            kept = least
            for t in range(scores.shape[1]):
                if min(scores[row, : t + 1]) < threshold:
                    break
                kept = max(kept, t + 1)
            truth = set(np.flatnonzero(gold[row]).tolist())
            total += Fraction(2 * len(truth & set(chosen[row, :kept].tolist())), kept + len(truth))
        sums.append(total)
    runs, start = [], None
    for piece, total in enumerate([*sums, None]):
        if total == max(sums) and start is None:
            start = piece
        if total != max(sums) and start is not None:
            runs.append((bounds[start], bounds[piece]))
            start = None
    high, low = max(runs, key=lambda run: run[0] - run[1])
    return low + (high - low) / 2, float(max(sums) / len(chosen))


paths = st.tuples(
    st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4), st.integers(4, 6), st.sampled_from([None, 2, 5])
)


@given(paths, st.integers(0, 4))
def test_calibration_equals_the_slow_reading(path, least):
    chosen, scores, gold = random_path(*path)
    least = min(least, scores.shape[1])
    threshold, f1 = slow_calibration(chosen, scores, gold, least)
    best = calibrate_threshold(chosen, scores, gold, least)
    assert best.threshold == pytest.approx(threshold, abs=1e-12)
    assert best.fact_f1 == pytest.approx(f1, abs=1e-12)


@given(paths, st.integers(0, 1))
def test_no_threshold_beats_the_calibrated_one(path, least):
    chosen, scores, gold = random_path(*path)
    best = calibrate_threshold(chosen, scores, gold, least)
    assert best.fact_f1 == pytest.approx(mean_f1(chosen, scores, gold, best.threshold, least))
    values = np.unique(scores)
    tried = [-np.inf, *values, *(values[1:] + values[:-1]) / 2, np.inf]
    assert best.fact_f1 >= max(mean_f1(chosen, scores, gold, float(t), least) for t in tried) - 1e-12
    assert json.loads(json.dumps(asdict(best), allow_nan=False)) == asdict(best)


@given(paths)
def test_calibration_depends_on_no_order(path):
    chosen, scores, gold = random_path(*path)
    order = np.random.default_rng(0).permutation(len(chosen))
    shuffled = calibrate_threshold(chosen[order], scores[order], gold[order])
    assert asdict(shuffled) == pytest.approx(asdict(calibrate_threshold(chosen, scores, gold)), abs=1e-12)


@pytest.mark.parametrize("values", [(0.5, np.nextafter(0.5, 0)), (1e50, 1e50), (-3e-320, -5e-320), (7.0, 7.0)])
@pytest.mark.parametrize("first_is_gold", [True, False])
def test_scores_without_room_between_them_are_still_separated(values, first_is_gold):
    # With the first pick gold the best is to keep just one of two, else both; equal scores cannot be separated.
    chosen, scores = np.array([[0, 1], [2, 1]]), np.array([list(values)] * 2)
    gold = np.eye(3, dtype=bool)[[0, 2] if first_is_gold else [1, 1]]
    best = calibrate_threshold(chosen, scores, gold, least=0)
    kept = 1 if first_is_gold and values[0] != values[1] else 2
    np.testing.assert_array_equal(kept_by_threshold(scores, best.threshold, least=0), [kept, kept])
    assert np.isfinite(best.threshold)


def test_with_nothing_to_gain_all_is_one_plateau():
    # No pick is ever gold, every F1 is 0: the middle of the whole range is taken.
    chosen, gold = np.array([[0, 1]]), np.array([[False, False, True]])
    best = calibrate_threshold(chosen, np.array([[0.8, 0.2]]), gold, least=0)
    assert (best.threshold, best.fact_f1) == (pytest.approx(0.5), 0.0)


@given(paths, st.floats(-2, 2))
def test_the_oracle_against_the_other_protocols(path, threshold):
    chosen, scores, gold = random_path(*path)
    fixed = score_facts(chosen, gold)
    oracle = score_facts(keep(chosen, kept_by_oracle(chosen, gold)), gold)
    stopped = score_facts(keep(chosen, kept_by_threshold(scores, threshold)), gold)
    np.testing.assert_array_equal(oracle.em, fixed.em)
    assert (oracle.f1 >= fixed.f1).all()
    assert (stopped.em <= oracle.em).all()
    lossless = stopped.recall == fixed.recall
    completed = earliest_complete(chosen, gold) > 0
    assert (oracle.f1 >= stopped.f1)[lossless & completed].all()


def test_a_rule_that_gives_up_late_gold_can_exceed_the_oracles_f1():
    chosen, gold = np.array([[0, 1, 2, 3, 4]]), np.array([[True, False, False, False, True]])
    oracle = score_facts(keep(chosen, kept_by_oracle(chosen, gold)), gold).f1[0]
    assert oracle == pytest.approx(4 / 7)
    assert score_facts(keep(chosen, np.array([1])), gold).f1[0] == pytest.approx(2 / 3)


def test_padding_of_contexts_changes_nothing():
    wider = np.pad(GOLD, ((0, 0), (0, 7)))
    assert calibrate_threshold(CHOSEN, SCORES, wider) == calibrate_threshold(CHOSEN, SCORES, GOLD)
    np.testing.assert_array_equal(kept_by_oracle(CHOSEN, wider), kept_by_oracle(CHOSEN, GOLD))


def test_steps_that_a_short_context_cannot_fill_are_never_worth_keeping():
    # The second context has one chunk: its second step points behind all chunks, at a score below all others.
    chosen, gold = np.array([[0, 1], [0, 2]]), np.array([[True, True, False], [True, False, False]])
    best = calibrate_threshold(chosen, np.array([[0.9, 0.3], [0.8, -0.7]]), gold)
    assert (best.fact_f1, best.threshold) == (1.0, pytest.approx((0.3 - 0.7) / 2))


def test_a_threshold_is_never_fitted_on_the_split_that_it_reports():
    check_apart({"a", "b"}, ["c", "d"])
    with pytest.raises(UsageError, match="fitted on 2 of the 3 questions to report, 'b' first: calibrate on the dev"):
        check_apart({"a", "b"}, ["c", "b", "a"])
    with pytest.raises(UsageError, match="does not say which questions"):
        check_apart(frozenset(), ["c"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e101])
def test_scores_that_are_not_finite_are_refused(bad):
    scores = SCORES.copy()
    scores[2, 1] = bad
    for call in (lambda: kept_by_threshold(scores, 0.5), lambda: calibrate_threshold(CHOSEN, scores, GOLD)):
        with pytest.raises(InputError):
            call()
