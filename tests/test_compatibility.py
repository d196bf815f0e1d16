"""What earlier commits wrote is read as it was meant: `fixtures/COMMIT/README.md` says how it was made there."""

import json
import tarfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.tiers import slow_but

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.chunking.text.words import plain_tokens
from qrag_jax.chunking.tree.tree_files import from_json, load_trees
from qrag_jax.cli.main import main
from qrag_jax.eval.answers.records import read_answer_records
from qrag_jax.eval.retrieval.records import read_records, read_rows
from qrag_jax.eval.study.cells import cell_files as cell_store
from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.index.build import build_index, make_maker
from qrag_jax.index.info import index_info
from qrag_jax.index.load import load_index, load_noted_index
from qrag_jax.index.remove import remove_documents
from qrag_jax.index.settings import NotesSetting, read_settings
from qrag_jax.index.update import Plan
from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.weights import load_encoder
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.hybrid import rank_bm25, rank_dense
from qrag_jax.train.log import read_lines
from qrag_jax.types import Document, Generation, Message, Sampling

FIXTURES = Path(__file__).parent / "fixtures"
# Another jax or machine rounds otherwise; what is compared passed through a few updates of a tiny network.
CLOSE = {"rel": 1e-3, "abs": 1e-4}


@pytest.fixture(params=["edd8037"])
def written(request, tmp_path, monkeypatch):
    """The folder that a commit has left behind, to work in."""
    return unpack(request.param, tmp_path, monkeypatch)


@pytest.fixture(params=["8b276a4"])
def written_index(request, tmp_path, monkeypatch):
    """The same with indices."""
    return unpack(request.param, tmp_path, monkeypatch)


@pytest.fixture(params=["6e18b87"])
def written_notes(request, tmp_path, monkeypatch):
    """The same with indices whose chunks have notes."""
    return unpack(request.param, tmp_path, monkeypatch)


def unpack(commit, tmp_path, monkeypatch):
    with tarfile.open(FIXTURES / commit / "written.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys, *argv):
    """The JSON that a verb prints."""
    assert main([*argv]) == 0
    return json.loads(capsys.readouterr().out)


def read_json(path):
    return json.loads(Path(path).read_text())


def near(values):
    """What an object of the same values equals, whose floats may round otherwise."""
    return {
        name: pytest.approx(value, **CLOSE) if isinstance(value, float) else value for name, value in values.items()
    }


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_end_that_it_would_have_had(written):
    assert checkpoint_steps("latent") == [4, 6]
    assert main(["train", "--config_path", "latent.yaml", "--out", "latent", "--resume", "keep=2"]) == 0
    assert checkpoint_steps("latent") == [6, 8]
    lines, whole = (read_lines(Path(name)) for name in ("latent/metrics.jsonl", "latent_whole_metrics.jsonl"))
    assert lines[:7] == whole[:7]  # facts of the data, and what the updates before the stop had logged
    assert lines[7:] == [near(line) for line in whole[7:]]
    dev, expected = load_checkpoint("latent", groups=()).metadata["dev"], read_json("latent_whole_dev.json")
    assert dev == near(expected) and "threshold" in expected


@pytest.mark.parametrize("run", slow_but(["latent"], ["latent", "text"]))
def test_a_search_finds_the_same(run, written, capsys):
    found = printed(capsys, "find", run, "notes", "Where is the rope?", "--num_steps", "3", "--json")
    expected = read_json(f"{run}_found.json")
    q_values = [[step.pop("q_value") for step in steps["steps"]] for steps in (found, expected)]
    for step, before in zip(found["steps"], expected["steps"], strict=True):  # fields that have come since
        for name in step.keys() - before.keys():
            del step[name]
    assert {name: found[name] for name in expected} == expected and len(found["steps"]) == 3
    assert q_values[0] == pytest.approx(q_values[1], **CLOSE)


def test_a_finished_run_scores_the_same_with_its_own_threshold(written, capsys):
    """And its rows and records of then are read; only the seconds differ, and fields that have come since."""
    rows = read_rows("results.json")
    assert {(row.setting.method, row.setting.protocol) for row in rows} == {
        ("trained", "fixed"), ("trained", "threshold"), ("bm25", "fixed")
    }  # fmt: skip
    line = ("eval", "text", "--jsonl", "test.jsonl", "--methods", "trained,bm25")
    again = printed(capsys, *line, "--per_query", "again.jsonl", "--json", "-")
    expected = read_json("results.json")
    for row in expected:
        del row["seconds"]
    kept = [{name: row[name] for name in expected[0]} for row in again]
    assert kept == [near(row) for row in expected]
    records, before = read_records("again.jsonl"), read_records("per_query.jsonl")
    assert len(before) == 2 * len(rows)
    assert [(r.query_id, r.setting.method, r.chosen, r.gold) for r in records] == [
        (r.query_id, r.setting.method, r.chosen, r.gold) for r in before
    ]


def test_records_of_answers_are_read(written):
    assert [record.answer for record in read_answer_records("answers.jsonl")] == ["attic", "kitchen"]
    (row,) = read_json("answer_rows.json")
    assert (row["method"], row["n"]) == ("bm25", 2)


def test_a_journal_answers_without_a_call(written):
    model = ScriptedGenerator([], model="scripted")
    journaled = JournaledGenerator(model, Journal("journal.sqlite"))
    prompts = [[Message("system", "Answer."), Message("user", text)] for text in ("one", "two", "three")]
    known = [
        Generation("In the kitchen [1].", "stop", 12, 5, from_journal=True),
        Generation("cut \ud800\0", "length", 7, 2, logprobs=(-0.5, -2.0), from_journal=True),
    ]
    assert journaled.generate(prompts[:2], sampling=Sampling()) == known and model.asked == []
    drawn = Sampling(max_tokens=9, temperature=0.7, top_p=0.5, seed=3, stop=("\n",))
    (answer,) = journaled.generate(prompts[:1], sampling=drawn)
    assert (answer.text, answer.from_journal, model.asked) == ("drawn", True, [])
    journaled.generate(prompts, sampling=Sampling())
    assert len(model.asked) == 1 and Journal("journal.sqlite").num_answers() == 3  # what had failed is asked again


def test_trees_are_equal_in_every_format(written):
    documents = {"one.md": Document("one.md", "A a. B b. C c."), "\u4eca.txt": Document("\u4eca.txt", " whole")}
    trees = [from_json(line) for line in Path("trees.jsonl").read_text().splitlines()]
    assert load_trees("trees.parquet", documents) == load_trees("trees.arrow", documents) == trees
    assert [tree.document_id for tree in trees] == list(documents)
    np.testing.assert_array_equal(trees[0].parent, [-1, 0, 1, 1, 0])
    np.testing.assert_array_equal(trees[0].leaves, [2, 3, 4])


def test_a_study_goes_on_and_computes_nothing_anew(written, capsys, monkeypatch):
    """The seconds of its rows are measured: they are equal because they are those of then."""
    made_of = read_json_line("study/cells/notes/fixed-0-test.json")["made_of"]
    # A study stays with the version that began it, and another one is refused by name: this is about the files.
    monkeypatch.setattr(cell_store, "__version__", made_of["version of qrag_jax"].partition(",")[0])
    cells = {path: path.read_bytes() for path in Path("study/cells").rglob("*.json")}
    line = ("--corpus", "notes", "--questions", "questions.jsonl", "study.yaml", "--out", "study")
    rows = printed(capsys, "study", *line, "model=encoder", "ks=[1,2]", "report_k=2", "--json")
    for row in rows:
        assert row["cost"].pop("reranker_tokens") == 0  # counted since then
    assert rows == read_json("study_rows.json") and len(cells) == len(rows) == 2
    assert cells == {path: path.read_bytes() for path in Path("study/cells").rglob("*.json")}


@pytest.mark.parametrize("name", ["fixed.index", "tree.index"])
def test_an_index_is_searched_as_it_was_and_written_to(name, written_index):
    expected, corpus = read_json(f"{name}.json"), load_index(name)
    assert [[document.id, document.text] for document in corpus.documents] == expected["documents"]
    nodes = [[one.document_id, [list(span) for span in one.spans], one.level, one.num_tokens] for one in corpus.nodes]
    assert (nodes, corpus.vectors.tolist()) == (expected["nodes"], expected["vectors"])
    assert bool(corpus.trees) == (name == "tree.index")
    for question, picks in expected["picks"].items():
        ranked = rank_bm25(question, corpus, 3)
        found = [[corpus.nodes[node].document_id, corpus.texts[node]] for node in ranked.ids]
        assert found == [pick[:2] for pick in picks]
        plain = np.sort(Bm25Index([corpus.texts[node] for node in corpus.leaves], plain_tokens).scores(question))[::-1]
        assert plain[: len(picks)] == pytest.approx([score for *_, score in picks], **CLOSE)
    # No word counts are stored, so words are counted by the analysis of today.
    (best,) = rank_bm25("CAFE", corpus).ids
    assert corpus.nodes[best].document_id == "latin/cafe.txt"
    text = "The lamp is in the attic."
    (best,) = rank_dense(text, corpus, make_embedder(load_encoder("encoder")), 1).ids
    assert corpus.texts[best] == text
    info = index_info(name, verify=True)
    assert info.is_whole and info.failed and {one.id: one.reason for one in info.failed} == expected["failed"]
    assert list(info.kept) == ["notes/emptied.md"]
    assert {one.id: one.origin.reader for one in info.documents} == expected["readers"]
    assert not info.settings.has_notes and load_noted_index(name).notes == ()  # of the first format
    said: list[str] = []
    removed = remove_documents(Path(name), ["notes/emptied.md"], waits=said.append)
    assert said == [f"{name}: is brought up to format 3 of the catalogue, once; older versions of qrag_jax refuse it"]
    assert removed == ("notes/emptied.md",) and index_info(name, verify=True).is_whole
    Path("notes", "new_lamp.md").write_text("New Lamp stands there.\n")
    Path("notes", "hall.md").write_text("The hall has the New Lamp now.\n")
    settings = replace(read_settings(name), model="encoder", notes=NotesSetting("mentions"))
    assert build_index(name, "notes", settings, Plan(mirror=False)).notes.num_notes == 1
    Path("notes", "again.md").write_text(text)  # as in another document, so its vector is known
    assert build_index(name, "notes/again.md", settings, Plan()).num_reused > 0
    Path("notes", "again.md").unlink()
    remove_documents(Path(name), ["notes/again.md"], make=make_maker(settings))
    assert [note.text for note in load_noted_index(name).notes] == ["The hall has the New Lamp now."]
    assert index_info(name, verify=True).are_notes_current


def test_notes_of_an_index_are_what_they_were_and_are_finished(written_notes):
    build_index("fresh.index", "notes", replace(read_settings("noted.index"), model="encoder", fingerprint=""))
    for name in ("noted.index", "stopped.index"):
        expected, is_stopped = read_json(f"{name}.json"), name == "stopped.index"
        told = pytest.warns(UserWarning, match="some notes are missing") if is_stopped else nullcontext()
        with told:
            noted = load_noted_index(name)
        assert json.loads(json.dumps([vars(note) for note in noted.notes])) == expected["notes"]
        np.testing.assert_array_equal(noted.vectors, np.array(expected["vectors"], np.float32))
        assert noted.num_tokens.tolist() == expected["num_tokens"]
        info = index_info(name, verify=True)
        assert info.is_whole and info.are_notes_current != is_stopped
        build_index(name, "notes", replace(read_settings(name), model="encoder"))
        found, fresh = load_noted_index(name), load_noted_index("fresh.index")
        assert found.notes == fresh.notes and len(fresh.notes) == 4
        np.testing.assert_allclose(found.vectors, fresh.vectors, atol=1e-6)


def read_json_line(path):
    """The second line of a file of a study; the first is the sha256 of it."""
    return json.loads(Path(path).read_text().splitlines()[1])
