"""Test 2 of docs/reliability.md: a save that is killed at any system call loses no more than itself."""

import shutil
from collections import Counter
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

import pytest
from support.processes import answers_of, save_traced
from support.runs import assert_seeded, save_seeded
from support.syscalls import Traced
from support.tiers import of_tier

from qrag_jax.checkpoint import load_checkpoint, newest_valid_step
from qrag_jax.files.folder_lock import LOCK, lock_folder
from qrag_jax.files.step_folders import checkpoint_steps, step_folder

OLD = {1: 1, 2: 2}  # seeds of the steps that are there
NEW = 10  # of the save that is killed
LAST = 20  # of the save after it


@dataclass(frozen=True)
class Save:
    """One that is killed: which step it writes, how many it keeps, and whether the one before it was killed as well."""

    step: int
    keep: int
    after_a_kill: bool = False


SAVES = {
    "a step is added": Save(3, 3),
    "a step is added, old ones are deleted": Save(3, 1),
    "a step is replaced": Save(2, 2),
    "a step is added after a save that was killed": Save(3, 3, after_a_kill=True),
}


def make_run(folder: Path, save: Save) -> Path:
    for step, seed in OLD.items():
        save_seeded(folder, step, seed)
    if save.after_a_kill:  # between the two renames of a replaced step, in a process that held the lock
        shutil.copytree(folder / "step_1", folder / ".tmp-step_2-1-00000000")
        (folder / "step_2").rename(folder / ".old-step_2")
        with lock_folder(folder, "a save"):
            lock = (folder / LOCK).read_bytes()
        (folder / LOCK).write_bytes(lock)
    return folder


def attempt(original: Path, folder: Path, save: Save, kill_before: int | None) -> Traced:
    """Copies the run, and saves in the copy until the kill."""
    shutil.copytree(original, folder)
    (traced,) = answers_of(save_traced, (folder, save.step, save.keep, NEW, kill_before))
    if isinstance(traced, str):
        pytest.skip(traced)
    return traced


def spread(num_calls: int, number: int) -> list[int]:
    """Calls to be killed at, the first and the last among them."""
    return sorted({1 + round(i * (num_calls - 1) / max(1, number - 1)) for i in range(number)})


def check(folder: Path, save: Save) -> str:
    """Which step is newest. Every step is whole, the old one or the new one; none is lost; so after the next save."""
    steps = checkpoint_steps(folder)
    seeds = {step: load_checkpoint(step_folder(folder, step)).metadata["seed"] for step in steps}
    for step, seed in seeds.items():
        assert seed in {OLD.get(step), NEW if step == save.step else None}, (step, seed)
        assert_seeded(load_checkpoint(step_folder(folder, step)), seed)
    is_new = seeds.get(save.step) == NEW
    assert newest_valid_step(folder) == (max(steps), ()) and max(steps) >= max(OLD)
    assert set(OLD) <= set(steps) or (is_new and save.keep < len(OLD)), steps
    save_seeded(folder, 4, LAST, keep=None)
    assert {path.name for path in folder.iterdir()} == {f"step_{step}" for step in (*steps, 4)}
    for step, seed in {**seeds, 4: LAST}.items():
        assert_seeded(load_checkpoint(folder, step=step), seed)
    return "new" if is_new else "old"


@pytest.mark.parametrize("name", SAVES)
def test_a_save_that_is_killed_at_any_call_loses_no_more_than_itself(tmp_path, figures, name):
    save = SAVES[name]
    original = make_run(tmp_path / "original", save)
    whole = attempt(original, tmp_path / "whole", save, None)
    assert (whole.exit_code, whole.at) == (0, "")
    assert check(tmp_path / "whole", save) == "new"
    # Threads of one save make some calls more or less from time to time, so the last number may lie behind its end, or
    # still before the rename: then there are later ones.
    num_calls = len(whole.calls) + len(whole.calls) // 6
    chosen = spread(num_calls, of_tier(6, num_calls))
    newest, killed_at = Counter(), Counter()
    for number in chain(chosen, count(2 * num_calls, num_calls)):
        if number > num_calls and newest["new"]:
            break
        folder = tmp_path / str(number)
        traced = attempt(original, folder, save, number)
        found = check(folder, save)
        newest[found] += 1
        if traced.at:
            killed_at[traced.at] += 1
        else:
            assert (traced.exit_code, found) == (0, "new"), traced
        shutil.rmtree(folder)
    assert {"fsync", "openat"} <= set(whole.calls) and any(call.startswith("rename") for call in whole.calls)
    assert newest["old"] and newest["new"] and killed_at.total() > len(chosen) // 2
    kills = ", ".join(f"{count} {call}" for call, count in killed_at.most_common())
    outcome = f"0 unreadable, 0 lost: newest was the new step {newest['new']} times; at {kills}"
    figures(2, name, killed_at.total(), outcome)
