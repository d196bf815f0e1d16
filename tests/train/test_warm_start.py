"""Runs that start with the parameters of another run."""

import hashlib
import shutil
from dataclasses import replace

import chex
import jax
import numpy as np
import pytest
from support import runs as tiny_runs
from support.networks import LATENT

from qrag_jax.checkpoint import Checkpoint, load_checkpoint
from qrag_jax.data.questions.vector_task import make_vector_task
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, load_retriever, with_constants
from qrag_jax.qrag.tasks import vectors_task
from qrag_jax.train.optimise import GroupConfig, ScheduleConfig, take_params
from qrag_jax.train.qrag.config import DataConfig, DevConfig, RunConfig
from qrag_jax.train.qrag.learner import LearnerConfig
from qrag_jax.train.qrag.loop import train
from qrag_jax.types import InputError, Stopped, UsageError

STILL = LearnerConfig(learning_rate=ScheduleConfig(0.0, 0.0))  # its parameters stay those that it starts with


def make_task(seed=0):
    rng = np.random.default_rng(seed)
    rows = [(f"line {i}", {"question": i % 5, "gold": [i % 12, (i + 3) % 12]}) for i in range(12)]
    chunks, questions = (rng.normal(size=(n, 6)).astype(np.float32) for n in (12, 5))
    return vectors_task("vectors", make_vector_task(chunks, questions, rows))


def make_config(**options):
    fixed = {
        "num_updates": 3,
        "log_every": 1,
        "save_every": 1,
        "env": EnvConfig(num_steps=1, fact_reward=0.1),
        "data": DataConfig(task="vectors", paths=("given",), batch_size=4),
        "model": ModelConfig(encoder=EncoderSpec("vectors"), latent=LATENT),
    }
    return RunConfig(**(fixed | options))


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """(folder, its result) of a supervised run, whose best update is not the last one it saved."""
    chex.clear_trace_counter()
    out = tmp_path_factory.mktemp("first") / "run"
    config = make_config(learner=LearnerConfig(objective="sft"), dev=DevConfig(every=2))
    return out, train(config, make_task(), out, dev=make_task())


def test_a_run_starts_with_the_result_of_another(first, tmp_path):
    """Parameters, target and standardisation, though its own data would have another; optimiser and update are new."""
    folder, result = first
    still = replace(STILL, objective="sft")
    trained = train(make_config(learner=still, init=str(folder)), make_task(1), tmp_path / "run")
    assert_equal(trained.params, result.params)
    assert_equal(dict(trained.constants), dict(result.constants))
    start = load_checkpoint(tmp_path / "run", step=1)
    # It began as a copy; an average of equals may be rounded.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        *[start.arrays[n] for n in ("target_params", "params")],
    )
    moments = start.arrays["opt_state"]["1"]["0"]
    assert int(moments["count"]) == 1
    loaded = load_retriever(tmp_path / "run")
    assert_equal(loaded.params, result.params)
    digest = hashlib.sha256((folder / "step_3" / "manifest.json").read_bytes()).hexdigest()
    expected = {"folder": str(folder), "step": 3, "group": "best_params", "manifest_sha256": digest}
    assert start.metadata["init"] == expected and start.config["init"] == str(folder)


@pytest.mark.slow
def test_one_step_of_a_run_without_held_out_questions(tmp_path):
    env = EnvConfig(num_steps=1, fact_reward=0.1)
    train(make_config(env=env), make_task(), tmp_path / "first")
    earlier = load_checkpoint(tmp_path / "first", step=1).arrays["params"]
    trained = train(make_config(env=env, learner=STILL, init=str(tmp_path / "first" / "step_1")), make_task())
    assert_equal(trained.params, earlier)


@pytest.mark.full
def test_a_run_goes_on_without_the_other(first, tmp_path):
    """Stopped, and resumed where the other run is gone: the run that was not interrupted."""
    shutil.copytree(first[0], tmp_path / "first")
    env = EnvConfig(num_steps=1, fact_reward=0.1)
    config, task = make_config(env=env, init=str(tmp_path / "first")), make_task(1)
    train(config, task, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(config, task, tmp_path / "run", stop=lambda: True)
    shutil.rmtree(tmp_path / "first")
    train(config, task, tmp_path / "run", start=load_checkpoint(tmp_path / "run", groups=()))
    one, other = (load_checkpoint(tmp_path / name) for name in ("whole", "run"))
    for group in ("params", "target_params", "opt_state", "constants"):
        assert_equal(one.arrays[group], other.arrays[group])
    assert one.metadata == other.metadata and "init" in one.metadata
    lines = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "run")]
    assert lines[0] == lines[1]


@pytest.mark.slow
def test_frozen_towers_keep_what_they_start_with(first, tmp_path):
    groups = {"action/*": GroupConfig(frozen=True)}
    config = make_config(learner=LearnerConfig(groups=groups), init=str(first[0]))
    trained = train(config, make_task(), tmp_path)
    assert_equal(trained.params["action"], first[1].params["action"])
    states = zip(*(jax.tree.leaves(r.params["state"]) for r in (trained, first[1])), strict=True)
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in states)
    with pytest.raises(UsageError, match=r"groups.layer_9/\* matches no parameter; there are action/"):
        train(replace(config, learner=LearnerConfig(groups={"layer_9/*": GroupConfig()})), make_task())


def test_a_run_of_another_width_is_refused(first, tmp_path):
    """Before anything is made; every leaf is named."""
    model = ModelConfig(encoder=EncoderSpec("vectors"), latent=replace(LATENT, dim=4, action_hidden=6))
    with pytest.raises(InputError, match="init: the parameters of .*step_3 do not fit: ") as error:
        train(make_config(model=model, init=str(first[0])), make_task(), tmp_path / "run")
    assert str(error.value).count(" there and float32") >= 4
    assert not (tmp_path / "run").exists()


def test_towers_of_another_kind_are_refused(first):
    """As many numbers, but other heads."""
    model = ModelConfig(encoder=EncoderSpec("vectors"), latent=replace(LATENT, num_heads=1))
    with pytest.raises(InputError, match=r"init=.*: .*model.latent.num_heads is 2 there and 1 here"):
        train(make_config(model=model, init=str(first[0])), make_task())
    config = make_config(init=str(first[0]))
    with pytest.raises(InputError, match=r"init=.*: .*env.theta is .* there and 7.0 here"):
        train(replace(config, env=replace(config.env, theta=7.0)), make_task())


@pytest.mark.slow
def test_another_encoder_is_refused(tmp_path):
    """Parameters over its vectors: a `scratch` encoder is drawn anew by another seed."""
    config = tiny_runs.make_config("latent", accumulate=1, num_updates=1, dev=DevConfig())
    train(config, tiny_runs.make_task(), tmp_path)
    with pytest.raises(InputError, match=r"files/encoder/.* is not what model.encoder.source gives now"):
        train(replace(config, seed=1, init=str(tmp_path)), tiny_runs.make_task())


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match=rf"init={tmp_path}: .*no checkpoint here"):
        train(make_config(init=str(tmp_path)), make_task())


def test_every_leaf_that_does_not_fit_is_named():
    theirs = {"a": {str(i): np.zeros(2, np.float32) for i in range(12)}, "b": np.zeros(3, np.float32)}
    ours = {"b": np.zeros(4, np.float32), "c": np.zeros(3, np.float16), "d": np.zeros(1)}
    saved = Checkpoint("RUN/step_3", 3, {"params": theirs}, {}, {}, {}, {})
    with pytest.raises(InputError) as error:
        take_params(saved, "params", ours)
    left_over = [f"a/{i} is there and not here" for i in sorted(map(str, range(12)))]
    shapes = "b is float32[3] there and float32[4] here"
    faults = "; ".join(["c is not there", "d is not there", *left_over, shapes])
    assert f"init: the parameters of RUN/step_3 do not fit: {faults}. Use the model" in str(error.value)


def test_numbers_that_are_not_finite_are_named():
    """Training would stop at its first update, and advise another learning rate."""
    theirs = {
        "a": np.array([1, np.nan], np.float32),
        "b": np.array([1, np.inf], np.float32),
        "n": np.zeros(1, np.int32),
    }
    ours = {name: np.zeros_like(leaf) for name, leaf in theirs.items()}
    saved = Checkpoint("RUN/step_3", 3, {"params": theirs}, {}, {}, {}, {})
    with pytest.raises(
        InputError, match="do not fit: a contains NaN or infinity there; b contains NaN or infinity there. Use"
    ):
        take_params(saved, "params", ours)


@pytest.mark.parametrize(
    "constants",
    [
        {},
        {"mean": np.zeros(6, np.float32)},
        {"mean": np.zeros(5, np.float32), "std": np.ones(5, np.float32)},
        {"mean": np.zeros(1, np.float32), "std": np.ones(1, np.float32)},  # would be broadcast
        {"mean": np.zeros(6, np.float32), "std": np.zeros(6, np.float32)},
        {"mean": np.zeros(6, np.float32), "std": -np.ones(6, np.float32)},
        {"mean": np.full(6, np.nan, np.float32), "std": np.ones(6, np.float32)},
        {"mean": np.zeros(6, np.int32), "std": np.ones(6, np.float32)},
        {"mean": np.zeros(6, np.float32), "std": np.ones(6, np.float32), "more": np.ones(6, np.float32)},
        np.zeros(6, np.float32),
    ],
)
def test_constants_of_something_else_are_refused(first, constants):
    with pytest.raises(
        InputError, match=r"RUN: its constants are not a mean .*wanted: mean float32\[6\], std float32\[6\]"
    ):
        with_constants(first[1], constants, "RUN")
    own = {name: value * 2 for name, value in first[1].constants.items()}
    assert_equal(dict(with_constants(first[1], own, "RUN").constants), own)


@pytest.mark.full
def test_heads_come_and_go(tmp_path):
    """Supervision without STOP starts a run that learns STOP, and the other way round; towers are taken over."""
    ranked = EnvConfig(num_steps=1, ranking_scale=5.0)
    stopping = EnvConfig(num_steps=1, reward="at_end", stop=True, stop_head="affine")
    source = train(make_config(env=ranked, learner=LearnerConfig(objective="sft")), make_task(), tmp_path / "one")
    config = make_config(env=stopping, learner=STILL, init=str(tmp_path / "one"))
    warm = train(config, make_task(), tmp_path / "two")
    assert set(source.params) == {"state", "action", "ranking"} and set(warm.params) == {"state", "action", "stop"}
    for tower in ("state", "action"):
        assert_equal(source.params[tower], warm.params[tower])
    assert_equal(warm.params["stop"]["scale"], np.ones(1))
    back = train(make_config(learner=STILL, init=str(tmp_path / "two")), make_task())
    assert set(back.params) == {"state", "action"}
    assert_equal(back.params["state"], source.params["state"])


@pytest.mark.slow
def test_a_head_of_another_kind_is_refused(tmp_path):
    vector = EnvConfig(num_steps=1, reward="at_end", stop=True)
    train(make_config(env=vector), make_task(), tmp_path / "one")
    config = make_config(env=replace(vector, stop_head="affine"), init=str(tmp_path / "one"))
    with pytest.raises(InputError, match="stop/vector is not there.*stop is there and not here"):
        train(config, make_task())
