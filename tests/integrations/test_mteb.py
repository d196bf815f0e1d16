"""What our models for MTEB do without it; `tests/oracle/test_mteb.py` compares scores."""

import importlib.util
from dataclasses import replace

import pytest
from support.encoders import random_encoder
from support.runs import save_run

from qrag_jax import make_embedder
from qrag_jax.integrations.mteb import MtebEncoder, MtebSearch
from qrag_jax.models.encoder.config import Prompts
from qrag_jax.types import InputError, UsageError

CORPUS = [
    {"id": "rye", "title": "Rye", "text": "It is a hardy grass. Rye grows on poor soil."},
    {"id": "none", "title": None, "text": " "},
    {"id": "oats", "text": "Oats are grown for horses."},
]


def test_words_find_documents_and_blank_ones_are_left_out():
    model = MtebSearch("bm25")
    model.index(CORPUS)
    asked = [
        {"id": "q", "text": "rye"},
        {"id": "told", "text": "?", "instruction": "oats"},
        {"id": "no", "text": "wheat"},
    ]
    found = model.search(asked, top_k=5)
    assert {name: list(scores) for name, scores in found.items()} == {"q": ["rye"], "told": ["oats"], "no": []}


@pytest.mark.slow
def test_a_run_finds_the_documents_of_its_picks(tmp_path):
    """Each pick is a sentence; a document that is picked again keeps its place, and the scores fall."""
    texts = ["It is a hardy grass.", "Rye grows on poor soil.", "Oats are grown for horses."]
    model = MtebSearch(save_run(tmp_path / "run", texts), num_steps=3)
    model.index(CORPUS)
    ((name, scores),) = model.search([{"id": "q", "text": "grass"}], top_k=5).items()
    assert name == "q" and sorted(scores) == ["oats", "rye"]
    first, second = scores.values()
    assert first > second
    assert len(model.search([{"id": "q", "text": "grass"}], top_k=1)["q"]) == 1


def test_queries_are_read_with_the_prompt_of_questions(monkeypatch):
    small = replace(random_encoder("bert", ["rye", "oats", "query: "]), prompts=Prompts(query="query: "))
    monkeypatch.setattr("qrag_jax.integrations.mteb.load_embedder", lambda *_: make_embedder(small))
    model = MtebEncoder()
    batches = [{"text": ["rye", "oats"]}, {"text": ["rye"]}]
    read, asked = model.encode(batches), model.encode(batches, prompt_type="query")
    assert read.shape == asked.shape and (read[0] == read[2]).all()
    assert not (read[0] == asked[0]).all()
    assert (asked == model.encode([{"text": ["query: rye", "query: oats", "query: rye"]}])).all()


def test_what_it_does_not_do_is_refused():
    model = MtebSearch("bm25")
    model.index(CORPUS)
    with pytest.raises(UsageError, match="reranking tasks give the documents to rank"):
        model.search([], top_k=5, top_ranked={"q": ["rye"]})
    with pytest.raises(InputError, match="row 'c': its text is a conversation"):
        model.search([{"id": "c", "text": ["hello", "rye?"]}], top_k=5)


@pytest.mark.skipif(importlib.util.find_spec("mteb") is not None, reason="MTEB is installed")
def test_mteb_is_named_where_it_is_missing():
    with pytest.raises(UsageError, match=r"pip install 'qrag_jax\[mteb\]'"):
        _ = MtebSearch("bm25").mteb_model_meta
