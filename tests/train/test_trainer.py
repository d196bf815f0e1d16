"""The loop with a learner that is no retriever: a line through points."""

import json
import threading
import time
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qrag_jax.checkpoint import load_checkpoint, save_checkpoint
from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.sharding import MeshConfig, make_mesh, replicated
from qrag_jax.train.log import RunLog
from qrag_jax.train.run_folder import check_same_config, open_log, open_runs, restore
from qrag_jax.train.trainer import Hooks, KeepBest, Layout, Plan, Trainer, jit_update, prefetch
from qrag_jax.types import InputError, Stopped, UsageError

NUM_UPDATES = 9


OPTIMISER = optax.adam(0.1)


def points(number, bad=None):
    """Points of y = 3x - 1, a function of the update alone; those of update `bad` are none."""
    x = np.random.default_rng(number).normal(size=8).astype(np.float32)
    return {"x": x, "y": np.float32(np.nan) * x if number == bad else 3 * x - 1}


def fresh():
    params = {"slope": jnp.zeros(()), "offset": jnp.zeros(())}
    return {"params": params, "opt_state": OPTIMISER.init(params), "key": jax.random.key(0)}


def squared_error(params, batch):
    return jnp.square(params["slope"] * batch["x"] + params["offset"] - batch["y"]).mean()


def update(state, batch):
    loss, gradient = jax.value_and_grad(squared_error)(state["params"], batch)
    step, opt_state = OPTIMISER.update(gradient, state["opt_state"], state["params"])
    noise = jax.random.normal(jax.random.fold_in(state["key"], opt_state[0].count))
    params = optax.apply_updates(state["params"], jax.tree.map(lambda x: x + 0.01 * noise, step))
    return state | {"params": params, "opt_state": opt_state}, {"loss": loss}


def save_line(out, state, batch):
    step, metadata = int(state["opt_state"][0].count), {"first_x": float(batch["x"][0])}
    save_checkpoint(out, step, state, {"rate": 0.1}, metadata=metadata)


def fit_line(out, stop=None, report=lambda *_: None, score=None, bad=None):
    """A run that goes on where it stands; returns its last state and batch."""
    start = load_checkpoint(out, groups=()) if checkpoint_steps(out) else None
    state, first = fresh(), 0
    if start is not None:
        check_same_config(start, {"rate": 0.1})
        everywhere = replicated(make_mesh(MeshConfig()))
        state = restore(start, state, jax.tree.map(lambda _: everywhere, state))
        first = start.step
    plan = Plan(NUM_UPDATES, log_every=2, save_every=4, score_every=None if score is None else 3, first=first)
    with open_runs([(out, start)]), open_log(out, {"num_points": 8}, first, tensorboard=False) as log:
        hooks = Hooks(out, log, partial(save_line, out), score, partial(save_points, out))
        batch = partial(points, bad=bad)
        return Trainer(jit_update(update), batch, plan, [hooks], report=report, stop=stop).run(state)


def save_points(out, number, metrics, batch):
    path = out / f"bad_{number}.json"
    path.write_text(json.dumps({"x": batch["x"].tolist(), "loss": str(metrics["loss"])}))
    return path


def leaves(folder):
    saved = load_checkpoint(folder)
    arrays = saved.arrays | {"key": jax.random.key_data(saved.arrays["key"])}
    flat = jax.tree_util.tree_leaves_with_path(arrays)
    return saved.step, saved.metadata, {jax.tree_util.keystr(p): np.asarray(x).tobytes() for p, x in flat}


def steps_of(path):
    return [line["step"] for line in map(json.loads, path.read_text().splitlines()) if "step" in line]


def lost_at(number):
    def report(stage, done, of, metrics):
        if stage == "train" and done == number:
            raise RuntimeError("the machine is gone")

    return report


def asked_at(number):
    calls = iter(range(1, NUM_UPDATES + 1))
    return lambda: next(calls) == number


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(folder, last state, last batch) of a run that nothing interrupted."""
    chex.clear_trace_counter()
    out = tmp_path_factory.mktemp("line") / "whole"
    return out, *fit_line(out)


def test_it_learns(whole):
    _, state, batch = whole
    assert squared_error(state["params"], batch) < 0.9 * squared_error(fresh()["params"], batch)
    np.testing.assert_array_equal(batch["x"], points(NUM_UPDATES - 1)["x"])
    assert checkpoint_steps(whole[0]) == [4, 8, 9]
    assert steps_of(whole[0] / "metrics.jsonl") == steps_of(whole[0] / "times.jsonl") == [2, 4, 6, 8, 9]


def test_a_lost_and_a_stopped_run_end_like_the_whole_one(whole, tmp_path):
    """Lost after update 6 (saved at 4), stopped after update 5, which no interval saves."""
    with pytest.raises(RuntimeError, match="the machine is gone"):
        fit_line(tmp_path, report=lost_at(6))
    assert checkpoint_steps(tmp_path) == [4] and steps_of(tmp_path / "metrics.jsonl") == [2, 4, 6]
    with pytest.raises(Stopped, match=rf"^stopped after update 5, saved in {tmp_path}$"):
        fit_line(tmp_path, stop=asked_at(1))
    assert checkpoint_steps(tmp_path) == [4, 5]
    state, _ = fit_line(tmp_path)
    assert leaves(tmp_path) == leaves(whole[0])
    assert (tmp_path / "metrics.jsonl").read_bytes() == (whole[0] / "metrics.jsonl").read_bytes()
    jax.tree.map(np.testing.assert_array_equal, state["params"], whole[1]["params"])


def test_a_run_that_is_complete_is_left_alone(whole):
    before = leaves(whole[0])
    state, batch = fit_line(whole[0])
    assert batch is None and leaves(whole[0]) == before
    jax.tree.map(np.testing.assert_array_equal, state["params"], whole[1]["params"])


def test_a_stop_at_the_last_update_is_no_stop(whole, tmp_path):
    fit_line(tmp_path, stop=asked_at(NUM_UPDATES))
    assert leaves(tmp_path) == leaves(whole[0])


@pytest.mark.parametrize("number", [2, 6])
def test_a_loss_that_is_not_finite_ends_the_run(number, tmp_path):
    """Whatever is due at its update, its batch is the one that is written, and no state with it."""
    message = rf"update {number + 1}: loss not finite; .*Lower the learning rate.*; its batch: .*bad_{number + 1}.json"
    with pytest.raises(InputError, match=message):
        fit_line(tmp_path, bad=number)
    bad = json.loads((tmp_path / f"bad_{number + 1}.json").read_text())
    assert bad == {"x": points(number)["x"].tolist(), "loss": "nan"}
    assert checkpoint_steps(tmp_path) == [step for step in (4, 8) if step <= number]
    assert max(steps_of(tmp_path / "metrics.jsonl")) <= number


def test_the_hooks_are_called_at_their_updates(tmp_path):
    """Scores at 3, 6 and 9 are logged, saves come after the log and the score of their update."""
    calls = []
    best = KeepBest(lambda params: -abs(float(params["slope"]) - 0.5))

    def score(state, done):
        calls.append(("score", done, int(state["opt_state"][0].count)))
        return {"own": best.offer(state["params"], done)}

    def report(stage, done, of, metrics):
        calls.append((stage, done, of))
        if stage == "train" and done % 3 == 0:
            assert "own" in metrics and "loss" in metrics

    state, _ = fit_line(tmp_path, stop=lambda: bool(calls.append(("asked",))), report=report, score=score)
    assert calls.count(("asked",)) == NUM_UPDATES - 1
    assert calls[:2] == [("compile", 0, 1), ("compile", 1, 1)]
    assert [call for call in calls if call[0] == "score"] == [("score", done, done) for done in (3, 6, 9)]
    assert [done for stage, done, *_ in (c for c in calls if c[0] == "train")] == [2, 3, 4, 6, 8, 9]
    values = {line["step"]: line.get("own") for line in read_metrics(tmp_path)}
    assert [step for step, value in values.items() if value is not None] == [3, 6, 9]
    assert best.value == max(value for value in values.values() if value is not None) == values[best.update]


def read_metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][1:]


def test_metrics_on_held_out_data_change_no_update(whole, tmp_path):
    fit_line(tmp_path, score=lambda state, done: {"own": 1.0})
    assert leaves(tmp_path) == leaves(whole[0])


def test_runs_that_one_update_trains_are_told_apart(tmp_path):
    """Each has its own state, batches, log and bad batch."""
    states = [fresh() | {"params": {"slope": jnp.float32(i), "offset": jnp.float32(0)}} for i in range(2)]
    layout = Layout(make_mesh(MeshConfig()), num_runs=2)
    samplers = [points, lambda number: points(number + 50, bad=52)]
    outs, seen, logs = [tmp_path / str(i) for i in range(2)], [[], []], []
    for out in outs:
        logs.append(RunLog(out, {}, 0, False))
    hooks = [
        Hooks(out, log, lambda s, b, i=i: seen[i].append((s, b)), save_bad_batch=partial(save_points, out))
        for i, (out, log) in enumerate(zip(outs, logs, strict=True))
    ]
    trainer = Trainer(
        jit_update(jax.vmap(update)), layout.sampler(samplers), Plan(6, 1, 2), hooks, layout, advice="Be careful"
    )
    with pytest.raises(InputError, match=r"update 3: .*Be careful.*1/bad_3.json"):
        trainer.run(layout.join(states))
    assert not (outs[0] / "bad_3.json").exists()
    for i, own in enumerate(seen):
        ((state, batch),) = own
        expected = states[i]
        for number in range(2):
            expected, metrics = update(expected, samplers[i](number))
            assert read_metrics(outs[i])[number]["loss"] == pytest.approx(float(metrics["loss"]), rel=1e-5)
        np.testing.assert_allclose(state["params"]["slope"], expected["params"]["slope"], rtol=1e-5)
        np.testing.assert_array_equal(batch["x"], samplers[i](1)["x"])


def test_a_folder_that_holds_a_run_is_not_opened_anew(whole):
    with pytest.raises(UsageError, match="already contains a trained run"), open_runs([(None, None), (whole[0], None)]):
        pytest.fail("opened")


# --- one compiled update


def test_the_state_is_donated_and_shapes_may_change_rarely():
    grow = jit_update(lambda state, batch: (state + batch.sum(), {}))
    state = jnp.zeros(())
    later, _ = grow(state, np.ones(1))
    assert state.is_deleted() and float(later) == 1
    for size in range(2, 7):
        later, _ = grow(later, np.ones(size))
    with pytest.raises(AssertionError, match="traced > 6 times"):
        grow(later, np.ones(7))


# --- batches ahead of use


def test_prefetched_batches_come_in_order():
    assert list(prefetch(lambda step: step * 10, 6)) == [0, 10, 20, 30, 40, 50]
    assert list(prefetch(lambda step: step, 6, first=4)) == [4, 5]
    assert list(prefetch(lambda step: step, 3, first=3)) == []


def test_batches_are_made_in_a_thread_and_not_all_at_once():
    made, caller = [], threading.get_ident()

    def sampler(step):
        made.append((step, threading.get_ident()))
        time.sleep(0.02)  # long enough that a second thread would take the next step
        return step

    batches = prefetch(sampler, 100, depth=3)
    assert next(batches) == 0
    batches.close()
    steps = [step for step, _ in made]
    assert steps == list(range(len(steps))) and 1 <= len(steps) <= 4  # what was asked for, and no batch after the end
    threads = {thread for _, thread in made}
    assert len(threads) == 1 and caller not in threads  # a packer is no shared object


def test_an_error_of_the_sampler_is_raised_where_its_batch_is_due():
    def sampler(step):
        if step == 2:
            raise InputError("row 2 is broken")
        return step

    batches = prefetch(sampler, 10)
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(InputError, match="row 2 is broken"):
        next(batches)
    assert not any("ThreadPool" in thread.name and thread.is_alive() for thread in threading.enumerate())
