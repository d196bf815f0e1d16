"""The loss of GRPO against TRL's, and its gradient."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qrag_jax.train.decoder.losses import grpo_loss, token_weights

pytestmark = pytest.mark.oracle

ROWS, TOKENS, MAX_TOKENS = 8, 6, 9


class _Gathering:
    """The part of an accelerator that the loss reports its metrics through."""

    num_processes, sync_gradients = 1, True

    def gather(self, value):
        return value

    def reduce(self, value, reduction):
        return value


def trl_loss(rows, kind, beta, low, high):
    """TRL's own function, called on log-probabilities that it would otherwise read from a model."""
    import torch
    from trl.trainer.grpo_trainer import GRPOTrainer

    logp, old, ref, advantages, valid = (torch.tensor(part) for part in rows)
    logp.requires_grad_(True)
    entropies = torch.zeros(logp.shape)
    args = SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, entropies, None),
        args=args, beta=beta, epsilon_low=low, epsilon_high=high, loss_type=kind, max_completion_length=MAX_TOKENS,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level="token", use_vllm=False,
        vllm_importance_sampling_correction=False, aux_loss_enabled=False, _entropy_bonus_enabled=False,
        model=SimpleNamespace(training=True), current_gradient_accumulation_steps=1, accelerator=_Gathering(),
        _metrics={"train": __import__("collections").defaultdict(list)},
    )  # fmt: skip
    inputs = {
        "prompt_ids": torch.zeros((ROWS, 1)), "prompt_mask": torch.ones((ROWS, 1)), "completion_ids": valid.int(),
        "completion_mask": valid.int(), "advantages": advantages, "old_per_token_logps": old,
        "ref_per_token_logps": ref, "num_items_in_batch": valid.sum(),
    }  # fmt: skip
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return float(loss), logp.grad.numpy()


@pytest.mark.parametrize(("kind", "mean"), [("grpo", "sequence"), ("dapo", "token"), ("dr_grpo", "constant")])
@pytest.mark.parametrize(("beta", "high"), [(0.0, 0.2), (0.04, 0.2), (0.5, 0.28)])
def test_loss_and_gradient(kind, mean, beta, high):
    rng = np.random.default_rng(0)
    for _ in range(5):
        logp, old, ref = (-rng.exponential(size=(ROWS, TOKENS)).astype(np.float32) for _ in range(3))
        valid = np.arange(TOKENS) < rng.integers(1, TOKENS + 1, ROWS)[:, None]
        rows = logp, old, ref, rng.normal(size=ROWS).astype(np.float32), valid
        weights = token_weights(valid, mean, MAX_TOKENS)

        def loss(logp, rows=rows, weights=weights):
            return grpo_loss(
                logp, *map(jnp.asarray, (*rows[1:4], weights)), clip_low=0.2, clip_high=high, kl_coef=beta
            )[0]

        value, gradient = jax.value_and_grad(loss)(jnp.asarray(logp))
        theirs, theirs_gradient = trl_loss(rows, kind, beta, 0.2, high)
        assert value == pytest.approx(theirs, rel=1e-5, abs=1e-6)
        np.testing.assert_allclose(gradient, theirs_gradient, atol=1e-6)
