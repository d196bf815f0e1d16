"""Test 1 of docs/reliability.md: `qrag train` that is killed anywhere and resumed is the run that was left alone."""

import json
import os
import random
import re
import signal
import statistics
import time
from dataclasses import dataclass
from itertools import product
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from support.processes import ended, qrag, start
from support.runs import leaves, same_run
from support.tiers import PATIENCE, of_tier

from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.train.log import read_lines

SEED = os.environ.get("TRUST_SEED", "0")
NUM_UPDATES, SAVE_EVERY = 30, 2
NUM_INTERVALS = 10  # between two saves, from the first update on; kills come in each, and a SIGTERM behind them
CONFIG = f"""\
num_updates: {NUM_UPDATES}
save_every: {SAVE_EVERY}
log_every: 1
env: {{num_steps: 1, fact_reward: 0.2}}
model:
  encoder: {{source: scratch, num_layers: 1, hidden_size: 8, num_heads: 2, window: 12, question_window: 12}}
  latent: {{width: 8, num_layers: 1, num_heads: 2, action_hidden: 8, dim: 8}}
data: {{task: jsonl, batch_size: 16}}
"""
# An epoch is shorter than two updates: 25 questions, of which latent runs hold 5 out.
OPTIONS = {"latent": ("env.num_steps=2", "dev.share=0.2", "dev.every=5", "learner.accumulate=2"), "text": ()}
MESHES = {1: (), 8: ("mesh.data=4", "mesh.fsdp=2")}
ALL = list(product(OPTIONS, ("float32", "bfloat16"), MESHES))
FEW = {10: ALL, 1: [("latent", "bfloat16", 1), ("text", "float32", 8)], 0: [("latent", "float32", 1)]}  # by tier


@dataclass(frozen=True)
class Place:
    """Where a run is killed: once an update is logged, or once the save of a step has begun; and how much later.

    Attributes:
        share: of the seconds that an update or a save takes.
    """

    step: int
    in_save: bool
    share: float


def places(rng: random.Random, number: int) -> list[Place]:
    """A kill between two saves and one inside the second of them, in as many intervals as are needed."""
    chosen = []
    for interval in sorted(rng.sample(range(NUM_INTERVALS), number // 2)):
        first = interval * SAVE_EVERY
        chosen.append(Place(first + rng.randint(1, SAVE_EVERY - 1), False, rng.random()))
        chosen.append(Place(first + SAVE_EVERY, True, rng.random()))
    return chosen


@dataclass(frozen=True)
class Run:
    """A run that is started again and again with the same line."""

    folder: Path
    argv: tuple[str, ...]
    devices: int

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def start(self, will_be_killed: bool = False) -> BaseProcess:
        argv = ["train", *self.argv, "--out", str(self.folder), "--resume"]
        return start(qrag, argv, self.log, self.devices, will_be_killed)

    def finish(self) -> None:
        assert ended(self.start()) == 0, self.log.read_text()

    def leftovers(self) -> set[str]:
        """Of saves that were killed, or are under way."""
        return {path.name for path in self.folder.glob(".*-step_*")}

    def identity(self) -> int:
        """Of metrics.jsonl, which a process that goes on makes anew."""
        path = self.folder / "metrics.jsonl"
        return path.stat().st_ino if path.exists() else 0

    def last_logged(self) -> int:
        return max((line.get("step", 0) for line in read_lines(self.folder / "metrics.jsonl")), default=0)

    def wait_for(self, place: Place, process: BaseProcess, before: int, known: set[str]) -> None:
        """Until it is at a place or beyond, in a process that has begun.

        Args:
            before: `identity` when it was started.
            known: `leftovers` then.
        """
        deadline = time.monotonic() + PATIENCE
        while not self._is_at(place, before, known):
            assert process.is_alive(), self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def _is_at(self, place: Place, before: int, known: set[str]) -> bool:
        if place.in_save:
            begun = (re.match(r"\.tmp-step_(\d+)-", name) for name in self.leftovers() - known)
            return any(found and int(found[1]) >= place.step for found in begun)
        return self.identity() != before and self.last_logged() >= place.step

    def kill(self, place: Place, seconds: tuple[float, float]) -> tuple[bool, int]:
        """Starts the run and kills it at a place: whether a save was under way, and how many updates are lost."""
        before, known = self.identity(), self.leftovers()
        process = self.start(will_be_killed=True)
        self.wait_for(place, process, before, known)
        time.sleep(place.share * seconds[place.in_save])
        process.kill()
        assert ended(process) == -signal.SIGKILL, self.log.read_text()
        return bool(self.leftovers() - known), self.last_logged() - max(checkpoint_steps(self.folder), default=0)

    def seconds(self) -> tuple[float, float]:
        """What an update takes, and a save with the update after it: medians of a whole run."""
        times = [(line["step"], line["seconds"]) for line in read_lines(self.folder / "times.jsonl")]
        taken = [(one[0] % SAVE_EVERY == 0, other[1] - one[1]) for one, other in zip(times, times[1:], strict=False)]
        update, save = (statistics.median(t for saves, t in taken if saves == kind) for kind in (False, True))
        return update, save


def write_questions(path: Path) -> None:
    rng, lines = random.Random(0), []
    things = [f"{a} {b}" for a in ("old", "new", "red") for b in ("cat", "dog", "hat", "key")]
    for number in range(25):
        names = rng.sample(things, 4 + number % 3)
        chunks, gold = [f"the {name} is {number}" for name in names], sorted(rng.sample(range(4), 2))
        lines.append(json.dumps({"question": f"where is {names[0]}", "chunks": chunks, "gold": gold}))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.full  # in the slow tier: train/test_resume.py, a run that crashes and one that is stopped
@pytest.mark.parametrize(("mode", "dtype", "devices"), FEW[of_tier(0, 10)])
def test_a_run_that_is_killed_anywhere_ends_as_one_that_is_not(tmp_path, figures, mode, dtype, devices):
    write_questions(tmp_path / "questions.jsonl")
    (tmp_path / "config.yaml").write_text(CONFIG)
    data = f"data.paths=[{tmp_path / 'questions.jsonl'}]"
    towers = (f"model.mode={mode}", f"model.compute.dtype={dtype}", *OPTIONS[mode], *MESHES[devices])
    argv = ("--config_path", str(tmp_path / "config.yaml"), data, *towers)
    whole, run = (Run(tmp_path / name, argv, devices) for name in ("whole", "killed"))
    whole.finish()
    chosen = places(random.Random(f"{SEED} {mode} {dtype} {devices}"), of_tier(2, 20))
    kills = [run.kill(place, whole.seconds()) for place in chosen]
    num_in_saves, max_lost = sum(in_save for in_save, _ in kills), max(lost for _, lost in kills)
    assert max_lost <= SAVE_EVERY + 1, kills  # the line of an update is written before it is saved
    assert num_in_saves >= len(kills) // 4 and len(kills) - num_in_saves >= len(kills) // 4, kills
    stop(run)
    run.finish()
    same_run(whole.folder, run.folder)
    num_leaves = len(leaves(run.folder)[1])
    figures(
        1,
        f"{mode}, {dtype}, {devices} device{'s'[: devices > 1]}",
        len(kills),
        f"{num_leaves} leaves and metrics.jsonl equal; {num_in_saves} kills inside a save, {len(kills) - num_in_saves} "
        f"between saves, at most {max_lost} updates done again",
    )


def stop(run: Run) -> None:
    """SIGTERM loses nothing: the run saves, and says how to go on."""
    before, process = run.identity(), run.start()
    run.wait_for(Place(NUM_INTERVALS * SAVE_EVERY + 1, False, 0), process, before, set())
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process) == 128 + signal.SIGTERM, run.log.read_text()
    step = checkpoint_steps(run.folder)[-1]
    assert step == run.last_logged() and step < NUM_UPDATES
    said = f"stopped after update {step}, saved in {run.folder}; continue with: qrag train --out {run.folder} --resume"
    assert said in run.log.read_text()
