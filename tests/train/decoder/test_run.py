"""Runs of decoders on a tiny controlled task: results, folders, resuming, devices."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from support.tiers import PATIENCE

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.config import load_config
from qrag_jax.models.decoder.weights import load_decoder
from qrag_jax.search.levels.planner_runs import read_planner
from qrag_jax.sharding import DecoderMesh
from qrag_jax.train.decoder import run as runs
from qrag_jax.train.decoder.config import DecoderRun
from qrag_jax.train.decoder.data import read_records
from qrag_jax.train.decoder.roll import HINTED, Groups
from qrag_jax.train.decoder.run import first_state, prepare, train_decoder
from qrag_jax.train.decoder.stitch import Example, Progress
from qrag_jax.types import NOBODY, InputError, UsageError

TINY = """
model: {scratch: {hidden_size: 16, intermediate_size: 24, num_layers: 2, num_heads: 2}, remat: false}
data: {controlled: {kinds: 6, train_prompts: 20, repeats: 1}}
start: {examples: 64, epochs: 3, learning_rate: 0.01}
imitation: {batch_rows: 16, buffer: 4, traces: 30}
rollout: {rollouts: 160, prompts: 8, group: 4, max_tokens: 24, hint_tokens: 24}
log_every: 1
save_every: 3
"""


@pytest.fixture(scope="module")
def tiny_yaml(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def tiny(tiny_yaml):
    return lambda *overrides: load_config(DecoderRun, tiny_yaml, overrides)


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """(folder, row) of a run of STITCH that nothing interrupted."""
    out = tmp_path_factory.mktemp("decoder") / "stitch"
    return out, train_decoder(tiny(), out, NOBODY)


def arrays_of(folder):
    saved = load_checkpoint(folder)
    flat = jax.tree_util.tree_leaves_with_path(saved.arrays)
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in flat}, saved.files


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][1:]


def test_a_run_is_a_model_folder_with_a_result(whole):
    out, row = whole
    assert json.loads((out / "results.json").read_text()) == row
    contract = "method accuracy accuracy_macro low high rollouts traces imitation_steps tokens solve_none seconds seed"
    assert set(contract.split()) <= set(row) and row["method"] == "stitch"
    assert 0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1
    assert row["rollouts"] <= 160 and row["imitation_steps"] > 0 and 0 < row["traces"] <= 30
    loaded = load_decoder(out)
    assert loaded.tokenizer.chat_template and loaded.config.vocab_size == loaded.tokenizer.vocab_size
    assert read_planner(out).levels[0] == "document"


def test_every_phase_stands_in_the_log(whole):
    lines = lines_of(whole[0])
    assert "imitation" in lines[0] and lines[0]["imitation"] > lines[11]["imitation"]  # the start phase
    steps = [line for line in lines if "solve_none" in line]
    assert steps and all(line["reward"] >= 0 for line in steps)
    assert any("imitation" in line for line in lines[13:])  # from the buffer
    assert "accuracy" in lines[-1]


def test_the_learning_rate_of_imitation_rises_and_falls(tiny, monkeypatch):
    shape = ("learning_rate=0.1", "warmup=0.5", "final_rate=0.2", "batch_rows=1", "traces=1", "epochs=4")
    job = prepare(tiny("method=sft", "start.examples=0", *(f"imitation.{one}" for one in shape)))
    rates = []
    monkeypatch.setattr(job.updates, "_update", lambda learner, batch, rate: (learner, rates.append(rate) or {}))
    state = first_state(job, None, {})
    while not job.updates.is_done(state):
        state, _ = job.updates(state, ())
    # Half of four updates rise to 0.1, then the cosine from 0.1 to 0.02: at its beginning, and at its middle.
    np.testing.assert_allclose(rates, [0.05, 0.1, 0.1, 0.06], rtol=1e-6)


KILLED = """
import os, signal, sys
from qrag_jax.cli.main import main
from qrag_jax.train.decoder.phases import Updates
update = Updates.__call__
def killed(self, state, batch):
    if state.progress.updates + 1 == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return update(self, state, batch)
Updates.__call__ = killed
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.full
@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_like_the_whole_one(tiny_yaml, tmp_path):
    """Killed in the start phase, at a step of rollouts and in an imitation phase, each time after the checkpoint."""

    def train(name, update=0):
        argv = ["train", "stitch", str(tiny_yaml), "--out", str(tmp_path / name), "--resume", "save_every=1"]
        code = [sys.executable, "-c", KILLED, str(update), *argv]
        return subprocess.run(code, timeout=PATIENCE, capture_output=True)

    assert train("whole").returncode == 0
    kinds = ["roll" if "solve_none" in line else "buffer" for line in lines_of(tmp_path / "whole")]
    for update in (2, kinds.index("roll") + 2, kinds.index("buffer", kinds.index("roll")) + 2):
        assert train("killed", update).returncode == -signal.SIGKILL
    done = train("killed")
    assert done.returncode == 0, done.stderr
    assert arrays_of(tmp_path / "killed") == arrays_of(tmp_path / "whole")
    assert lines_of(tmp_path / "killed") == lines_of(tmp_path / "whole")


def test_other_data_are_refused(tiny, whole, monkeypatch):
    other = tiny()
    task = runs.load_task(other)
    monkeypatch.setattr(runs, "load_task", lambda config: replace(task, sha256="0" * 64))
    with pytest.raises(InputError, match="the records changed since this checkpoint; give what the run was started"):
        train_decoder(other, whole[0], NOBODY, resume=True)


def test_another_config_is_refused(tiny, whole):
    with pytest.raises(InputError, match="rollout.kl_coef is 0.04 there and 0.0 here"):
        train_decoder(tiny("rollout.kl_coef=0.0"), whole[0], NOBODY, resume=True)


def test_a_prompt_that_fills_the_window_is_refused(tiny):
    with pytest.raises(UsageError, match="the longest prompt has 40 tokens with its hint, .* window is 48: give"):
        prepare(tiny("model.scratch.max_positions=48"))


def test_nan_stops_the_run_and_keeps_its_batch(tiny, tmp_path):
    with pytest.raises(InputError, match="parameters not finite; the run stops.*bad_batch_1.json"):
        train_decoder(tiny("start.learning_rate=1e38", "max_norm=1e30"), tmp_path, NOBODY)
    (batch,) = json.loads((tmp_path / "bad_batch_1.json").read_text())["batches"]
    assert batch["rows"] and not list(tmp_path.glob("step_*"))


def test_nan_of_a_step_keeps_all_its_mini_batches(tiny, tmp_path):
    def longer(prompts, completions, records):
        return [float(len(text)) for text in completions]

    own = ("start.examples=0", "method=grpo", "rollout.rewards={longer: 1.0}", "rollout.solved_by=longer")
    own = (*own, "rollout.mini_batches=2", "rollout.learning_rate=1e38", "max_norm=1e30", "log_every=9")
    with pytest.raises(InputError, match="not finite; the run stops.*bad_batch_"):
        train_decoder(tiny(*own), tmp_path, NOBODY, rewards={"longer": longer})
    (path,) = tmp_path.glob("bad_batch_*.json")
    batches = json.loads(path.read_text())["batches"]
    assert [len(one["answers"]) for one in batches] == [4, 4] and len(batches[0]["answers"][0]) == 4
    assert not (tmp_path / "model.safetensors").exists()


def test_phases_of_imitation_have_one_width(tiny):
    updates = prepare(tiny()).updates
    short, long = ((Example(0, (1,) * length),) for length in (2, 20))
    widths = [updates._schedule(Progress(queue=one, imitations=n), "stitch")[1] for n, one in enumerate((short, long))]
    assert widths == [updates.actor.width + 24] * 2
    narrow = prepare(tiny("imitation.width=16")).updates
    with pytest.raises(InputError, match="record 0: prompt and answer have .* imitation.width=16: raise it"):
        narrow._schedule(Progress(queue=long), "stitch")
    with pytest.raises(InputError, match="record 40: prompt and answer have .* imitation.width=16: raise it"):
        narrow._schedule(Progress(queue=(Example(40),)), "start")  # the task has 20 other training records


def test_a_hint_without_room_is_refused(tiny):
    job = prepare(tiny("rollout.hint_tokens=1"))
    with pytest.raises(InputError, match="record 3: its prompt with the hint .* raise rollout.hint_tokens"):
        job.updates.actor.roll((job.trained, job.updates.others), [3], 0, HINTED, ["This is a question . " * 4])


def test_of_a_prompt_that_is_asked_twice_the_unsolved_group_is_replaced(tiny, monkeypatch):
    job = prepare(tiny())

    def groups(records, token, correct):
        n, own = len(records), np.array(correct)
        full = np.full((n, 4, 24), token)
        ids, ones = np.ones((n, 16), int), np.ones((n, 4), bool)
        return Groups(np.array(records), ids, ids[:, 0], full, full[..., 0], ones, ones * 1.0, ones, own)

    monkeypatch.setattr(job.updates.actor, "roll", lambda *_: groups([5], 9, [[True] * 4]))
    drawn = groups([5, 5], 1, [[True] * 4, [False] * 4])
    _, found, used = job.updates._help((job.trained, job.updates.others), Progress(), drawn)
    assert found.tokens[:, 0, 0].tolist() == [1, 9] and used.all()


def test_a_finished_run_that_is_resumed_keeps_its_row(tiny, whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    row = train_decoder(tiny("score_every=50"), tmp_path / "run", NOBODY, resume=True)
    assert row | {"seconds": 0} == whole[1] | {"seconds": 0} and row["seconds"] > 0


RIGHT = {"messages": [{"role": "user", "content": "Hi"}], "answer": 'A . {"largest_chunk_size": "a", '}
RIGHT["answer"] += '"smallest_chunk_size": "b"}'


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"label": [1]}, "label must be .least, most. with 0 <= least <= most <= 1"),
        ({"label": [1, 0]}, "label must be"),
        ({"label": [0, 2]}, "label must be"),
        ({"label": "a"}, "label must be"),
        ({"label": [[0, 1], 1]}, "label must be"),
        ({"weight": "a"}, "weight must be a number of at least 0"),
        ({"names": 5}, "names must be a list of texts"),
        ({"recalls": [1]}, "recalls must be a table"),
        ({"answer": "A . {}"}, "answer 'A . {}': its JSON object has the fields none"),
        ({"answer": "A ."}, "answer 'A .': it has no JSON object"),
    ],
)
def test_a_record_that_no_reward_reads_is_refused_before_training(fields, reason, tmp_path):
    path = tmp_path / "r.jsonl"
    good = {**RIGHT, "label": [0, 1], "weight": 0.5, "recalls": {"a:a": 1.0}}
    path.write_text(json.dumps(good) + "\n" + json.dumps({**good, **fields}) + "\n")
    with pytest.raises(InputError, match=f"r.jsonl:2: {reason}"):
        read_records(path, ["a", "b"])


def test_what_a_run_reads_late_is_checked_early(whole, tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(RIGHT) + "\n")
    own = ["data.task=jsonl", f"data.paths=[{path}]", f"model.source={whole[0]}", "imitation.width=96"]
    with pytest.raises(InputError, match="r.jsonl:1: no label, which reward label_alignment reads; add it"):
        prepare(load_config(DecoderRun, None, [*own, "method=sft", f"data.eval_paths=[{path}]"]))
    path.write_text(json.dumps({**RIGHT, "label": [0, 1], "answer": "It is { here. So read it. Yes. {}"}) + "\n")
    with pytest.raises(InputError, match="r.jsonl:1: a hint that holds JSON"):
        prepare(load_config(DecoderRun, None, [*own, "method=stitch"]))
    path.write_text(json.dumps({**RIGHT, "label": [0, 1], "weight": 0}) + "\n")
    with pytest.raises(InputError, match="r.jsonl: weight: every weight is 0"):
        prepare(load_config(DecoderRun, None, [*own, "method=sft", f"data.eval_paths=[{path}]"]))
    with pytest.raises(UsageError, match="rollouts 8: a step draws prompts x group = 192 answers"):
        load_config(DecoderRun, None, ["rollout.rollouts=8"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("method=grpo", "sft_first=true", "imitation.only_unsolved=true"),
        ("method=grpo", "rollout.mini_batches=2", "rollout.parts=2", "rollout.overlong=mask", "rollout.mean=token"),
        ("rollout.hints=false", "imitation.rehearse=solved", "imitation.epochs=2"),
        ("rollout.imitate_hinted=true", "imitation.rehearse=traces", "rollout.reference=imitation"),
        ("imitation.from_buffer=false", "lora.rank=2"),
    ],
)
def test_the_rows_of_the_table(tiny, options):
    job = prepare(tiny("start.epochs=1", "rollout.rollouts=64", *options))
    state = first_state(job, None, {})
    while not job.updates.is_done(state):
        state, _ = job.updates(state, ())
    row = runs.result_row(job, state, 0.0)
    if "imitation.from_buffer=false" in options:
        assert row["imitation_steps"] == 0 and row["in_buffer"] > 0
        assert set(state.learner.params["layers"]) == {"query", "key", "value", "output"}
    if "sft_first=true" in options:
        assert row["method"] == "sft+grpo" and row["imitation_steps"] > 0 and row["traces"] > 0
    assert 0 < row["rollouts"] <= 64


@pytest.mark.full
@pytest.mark.slow
def test_devices_do_not_matter(tiny):
    losses = []
    for mesh in (DecoderMesh(), DecoderMesh(8), DecoderMesh(4, 1, 2), DecoderMesh(2, 2, 2)):
        job = prepare(replace(tiny("start.epochs=1"), mesh=mesh))
        state, own = first_state(job, None, {}), []
        while not job.updates.is_done(state) and len(own) < 12:
            state, metrics = job.updates(state, ())
            own.append([float(metrics[name]) for name in ("imitation", "loss") if name in metrics])
        losses.append(own)
    for other in losses[1:]:
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), losses[0], other)


def test_rewards_are_functions_that_are_handed_in(tiny):
    def short(prompts, completions, records):
        is_short = [float(len(text) < 5) for text in completions]
        return [None if one["kinds"] == [0] else value for one, value in zip(records, is_short, strict=True)]

    config = tiny("start.examples=0", "method=grpo", "rollout.rewards={short: 2.0}", "rollout.solved_by=short")
    job = prepare(config, rewards={"short": short})
    groups = job.updates.actor.roll((job.trained, job.updates.others), range(8), 0, 0)
    kinds = [job.updates.task.train[number]["kinds"] for number in range(8)]
    np.testing.assert_array_equal(groups.valid[:, 0], [kind != [0] for kind in kinds])
    assert set(np.unique(groups.rewards)) <= {0.0, 2.0}


def test_a_run_starts_from_a_model_folder_and_a_file_of_chats(whole, tmp_path):
    task = runs.load_task(load_config(DecoderRun, None, ["data.controlled.train_prompts=5"]))
    chats = [{"messages": [*one["messages"], {"role": "assistant", "content": task.trace(one)}]} for one in task.train]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*chats, task.train[0]]))
    fields = ("method=sft", "data.task=jsonl", f"data.paths=[{tmp_path}/train.jsonl]", f"model.source={whole[0]}")
    config = load_config(DecoderRun, None, [*fields, "imitation.width=96", "imitation.batch_rows=2", "lora.rank=2"])
    row = train_decoder(config, tmp_path / "run", NOBODY)
    assert (row["traces"], row["untaught"], row["accuracy"]) == (5, 1, None) and row["imitation_steps"] == 2
    assert load_decoder(tmp_path / "run").config == load_decoder(whole[0]).config
    (tmp_path / "train.jsonl").write_text('{"messages": [{"role": "user"}]}\n')
    with pytest.raises(InputError, match=r"train.jsonl:1.*messages\[0\] must be a role and a content"):
        train_decoder(config, tmp_path / "other", NOBODY)
