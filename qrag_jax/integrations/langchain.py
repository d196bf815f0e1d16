"""LangChain: a retriever over an index, and a text splitter.

QragRetriever(index="notes.index", k=3).invoke("Who has the key?")
"""

import copy
from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.index.index import Index
from qrag_jax.index.methods import DEFAULT_CHUNKING
from qrag_jax.integrations import passages
from qrag_jax.types import Retriever, not_installed

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
    from langchain_core.runnables.config import run_in_executor
    from langchain_text_splitters import TextSplitter
except ModuleNotFoundError as error:
    raise not_installed("LangChain", "langchain") from error


class QragRetriever(BaseRetriever):
    """The passages of an index, a corpus or files that best answer a question.

    Each is a document whose `page_content` is the text of the passage, word for word. Its metadata are those of
    `integrations/passages.py:hit_metadata`, and `score`.

    Attributes:
        index: what to search: as given if it is a `Retriever`, else opened by `open_index`, which takes paths.
        k: most passages; None is as many as the method ranks, or as a run picks. `invoke(question, k=1)` replaces it.

    Raises:
        UsageError, InputError: of `open_index`; of the search, for a blank question or a `k` below 1.
    """

    model_config = ConfigDict(extra="forbid")  # a wrong name would silently leave `k` as it is

    index: Retriever
    k: int | None = 5

    def __init__(self, index: Any, **fields: Any) -> None:
        fields["index"] = passages.open_retriever(index)  # before pydantic, which would wrap its errors
        super().__init__(**fields)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        found = []
        for hit in self.index.search(query, self.k if k is None else k):
            metadata = {**passages.hit_metadata(hit), "score": hit.score}
            found.append(Document(hit.text, id=passages.hit_id(hit), metadata=metadata))
        return found

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        manager = run_manager.get_sync()
        return await run_in_executor(None, self._get_relevant_documents, query, run_manager=manager, k=k)

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        """The names that traces show."""
        model = self.index.settings.model if isinstance(self.index, Index) else None
        return LangSmithRetrieverParams(ls_retriever_name="qrag", ls_embedding_model=model)


class QragTextSplitter(TextSplitter):
    """Cuts texts into chunks; `create_documents` and `split_documents` add the exact place of each.

    Metadata of a chunk are those of its document and `start_index`, `end_index`: half-open characters of the text. A
    chunk that gathers several spans has `spans` too, and joins their texts by line breaks.
    """

    def __init__(self, chunking: ChunkConfig = DEFAULT_CHUNKING, encoder: str = "minilm") -> None:
        """Makes a splitter.

        Args:
            chunking: strategy and sizes.
            encoder: counts tokens: minilm, a folder, or a hub id.
        """
        super().__init__(add_start_index=True)
        self._cut = passages.make_cut(chunking, encoder)

    def split_text(self, text: str) -> list[str]:
        """The texts of the chunks; none for a blank text."""
        return [piece.text for piece in self._cut("text", text)]

    def create_documents(self, texts: Sequence[str], metadatas: Sequence[dict] | None = None) -> list[Document]:
        """The chunks of texts as documents, with a copy of the metadata of each text."""
        found = []
        for text, metadata in zip(texts, metadatas or [{}] * len(texts), strict=True):
            for piece in self._cut(str(metadata.get("source", "text")), text):
                found.append(Document(piece.text, metadata={**copy.deepcopy(metadata), **piece.metadata}))
        return found
