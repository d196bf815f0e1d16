import json

import numpy as np
import pytest

import qrag_jax.cli.eval as cli_eval
from qrag_jax.cli.main import main
from qrag_jax.eval.records import read_records, read_rows

BABI = "1 Mary moved to the bathroom.\n2 John went to the hallway.\n3 Where is Mary?\tbathroom\t1\n"
FIELDS = (
    "task method mode positions seed num_chunks length_factor fact_em fact_f1 em_low em_high n seconds".split()
)  # fmt: skip


@pytest.fixture
def run(tmp_path, save_untrained):
    save_untrained(tmp_path / "run", texts=("Mary moved to the bathroom.", "Where is Mary?", "a story of a river"))
    return str(tmp_path / "run")


@pytest.fixture
def babi(tmp_path):
    path = tmp_path / "qa1_valid.txt"
    path.write_text(BABI)
    return str(path)


def test_eval_writes_the_fields_of_results_json_for_every_length(run, babi, haystack, tmp_path, capsys):
    out, per_query = tmp_path / "rows.json", tmp_path / "queries.jsonl"
    flags = ["--haystack", str(haystack), "--num_chunks", "5,20", "--methods", "trained,bm25"]
    assert main(["eval", run, "--babi", babi, *flags, "--json", str(out), "--per_query", str(per_query)]) == 0
    rows = json.loads(out.read_text())
    assert [(row["method"], row["num_chunks"]) for row in rows] == [
        ("trained", 5), ("bm25", 5), ("trained", 20), ("bm25", 20)
    ]  # fmt: skip
    assert all(list(row)[: len(FIELDS)] == FIELDS for row in rows)
    # BM25 takes three of five sentences; "Mary" stands in one of them only: it must be found.
    assert [row.fact_em for row in read_rows(out) if row.method == "bm25"] == [1.0, 1.0]
    assert rows[0]["f1_ceiling"] == pytest.approx(2 / (1 + 3))
    (record,) = [r for r in read_records(per_query) if r.method == "trained" and r.num_chunks == 20]
    assert len(set(record.chosen)) == 3 and len(record.q_values) == 3 and record.texts is not None
    assert "qa1_valid" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_contexts_and_another_seed_others(run, babi, haystack, tmp_path):
    def chosen(seed):
        path = tmp_path / f"{seed}.jsonl"
        flags = ["--haystack", str(haystack), "--num_chunks", "20", "--methods", "bm25", "--seed", str(seed)]
        assert main(["eval", run, "--babi", babi, *flags, "--per_query", str(path)]) == 0
        return [record.gold for record in read_records(path)]

    first = chosen(0)
    assert chosen(0) == first
    assert any(chosen(seed) != first for seed in (1, 2, 3))


def test_json_to_standard_output_is_json_and_nothing_else(run, babi, haystack, capsys):
    flags = ["--haystack", str(haystack), "--num_chunks", "5", "--methods", "trained", "--json", "-"]
    assert main(["eval", run, "--babi", babi, *flags]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1


def test_questions_with_chunks_of_their_own_are_scored(run, tmp_path, capsys):
    rows = [
        {"question": "Where is Mary?", "chunks": ["a river", "Mary moved to the bathroom.", "b", "c"], "gold": [1]},
        {"question": "Where is Mary?", "chunks": ["Mary moved to the bathroom.", "x", "y"], "gold": [0]},
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["eval", run, "--jsonl", str(path), "--methods", "trained,bm25", "--json", "-"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert {row["method"]: row["n"] for row in scored} == {"trained": 2, "bm25": 2}
    assert [row["fact_em"] for row in scored if row["method"] == "bm25"] == [1.0]


def test_more_steps_than_chunks_is_an_error(run, tmp_path, capsys):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"question": "Where?", "chunks": ["a", "b"], "gold": [1]}) + "\n")
    assert main(["eval", run, "--jsonl", str(path), "--methods", "trained"]) == 1
    assert "2 chunks, which cannot give 3 picks" in capsys.readouterr().err


def test_a_story_longer_than_every_context_is_an_error(run, babi, haystack, capsys):
    flags = ["--haystack", str(haystack), "--num_chunks", "1", "--methods", "trained"]
    assert main(["eval", run, "--babi", babi, *flags]) == 2
    assert "raise num_chunks" in capsys.readouterr().err


def test_without_the_embedded_encoder_its_rows_are_left_out_and_that_is_said(monkeypatch, capsys):
    monkeypatch.setattr(cli_eval, "is_installed", lambda: False)
    assert cli_eval.default_methods() == ("trained", "bm25")
    assert "not installed" in capsys.readouterr().err
    monkeypatch.setattr(cli_eval, "is_installed", lambda: True)
    assert cli_eval.default_methods() == ("trained", "untrained", "single_step", "bm25")


def test_a_vector_task_is_scored_against_its_own_nearest_neighbours(tmp_path, capsys):
    """A run over given vectors, trained for a moment, then scored on the same folder."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "vectors"
    folder.mkdir()
    np.save(folder / "chunks.npy", rng.normal(size=(30, 6)).astype(np.float32))
    np.save(folder / "questions.npy", rng.normal(size=(5, 6)).astype(np.float32))
    episodes = [{"question": i, "gold": [i, i + 10]} for i in range(5)]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in episodes))
    tiny = ["num_updates=2", "data.batch_size=4", "env.num_steps=2", "model.latent.width=8", "model.latent.num_heads=2"]
    out = str(tmp_path / "run")
    config = ["data.task=vectors", f"data.paths=[{folder}]", "model.encoder.source=vectors", *tiny]
    assert main(["train", "--out", out, *config]) == 0
    capsys.readouterr()
    assert main(["eval", out, "--vectors", str(folder), "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows] == ["trained", "single_step"]
    assert all(row["n"] == 5 and row["num_chunks"] == 30 for row in rows)
