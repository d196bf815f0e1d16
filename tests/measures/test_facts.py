import numpy as np
import pytest
from support.facts_slowly import fact_em, fact_f1, fact_precision, fact_recall

from qrag_jax.measures.facts import NOT_TAKEN, f1_ceiling, score_facts
from qrag_jax.types import InputError


def gold_mask(rows, num_chunks):
    mask = np.zeros((len(rows), num_chunks), bool)
    for row, chunks in enumerate(rows):
        mask[row, list(chunks)] = True
    return mask


def random_case(rng, n=60, num_chunks=12, num_steps=4):
    chosen = np.stack([rng.permutation(num_chunks)[:num_steps] for _ in range(n)]).astype(np.int32)
    stopped = rng.integers(0, num_steps + 1, size=n)
    chosen[np.arange(num_steps) >= stopped[:, None]] = NOT_TAKEN
    gold = gold_mask([rng.permutation(num_chunks)[: rng.integers(1, 5)] for _ in range(n)], num_chunks)
    return chosen, gold


@pytest.mark.parametrize(
    ("predicted", "gold", "em", "f1", "precision", "recall"),
    [
        ([4, 1, 9], [1, 4], 1.0, 0.8, 2 / 3, 1.0),  # both facts and one pick too many: 2*2/(3+2)
        ([4, 0, 9], [1, 4], 0.0, 0.4, 1 / 3, 0.5),  # 2*1/(3+2)
        ([7], [7], 1.0, 1.0, 1.0, 1.0),
        ([0], [1], 0.0, 0.0, 0.0, 0.0),
        ([], [1], 0.0, 0.0, 0.0, 0.0),
        ([5, 6], [5, 6, 7], 0.0, 0.8, 1.0, 2 / 3),  # fewer picks than facts
    ],
)
def test_hand_worked(predicted, gold, em, f1, precision, recall):
    scores = score_facts(np.array([predicted], np.int64), gold_mask([gold], 10))
    found = (scores.em[0], scores.f1[0], scores.precision[0], scores.recall[0])
    assert found == pytest.approx((em, f1, precision, recall))
    slow = [measure(predicted, gold) for measure in (fact_em, fact_f1, fact_precision, fact_recall)]
    assert slow == pytest.approx([em, f1, precision, recall])


def test_score_facts_equals_the_loop_over_questions():
    chosen, gold = random_case(np.random.default_rng(0))
    scores = score_facts(chosen, gold)
    for row in range(len(chosen)):
        picks = [int(chunk) for chunk in chosen[row] if chunk != NOT_TAKEN]
        truth = [int(chunk) for chunk in np.flatnonzero(gold[row])]
        assert scores.em[row] == fact_em(picks, truth)
        assert scores.f1[row] == pytest.approx(fact_f1(picks, truth))
        assert scores.precision[row] == pytest.approx(fact_precision(picks, truth))
        assert scores.recall[row] == pytest.approx(fact_recall(picks, truth))
        assert (scores.num_taken[row], scores.num_gold[row]) == (len(picks), len(truth))


def test_order_of_the_picks_does_not_matter():
    chosen, gold = random_case(np.random.default_rng(1))
    once, again = score_facts(chosen, gold), score_facts(chosen[:, ::-1].copy(), gold)
    np.testing.assert_array_equal(once.em, again.em)
    np.testing.assert_array_equal(once.f1, again.f1)


def test_relations_between_the_measures():
    chosen, gold = random_case(np.random.default_rng(2))
    scores = score_facts(chosen, gold)
    np.testing.assert_array_equal(scores.em == 1, scores.recall == 1)
    total = scores.precision + scores.recall
    harmonic = np.divide(2 * scores.precision * scores.recall, total, out=np.zeros_like(total), where=total > 0)
    np.testing.assert_allclose(scores.f1, harmonic, atol=1e-12)
    assert (scores.f1 <= scores.f1_ceiling + 1e-12).all()
    full = scores.em == 1
    np.testing.assert_allclose(scores.f1[full], scores.f1_ceiling[full])  # a complete question sits at its ceiling


def test_padding_chunks_change_nothing():
    chosen, gold = random_case(np.random.default_rng(3))
    wider = np.pad(gold, ((0, 0), (0, 5)))
    np.testing.assert_array_equal(score_facts(chosen, gold).f1, score_facts(chosen, wider).f1)


@pytest.mark.parametrize(("num_gold", "num_steps", "ceiling"), [(2, 3, 0.8), (3, 5, 0.75), (1, 1, 1.0), (3, 2, 0.8)])
def test_f1_ceiling_by_hand(num_gold, num_steps, ceiling):
    assert f1_ceiling(num_gold, num_steps) == pytest.approx(ceiling)


def test_f1_ceiling_is_what_the_best_picks_reach():
    for num_gold in range(1, 6):
        for num_steps in range(0, 8):
            best = fact_f1(list(range(num_steps)), list(range(num_gold)))  # gold first, then others
            assert f1_ceiling(num_gold, num_steps) == pytest.approx(best)


def test_f1_ceiling_of_arrays():
    np.testing.assert_allclose(f1_ceiling(np.array([2, 3]), 5), [4 / 7, 0.75])


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([[0, 1], [4, 4]], "question 1: chunk 4 occurs twice"),
        ([[0, 1], [2, 5]], "question 1, pick 1: chunk 5 is outside the context of 5 chunks"),
        ([[-2, 1], [2, 4]], "question 0, pick 0: chunk -2"),
    ],
)
def test_score_facts_refuses(chosen, message):
    with pytest.raises(InputError, match=message):
        score_facts(np.array(chosen, np.int32), gold_mask([[0], [1]], 5))


def test_score_facts_refuses_a_question_without_gold():
    with pytest.raises(InputError, match="question 1 has no gold"):
        score_facts(np.array([[0], [1]], np.int32), gold_mask([[0], []], 5))


def test_f1_ceiling_refuses():
    with pytest.raises(InputError, match="num_gold >= 1"):
        f1_ceiling(0, 3)
