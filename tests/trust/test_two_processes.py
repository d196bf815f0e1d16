"""Two processes that meet in one folder: one goes on, the other is told who is there, and nothing is mixed."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from support.processes import CONTEXT, answers_of, ended, qrag, start, write_in_rounds
from support.runs import assert_seeded, same_run, save_seeded, save_seeded_corpus, seeded_corpus
from support.tiers import of_tier

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.index.corpus_folder import load_corpus

BELOW = 13  # the twelve
CONFIG = """\
num_updates: 4
save_every: 2
log_every: 1
env: {num_steps: 1}
model:
  encoder: {source: scratch, num_layers: 1, hidden_size: 8, num_heads: 2, window: 12, question_window: 12}
  latent: {width: 8, num_layers: 1, num_heads: 2, action_hidden: 8, dim: 8}
data: {task: jsonl, batch_size: 2}
"""
QUESTION = '{"question": "where is the %s", "chunks": ["a %s is here", "no hat", "no key"], "gold": [0]}\n'


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Folder with a run of seed 0 and one of seed 1 that nobody disturbed, and the line that trains them."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "questions.jsonl").write_text("".join(QUESTION % (name, name) for name in ("cat", "dog", "cow", "hen")))
    line = ["train", "--config_path", str(folder / "config.yaml"), f"data.paths=[{folder / 'questions.jsonl'}]"]
    for seed in (0, 1):
        argv = [*line, f"seed={seed}", "--out", str(folder / str(seed))]
        assert ended(start(qrag, argv, folder / "log")) == 0, (folder / "log").read_text()
    return folder, line


def meet(lines: list[list[str]], logs: list[Path], out: Path) -> int:
    """Two commands at the same moment: the number of the one that went on. The other names it, and ends with 2."""
    gate = CONTEXT.Barrier(2)
    both = [start(qrag, line, log, 1, False, gate) for line, log in zip(lines, logs, strict=True)]
    codes = [ended(process) for process in both]
    assert sorted(codes) == [0, 2], [log.read_text() for log in logs]
    first, second = codes.index(0), codes.index(2)
    said = logs[second].read_text()
    assert f"{out}: in use by qrag train (process {both[first].pid} on " in said and "Traceback" not in said
    return first


@pytest.mark.parametrize("what", ["train", pytest.param("train --resume", marks=pytest.mark.full)])
def test_two_trainings_in_one_folder(tmp_path, alone, figures, what):
    folder, line = alone
    rounds, firsts = of_tier(1, 10), []
    for number in range(rounds):
        out, logs = tmp_path / str(number), [tmp_path / f"{number}-{seed}.log" for seed in (0, 1)]
        lines = [[*line, f"seed={seed}", "--out", str(out)] for seed in (0, 1)]
        if what != "train":  # both go on with the run of seed 0
            shutil.copytree(folder / "0", out)
            shutil.rmtree(out / "step_4")
            lines = [[*lines[0], "--resume"]] * 2
        first = meet(lines, logs, out)
        firsts.append(first)
        same_run(folder / (str(first) if what == "train" else "0"), out)
        assert {path.name for path in out.iterdir()} == {"step_2", "step_4", "metrics.jsonl", "times.jsonl"}
    figures(BELOW, f"{what} twice", rounds, "one went on, the other named its process; the run is that of one alone")


def write_twice(write, folder: Path, rounds: int) -> list[tuple[list[str], int]]:
    """Of each round: what the two seeds were refused with, empty for who was not; and which seed wrote last."""
    gate = CONTEXT.Barrier(2)
    pair = answers_of(write_in_rounds, *((write, folder, seed, rounds, gate) for seed in (0, 1)))
    found = []
    for both in zip(*pair, strict=True):
        times = [time if not refusal else 0.0 for refusal, time in both]
        found.append(([refusal for refusal, _ in both], times.index(max(times))))
    return found


def test_two_saves_of_one_step(tmp_path, figures):
    """The second is refused, or comes when the first is done, and replaces it."""
    rounds = of_tier(1, 60)
    met = write_twice(partial(save_seeded, step=7), tmp_path, rounds)
    for number, (refusals, last) in enumerate(met):
        out = tmp_path / str(number)
        for refusal in filter(None, refusals):
            assert refusal.startswith(f"{out}: in use by a save of step 7 (process "), refusal
        assert not all(refusals)
        assert [path.name for path in out.iterdir()] == ["step_7"]
        assert_seeded(load_checkpoint(out), last)
    refused = sum(any(refusals) for refusals, _ in met)
    figures(BELOW, "one step saved twice", rounds, f"0 mixed; {refused} refused by name, the others one after another")


def test_two_corpora_in_one_folder(tmp_path, figures):
    rounds = of_tier(1, 200)
    met = write_twice(save_seeded_corpus, tmp_path, rounds)
    for number, (refusals, last) in enumerate(met):
        out = tmp_path / str(number)
        (refusal,) = filter(None, refusals)
        was_there = refusal.startswith((f"{out}: is not empty", f"{out}: cannot be put there"))
        assert was_there or f"in use by save_corpus to {out} (process " in refusal, refusal
        assert load_corpus(out).documents == seeded_corpus(last).documents
    assert {path.name for path in tmp_path.iterdir()} == {str(number) for number in range(rounds)}
    figures(BELOW, "corpus saved twice", rounds, "one is there, whole; the other was refused; nothing beside it")
