"""Updates of decoders: packed rows, parts of a batch, low-rank leaves."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoders import random_decoder_params

from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.network import token_logprobs
from qrag_jax.models.decoder.rollout import answer_logprobs
from qrag_jax.sharding import DecoderMesh, make_mesh
from qrag_jax.train.decoder.learner import Drawn, LearnerConfig, answer_seeds, make_learner
from qrag_jax.train.decoder.losses import sft_loss, token_weights
from qrag_jax.train.decoder.packing import fill_rows, pad_left
from qrag_jax.train.lora import add_lora, join_trained, merge_lora, split_trained

CONFIG = DecoderConfig("qwen3", 50, 16, 24, 2, 2, 2, 8, 64, tie_embeddings=True, qk_norm=True)
RATE = jnp.float32(1e-2)


logprobs_of = jax.jit(partial(token_logprobs, config=CONFIG))
read = jax.jit(partial(answer_logprobs, config=CONFIG))


@pytest.fixture(scope="module")
def params():
    return random_decoder_params(CONFIG)


def learner_of(**options):
    return make_learner(LearnerConfig(CONFIG, (1,), remat=False, **options), make_mesh(DecoderMesh()))


def random_pairs(n, seed=0):
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(2, 50, rng.integers(2, 6)).tolist() for _ in range(2)) for _ in range(n)]


def loss_of(params, rows):
    logprobs = logprobs_of(params, jnp.asarray(rows.tokens), jnp.asarray(rows.segments))
    return float(sft_loss(logprobs, jnp.asarray(token_weights(rows.answers, "token"))))


def test_packed_rows_have_the_loss_of_separate_ones(params):
    pairs = random_pairs(6)
    packed = fill_rows([pairs[:3], pairs[3:5], pairs[5:]], 6, 32)
    assert loss_of(params, packed) == pytest.approx(
        loss_of(params, fill_rows([[one] for one in pairs], 6, 32)), abs=1e-5
    )


def drawn(prompts=4, group=3, size=5):
    rng = np.random.default_rng(1)
    answers = rng.integers(2, 50, (prompts, group, size)).astype(np.int32)
    within = np.arange(size) < rng.integers(1, size + 1, (prompts, group, 1))
    weights = token_weights(within.reshape(-1, size), "sequence").reshape(answers.shape)
    values = rng.normal(size=(prompts, group)).astype(np.float32)
    return Drawn(*pad_left([one for one, _ in random_pairs(prompts)], 8), answers, weights, values)


def test_parts_of_a_batch_give_its_update(params):
    found = []
    for parts in (1, 4):
        learner = learner_of(parts=parts)
        found.append(learner.update(learner.init(params), {}, drawn(), RATE))
    for name in found[0][1]:
        np.testing.assert_allclose(found[0][1][name], found[1][1][name], atol=1e-5)


def test_an_update_favours_what_was_better(params):
    learner, batch = learner_of(kl_coef=0.0), drawn()
    before = learner.logprobs(params, {}, *batch[:3])
    state, metrics = learner.update(learner.init(params), {}, batch, RATE)
    after = learner.logprobs(state.params, {}, *batch[:3])
    gained = ((np.asarray(after) - np.asarray(before)) * batch.weights).sum(-1)
    assert (gained * batch.advantages).sum() > 0 and float(metrics["clipped"]) == 0


def test_low_rank_leaves_are_trained_alone_and_merged(params):
    added = add_lora(params, 2, ("query", "down"), jax.random.key(1))
    trained, others = split_trained(added)
    assert jax.tree.structure(join_trained(trained, others)) == jax.tree.structure(added)
    assert jax.tree.structure(merge_lora(added)) == jax.tree.structure(params)
    learner, batch = learner_of(), drawn()
    asked = [jnp.asarray(each) for each in batch[:3]]
    np.testing.assert_array_equal(read(added, *asked), read(params, *asked))  # B is 0
    state = learner.init(trained)
    for _ in range(2):
        state, _ = learner.update(state, others, batch, RATE)
    joined = join_trained(state.params, others)
    assert float(jnp.abs(state.params["layers"]["down"]["lora_b"]).max()) > 0
    np.testing.assert_allclose(read(merge_lora(joined), *asked), read(joined, *asked), atol=1e-5)
    assert float(jnp.abs(read(joined, *asked) - read(params, *asked)).max()) > 1e-3


def test_seeds_differ_by_row_and_step_and_do_not_depend_on_the_number_of_rows():
    seeds = np.asarray(answer_seeds(0, 3, 0, 4, 8))
    assert len(set(seeds.ravel().tolist())) == 32
    np.testing.assert_array_equal(seeds[:2], answer_seeds(0, 3, 0, 2, 8))
    assert not (seeds == np.asarray(answer_seeds(0, 4, 0, 4, 8))).any()
    assert not (seeds == np.asarray(answer_seeds(0, 3, 1, 4, 8))).any()


def test_equal_configs_share_their_functions():
    assert learner_of() is learner_of() and learner_of(kl_coef=0.0) is not learner_of()
