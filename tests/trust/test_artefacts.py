"""Artefacts of others with hostile values in well-formed files: nothing runs, nothing leaks, nothing is raw.

Each kind is made once; a case is a copy with one hostile value, its manifest or digest made to fit, read as `qrag`
reads it beside a canary (tests/support/hostile_artefacts.py, tests/support/hostile_values.py).
"""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from support.hostile_artefacts import KINDS, hostile_repository, make_checkpoint
from support.hostile_values import Canary, outcome
from support.stub_hub import reachable_hub
from support.tiers import of_tier

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.hub import Place, pull_run, push_run, run_files

SEED = int(os.environ.get("TRUST_SEED", "9"))
REPOSITORY = Place(repository="alice/qa2")
COUNT = 1000
HEAVY = {"run": 15, "hub repository": 15}  # a fifth of a second each: at most so many but in `make trust`


def num_cases(name: str) -> int:
    number = of_tier(3, COUNT)
    return number if number == COUNT else min(number, HEAVY.get(name, COUNT))


@pytest.mark.parametrize("name", KINDS)
def test_hostile_values_are_read_or_refused(tmp_path, figures, name):
    kind, canary, rng = KINDS[name], Canary(tmp_path), Random(f"{SEED} {name}")
    kind.make(tmp_path / "good")
    kind.read(tmp_path / "good")
    cases, seen, wrong = num_cases(name), Counter(), []
    for number in range(cases):
        shutil.copytree(tmp_path / "good", tmp_path / "work")
        kind.change(rng, canary, tmp_path / "work")
        found, fault = outcome(canary, lambda: kind.read(tmp_path / "work"))
        seen[found] += 1
        if fault is not None:
            wrong.append(f"{number}: {fault}")
            canary.touched.clear()
        shutil.rmtree(tmp_path / "work")
    assert not wrong, f"{len(wrong)} of {cases}:\n" + "\n".join(wrong[:40])
    assert {path.name for path in tmp_path.iterdir()} == {"good", "outside"}
    figures(9, name, cases, f"{seen['refused']} refused with a typed error, {seen['taken']} read, canary untouched")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with reachable_hub(tmp_path, monkeypatch) as stub:
        yield stub


def test_hostile_repositories_are_pulled_whole_or_not_at_all(tmp_path, hub, figures):
    (tmp_path / "place").mkdir()
    canary, rng = Canary(tmp_path), Random(f"{SEED} hub")
    make_checkpoint(tmp_path / "run")
    step = tmp_path / "run" / "step_1"
    push_run(REPOSITORY, run_files(step, 1, "# card\n"), "a push", endpoint=hub.endpoint)
    good, out = hub.files("alice/qa2"), tmp_path / "place" / "out"
    cases, seen, wrong = num_cases("hub repository"), Counter(), []
    for number in range(cases):
        hub.repositories["alice/qa2"] = [hostile_repository(rng, canary, good)]
        found, fault = outcome(canary, lambda: pull_run(REPOSITORY, out, endpoint=hub.endpoint) and "")
        fault = fault or canary.in_files(tmp_path / "place")
        kept = {path.name for path in (tmp_path / "place").iterdir()}
        if kept - {"out", ".pull-out"} or (found == "refused") == out.exists():
            fault = fault or f"{found}, and there are {sorted(kept)}"
        if found == "taken":
            load_checkpoint(out, groups=())
        seen[found] += 1
        wrong += [f"{number}: {fault}"] if fault else []
        shutil.rmtree(tmp_path / "place")
        (tmp_path / "place").mkdir()
        canary.touched.clear()
    assert not wrong, f"{len(wrong)} of {cases}:\n" + "\n".join(wrong[:40])
    figures(9, "hub repository", cases, f"{seen['refused']} refused with a typed error, {seen['taken']} pulled whole")


def test_the_canary_notices(tmp_path):
    """What this test would see: code that runs, a file that is opened, a secret that is said."""
    canary = Canary(tmp_path)
    bad: list[Callable[[], object]] = [
        lambda: open(canary.file).close(),
        lambda: os.system("true"),
        lambda: __import__("qrag_canary_module"),
        lambda: os.environ["QRAG_CANARY"],
        lambda: {}["raw"],
    ]
    try:
        for call in bad:
            assert outcome(canary, call)[1] is not None
            canary.touched.clear()
            canary.mark.unlink(missing_ok=True)
    finally:
        sys.modules.pop("qrag_canary_module", None)
    assert outcome(canary, lambda: "fine") == ("taken", None)
