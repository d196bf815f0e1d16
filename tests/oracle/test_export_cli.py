"""What `qrag export` writes against sentence-transformers: the vectors of the run's own towers to 1e-5."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.encoders import random_encoder

from qrag_jax.checkpoint import save_checkpoint
from qrag_jax.cli.main import main
from qrag_jax.config import to_dict
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, new_retriever, retriever_files
from qrag_jax.train.qrag.config import RunConfig

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("quick_compilation")]

TEXTS = ["Where is the milk?", "Mary went to the kitchen.", "a", "John picked up the football there. " * 12]
SOURCES = {
    "minilm": EncoderSpec("minilm", num_layers=2, window=32, question_window=96),
    "scratch": EncoderSpec("scratch", num_layers=2, hidden_size=16, num_heads=4, window=32, question_window=96),
}
FAMILIES = ["roberta", "xlm-roberta", "mpnet"]


def spec_of(source, tmp_path):
    if source not in FAMILIES:
        return SOURCES[source]
    made = random_encoder(source, TEXTS, max_positions=200)
    save_encoder(tmp_path / "encoder", made.config, made.params, made.tokenizer)
    return EncoderSpec(str(tmp_path / "encoder"), num_layers=None, window=32, question_window=200, pooling="cls")


def save_run(folder, mode, source):
    """A run folder with towers that differ from each other and from what they started from."""
    model, env = ModelConfig(mode=mode, encoder=spec_of(source, folder.parent)), EnvConfig()
    retriever, _, _ = new_retriever(model, env, TEXTS, jax.random.key(0))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: leaf + rng.normal(0, 0.02, leaf.shape).astype(np.float32), dict(retriever.params)
    )
    arrays = {"params": params, "constants": dict(retriever.constants)}
    config = to_dict(RunConfig(model=model, env=env))
    save_checkpoint(folder, 0, arrays, config, retriever_files(retriever))
    return retriever, params


def load_reference(folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("source", [*SOURCES, *FAMILIES])
def test_the_router_of_a_text_run(tmp_path, source, capfd, caplog):
    retriever, params = save_run(tmp_path / "run", "text", source)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    questions, rows = (jax.device_put(retriever.rows(TEXTS, kind)[0]) for kind in ("question", "chunk"))
    nothing = jnp.zeros((len(TEXTS), 0), jnp.int32)
    states = jax.jit(retriever.network.states)(params, questions, rows, nothing)
    actions = jax.jit(retriever.network.actions)(params, rows)
    assert np.abs(states - actions).max() > 1e-2
    reference = load_reference(tmp_path / "out")
    assert reference.similarity_fn_name == "dot"
    queries, documents = reference.encode_query(TEXTS), reference.encode_document(TEXTS)
    np.testing.assert_allclose(queries, states, atol=1e-5)
    np.testing.assert_allclose(documents, actions, atol=1e-5)
    np.testing.assert_array_equal(reference.encode(TEXTS), documents)
    np.testing.assert_allclose(reference.similarity(queries, documents), states @ actions.T, rtol=1e-4, atol=1e-5)
    captured = capfd.readouterr()
    printed = captured.out + captured.err + caplog.text
    assert "MISSING" not in printed and "UNEXPECTED" not in printed


@pytest.mark.parametrize("source", [*SOURCES, "mpnet"])
def test_the_encoder_of_a_latent_run(tmp_path, source):
    retriever, _ = save_run(tmp_path / "run", "latent", source)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    vectors = retriever.rows(TEXTS, "chunk")[0].vectors
    np.testing.assert_allclose(load_reference(tmp_path / "out" / "encoder").encode(TEXTS), vectors, atol=1e-5)
