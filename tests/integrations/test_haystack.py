"""Haystack's component over our indexes: its sockets, in pipelines, in files."""

import asyncio
import json

import pytest
from haystack import Document, Pipeline
from haystack.components.builders import PromptBuilder
from haystack.core.errors import DeserializationError, PipelineRuntimeError

from qrag_jax.index.build import build_index, index_settings
from qrag_jax.integrations.haystack import QragRetriever
from qrag_jax.types import InputError, UsageError

QUESTION = "Who has the lamp in the hall?"
MODULE = QragRetriever.__module__


def pipeline_of(retriever):
    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever)
    template = "{% for one in documents %}[{{ one.meta.place }}] {{ one.content }}\n{% endfor %}"
    pipeline.add_component("prompt", PromptBuilder(template, required_variables="*"))
    pipeline.connect("retriever.documents", "prompt.documents")
    return pipeline


def test_the_component_has_its_sockets(index):
    component = QragRetriever(index)
    inputs = {name: (one.type, one.is_mandatory) for name, one in component.__haystack_input__._sockets_dict.items()}
    assert inputs == {"query": (str, True), "top_k": (int | None, False)}
    outputs = {name: one.type for name, one in component.__haystack_output__._sockets_dict.items()}
    assert outputs == {"documents": list[Document]} and component.__haystack_supports_async__


def test_passages_are_documents_with_exact_places(index, texts):
    retriever = QragRetriever(index, top_k=2)
    found = retriever.run(QUESTION)["documents"]
    assert len({document.id for document in found}) == 2
    for document in found:
        text = texts[document.meta["source"]]
        assert text[document.meta["start_index"] : document.meta["end_index"]] == document.content
        assert Document.from_dict(json.loads(json.dumps(document.to_dict()))) == document
    assert [document.score for document in found] == [hit.score for hit in index.search(QUESTION, 2)]
    assert len(retriever.run(QUESTION, top_k=1)["documents"]) == 1


def test_a_pipeline_runs(index):
    pipeline = pipeline_of(QragRetriever(index, top_k=1))
    found = pipeline.run({"retriever": {"query": QUESTION}})
    assert found["prompt"]["prompt"].startswith("[key.md:1] The key hangs in the hall.")
    assert asyncio.run(pipeline.run_async({"retriever": {"query": QUESTION}})) == found


def test_a_pipeline_is_written_and_read_with_the_path_of_its_index(tmp_path, encoder, texts):
    (tmp_path / "key.md").write_text(texts["key.md"])
    build_index(tmp_path / "i", tmp_path / "key.md", index_settings(model=encoder, notes="none"))
    pipeline = pipeline_of(QragRetriever(tmp_path / "i", top_k=1))
    written = pipeline.dumps()
    assert pipeline.to_dict()["components"]["retriever"] == {
        "type": f"{MODULE}.QragRetriever",
        "init_parameters": {"index": str(tmp_path / "i"), "top_k": 1},
    }
    read = Pipeline.loads(written, allowed_modules=[MODULE])
    assert read == pipeline and read.dumps() == written
    asked = {"retriever": {"query": QUESTION}}
    assert read.run(asked) == pipeline.run(asked)
    with pytest.raises(DeserializationError, match=MODULE):
        Pipeline.loads(written)
    with pytest.raises(DeserializationError, match="nowhere: no such file or folder"):
        Pipeline.loads(written.replace(str(tmp_path / "i"), str(tmp_path / "nowhere")), allowed_modules=[MODULE])


def test_bad_input_is_refused_in_our_words(index, tmp_path):
    with pytest.raises(UsageError, match="nowhere: no such file or folder; check the path"):
        QragRetriever(tmp_path / "nowhere")
    with pytest.raises(InputError, match="question: it is blank; write a question"):
        QragRetriever(index).run(" ")
    with pytest.raises(UsageError, match="top_k 0: give at least 1"):
        QragRetriever(index).run(QUESTION, top_k=0)
    with pytest.raises(PipelineRuntimeError, match="question: it is blank"):
        pipeline_of(QragRetriever(index)).run({"retriever": {"query": ""}})
    with pytest.raises(UsageError, match="index: only a component made from one path"):
        pipeline_of(QragRetriever(index)).dumps()
