"""Runs of several seeds in one update: each is what it is alone."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from support.networks import LATENT

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.data.questions.vector_task import make_vector_task
from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig
from qrag_jax.qrag.tasks import vectors_task
from qrag_jax.sharding import MeshConfig
from qrag_jax.train.log import read_lines
from qrag_jax.train.qrag.config import DataConfig, DevConfig, RunConfig
from qrag_jax.train.qrag.learner import LearnerConfig
from qrag_jax.train.qrag.loop import train, train_together
from qrag_jax.train.qrag.saving import Member, check_members
from qrag_jax.types import InputError, Stopped, UsageError


def make_task(size=12, seed=0):
    rng = np.random.default_rng(seed)
    rows = [(f"line {i}", {"question": i % 5, "gold": [i % 12, (i + 3) % 12]}) for i in range(size)]
    chunks, questions = (rng.normal(size=(n, 6)).astype(np.float32) for n in (12, 5))
    return vectors_task("vectors", make_vector_task(chunks, questions, rows))


def make_configs(seeds, **options):
    fixed = {
        "num_updates": 6,
        "log_every": 2,
        "save_every": 3,
        "env": EnvConfig(num_steps=2, fact_reward=0.1),
        "data": DataConfig(task="vectors", paths=("given",), batch_size=4, stretch=2.0, seed=0),
        "dev": DevConfig(every=3),
        "model": ModelConfig(encoder=EncoderSpec("vectors"), latent=LATENT),
    }
    return [RunConfig(seed=seed, **(fixed | options)) for seed in seeds]


@pytest.mark.parametrize(("devices", "accumulate", "seeds"), [(2, 2, (0, 7))])
@pytest.mark.full
@pytest.mark.slow
def test_each_run_is_what_it_is_alone(devices, accumulate, seeds, tmp_path):
    """Its folder, its log and its result, and two devices take a run each."""
    one_step = EnvConfig(num_steps=1, fact_reward=0.1)
    configs = make_configs(seeds, env=one_step, learner=LearnerConfig(accumulate=accumulate))
    together = [
        Member(replace(config, mesh=MeshConfig(devices), data=replace(config.data, batch_size=8)), tmp_path / str(seed))
        for config, seed in zip(configs, seeds, strict=True)
    ]
    task, dev = make_task(), make_task(6)
    found = train_together(together, task, dev=dev)
    for member, retriever in zip(together, found, strict=True):
        alone = tmp_path / f"alone_{member.config.seed}"
        expected = train(replace(member.config, mesh=MeshConfig()), task, alone, dev=dev)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), retriever.params, expected.params)
        lines = [read_lines(folder / "metrics.jsonl")[1:] for folder in (member.out, alone)]
        for one, other in zip(*lines, strict=True):
            assert one.keys() == other.keys()
            np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-4, atol=1e-5)
        saved = load_checkpoint(member.out)
        assert checkpoint_steps(member.out) == [3, 6] and saved.config["seed"] == member.config.seed
        assert saved.metadata["dev"]["update"] == load_checkpoint(alone).metadata["dev"]["update"]
    assert len({np.asarray(jax.tree.leaves(retriever.params)[0]).tobytes() for retriever in found}) == len(seeds)


@pytest.mark.full
@pytest.mark.slow
def test_runs_that_were_stopped_go_on_together(tmp_path):
    """Bit for bit, whatever another seed did meanwhile."""
    configs, task = make_configs((0, 1), num_updates=3, dev=DevConfig()), make_task()
    whole = train_together([Member(c, tmp_path / f"whole_{c.seed}") for c in configs], task)
    outs = [tmp_path / f"run_{config.seed}" for config in configs]
    with pytest.raises(Stopped, match=r"stopped after update 1, saved in .*run_0, .*run_1"):
        train_together([Member(c, out) for c, out in zip(configs, outs, strict=True)], task, stop=lambda: True)
    starts = [load_checkpoint(out, groups=()) for out in outs]
    members = [Member(*member) for member in zip(configs, outs, starts, strict=True)]
    resumed = train_together(members, task)
    for one, other, out in zip(whole, resumed, outs, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
        expected = tmp_path / out.name.replace("run", "whole") / "metrics.jsonl"
        assert (out / "metrics.jsonl").read_bytes() == expected.read_bytes()


def test_a_run_that_diverges_stops_all_and_is_named(tmp_path, monkeypatch):
    """The second seed's loss is made infinite where the metrics arrive."""
    import qrag_jax.train.qrag.loop as loop

    get = jax.device_get

    def broken(tree):
        tree = get(tree)
        return {**tree, "loss": tree["loss"] * np.array([1, np.inf])} if "loss" in tree else tree

    monkeypatch.setattr(loop.jax, "device_get", broken)
    one_step = EnvConfig(num_steps=1, fact_reward=0.1)
    members = [Member(config, tmp_path / str(config.seed)) for config in make_configs((0, 1), env=one_step)]
    with pytest.raises(InputError, match=r"update 1: loss not finite; .*its batch: .*1/bad_batch_1.json"):
        train_together(members, make_task())
    assert not (tmp_path / "0" / "bad_batch_1.json").exists()


def changed(config, **model):
    return replace(config, model=replace(config.model, **model))


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([make_configs((0,))[0], make_configs((1,), num_updates=9)[0]], "must differ only in seed"),
        ([replace(c, data=replace(c.data, seed=None)) for c in make_configs((0, 1))], "share data.seed"),
        ([changed(c, mode="text") for c in make_configs((0, 1))], "only latent towers on a frozen encoder"),
        ([changed(c, encoder=EncoderSpec("scratch")) for c in make_configs((0, 1))], "only latent towers on a frozen"),
    ],
)
def test_runs_that_cannot_share_an_update_are_refused(configs, message):
    with pytest.raises(UsageError, match=message):
        check_members([Member(config) for config in configs])


@pytest.mark.slow
def test_runs_at_different_updates_are_refused(tmp_path):
    configs = make_configs((0, 1), env=EnvConfig(num_steps=1), dev=DevConfig())
    for config, number in zip(configs, (1, 2), strict=True):
        asked = iter([False] * (number - 1) + [True])
        with pytest.raises(Stopped):
            train(config, make_task(), tmp_path / str(config.seed), stop=lambda asked=asked: next(asked))
    starts = [load_checkpoint(tmp_path / str(config.seed), groups=()) for config in configs]
    members = [Member(c, tmp_path / str(c.seed), start) for c, start in zip(configs, starts, strict=True)]
    with pytest.raises(UsageError, match=r"must be at the same update, but these are at \[1, 2\]"):
        train_together(members, make_task())
