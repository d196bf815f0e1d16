"""A run that was interrupted anywhere and resumed is the run that was not: every leaf, every logged line."""

import json
import shutil
from dataclasses import replace

import chex
import jax
import numpy as np
import pytest
from support.runs import NUM_UPDATES, after, leaves, make_config, make_task, same_run

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.qrag import retriever as retriever_module
from qrag_jax.sharding import MeshConfig
from qrag_jax.train.log import read_lines
from qrag_jax.train.qrag.config import DevConfig
from qrag_jax.train.qrag.job import prepare
from qrag_jax.train.qrag.loop import train
from qrag_jax.train.qrag.saving import Member
from qrag_jax.types import InputError, Stopped


def crash_at(update):
    """A report that ends the process' work as soon as an update was logged."""

    def report(stage, done, of, metrics):
        if stage == "train" and done == update:
            raise RuntimeError("the machine is gone")

    return report


@pytest.mark.slow
def test_a_crashed_and_a_stopped_run_end_like_the_whole_one(tmp_path):
    """Crashed after update 3 (saved at 2, scored at 3), stopped after update 5, which no interval saves."""
    config, task, dev = make_config("latent", accumulate=1, num_steps=1), make_task(), make_task(5, "dog")
    whole = train(config, task, tmp_path / "whole", dev=dev)
    run = tmp_path / "run"
    with pytest.raises(RuntimeError, match="the machine is gone"):
        train(config, task, run, crash_at(3), dev)
    assert checkpoint_steps(run) == [2]
    with pytest.raises(Stopped, match="stopped after update 5, saved in "):
        train(config, task, run, dev=dev, start=load_checkpoint(run, groups=()), stop=after(3))
    assert checkpoint_steps(run)[-1] == 5
    resumed = train(config, task, run, dev=dev, start=load_checkpoint(run, groups=()))
    same_run(tmp_path / "whole", run)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)


@pytest.mark.full
def test_a_run_resumes_on_other_devices(tmp_path):
    """Saved on 4 devices that split parameters, resumed on 3, then on 1: the same but for rounding.

    The padded rows of a batch are a multiple of the devices, also of 3, and where the run was saved on others.
    """
    options = {"devices": 2, "fsdp": 2, "accumulate": 1, "num_steps": 1, "dev": DevConfig(every=3)}
    config, task = make_config("latent", **options), make_task()
    config, dev = replace(config, data=replace(config.data, batch_size=12)), make_task(5, "dog")
    one = replace(config, mesh=MeshConfig())
    train(one, task, tmp_path / "whole", dev=dev)
    run = tmp_path / "run"
    for mesh, last in ((config.mesh, 2), (MeshConfig(3), 4)):
        start = load_checkpoint(run, groups=()) if run.exists() else None
        with pytest.raises(Stopped):
            train(replace(config, mesh=mesh), task, run, start=start, dev=dev, stop=after(2))
        assert checkpoint_steps(run)[-1] == last
    assert load_checkpoint(run, groups=()).metadata["rows"] % 3 == 0
    train(one, task, run, start=load_checkpoint(run, groups=()), dev=dev)
    whole, resumed = (load_checkpoint(tmp_path / name).arrays["params"] for name in ("whole", "run"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), whole, resumed)


@pytest.mark.slow
def test_a_complete_run_is_left_as_it_is(tmp_path):
    config, task = make_config(mode="latent", accumulate=1, num_steps=1), make_task()
    trained = train(config, task, tmp_path, dev=make_task(5, "dog"))
    before = leaves(tmp_path), (tmp_path / "metrics.jsonl").read_bytes()
    again = train(config, task, tmp_path, dev=make_task(5, "dog"), start=load_checkpoint(tmp_path, groups=()))
    assert before == (leaves(tmp_path), (tmp_path / "metrics.jsonl").read_bytes())
    jax.tree.map(np.testing.assert_array_equal, again.params, trained.params)


# --- what a run does not go on with


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """(run folder, its config) of a run that was stopped after its first update."""
    chex.clear_trace_counter()
    run = tmp_path_factory.mktemp("stopped") / "run"
    config = make_config(mode="latent", accumulate=1, num_steps=1, dev=DevConfig())
    with pytest.raises(Stopped):
        train(config, make_task(), run, stop=lambda: True)
    return run, config


def test_another_config_is_refused(stopped):
    run, config = stopped
    other = replace(config, num_updates=9, learner=replace(config.learner, gamma=0.5))
    with pytest.raises(
        InputError, match=r"learner.gamma is 0.99 there and 0.5 here; num_updates is 7 there and 9 here"
    ):
        train(other, make_task(), run, start=load_checkpoint(run, groups=()))


@pytest.mark.slow
def test_fields_that_are_younger_than_a_checkpoint_have_their_defaults(stopped, tmp_path):
    """A run of an earlier version goes on; a value that it did not have is another config."""
    run, config = stopped
    shutil.copytree(run, tmp_path / "run")
    start = load_checkpoint(tmp_path / "run", groups=())
    older = {name: value for name, value in start.config.items() if name != "init"}
    older["learner"] = {name: value for name, value in start.config["learner"].items() if name != "groups"}
    older = replace(start, config=older)
    with pytest.raises(InputError, match="init is '' there and 'elsewhere' here"):
        train(replace(config, init="elsewhere"), make_task(), tmp_path / "run", start=older)
    train(config, make_task(), tmp_path / "run", start=older)
    assert checkpoint_steps(tmp_path / "run")[-1] == NUM_UPDATES


def test_other_data_are_refused(stopped):
    run, config = stopped
    with pytest.raises(InputError, match="trained on other data: 10 questions of texts there, 10 of texts here"):
        train(config, make_task(word="dog"), run, start=load_checkpoint(run, groups=()))


def test_other_gold_is_refused(stopped):
    """Of what is trained on, and of what is held out; the texts are the same."""
    run, config = stopped
    start = load_checkpoint(run, groups=())
    with pytest.raises(InputError, match="trained on other data"):
        train(config, make_task(gold=(0, 1)), run, start=start)
    with pytest.raises(InputError, match="trained on other data"):
        train(config, make_task(), run, dev=make_task(5, "dog"), start=start)


def test_chunks_that_changed_hands_are_refused(stopped):
    """The same texts, questions and gold, but two questions with each other's distractors."""
    run, config = stopped
    task = make_task()

    def swapped(queries, rng):
        contexts = task.contexts(queries, rng)
        chunks = np.array(contexts.chunks)
        chunks[:, [1, 3]] = chunks[:, [3, 1]]  # gold are 0 and 2
        return replace(contexts, chunks=chunks)

    with pytest.raises(InputError, match="trained on other data"):
        train(config, replace(task, contexts=swapped), run, start=load_checkpoint(run, groups=()))


def test_another_encoder_is_refused(stopped, tmp_path):
    """The frozen encoder of a folder or a hub branch may have moved on."""
    run, config = stopped
    start = load_checkpoint(run, groups=())
    name = next(name for name in start.files if name.endswith(".safetensors"))
    other = replace(start, files={**start.files, name: start.files[name][:-1] + b"x"})
    with pytest.raises(InputError, match=rf"files/{name} is not what model.encoder.source gives now"):
        train(config, make_task(), run, start=other)


def test_an_encoder_that_was_drawn_is_kept_where_it_would_be_drawn_otherwise(stopped, monkeypatch):
    """As another release or flags of XLA do, in the last bit."""
    run, config = stopped
    draw = retriever_module.init_encoder
    other = lambda *args: jax.tree.map(lambda x: x * np.float32(1 + 2**-22), draw(*args))  # noqa: E731
    monkeypatch.setattr(retriever_module, "init_encoder", other)
    start = load_checkpoint(run, groups=())
    job = prepare([Member(config, run, start)], make_task(), None, lambda *_: None)
    assert dict(job.towers.files) == dict(start.files)


@pytest.mark.slow
def test_a_run_that_was_not_calibrated_is_calibrated_when_it_is_resumed(tmp_path):
    """A kill while it was: the last update is saved before, and not trained again."""
    config, task, dev = make_config(mode="latent", accumulate=1, num_steps=1), make_task(), make_task(5, "dog")

    def killed(retriever, dev):
        raise RuntimeError("the machine is gone")

    with pytest.raises(RuntimeError):
        train(config, task, tmp_path, dev=dev, calibrate=killed)
    assert checkpoint_steps(tmp_path)[-1] == NUM_UPDATES
    calls = []
    for _ in range(2):
        start = load_checkpoint(tmp_path, groups=())
        train(config, task, tmp_path, dev=dev, start=start, calibrate=lambda *_: calls.append(1) or {"threshold": 0.5})
    assert len(calls) == 1 and load_checkpoint(tmp_path, groups=()).metadata["dev"]["threshold"] == 0.5


def test_what_alters_no_update_may_change(stopped, tmp_path):
    run, config = stopped
    shutil.copytree(run, tmp_path / "run")
    other = replace(config, log_every=1, save_every=5, keep=1, data=replace(config.data, paths=("moved",)))
    train(other, make_task(), tmp_path / "run", start=load_checkpoint(tmp_path / "run", groups=()))
    assert checkpoint_steps(tmp_path / "run") == [NUM_UPDATES]
    assert [line.get("step") for line in read_lines(tmp_path / "run" / "metrics.jsonl")] == [None, *range(2, 8)]


@pytest.mark.slow
def test_a_line_that_a_kill_cut_short_is_no_obstacle(stopped, tmp_path):
    run, config = stopped
    shutil.copytree(run, tmp_path / "run")
    for name in ("metrics.jsonl", "times.jsonl"):
        with (tmp_path / "run" / name).open("a") as file:
            file.write('{"step": 2, "lo')
    train(config, make_task(), tmp_path / "run", start=load_checkpoint(tmp_path / "run", groups=()))
    assert [line.get("step") for line in read_lines(tmp_path / "run" / "metrics.jsonl")] == [None, 2, 4, 6, 7]


def test_metrics_hold_no_time(stopped):
    lines = [json.loads(line) for line in (stopped[0] / "metrics.jsonl").read_text().splitlines()]
    assert all("seconds" not in line for line in lines)
