"""A small index that all adapters search."""

import pytest
from support.encoders import random_encoder

from qrag_jax import open_index
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.types import Document

KEY = "The key hangs in the hall. Mary has the lamp.\n\nIt rained in the garden all day. Nobody came by."
FILM = "John went to the station. The film began at nine."
PARTS = ChunkConfig("fixed", max_tokens=12)


@pytest.fixture(scope="package")
def encoder(tmp_path_factory):
    """The folder of an encoder of a few words."""
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", [KEY, FILM])
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    return str(folder)


@pytest.fixture(scope="package")
def texts():
    return {"key.md": KEY, "film.md": FILM}


@pytest.fixture(scope="package")
def index(encoder, texts):
    documents = [Document(name, text) for name, text in texts.items()]
    with open_index(documents, encoder=encoder, chunking=PARTS, retriever="bm25") as opened:
        yield opened
