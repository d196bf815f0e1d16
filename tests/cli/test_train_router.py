"""`qrag train router`: a run that a study reads, and what is refused."""

import json
from functools import partial

import pytest
from support.study import make_encoder, make_task

from qrag_jax.search.levels.router import load_router
from qrag_jax.service import learners

CONFIG = """\
tasks:
  facts: {kind: files, path: facts, questions: facts.jsonl}
strategies:
  fixed:
    - {max_tokens: 8}
  sizes:
    - {strategy: levels, levels: {sizes: [24, 12, 6]}}
"""


@pytest.fixture
def train(tmp_path, monkeypatch, command):
    """(arguments) -> (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    monkeypatch.setattr(learners, "load_study_encoder", lambda model, window: make_encoder())
    monkeypatch.setattr(learners, "load_task", lambda name, *_: make_task(name))

    return partial(command, "train", "router")


def test_a_router_is_trained_kept_and_told(train):
    code, out, _ = train("mine.yaml", "--out", "run", "--budget", "20", "--json")
    row = json.loads(out)
    assert code == 0
    assert row["levels"] == ["document", "24", "12", "6"]
    assert row["n"] == row["n_labelled"] + row["n_dropped"] == 24
    assert row["erec_held_out"] >= row["erec_fallback"]
    router = load_router("run")
    assert router.names == tuple(row["levels"]) and router.fingerprint == "words"
    assert router.features == row["features"]


@pytest.mark.slow
def test_features_can_be_chosen(train):
    code, out, _ = train("mine.yaml", "--out", "run", "--features", "vectors")
    assert code == 0 and "on vectors" in out and "held out: ERec" in out and "labels: " in out
    assert load_router("run").features == "vectors"


def test_a_folder_that_is_there_is_kept(train):
    assert train("mine.yaml", "--out", "run")[0] == 0
    code, _, err = train("mine.yaml", "--out", "run")
    assert code == 2 and "run" in err


def test_two_configs_are_refused(train):
    code, _, err = train("mine.yaml", "other.yaml", "--out", "run")
    assert code == 2 and "give one config" in err


def test_tasks_without_evidence_are_refused(train, monkeypatch):
    monkeypatch.setattr(learners, "load_task", lambda name, *_: make_task(name, "documents"))
    code, _, err = train("mine.yaml", "--out", "run")
    assert code == 1 and "none has evidence, but a router needs it" in err
