import json
import os
import signal
import sys
import threading
import types

import numpy as np
import pytest
from support.processes import held

from qrag_jax.checkpoint import Checkpoint, load_checkpoint
from qrag_jax.cli.main import main
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.train import _Signals
from qrag_jax.config import load_config
from qrag_jax.files.folder_lock import LOCK
from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.qrag.retriever import load_retriever
from qrag_jax.service import training
from qrag_jax.train.qrag.config import RunConfig
from qrag_jax.train.run_folder import check_out
from qrag_jax.types import NOBODY, Stopped, UsageError

TINY = """\
num_updates: 3
log_every: 2
env: {num_steps: 2}
model:
  encoder: {source: scratch, num_layers: 1, hidden_size: 8, num_heads: 2}
  latent: {width: 8, num_layers: 1, num_heads: 2, action_hidden: 8, dim: 8}
data: {batch_size: 4, num_chunks: 12, num_questions: 20, haystack_split: all}
"""
BABI = """\
1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary?\tbathroom\t1
4 Daniel went back to the hallway.
5 Where is Daniel?\thallway\t4
"""
HOTPOT = [
    {
        "_id": "h1",
        "question": "Where does the Oru rise?",
        "context": [["Oru", ["The Oru rises in Belm."]], ["Belm", ["Belm is a town."]]],
        "supporting_facts": [["Oru", 0]],
    }
]


@pytest.fixture
def folder(tmp_path, monkeypatch, haystack):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    (tmp_path / "haystack").symlink_to(haystack)
    (tmp_path / "babi.txt").write_text(BABI)
    return tmp_path


def train(*argv):
    return main(["train", "--config_path", "tiny.yaml", "data.haystack=haystack", *argv])


@pytest.fixture
def no_updates(monkeypatch):
    """Stands in for the loop: writes the metrics that the loop would, and keeps what it was given."""
    seen = types.SimpleNamespace()

    def fake(members, task, report, dev, calibrate, stop):
        seen.members, seen.config, seen.task, seen.dev = members, members[0].config, task, dev
        facts = {"num_texts": 1200, "num_texts_cut": 34, "num_left_out": 0}
        lines = [{"data": facts}, {"step": 2}, {"step": 3, "complete": 0.25, "loss": 0.5}]
        for member in members:
            member.out.mkdir(parents=True, exist_ok=True)
            (member.out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (member.out / "times.jsonl").write_text('{"step": 3, "seconds": 1.5}\n')
        report("train", 3, 3, {"loss": 0.5})

    monkeypatch.setattr(training, "train_together", fake)
    return seen


def test_dry_run_prints_a_config_that_loads_and_writes_nothing(folder, capsys):
    assert train("--dry_run", "--learner.gamma=0.9", "--out", "run") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    (folder / "whole.yaml").write_text(captured.out)
    config = load_config(RunConfig, folder / "whole.yaml")
    assert config == load_config(RunConfig, folder / "tiny.yaml", ["learner.gamma=0.9", "data.haystack=haystack"])
    assert (config.learner.gamma, config.num_updates) == (0.9, 3)
    assert not (folder / "run").exists()


@pytest.mark.full
def test_a_run_on_worlds(folder, capsys):
    assert train("--out", "runs/a b", "model.encoder.window=8") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    err = captured.err.splitlines()
    assert err[0].startswith("worlds2: 20 questions over ") and "left out, their story is longer" in err[0]
    assert "chunks are longer than model.encoder.window=8 tokens; only their beginning was read" in captured.err
    assert "trained: runs/a b, 3 updates in " in captured.err
    assert err[-2:] == ["next: qrag eval 'runs/a b' --babi FILE", "      qrag find 'runs/a b' FILES... \"question\""]
    lines = [json.loads(line) for line in (folder / "runs/a b/metrics.jsonl").read_text().splitlines()]
    assert [line.get("step") for line in lines] == [None, 2, 3]
    assert checkpoint_steps(folder / "runs/a b") == [1, 2, 3]
    (folder / "runs" / "a b").rename(folder / "moved")
    assert load_retriever("moved").env.num_steps == 2
    assert main(["find", "moved", "haystack/0.txt", "Where is the stone?"]) == 0


@pytest.mark.slow
def test_a_run_that_holds_questions_out(folder, capsys):
    """The checkpoint keeps the chosen update and the threshold; `qrag eval` scores with it, on other questions."""
    examples = [
        {"question": f"Where is the {thing}?", "chunks": [f"The {thing} is here.", "a b", "c d", "e f"], "gold": [0]}
        for thing in "key lamp coin rope seed drum boat ring clock shell".split()
    ]
    lines = [json.dumps(example) + "\n" for example in examples]
    (folder / "train.jsonl").write_text("".join(lines))
    (folder / "test.jsonl").write_text(lines[0].replace("key", "chair") + lines[1].replace("lamp", "table"))
    overrides = ["data.task=jsonl", "data.paths=[train.jsonl]", "dev.share=0.4", "dev.every=1"]
    assert train("--out", "run", *overrides) == 0
    err = capsys.readouterr().err
    assert err.splitlines()[0] == "jsonl: 6 questions over 9 distinct chunks; 4 held out"
    dev = load_checkpoint("run", groups=()).metadata["dev"]
    assert dev["update"] in (1, 2, 3) and len(dev["fitted_on"]) == dev["num_questions"] == 4
    assert f"update {dev['update']} was best on the held-out questions (mean return {dev['return']:.3f})" in err
    assert f"their threshold is {dev['threshold']:.4g} (F1 {dev['fact_f1']:.3f}, 4 questions)" in err
    scored = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()[1:]]
    assert max(line["dev_return"] for line in scored) == dev["return"] and len(scored) == 3
    # The threshold is at hand without --calibrate, and is refused on the questions that it was fitted on.
    evaluate = ["eval", "run", "--methods", "trained", "--json", "-", "--jsonl"]
    assert main([*evaluate, "test.jsonl"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["protocol"], row["threshold"]) for row in rows] == [("fixed", None), ("threshold", dev["threshold"])]
    assert main([*evaluate, "train.jsonl", "--protocol", "threshold"]) == 2
    assert "the threshold was fitted on 4 of the 10 questions to report" in capsys.readouterr().err


VECTORS = ["data.task=vectors", "data.paths=[index]", "model.encoder.source=vectors", "env.num_steps=1"]


@pytest.fixture
def index(folder):
    """Chunk and question vectors with three episodes."""
    rng = np.random.default_rng(0)
    index = folder / "index"
    index.mkdir()
    np.save(index / "chunks.npy", rng.normal(size=(12, 4)).astype(np.float32))
    np.save(index / "questions.npy", rng.normal(size=(3, 4)).astype(np.float32))
    episodes = [{"question": i, "range": [i, i + 8], "gold": [i + 1]} for i in range(3)]
    (index / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in episodes))
    return index


@pytest.mark.parametrize(
    ("task", "asks"),
    [("babi", "--babi FILE --haystack DIR"), ("jsonl", "--jsonl FILE"), ("multihop", "--hotpot FILE")],
)
def test_what_comes_next_fits_the_data(folder, no_updates, capsys, task, asks):
    example = {"question": "Where?", "chunks": ["a b", "c d", "e f"], "gold": [1]}
    (folder / "q.jsonl").write_text(json.dumps(example) + "\n")
    (folder / "hotpot.json").write_text(json.dumps(HOTPOT))
    path = {"babi": "babi.txt", "jsonl": "q.jsonl", "multihop": "hotpot:hotpot.json"}[task]
    assert train("--out", "run", "--json", f"data.task={task}", f"data.paths=[{path}]") == 0
    captured = capsys.readouterr()
    assert f"next: qrag eval run {asks}\n" in captured.err
    assert "34 of 1,200 chunks are longer than model.encoder.window=64 tokens" in captured.err
    assert json.loads(captured.out) == {"run": "run", "step": 3, "seconds": 1.5, "complete": 0.25, "loss": 0.5}
    assert len(no_updates.task) == {"babi": 2, "jsonl": 1, "multihop": 1}[task]
    assert no_updates.dev is None


def test_a_run_folder_is_not_written_over(folder, no_updates, capsys):
    (folder / "run" / "step_3").mkdir(parents=True)
    (folder / "taken").write_text("a file")
    assert train("--out", "run") == 2
    assert "run: already contains a trained run (step 3): --resume continues it; or choose" in capsys.readouterr().err
    assert train("--out", "taken") == 2
    assert "taken: is a file; choose another folder" in capsys.readouterr().err
    assert not vars(no_updates)


@pytest.mark.parametrize(
    "argv", [["--out", "run"], ["--out", "run", "--resume"], ["--out", ".", "--seeds", "0,3", *VECTORS]]
)
def test_a_run_folder_that_another_process_trains_in_is_refused(folder, no_updates, capsys, argv):
    """Before it is looked where to go on from, and before anything is read."""
    out = folder / "seed_3" if "--seeds" in argv else folder / "run"
    with held(out) as first:
        assert train(*argv) == 2
        assert f"{out}: in use by qrag train (process {first.pid} on " in capsys.readouterr().err
        assert train("--dry_run", *argv) == 0
    assert not vars(no_updates) and not (folder / "seed_0").exists()
    assert [path.name for path in out.iterdir()] == [LOCK]


def test_what_a_run_that_was_stopped_left_behind_is_no_obstacle(folder):
    (folder / "run" / ".tmp-step_3").mkdir(parents=True)
    (folder / "run" / "metrics.jsonl").write_text("")
    check_out(folder / "run")


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["env.num_steps=13"], 1, "has 12 chunks, which cannot give 13 picks"),
        (["data.task=babi", "data.paths=[one.txt]", "dev.share=0.5"], 1, "1 story cannot be split"),
        (["data.paths=[babi.txt]"], 2, "does not fit data.task=worlds"),
        (["--config_path", "absent.yaml"], 2, "absent.yaml: no such config file"),
        (["model.encoder.source=absent/folder"], 2, "encoder 'absent/folder'"),
    ],
)
def test_refusals(folder, capsys, argv, code, message):
    (folder / "bad.txt").write_text("1 Mary moved to the bathroom.\nnot a line\n")
    (folder / "twice.yaml").write_text("seed: 1\nseed: 2\n")
    (folder / "one.txt").write_text("".join(BABI.splitlines(True)[:3]))
    (folder / "blank").mkdir()
    (folder / "blank" / "a.txt").write_text(" ")
    assert train("--out", "run", *argv) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    *_, error = captured.err.splitlines()
    assert error.startswith("qrag: error: ") and message in error
    assert not (folder / "run").exists()


# --- several seeds, several processes, going on


@pytest.mark.slow
def test_several_seeds_are_runs_of_their_own(folder, index, capsys):
    assert train("--out", "many", "--seeds", "0,3", "--json", *VECTORS) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [row["run"] for row in rows] == ["many/seed_0", "many/seed_3"] and rows[0]["loss"] != rows[1]["loss"]
    for seed in (0, 3):
        saved = load_checkpoint(f"many/seed_{seed}", groups=())
        assert (saved.config["seed"], saved.config["data"]["seed"]) == (seed, 0)
        assert load_retriever(f"many/seed_{seed}").env.num_steps == 1
    assert train("--out", "many", "--seeds", "0,3", *VECTORS) == 2
    assert "seed_0: already contains a trained run" in capsys.readouterr().err


def fake_steps(monkeypatch, **steps):
    """Run folders with checkpoints of the given steps, all whole."""
    monkeypatch.setattr(training, "newest_valid_step", lambda out: (max(steps[out.name], default=None), ()))
    monkeypatch.setattr(training, "checkpoint_steps", lambda out: steps[out.name])
    monkeypatch.setattr(training, "find_fault", lambda path: None)
    monkeypatch.setattr(
        training, "load_checkpoint", lambda out, step, groups: Checkpoint(out, step, {}, {}, {}, {}, {})
    )


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ({"a": [2, 4, 6], "b": [2, 4]}, 4),  # killed between two saves
        ({"a": [4, 6], "b": [4, 6]}, 6),
        ({"a": [], "b": []}, None),
    ],
)
def test_runs_of_several_seeds_go_on_after_the_newest_update_that_all_have(monkeypatch, tmp_path, steps, expected):
    fake_steps(monkeypatch, **steps)
    found = training._find_starts([tmp_path / "a", tmp_path / "b"], NOBODY)
    assert [start and (start.folder.name, start.step) for start in found] == (
        [None, None] if expected is None else [("a", expected), ("b", expected)]
    )


@pytest.mark.parametrize("steps", [{"a": [2], "b": []}, {"a": [2, 4], "b": [6, 8]}])
def test_runs_without_a_common_update_are_refused(monkeypatch, tmp_path, steps):
    fake_steps(monkeypatch, **steps)
    with pytest.raises(UsageError) as refused:
        training._find_starts([tmp_path / "a", tmp_path / "b"], NOBODY)
    assert refused.value.field == "resume"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num_processes", "4", "--process_id", "2"], "work only together; give all three"),
        (["--coordinator", "localhost:1"], "work only together; give all three"),
        (["--distributed", "--process_id", "1"], "work only together; give all three"),
    ],
)
def test_half_given_processes_are_refused(folder, capsys, flags, message):
    assert train("--out", "run", *flags) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_resuming_nothing_needs_a_config(folder, capsys):
    assert main(["train", "--out", "runs/mistyped", "--resume"]) == 2
    assert (
        "--resume: runs/mistyped contains no checkpoint, and there is no config to start from"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_run_resumes_with_its_own_config(folder, index, capsys):
    assert train("--out", "run", "learner.gamma=0.9", *VECTORS) == 0
    before = (folder / "run" / "metrics.jsonl").read_bytes()
    assert main(["train", "--out", "run", "--resume"]) == 0
    assert "run: continuing after update 3" in capsys.readouterr().err
    assert (folder / "run" / "metrics.jsonl").read_bytes() == before
    assert main(["train", "--out", "run", "--resume", "learner.gamma=0.8"]) == 1
    assert "learner.gamma is 0.9 there and 0.8 here" in capsys.readouterr().err


def test_a_process_ends_as_stopped_where_another_one_was_told_to(folder, index, capsys, monkeypatch):
    """All processes of a run stop together; the one that got no signal must not look as if the run were complete."""

    def stopped(*args):
        raise Stopped("stopped after update 2, saved in run")

    monkeypatch.setattr(training, "train_together", stopped)
    assert train("--out", "run", *VECTORS) == 143
    assert (
        "stopped after update 2, saved in run; continue with: qrag train --out run --resume" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("config", "argv", "updates", "said"),
    [
        ("", (), 1000, True),
        ("data: {batch_size: 2}", (), 1100, True),
        ("", ("--seeds", "0,1"), 1000, True),
        ("", ("num_updates=7",), 7, False),
        ("num_updates: 9", (), 9, False),
        ("num_updates: 5000", (), 5000, False),
    ],
)
def test_the_updates_follow_the_number_of_own_questions(folder, no_updates, capsys, config, argv, updates, said):
    lines = [json.dumps({"question": f"Where is {n}?", "chunks": ["a", "b", "c"], "gold": [0]}) for n in range(11)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    (folder / "own.yaml").write_text(config)
    own = ["train", "--config_path", "own.yaml", "data.task=jsonl", "data.paths=[train.jsonl]", "env.num_steps=2"]
    assert main([*own, *argv]) == 0
    assert {member.config.num_updates for member in no_updates.members} == {updates}
    assert (f"num_updates was set to {updates:,} for this number of questions" in capsys.readouterr().err) == said
    assert main([*own, *argv, "--dry_run"]) == 0
    assert ("num_updates is not set; with data.task=jsonl it" in capsys.readouterr().err) == said


def test_a_run_that_goes_on_keeps_its_updates(folder):
    start = Checkpoint("RUN/step_3", 3, {}, {"num_updates": 5000}, {}, {}, {})
    own = RunConfig()
    assert training._with_updates(training.Member(own, folder, start), 11).num_updates == 5000
    assert training._with_updates(training.Member(own, folder, None), 11).num_updates == 1000


@pytest.mark.parametrize(("first", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_before_the_updates_ends_the_run_at_once(first, code):
    with _Signals(Progress()) as signals, pytest.raises(SystemExit) as ended:
        signal.raise_signal(first)
    assert ended.value.code == code and signals.asked()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_whose_exception_python_throws_away_is_not_lost():
    class Collected:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    with _Signals(Progress()) as signals:
        signals.end_if_asked()  # nobody did
        Collected()
        assert signals.asked()
        with pytest.raises(SystemExit) as ended:
            signals.end_if_asked()
        assert ended.value.code == 143
        signals.updates_run = True
        signals.end_if_asked()  # now it is saved first


def test_among_updates_a_second_ctrl_c_ends_the_run_and_a_second_sigterm_does_not(capsys):
    with _Signals(Progress()) as signals:
        signals.updates_run = True
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert signals.exit_code == 143
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGINT)
        assert ended.value.code == 130
    assert capsys.readouterr().err == "stopping after this update, and saving it; press Ctrl-C again to stop now\n"


def test_a_signal_while_a_reader_of_messages_waits_breaks_no_message(monkeypatch):
    """`qrag train 2>&1 | less`, whose pipe is full: writing into a stream that is being written to is an error."""
    there, here = os.pipe()
    read = []

    def interrupt_and_read():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
        while part := os.read(there, 65536):
            read.append(part)

    with open(here, "w", encoding="utf-8") as stream, _Signals(Progress()) as signals:
        monkeypatch.setattr(sys, "stderr", stream)
        signals.updates_run = True
        reader = threading.Timer(0.2, interrupt_and_read)
        reader.start()
        print("x" * 1_000_000, file=stream, flush=True)  # more than a pipe holds
        monkeypatch.undo()
    reader.join()
    os.close(there)
    assert signals.exit_code == 143
    assert b"".join(read).count(b"x") == 1_000_000
