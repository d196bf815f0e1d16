"""LangChain's retriever and text splitter over our indexes and chunkers. Their own tests: tests/oracle."""

import asyncio
import itertools

import pytest
from langchain_core.documents import Document as LangChainDocument
from langchain_core.runnables import ConfigurableField
from langchain_text_splitters import TextSplitter

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.integrations.langchain import QragRetriever, QragTextSplitter
from qrag_jax.types import InputError, UsageError

QUESTION = "Who has the lamp in the hall?"
REPEATED = "Yes. No. No. Yes. No.\n\nNo. Yes. No."


def test_passages_are_documents_with_exact_places(index, texts):
    found = QragRetriever(index=index, k=2).invoke(QUESTION)
    assert len({document.id for document in found}) == 2
    for document in found:
        told = document.metadata
        text = texts[told["source"]]
        assert text[told["start_index"] : told["end_index"]] == document.page_content
        assert told["line"] == text[: told["start_index"]].count("\n") + 1
    first = found[0].metadata
    assert (first["sentence"], first["place"], first["score"]) == ("Mary has the lamp.", "key.md:1", first["score"])
    assert first["score"] >= found[1].metadata["score"] > 0


def test_the_number_of_passages(index):
    retriever = QragRetriever(index, k=2)
    assert [len(retriever.invoke(QUESTION, k=number)) for number in (None, 1)] == [2, 1]
    assert len(asyncio.run(retriever.ainvoke(QUESTION, k=1))) == 1
    one = retriever.configurable_fields(k=ConfigurableField(id="k")).with_config(configurable={"k": 1})
    assert len(one.invoke(QUESTION)) == 1


def test_threads_find_what_one_finds(index):
    retriever, questions = QragRetriever(index=index), [QUESTION, "the station", "the garden"] * 10
    assert retriever.batch(questions) == [retriever.invoke(question) for question in questions]


def test_any_retriever_is_searched(index):
    class Noting:
        asked = []

        def search(self, question, top_k=None):
            self.asked.append((question, top_k))
            return index.search(question, 1)

    assert len(QragRetriever(index=Noting(), k=None).invoke(QUESTION)) == 1
    assert Noting.asked == [(QUESTION, None)]


def test_traces_name_the_encoder(index, encoder):
    assert QragRetriever(index=index)._get_ls_params() == {"ls_retriever_name": "qrag", "ls_embedding_model": encoder}


def test_bad_input_is_refused_in_our_words(index, tmp_path):
    with pytest.raises(UsageError, match="nowhere: no such file or folder; check the path"):
        QragRetriever(index=str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="question: it is blank; write a question"):
        QragRetriever(index=index).invoke("  ")
    with pytest.raises(UsageError, match="top_k 0: give at least 1"):
        QragRetriever(index=index, k=0).invoke(QUESTION)


def test_a_field_that_does_not_exist_is_refused(index):
    with pytest.raises(ValueError, match="top_k"):
        QragRetriever(index=index, top_k=3)


def test_places_of_repeated_chunks_are_exact(encoder):
    splitter = QragTextSplitter(ChunkConfig("fixed", max_tokens=4), encoder)
    found = splitter.create_documents([REPEATED])
    places = [(document.metadata["start_index"], document.metadata["end_index"]) for document in found]
    assert [REPEATED[start:end] for start, end in places] == [document.page_content for document in found]
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places)) and len(found) > 2
    assert splitter.split_text(REPEATED) == [document.page_content for document in found]
    searched = TextSplitter.create_documents(splitter, [REPEATED])  # LangChain looks for the text of a chunk
    assert [document.metadata["start_index"] for document in searched] != [start for start, _ in places]


def test_documents_keep_their_metadata_and_blank_ones_have_no_chunks(encoder):
    pages = [LangChainDocument(text, metadata={"page": page}) for page, text in enumerate((REPEATED, " \n", "Yes."))]
    found = QragTextSplitter(encoder=encoder).split_documents(pages)
    assert [document.metadata["page"] for document in found] == [0, 2]
    assert QragTextSplitter(encoder=encoder).split_text(" ") == []
    assert pages[0].metadata == {"page": 0}
