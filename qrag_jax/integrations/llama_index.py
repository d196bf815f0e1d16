"""LlamaIndex: a retriever over an index, and a node parser.

QragRetriever("notes.index", similarity_top_k=3).retrieve("Who has the key?")
"""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any, cast

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.index.methods import DEFAULT_CHUNKING
from qrag_jax.integrations import passages
from qrag_jax.types import Hit, not_installed

try:
    from llama_index.core import schema
    from llama_index.core.node_parser.interface import NodeParser
    from llama_index.core.node_parser.node_utils import build_nodes_from_splits
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, TextNode
except ModuleNotFoundError as error:
    raise not_installed("LlamaIndex", "llama_index") from error

_FOR_MODELS = {"place", "context"}  # metadata of passages that language models read


class Passage(TextNode):
    """A passage that was found. LlamaIndex merges nodes of equal hash, so its hash is that of its place and text."""

    @property
    def hash(self) -> str:
        """A hash without the metadata, which depend on the question."""
        return hashlib.sha256(f"{self.node_id}\0{self.text}".encode("utf-8", "surrogatepass")).hexdigest()


class QragRetriever(BaseRetriever):
    """The passages of an index, a corpus or files that best answer a question, as nodes with scores.

    The text of a node is the passage word for word, its id is one for the place, and its metadata are those of
    `integrations/passages.py:hit_metadata`.
    """

    def __init__(self, index: Any, similarity_top_k: int | None = 5, **settings: Any) -> None:
        """Opens what is searched; `settings` are those of `BaseRetriever`.

        Args:
            index: as given if it is a `Retriever`, else opened by `open_index`, which takes paths and raises.
            similarity_top_k: most passages; None is as many as the method ranks, or as a run picks.
        """
        super().__init__(**settings)
        self.index, self.similarity_top_k = passages.open_retriever(index), similarity_top_k

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self.index.search(query_bundle.query_str, self.similarity_top_k)
        return [NodeWithScore(node=_passage(hit), score=hit.score) for hit in hits]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


class QragNodeParser(NodeParser):
    """Cuts documents into nodes with exact `start_char_idx` and `end_char_idx`. Their ids are those of the chunks.

    The metadata of a node that gathers several spans have these `spans`; line breaks join their texts. `encoder` counts
    tokens: minilm, a folder, or a hub id.
    """

    chunking: ChunkConfig = DEFAULT_CHUNKING
    encoder: str = "minilm"

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any) -> list[BaseNode]:
        made, cut = [], passages.make_cut(self.chunking, self.encoder)
        for node in nodes:
            pieces = cut(node.node_id, node.get_content())
            for one, piece in zip(build_nodes_from_splits([p.text for p in pieces], node), pieces, strict=True):
                one.id_, one.metadata = piece.id, piece.metadata
                made.append(_for_models(one))
        return made

    def _postprocess_parsed_nodes(self, nodes: list[BaseNode], parent_doc_map: dict[str, Any]) -> list[BaseNode]:
        made = super()._postprocess_parsed_nodes(nodes, parent_doc_map)
        for node in cast(list[TextNode], made):  # it has looked for their texts, and found the first of equal ones
            node.start_char_idx, node.end_char_idx = node.metadata["start_index"], node.metadata["end_index"]
        return made


def _passage(hit: Hit) -> TextNode:
    node = Passage(id_=passages.hit_id(hit), text=hit.text, start_char_idx=hit.place.start, end_char_idx=hit.place.end)
    node.relationships[schema.NodeRelationship.SOURCE] = schema.RelatedNodeInfo(node_id=hit.place.document)
    node.metadata = passages.hit_metadata(hit)
    return _for_models(node)


def _for_models(node: TextNode) -> TextNode:
    """Hides from models the metadata that are for programs."""
    hidden = [name for name in node.metadata if name not in _FOR_MODELS]
    node.excluded_llm_metadata_keys += hidden
    node.excluded_embed_metadata_keys += hidden
    return node
