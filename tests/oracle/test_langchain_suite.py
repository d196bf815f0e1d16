"""LangChain's own tests of retrievers, over an index of ours."""

import pytest

from qrag_jax import open_index
from qrag_jax.integrations.langchain import QragRetriever
from qrag_jax.types import Document

suite = pytest.importorskip("langchain_tests.integration_tests", reason="a part of the oracle environment")


@pytest.mark.oracle
@pytest.mark.asyncio  # the suite has tests of both kinds and may not be overridden
@pytest.mark.filterwarnings("ignore:.* but it is not an async function")
class TestQragRetriever(suite.RetrieversIntegrationTests):
    """Four documents that share a word with the question."""

    @property
    def retriever_constructor(self):
        return QragRetriever

    @property
    def retriever_constructor_params(self):
        documents = [Document(f"{name}.md", f"{name} has the lamp.") for name in ("Mary", "John", "Anna", "Ada")]
        return {"index": open_index(documents, retriever="bm25")}

    @property
    def retriever_query_example(self):
        return "Who has the lamp?"
