import json
import shutil

import numpy as np
import pytest
from support.beir_folders import make_rows, write_beir

from qrag_jax.cli.main import main
from qrag_jax.eval.retrieval.records import read_records, read_rows
from qrag_jax.measures.trec import read_qrels, read_run
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.service.evaluating import QuestionSource, _calibration_task
from qrag_jax.types import NOBODY

BABI = "1 Mary moved to the bathroom.\n2 John went to the hallway.\n3 Where is Mary?\tbathroom\t1\n"
FIELDS = (
    "task method mode positions seed num_chunks length_factor fact_em fact_f1 em_low em_high n seconds".split()
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory, save_untrained):
    """A run folder that tests read and never write."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    save_untrained(folder, texts=("Mary moved to the bathroom.", "Where is Mary?", "a story of a river"))
    return str(folder)


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
    assert [row.fact_em for row in read_rows(out) if row.setting.method == "bm25"] == [1.0, 1.0]
    assert rows[0]["f1_ceiling"] == pytest.approx(2 / (1 + 3))
    (record,) = [r for r in read_records(per_query) if r.setting.method == "trained" and r.setting.num_chunks == 20]
    assert len(set(record.chosen)) == 3 and len(record.q_values) == 3 and record.texts is not None
    assert "qa1_valid" in capsys.readouterr().out


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


def test_a_story_longer_than_every_context_is_an_error(run, babi, haystack, capsys):
    flags = ["--haystack", str(haystack), "--num_chunks", "1", "--methods", "trained"]
    assert main(["eval", run, "--babi", babi, *flags]) == 2
    assert "raise num_chunks" in capsys.readouterr().err


@pytest.mark.full
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


# --- published sets, protocols, beams


def titled(name, question, gold, num_paragraphs=5):
    """A row of HotpotQA and 2WikiMultihopQA; the paragraphs of `gold` share words with the question."""
    context = [[f"{name} {i}", [f"{question} {i}." if i in gold else f"Words of {name}, number {i}."]]
               for i in range(num_paragraphs)]  # fmt: skip
    return {
        "_id": name, "question": question, "answer": "yes", "context": context,
        "supporting_facts": [[f"{name} {i}", 0] for i in gold],
    }  # fmt: skip


def marked(name, question, gold):
    """A row of MuSiQue."""
    paragraphs = [
        {"idx": i, "title": f"{name} {i}", "paragraph_text": question if i in gold else f"Words {i}.", "is_supporting":
         i in gold} for i in range(4)
    ]  # fmt: skip
    return {"id": name, "question": question, "answer": "yes", "paragraphs": paragraphs, "answerable": True}


REPORTED = [
    titled("ada", "Where is the milk of Mary?", (0, 3)),
    titled("bea", "Who went to the garden?", (1, 2)),
    titled("cid", "Where is the office?", (4, 0)),
    titled("dot", "Where is the hallway?", (0, 1), num_paragraphs=2),  # fewer chunks than picks
    titled("eve", "What has no label?", ()),  # left out
]
HELD_OUT = [titled(f"h{i}", f"Where is John, number {i}?", (i, i + 1)) for i in range(3)]


@pytest.fixture
def sets(tmp_path):
    """Files of the three sets: name -> path."""
    rows = {
        "test.json": REPORTED,
        "dev.json": HELD_OUT,
        "same.json": [HELD_OUT[0], titled("f", "Where is the office?", (0, 1)), REPORTED[1]],
        # The question and the gold of a reported one, among other distractors and under another id.
        "disguised.json": [HELD_OUT[0], REPORTED[0] | {"_id": "new", "context": REPORTED[0]["context"][:4]}],
        "musique.jsonl": [marked("m1", "Where is the milk?", (0, 2)), marked("m2", "Where is John?", (1, 3))],
    }
    for name, content in rows.items():
        lines = json.dumps(content) if name.endswith(".json") else "".join(json.dumps(r) + "\n" for r in content)
        (tmp_path / name).write_text(lines)
    return {name: str(tmp_path / name) for name in rows}


@pytest.mark.slow
def test_every_protocol_and_beam_of_a_published_set(run, sets, tmp_path, capsys):
    out, tests, stopping, records = (tmp_path / n for n in ("rows.json", "tests.json", "stopping", "q.jsonl"))
    flags = ["--protocol", "fixed,threshold,oracle", "--beam_width", "1,2", "--methods", "trained,bm25"]
    files = ["--json", str(out), "--tests", str(tests), "--stopping", str(stopping), "--per_query", str(records)]
    assert main(["eval", run, "--hotpot", sets["test.json"], "--calibrate", sets["dev.json"], *flags, *files]) == 0
    captured = capsys.readouterr()
    rows = read_rows(out)
    protocols = ["fixed", "threshold", "oracle"]
    assert [(row.setting.method, row.setting.beam_width, row.setting.protocol) for row in rows] == [
        (method, width, protocol) for method, width in (("trained", 1), ("bm25", 1), ("trained", 2))
        for protocol in protocols
    ]  # fmt: skip
    for row in rows:
        assert (row.task, row.n, row.setting.num_chunks, row.num_left_out) == ("hotpot test", 4, 5, 1)
        # Beams are searched with the threshold, whatever protocol then counts their picks.
        assert (row.threshold is not None) == (row.setting.protocol == "threshold" or row.setting.beam_width > 1)
    found = {(row.setting.method, row.setting.beam_width, row.setting.protocol): row for row in rows}
    for method, width in (("trained", 1), ("bm25", 1), ("trained", 2)):
        fixed, threshold, oracle = (found[method, width, protocol] for protocol in protocols)
        assert fixed.num_taken == (3 + 3 + 3 + 2) / 4  # of the short one both chunks
        assert oracle.fact_em == fixed.fact_em >= threshold.fact_em and oracle.fact_f1 >= fixed.fact_f1
        assert 1 <= threshold.num_taken <= fixed.num_taken
        assert fixed.seconds == threshold.seconds == oracle.seconds
    # BM25 finds what shares words with the question: two facts in three picks, or all of two chunks.
    assert found["bm25", 1, "fixed"].fact_f1 == pytest.approx((4 / 5 * 3 + 1) / 4)
    assert found["trained", 2, "threshold"].threshold == found["trained", 1, "threshold"].threshold
    assert len(read_records(records)) == 4 * len(rows)
    # Tests: a measure and a protocol each, the other method and the beam against the greedy search.
    compared = [(c["measure"], c["protocol"], c["first"], c["second"]) for c in json.loads(tests.read_text())]
    assert sorted(compared) == sorted(
        (measure, protocol, *pair) for measure in ("fact_em", "fact_f1") for protocol in protocols
        for pair in (("trained", "bm25"), ("beam 2", "trained"))
    )  # fmt: skip
    assert sorted(p.name for p in (stopping / "hotpot_test_5").iterdir()) == [
        "stopping.json", "stopping.md", "stopping.png"
    ]  # fmt: skip
    assert "test: 4 questions" in captured.err and "1 (no gold paragraph)" in captured.err
    assert "bm25: threshold" in captured.err and "fitted on 3 questions of hotpot dev" in captured.err
    for text in ("threshold, beam 2", "chunks taken", "paired differences", "beam 2 - trained"):
        assert text in captured.out


@pytest.mark.parametrize(("kind", "name", "n"), [("musique", "musique.jsonl", 2), ("2wiki", "test.json", 4)])
def test_the_other_sets_have_the_same_flags(run, sets, kind, name, n, capsys):
    assert main(["eval", run, f"--{kind}", sets[name], "--methods", "bm25", "--protocol", "fixed", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["task"], row["n"]) == (f"{kind} {name.split('.')[0]}", n)


@pytest.fixture(scope="module")
def stopping_run(tmp_path_factory, save_untrained):
    folder = tmp_path_factory.mktemp("runs") / "stopping"
    env = EnvConfig(num_steps=2, reward="at_end", stop=True)
    save_untrained(folder, texts=("Where is the milk?", "a story of a river"), env=env)
    return str(folder)


@pytest.mark.slow
def test_a_learned_stop_is_reported_unasked(stopping_run, sets, capsys):
    """Of the trained method alone: no baseline has learned to stop."""
    flags = ["--methods", "trained,bm25", "--beam_width", "1,2", "--json", "-"]
    assert main(["eval", stopping_run, "--hotpot", sets["test.json"], *flags]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["method"], row["beam_width"], row["protocol"]) for row in rows] == [
        ("trained", 1, "fixed"), ("trained", 1, "stop"), ("bm25", 1, "fixed"), ("trained", 2, "fixed"),
        ("trained", 2, "stop"),
    ]  # fmt: skip
    assert 1 <= rows[1]["num_taken"] <= rows[0]["num_taken"]


def test_lengths_are_for_hidden_stories(tmp_path, run, sets, capsys):
    assert main(["eval", run, "--hotpot", sets["test.json"], "--num_chunks", "50"]) == 2
    assert "--num_chunks works only with --babi; questions of --hotpot have their own chunks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--protocol", "fixed,threshold"], "--protocol threshold: this run has no threshold"),
        (["--protocol", "stop"], "--protocol stop: this run has not learned to stop"),
        (["--beam_width", "1,4", "--methods", "bm25"], "--beam_width works only with the method 'trained'; add it to"),
        (["--beam_width", "2,2"], "--beam_width 2,2: a width is given twice"),
        (["--stopping", "out", "--methods", "bm25"], "--stopping works only with the method 'trained'; add it to"),
        (["--calibrate", "absent.json", "--methods", "bm25"], "absent.json"),
    ],
)
def test_what_no_row_could_be_of_is_refused_at_once(run, sets, tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", run, "--hotpot", sets["test.json"], "--methods", "trained", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """A BEIR folder with two sets of judgements."""
    folder = write_beir(tmp_path_factory.mktemp("sets") / "small", make_rows())
    documents, questions, judged = make_rows()
    halves = [dict(part) for part in (list(judged.items())[:6], list(judged.items())[6:])]
    for name, half in zip(("test", "dev"), halves, strict=True):
        write_beir(folder, (documents, questions, half), name)
    return folder


def test_a_beir_folder_is_scored_over_its_whole_corpus(run, beir, tmp_path, capsys):
    out, trec = tmp_path / "rows.json", tmp_path / "trec"
    flags = ["--methods", "bm25", "--num_steps", "10", "--json", str(out), "--trec", str(trec)]
    assert main(["eval", run, "--beir", str(beir), *flags]) == 0
    assert "beir small test: 6 questions, 40 documents; left out: none" in capsys.readouterr().err
    (row,) = read_rows(out)
    assert (row.task, row.n, row.setting.num_chunks) == ("beir small test", 6, 40)
    names = ["beir_small_test_40.bm25.fixed.run", "beir_small_test_40.qrels"]
    assert sorted(file.name for file in trec.iterdir()) == names
    judged, found = read_qrels(trec / names[1]), read_run(trec / names[0])
    assert judged == dict(list(make_rows()[2].items())[:6])  # graded, as in the folder
    # The gold documents among the picks, counted in the files and by the row.
    shares = [
        2 * len(gold & own.keys()) / (len(gold) + 10) for gold, own in zip(golds(judged), found.values(), strict=True)
    ]
    assert row.fact_f1 == pytest.approx(np.mean(shares))


def golds(judged):
    return [{name for name, value in own.items() if value > 0} for own in judged.values()]


def test_other_qrels_of_a_beir_folder(run, beir, capsys):
    flags = ["--methods", "bm25", "--json", "-"]
    dev = str(beir / "qrels" / "dev.tsv")
    assert main(["eval", run, "--beir", dev, *flags]) == 0
    shown = capsys.readouterr()
    assert "beir small dev: 6 questions, 40 documents" in shown.err and '"beir small dev"' in shown.out
    assert main(["eval", run, "--beir", str(beir), "--calibrate", dev, *flags]) == 0
    assert "fitted on 6 questions of beir small dev" in capsys.readouterr().err


def test_a_beir_folder_with_a_missing_part_is_refused(run, beir, tmp_path, capsys):
    copy = tmp_path / "broken"
    for name, message in (
        ("queries.jsonl", "queries.jsonl: no such file; expected lines"),
        ("qrels/test.tsv", "test.tsv: no such file; this folder has the qrels dev"),
        ("corpus.jsonl", "corpus.jsonl: no such file; expected lines"),
    ):
        shutil.copytree(beir, copy, dirs_exist_ok=True)
        (copy / name).unlink()
        assert main(["eval", run, "--beir", str(copy), "--methods", "bm25"]) == 2
        assert message in capsys.readouterr().err
    assert main(["eval", run, "--beir", str(copy / "qrels" / "none.tsv")]) == 2
    assert main(["eval", run, "--beir", str(beir), "--json", str(beir / "corpus.jsonl")]) == 2
    assert "which --beir reads; name a file elsewhere" in capsys.readouterr().err


def test_a_corpus_that_is_too_large_is_refused_before_it_is_embedded(run, beir, monkeypatch, capsys):
    monkeypatch.setattr("qrag_jax.service.evaluating.MOST_PAIRS", 100)
    assert main(["eval", run, "--beir", str(beir), "--methods", "bm25"]) == 2
    message = "40 documents for each of 6 questions do not fit into memory; ask at most --num_questions 2"
    assert message in capsys.readouterr().err
    assert main(["eval", run, "--beir", str(beir), "--methods", "bm25", "--num_questions", "2"]) == 0
    monkeypatch.setattr("qrag_jax.service.evaluating.MOST_DOCUMENTS", 39)
    assert main(["eval", run, "--beir", str(beir), "--methods", "bm25"]) == 2
    assert "40 documents; a run reads all of them at every pick, and takes at most 39" in capsys.readouterr().err


def test_a_folder_of_trec_files_that_cannot_be_made_is_refused_at_once(run, beir, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert main(["eval", run, "--beir", str(beir), "--trec", str(tmp_path / "file")]) == 2
    assert "is not a folder; name another file" in capsys.readouterr().err


def test_stories_are_calibrated_at_the_training_length(babi, haystack):
    source = QuestionSource("babi", babi, str(haystack), num_chunks=(5, 20))
    task = _calibration_task(babi, source, 6, {}, NOBODY)
    assert task.name == "qa1_valid" and task.sizes.tolist() == [6]
