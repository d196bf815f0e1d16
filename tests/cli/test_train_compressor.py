import json
from functools import partial

import chex
import pytest
from support.encoders import random_encoder
from support.headed_documents import headed_document, headed_markdown

from qrag_jax.models.compressor import load_compressor
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.service import learners
from qrag_jax.train.learners.compressor import CompressorConfig
from qrag_jax.train.learners.compressor_data import Shape


@pytest.fixture(autouse=True)
def in_a_folder_of_headed_documents(tmp_path, monkeypatch):
    chex.clear_trace_counter()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    for number in range(4):
        (tmp_path / "notes" / f"{number}.md").write_text(headed_markdown(headed_document(number, num_sections=4)))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", headed_document(0).text.texts())
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    return str(folder)


@pytest.fixture
def quick(monkeypatch):
    """Few updates."""
    few = {"hidden": 4, "num_updates": 4, "strengths": (0.01,), "num_parts": 3, "shape": Shape(6, 4)}
    monkeypatch.setattr(learners, "CompressorConfig", partial(CompressorConfig, **few))


@pytest.fixture
def run(command):
    """(arguments) -> (exit code, standard output, standard error)."""
    return partial(command, "train", "compressor")


def test_from_headed_files_to_a_compressor(run, encoder, quick):
    code, out, err = run("notes", "--out", "run", "--model", encoder, "--kind", "attention", "--json")
    assert code == 0, err
    row = json.loads(out)
    assert (row["kind"], row["target"], row["n_documents"], row["n_sections"]) == ("attention", "windows", 4, 16)
    assert row["low"] <= row["r5"] <= row["high"] and row["r5"] == row["compressor_r5"]
    assert [(one["kind"], one["loss"]) for one in row["tried"]] == [("attention", "distance"), ("attention", "ranking")]
    assert "4 documents" in err
    assert load_compressor("run").encoder == encoder
    code, _, err = run("nowhere", "--out", "run", "--model", encoder)
    assert code == 2 and "run: already contains a trained run (step 4)" in err


def test_what_came_out_is_told(run, encoder, quick):
    flags = ("--kind", "mlp", "--loss", "distance", "--target", "lead", "--lead_tokens", "6")
    code, out, err = run("notes", "--out", "run", "--model", encoder, *flags)
    assert code == 0, err
    assert out.startswith("trained: run, mlp by distance, 16 sections, ")
    assert "held out: R@5" in out and "over the mean of the children\ncompared with: mean" in out


@pytest.mark.slow
def test_a_language_model_says_what_to_be_near_to(run, encoder, quick, tmp_path):
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"answer": "It is about a garden."}) + "\n")
    flags = ("--kind", "mlp", "--loss", "distance", "--target", "summary", "--llm", "scripted", "--no_journal")
    code, out, err = run("notes", "--out", "run", "--model", encoder, *flags, "--llm_model", str(script), "--json")
    assert code == 0, err
    assert json.loads(out)["target"] == "summary"


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("notes/0.md", "notes/1.md"), 1, "documents with a section of two sentences: 2; training needs 3"),
        (("nowhere.md",), 2, "nowhere.md"),
        (("notes", "--llm_model", "x.gguf"), 2, "--llm_model: works only with --target summary"),
    ],
)
def test_what_teaches_nothing_is_refused(argv, code, message, run, encoder):
    found, _, err = run(*argv, "--out", "run", "--model", encoder)
    assert found == code and message in err
