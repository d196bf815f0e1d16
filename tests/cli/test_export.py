import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.encoders import random_encoder

from qrag_jax.cli.main import main
from qrag_jax.models.encoder.config import Prompts
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.text_encoder import encode
from qrag_jax.models.encoder.weights import load_encoder, save_encoder
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.service.sharing import base_name

QUESTIONS = ["Where is the milk?", "John?", "Mary went back to the office."]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def embed(folder, texts):
    """Vectors of a written folder, which knows its own window."""
    loaded = load_encoder(folder)
    table = loaded.tokenizer.encode(texts, loaded.max_seq_length)
    return jax.jit(encode, static_argnums=0)(loaded.config, loaded.params, table.tokens, table.lengths)


def first_step(run):
    """States before the first step and unrotated action vectors, as the run's own network computes them."""
    questions, _ = run.rows(QUESTIONS, "question")
    rows, _ = run.rows(QUESTIONS, "chunk")
    questions, rows = jax.device_put((questions, rows))
    nothing = jnp.zeros((len(QUESTIONS), 0), jnp.int32)
    states = jax.jit(run.network.states)(run.params, questions, rows, nothing)
    return states, jax.jit(run.network.actions)(run.params, rows)


def tower(folder, route):
    return f"{folder}/0_Router/{route}_0_Transformer"


@pytest.mark.slow
def test_the_router_of_a_text_run(tmp_path, save_untrained, capsys):
    run = save_untrained(tmp_path / "run", mode="text", window=20, question_window=24)
    assert main(["export", "run", "towers"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "wrote towers\n")
    states, actions = first_step(run)
    np.testing.assert_allclose(embed(tower("towers", "query"), QUESTIONS), states, atol=1e-5)
    np.testing.assert_allclose(embed(tower("towers", "document"), QUESTIONS), actions, atol=1e-5)
    assert np.abs(np.asarray(states)).max() > 0.05  # far above the tolerance
    for route, window in (("query", 24), ("document", 20)):
        settings = json.loads((tmp_path / tower("towers", route) / "sentence_bert_config.json").read_text())
        assert settings["max_seq_length"] == window
    card = (tmp_path / "towers" / "README.md").read_text()
    assert "scale 0.1 is folded" in card and "trained with relative positions (theta 10000" in card
    assert "learned when to stop" not in card


@pytest.mark.slow
def test_the_router_of_an_mpnet_run_that_stops(tmp_path, save_untrained):
    made = random_encoder("mpnet", QUESTIONS)
    save_encoder(tmp_path / "my-mpnet", made.config, made.params, made.tokenizer)
    env = EnvConfig(num_steps=3, reward="at_end", stop=True)
    run = save_untrained(tmp_path / "run", env=env, mode="text", source="my-mpnet", num_layers=None, pooling="cls")
    assert main(["export", "run", "towers"]) == 0
    states, actions = first_step(run)
    np.testing.assert_allclose(embed(tower("towers", "query"), QUESTIONS), states, atol=1e-5)
    np.testing.assert_allclose(embed(tower("towers", "document"), QUESTIONS), actions, atol=1e-5)
    card = (tmp_path / "towers" / "README.md").read_text()
    assert "- MPNet, 2 layers of 16, cls pooling" in card and "- trained from my-mpnet\n" in card
    assert "learned when to stop, by an action vector" in card


def test_a_scale_of_normalised_towers_is_refused(tmp_path, save_untrained, capsys):
    save_untrained(tmp_path / "run", mode="text", normalize=True)
    assert main(["export", "run", "towers"]) == 2
    assert "the encoder normalises its vectors, so a scale has no effect" in capsys.readouterr().err
    assert not (tmp_path / "towers").exists()


def test_the_encoder_of_a_latent_run(tmp_path, save_untrained, capsys):
    run = save_untrained(tmp_path / "run", window=20)
    (tmp_path / "out").mkdir()  # empty: allowed
    assert main(["export", "run", "out"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (
        captured.err
        == "wrote out/encoder\nthe trained layers (latent towers) read vectors, not text, so they stay in run\n"
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["encoder"]
    np.testing.assert_allclose(embed("out/encoder", QUESTIONS), run.rows(QUESTIONS, "chunk")[0].vectors, atol=1e-5)
    card = (tmp_path / "out" / "encoder" / "README.md").read_text()
    assert "frozen encoder whose vectors a latent retriever reads" in card
    assert "pooler is zeros" in card and "trained from" not in card


def test_the_encoder_of_a_latent_run_keeps_its_prompts(tmp_path, save_untrained):
    made = random_encoder("mpnet", QUESTIONS)
    prompts = Prompts("where: ", "the office: ")
    save_encoder(tmp_path / "asks", made.config, made.params, made.tokenizer, prompts=prompts)
    run = save_untrained(tmp_path / "run", source="asks", num_layers=None, window=20)
    assert main(["export", "run", "out"]) == 0
    loaded = load_encoder("out/encoder")
    exported = make_embedder(loaded, window=20)
    assert loaded.prompts == prompts
    np.testing.assert_allclose(exported(QUESTIONS), run.rows(QUESTIONS, "chunk")[0].vectors, atol=1e-5)
    np.testing.assert_allclose(exported.questions(QUESTIONS), run.rows(QUESTIONS, "question")[0].vectors, atol=1e-5)


def test_base_name(tmp_path):
    (tmp_path / "my-bert").mkdir()
    names = ["scratch", "minilm", "facebook/contriever", "my-bert", str(tmp_path / "my-bert"), "/gone/bert"]
    shown = [None, "all-MiniLM-L6-v2", "facebook/contriever", "my-bert", "my-bert", "bert"]
    assert [base_name(name) for name in names] == shown


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["absent", "out"], 2, "absent: no such checkpoint folder"),
        (["vectors", "out"], 2, "vectors: was trained on given vectors and has no text encoder"),
        (["damaged", "out"], 1, "damaged/step_0"),
    ],
)
def test_refusals(tmp_path, save_untrained, capsys, argv, code, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("mine")
    (tmp_path / "file").write_text("mine")
    if argv[0] == "vectors":
        save_untrained(tmp_path / "vectors", np.eye(4, dtype=np.float32), source="vectors")
    if argv[0] == "damaged":
        save_untrained(tmp_path / "damaged")
        (tmp_path / "damaged" / "step_0" / "config.yaml").write_text("model: {}\n")
    assert main(["export", *argv]) == code
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("qrag: error: ") and message in captured.err
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "full" / "a").read_text() == (tmp_path / "file").read_text() == "mine"


def test_what_ends_in_the_middle_leaves_nothing(tmp_path, save_untrained, monkeypatch, capsys):
    save_untrained(tmp_path / "run")

    def write_half(folder, *arguments, **options):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device", str(folder / "model.safetensors"))

    monkeypatch.setattr("qrag_jax.service.sharing.export_sentence_transformer", write_half)
    assert main(["export", "run", "out"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_place_that_cannot_be_written_is_told_before_the_run_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("qrag_jax.service.sharing.load_retriever", None)
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "file").touch()
    for out, message in [("link", "link: is a link"), ("file/out", "file"), (".", "is not empty")]:
        assert main(["export", "run", out]) == 2
        assert message in capsys.readouterr().err
