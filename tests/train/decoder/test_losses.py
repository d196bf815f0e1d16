"""Losses of decoders: numbers by hand, a slow reading of the equations, and relations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qrag_jax.train.decoder import losses
from qrag_jax.train.decoder.losses import group_advantages, sft_loss, soft_overlong, token_weights

LOG2 = float(np.log(2))


def grpo_loss(*rows, **options):
    return losses.grpo_loss(*map(jnp.asarray, rows), **options)


def grpo_slowly(logp, old, ref, advantages, valid, mean, low, high, kl_coef, max_tokens=1):
    """Equation 1 token by token, negated."""
    rows = []
    for i in range(len(logp)):
        terms = []
        for t in range(len(logp[i])):
            if not valid[i][t]:
                continue
            ratio = np.exp(logp[i][t] - old[i][t])
            clipped = min(max(ratio, 1 - low), 1 + high)
            gap = ref[i][t] - logp[i][t]
            kl = np.exp(gap) - gap - 1
            terms.append(min(ratio * advantages[i], clipped * advantages[i]) - kl_coef * kl)
        if terms:
            rows.append(terms)
    if mean == "sequence":
        return -np.mean([np.mean(terms) for terms in rows])
    if mean == "token":
        return -np.mean([term for terms in rows for term in terms])
    return -sum(sum(terms) for terms in rows) / (len(rows) * max_tokens)


def random_rows(seed=0, rows=6, tokens=5):
    rng = np.random.default_rng(seed)
    logp, old, ref = (-rng.exponential(size=(rows, tokens)).astype(np.float32) for _ in range(3))
    valid = np.arange(tokens) < rng.integers(0, tokens + 1, rows)[:, None]
    return logp, old, ref, rng.normal(size=rows).astype(np.float32), valid


def test_one_token_by_hand():
    one = np.ones((1, 1), np.float32)
    # The ratio is 2, clipped to 1.2 for a good answer; a bad one keeps the ratio 2.
    loss = lambda value, kl=0.0: grpo_loss(0 * one, -LOG2 * one, -LOG2 * one, np.float32([value]), one, kl_coef=kl)  # noqa: E731
    assert loss(1.0)[0] == pytest.approx(-1.2) and loss(1.0)[1]["clipped"] == 1
    assert loss(-1.0)[0] == pytest.approx(2.0) and loss(-1.0)[1]["clipped"] == 0
    # k3 = 1/2 + log 2 - 1
    value, metrics = loss(1.0, 0.5)
    assert metrics["kl"] == pytest.approx(LOG2 - 0.5) and value == pytest.approx(-1.2 + 0.5 * (LOG2 - 0.5))
    higher = grpo_loss(0 * one, -LOG2 * one, 0 * one, np.float32([1]), one, clip_high=0.28, kl_coef=0.0)[0]
    assert higher == pytest.approx(-1.28)


@pytest.mark.parametrize("mean", ["sequence", "token", "constant"])
@pytest.mark.parametrize("kl_coef", [0.0, 0.04])
def test_grpo_equals_a_slow_reading(mean, kl_coef):
    for seed in range(5):
        logp, old, ref, advantages, valid = random_rows(seed)
        weights = token_weights(valid, mean, 7)
        found, _ = grpo_loss(logp, old, ref, advantages, weights, clip_low=0.2, clip_high=0.28, kl_coef=kl_coef)
        expected = grpo_slowly(logp, old, ref, advantages, valid, mean, 0.2, 0.28, kl_coef, 7)
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_parts_of_a_batch_add_up():
    logp, old, ref, advantages, valid = random_rows(3)
    weights = token_weights(valid, "sequence")
    whole = grpo_loss(logp, old, ref, advantages, weights)[0]
    parts = [grpo_loss(logp[i], old[i], ref[i], advantages[i], weights[i])[0] for i in (slice(0, 2), slice(2, 6))]
    assert float(whole) == pytest.approx(float(sum(parts)), rel=1e-5)


def test_at_the_old_policy_the_gradient_is_that_of_reinforce():
    logp, _, ref, advantages, valid = random_rows(1)
    weights = token_weights(valid, "sequence")
    found = jax.grad(lambda x: grpo_loss(x, logp, ref, advantages, weights, kl_coef=0.0)[0])(jnp.asarray(logp))
    np.testing.assert_allclose(found, -weights * advantages[:, None], atol=1e-6)


def test_the_gradient_of_k3_is_that_of_the_other_kl():
    """d k3 / d log pi = 1 - pi_ref / pi, whose mean under pi is 0 where pi is free; so the pull is KL(ref || pi)'s."""
    logp, _, ref, advantages, valid = random_rows(2)
    weights = token_weights(valid, "token")
    found = jax.grad(lambda x: grpo_loss(x, logp, ref, 0 * advantages, weights, kl_coef=1.0)[0])(jnp.asarray(logp))
    np.testing.assert_allclose(found, weights * (1 - np.exp(ref - logp)), atol=1e-5)


def test_weightless_tokens_may_hold_anything():
    logp, old, ref, advantages, valid = random_rows(4)
    wild = np.where(valid, logp, -np.inf).astype(np.float32)
    weights = token_weights(valid, "sequence")
    assert float(grpo_loss(wild, old, ref, advantages, weights, kl_coef=0.0)[0]) == pytest.approx(
        float(grpo_loss(logp, old, ref, advantages, weights, kl_coef=0.0)[0])
    )


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_a_group_of_equal_rewards_gives_exactly_zero(reward):
    advantages, equal = group_advantages(np.full((2, 7), reward), np.ones((2, 7), bool))
    assert equal.all() and (advantages == 0).all()
    logp, old, ref, _, valid = random_rows(5, rows=14)
    weights = token_weights(valid, "sequence")
    flat = advantages.ravel().astype(np.float32)
    gradient = jax.grad(lambda x: grpo_loss(x, old, ref, flat, weights, kl_coef=0.0)[0])(jnp.asarray(logp))
    assert (np.asarray(gradient) == 0).all()
    pulled = jax.grad(lambda x: grpo_loss(x, old, ref, flat, weights, kl_coef=0.04)[0])(jnp.asarray(logp))
    assert (np.asarray(pulled)[valid] != 0).any()


def test_advantages_by_hand():
    rewards, valid = np.array([[0.0, 1.0, 2.0, 9.0]]), np.array([[True, True, True, False]])
    found, equal = group_advantages(rewards, valid, epsilon=0.0)
    np.testing.assert_allclose(found, [[-1, 0, 1, 0]])  # the deviation with n - 1 is 1
    assert not equal.any()
    biased, _ = group_advantages(rewards, valid, ddof=0, epsilon=0.0)
    np.testing.assert_allclose(biased, [[-np.sqrt(1.5), 0, np.sqrt(1.5), 0]])
    plain, _ = group_advantages(rewards, valid, scales=False)
    np.testing.assert_allclose(plain, [[-1, 0, 1, 0]])
    damped, _ = group_advantages(rewards, valid, epsilon=1.0)
    np.testing.assert_allclose(damped, [[-0.5, 0, 0.5, 0]])


def test_a_group_of_one_valid_answer_is_equal():
    found, equal = group_advantages(np.array([[3.0, np.nan]]), np.array([[True, False]]))
    assert equal.all() and (found == 0).all()
    found, equal = group_advantages(np.array([[np.nan, np.nan]]), np.zeros((1, 2), bool))
    assert equal.all() and (found == 0).all()


def test_imitation_counts_answers_only():
    logp = np.log(np.array([[0.5, 0.25, 0.125], [0.1, 0.5, 0.9]], np.float32))
    weights = token_weights(np.array([[False, True, True], [False, True, False]]), "token")
    assert sft_loss(jnp.asarray(logp), jnp.asarray(weights)) == pytest.approx(LOG2 * (2 + 3 + 1) / 3)


def test_weights_of_each_mean_by_hand():
    valid = np.array([[True, True], [True, False], [False, False]])
    np.testing.assert_allclose(token_weights(valid, "sequence"), [[0.25, 0.25], [0.5, 0], [0, 0]])
    np.testing.assert_allclose(token_weights(valid, "token"), [[1 / 3, 1 / 3], [1 / 3, 0], [0, 0]])
    np.testing.assert_allclose(token_weights(valid, "constant", 5), [[0.1, 0.1], [0.1, 0], [0, 0]])
    assert (token_weights(np.zeros((2, 2), bool), "token") == 0).all()


def test_long_answers_are_penalised_softly():
    np.testing.assert_allclose(soft_overlong(np.array([4, 6, 8, 10, 12]), 10, 4), [0, 0, -0.5, -1, -1])
    assert (soft_overlong(np.array([3, 99]), 10, 0) == 0).all()
