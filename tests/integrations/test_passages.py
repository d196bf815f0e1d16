"""What all adapters tell about a passage, and what they say where a library is missing."""

import importlib
import json
import sys
from dataclasses import replace

import pytest

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.clusters import LinkageConfig
from qrag_jax.integrations.passages import hit_id, hit_metadata, make_cut, open_retriever
from qrag_jax.types import Document, Hit, NoteHit, Place, Sentence, UsageError

PLACE = Place("report.pdf", 3, 40, line=2, page=4)
SENTENCE = Sentence("Mary has it.", Place("report.pdf", 20, 32, line=3, page=5), 0.5)
HIT = Hit(1, PLACE, ((3, 10), (20, 40)), "One\nMary has it. So.", 0.0, SENTENCE)


def test_metadata_of_a_passage_with_everything():
    notes = (NoteHit("Who has it?", "mentions", PLACE, PLACE, "it"),)
    hit = replace(HIT, notes=notes, copies=(Place("b.md", 0, 12, 1),), left_out={"images": 2}, context="# Keys")
    assert hit_metadata(hit) == json.loads(json.dumps(hit_metadata(hit))) == {
        "start_index": 3,
        "end_index": 40,
        "spans": [[3, 10], [20, 40]],
        "source": "report.pdf",
        "line": 2,
        "page": 4,
        "place": "report.pdf#page=5",
        "sentence": "Mary has it.",
        "context": "# Keys",
        "notes": ["Who has it?"],
        "copies": ["b.md:1"],
        "left_out": {"images": 2},
    }  # fmt: skip


def test_empty_values_are_left_out_and_zeros_are_not():
    start = Place("a.md", 0, 5, line=1)
    found = hit_metadata(replace(HIT, place=start, spans=((0, 5),), sentence=Sentence("Mary.", start)))
    assert found == {
        "start_index": 0, "end_index": 5, "source": "a.md", "line": 1, "place": "a.md:1", "sentence": "Mary.",
    }  # fmt: skip


def test_ids_are_of_places():
    elsewhere = [replace(HIT, place=replace(PLACE, document="b")), replace(HIT, spans=((3, 10), (21, 40)))]
    assert len({hit_id(hit) for hit in (HIT, *elsewhere)}) == 3
    assert hit_id(replace(HIT, text="another", score=2.0)) == hit_id(HIT)


def test_ids_of_passages_are_those_of_their_chunks(index):
    chunks = {chunk.id for chunk in index.corpus.nodes}
    assert {hit_id(hit) for hit in index.search("the lamp of the station", None)} <= chunks


def test_a_retriever_is_taken_as_it_is_and_documents_are_opened(index, encoder):
    assert open_retriever(index) is index
    assert open_retriever([Document("a.md", "Mary has the lamp.")]).documents() == ("a.md",)


def test_a_chunk_of_several_spans_names_them(encoder):
    text = "Rain falls. Mary runs. Rain falls. Mary runs."
    pieces = make_cut(ChunkConfig("linkage", linkage=LinkageConfig(num_clusters=2, lambda_=0.0)), encoder)("a", text)
    gathered = [piece for piece in pieces if "spans" in piece.metadata]
    assert gathered
    for piece in gathered:
        spans = piece.metadata["spans"]
        assert piece.text == "\n".join(text[start:end] for start, end in spans)
        assert (piece.metadata["start_index"], piece.metadata["end_index"]) == (spans[0][0], spans[-1][1])


@pytest.mark.parametrize(
    ("adapter", "library", "module"),
    [
        ("langchain", "LangChain", "langchain_core.callbacks"),
        ("langchain", "LangChain", "langchain_text_splitters"),
        ("llama_index", "LlamaIndex", "llama_index.core"),
        ("haystack", "Haystack", "haystack"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, adapter, library, module):
    monkeypatch.delitem(sys.modules, f"qrag_jax.integrations.{adapter}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError) as error:
        importlib.import_module(f"qrag_jax.integrations.{adapter}")
    assert str(error.value) == f"{library} is not installed; run: pip install 'qrag_jax[{adapter}]'"
