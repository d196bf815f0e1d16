"""LlamaIndex' retrievers, engines and pipelines over our indexes and chunkers."""

import asyncio

import pytest
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import Document, MetadataMode, QueryBundle, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.integrations.llama_index import QragNodeParser, QragRetriever
from qrag_jax.types import InputError, UsageError

QUESTION = "Who has the lamp in the hall?"
REPEATED = "Yes. No. No. Yes. No.\n\nNo. Yes. No."
FEW = ChunkConfig("fixed", max_tokens=4)


def test_passages_are_nodes_with_exact_places(index, texts):
    found = QragRetriever(index, similarity_top_k=2).retrieve(QUESTION)
    assert len({one.node_id for one in found}) == 2
    assert [one.score for one in found] == [hit.score for hit in index.search(QUESTION, 2)]
    for one in found:
        node = one.node
        assert texts[node.ref_doc_id][node.start_char_idx : node.end_char_idx] == node.text
    assert len(asyncio.run(QragRetriever(index, similarity_top_k=1).aretrieve(QUESTION))) == 1


def test_language_models_read_the_place_and_no_offsets(index):
    (found,) = QragRetriever(index, similarity_top_k=1).retrieve(QUESTION)
    assert found.node.get_content(MetadataMode.LLM) == f"place: key.md:1\n\n{found.text}"
    assert {"source", "sentence", "start_index"} < set(found.metadata)


def test_an_engine_answers_from_the_passages(index):
    engine = RetrieverQueryEngine.from_args(QragRetriever(index, similarity_top_k=2), llm=MockLLM(max_tokens=5))
    answer = engine.query(QUESTION)
    assert [node.metadata["place"] for node in answer.source_nodes][0] == "key.md:1"
    assert str(asyncio.run(engine.aquery(QUESTION))) == str(answer) != ""


class TwoQuestions(QueryFusionRetriever):
    """Asks another question too, as a language model would write it."""

    def _get_queries(self, original_query):
        return [QueryBundle("the key in the hall")]


@pytest.mark.parametrize("mode", ["reciprocal_rerank", "relative_score", "simple"])
def test_a_passage_that_two_questions_find_is_one(index, mode):
    retriever = QragRetriever(index, similarity_top_k=2)
    fusion = TwoQuestions([retriever, QragRetriever(index)], llm=MockLLM(), num_queries=2, mode=mode, use_async=False)
    found = [one.node_id for one in fusion.retrieve(QUESTION)]
    assert len(found) == len(set(found)) > 1


def test_nodes_of_equal_text_keep_their_own_places_and_ids(encoder):
    documents = [Document(text=REPEATED, id_=name, metadata={"title": "T"}) for name in "abc"]
    nodes = QragNodeParser(chunking=FEW, encoder=encoder).get_nodes_from_documents(documents)
    assert len({node.node_id for node in nodes}) == len(nodes) > 6
    assert [REPEATED[node.start_char_idx : node.end_char_idx] for node in nodes] == [node.text for node in nodes]
    places = [(node.ref_doc_id, node.start_char_idx, node.end_char_idx) for node in nodes]
    for (document, _, end), (following, start, _), node in zip(places, places[1:], nodes, strict=False):
        assert document != following or end <= start  # a search for the text would find earlier ones
        assert (node.next_node is not None) == (document == following)
    assert nodes[0].get_content(MetadataMode.EMBED) == f"title: T\n\n{nodes[0].text}"
    again = QragNodeParser(chunking=FEW, encoder=encoder).get_nodes_from_documents(documents)
    assert [node.node_id for node in again] == [node.node_id for node in nodes]


def test_a_pipeline_cuts_documents_and_its_cache_knows_the_chunking(encoder):
    documents, cache = [Document(text=REPEATED), Document(text=REPEATED), Document(text=" ")], IngestionCache()

    def run(chunking):
        parser = QragNodeParser(chunking=chunking, encoder=encoder)
        return IngestionPipeline(transformations=[parser], cache=cache).run(documents=documents)

    few, all_in_one, store = run(FEW), run(ChunkConfig("fixed", max_tokens=100)), SimpleDocumentStore()
    assert len(few) > 4 and [node.text for node in all_in_one] == [REPEATED, REPEATED]
    store.add_documents(few)
    assert len(store.docs) == len(few)
    assert len(asyncio.run(QragNodeParser(encoder=encoder).acall([TextNode(text=REPEATED)]))) == 1


def test_bad_input_is_refused_in_our_words(index, tmp_path):
    with pytest.raises(UsageError, match="nowhere: no such file or folder; check the path"):
        QragRetriever(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="question: it is blank; write a question"):
        QragRetriever(index).retrieve("  ")
    with pytest.raises(UsageError, match="top_k 0: give at least 1"):
        QragRetriever(index, similarity_top_k=0).retrieve(QUESTION)
