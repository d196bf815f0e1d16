import json
from functools import partial

import chex
import pytest
from support.encoders import random_encoder
from support.headed_documents import headed_document, headed_markdown

from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.models.tagger.tagger import load_tagger
from qrag_jax.service import learners
from qrag_jax.train.learners.tagger import TaggerConfig


@pytest.fixture(autouse=True)
def in_a_folder_of_headed_documents(tmp_path, monkeypatch):
    chex.clear_trace_counter()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    for number in range(6):
        (tmp_path / "notes" / f"{number}.md").write_text(headed_markdown(headed_document(number)))
    (tmp_path / "bare.md").write_text("Only text. And more of it.\n")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", headed_document(0).text.texts())
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    return str(folder)


@pytest.fixture
def quick(monkeypatch):
    """Few updates."""
    config = partial(TaggerConfig, num_updates=40, strengths=(1e-2,), cue_strengths=(1e-3,), num_parts=2)
    monkeypatch.setattr(learners, "TaggerConfig", config)


@pytest.fixture
def run(command):
    """(arguments) -> (exit code, standard output, standard error)."""
    return command


def test_from_headed_files_to_points_of_plain_ones(run, encoder, quick, tmp_path):
    code, out, err = run("train", "tagger", "notes", "--out", "run", "--model", encoder, "--json")
    assert code == 0, err
    row = json.loads(out)
    assert row["n_documents"] == 6 and row["low"] <= row["f1_any"] <= row["high"]
    assert "6 documents, 24 sections" in err
    tagger = load_tagger("run")
    assert (tagger.encoder, tagger.trained_on["num_documents"]) == (encoder, 6)
    code, out, err = run("boundaries", "notes", "--methods", "tagger,none", "--tagger", "run", "--model", encoder,
                         "--json", "-")  # fmt: skip
    assert code == 0, err
    found = json.loads(out)
    assert [one["method"] for one in found] == ["tagger", "none"]
    assert found[0]["f1_any"] > 0.8
    (tmp_path / "plain.txt").write_text(headed_document(50).text.text)
    code, out, err = run("chunk", "plain.txt", "--strategy", "hierarchy", "--points", "tagger", "--tagger", "run",
                         "--set", "hierarchy.merge_tokens=0", "--model", encoder, "--json")  # fmt: skip
    assert code == 0, err
    starts = [json.loads(line)["spans"][0][0] for line in out.splitlines()]
    text = headed_document(50).text
    right = {text.sentences[sentence][0] for sentence, _ in headed_document(50).points}
    assert len(right & set(starts)) >= 3


def test_a_run_that_is_there_is_refused_before_anything_is_read(run, encoder, quick):
    assert run("train", "tagger", "notes", "--out", "run", "--model", encoder)[0] == 0
    code, _, err = run("train", "tagger", "nowhere", "--out", "run", "--model", encoder)
    assert code == 2 and "run: already contains a trained run (step 40): choose another --out" in err


def test_what_came_out_is_told(run, encoder, quick):
    code, out, _ = run("train", "tagger", "notes", "--out", "run", "--model", encoder, "--view", "plain")
    assert code == 0
    assert (
        out.startswith("trained: run, ")
        and "held out, headings plain: F1" in out
        and "6 documents, 24 boundaries" in out
    )


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("bare.md",), 1, "bare.md: none of 1 documents has a heading"),
        (("notes/0.md",), 1, "1 document has a heading; training needs 2"),
        (("nowhere.md",), 2, "nowhere.md"),
    ],
)
def test_documents_that_teach_nothing_are_refused(argv, code, message, run, encoder):
    found, _, err = run("train", "tagger", *argv, "--out", "run", "--model", encoder)
    assert found == code and message in err


def test_a_document_without_a_heading_is_left_out_of_a_folder(run, encoder, quick, tmp_path):
    (tmp_path / "bare.md").rename(tmp_path / "notes" / "bare.md")
    with pytest.warns(UserWarning, match="1 documents without a section are left out: .*bare.md"):
        code, out, _ = run("train", "tagger", "notes", "--out", "run", "--model", encoder, "--json")
    assert code == 0 and json.loads(out)["n_documents"] == 6


def test_a_tagger_of_another_encoder_is_refused(run, encoder, tmp_path):
    code, _, err = run("boundaries", "notes", "--methods", "tagger", "--model", encoder)
    assert code == 1 and "trained on vectors of the encoder 'minilm'" in err
    code, _, err = run("boundaries", "notes", "--methods", "tagger", "--model", encoder, "--tagger", "notes")
    assert code == 2 and "no checkpoint here" in err
