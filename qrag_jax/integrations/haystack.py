"""Haystack: a retriever over an index, as a component.

pipeline.add_component("retriever", QragRetriever("notes.index", top_k=3))
"""

import asyncio
import os
from typing import Any

from qrag_jax.integrations import passages
from qrag_jax.types import UsageError, not_installed

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ModuleNotFoundError as error:
    raise not_installed("Haystack", "haystack") from error


@component
class QragRetriever:
    """Finds the passages of an index, a corpus or files that best answer a question.

    Each is a document whose `content` is the text of the passage, word for word. Its `meta` are those of
    `integrations/passages.py:hit_metadata`.
    """

    def __init__(self, index: Any, top_k: int | None = 5) -> None:
        """Opens what is searched.

        Args:
            index: as given if it is a `Retriever`, else opened by `open_index`, which takes paths.
            top_k: most passages; None is as many as the method ranks, or as a run picks.

        Raises:
            UsageError, InputError: of `open_index`.
        """
        self.index, self.top_k = index, top_k
        self._retriever = passages.open_retriever(index)

    @component.output_types(documents=list[Document])
    def run(self, query: str, top_k: int | None = None) -> dict[str, list[Document]]:
        """The best passages, the best first.

        Args:
            query: the question.
            top_k: replaces that of the component.

        Raises:
            UsageError, InputError: of the search, for a blank question or a `top_k` below 1.
        """
        found = []
        for hit in self._retriever.search(query, self.top_k if top_k is None else top_k):
            meta = passages.hit_metadata(hit)
            found.append(Document(id=passages.hit_id(hit), content=hit.text, meta=meta, score=hit.score))
        return {"documents": found}

    @component.output_types(documents=list[Document])
    async def run_async(self, query: str, top_k: int | None = None) -> dict[str, list[Document]]:
        """As `run`, in a thread, so that other components go on."""
        return await asyncio.to_thread(self.run, query, top_k)

    def to_dict(self) -> dict[str, Any]:
        """The component for the file of a pipeline.

        Raises:
            UsageError: `index` is not a path, so a file cannot name it.
        """
        if not isinstance(self.index, str | os.PathLike):
            reason = "only a component made from one path can be written to a file; give the path of an index"
            raise UsageError(reason, field="index")
        return default_to_dict(self, index=os.fspath(self.index), top_k=self.top_k)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "QragRetriever":
        """The component that `to_dict` wrote; its index is opened again."""
        return default_from_dict(cls, data)
