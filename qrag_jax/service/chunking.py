"""Cuts documents by any strategy into chunks with exact offsets: `qrag chunk`."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qrag_jax.annotate.boundary_sources import PointTools, make_source
from qrag_jax.chunking.chunker import ChunkConfig, make_chunker, make_tree_builder, points_of
from qrag_jax.chunking.strategies.late import late_vectors
from qrag_jax.chunking.text.blocks import make_unit_splitter
from qrag_jax.chunking.text.chunks import SentenceText, SplitSentences
from qrag_jax.chunking.tree.boundaries import PredictPoints, predict_at_once
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.models.encoder.sources import load_tokenizer
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.names import CHUNKERS, PointsName
from qrag_jax.types import Chunk, Document, Embed, UsageError

if TYPE_CHECKING:  # it imports JAX, and most strategies read no vectors
    from qrag_jax.models.encoder.embedder import TextEmbedder


@dataclass(frozen=True)
class ChunkRequest:
    """How to cut documents.

    Attributes:
        config: strategy and sizes.
        split: text -> its sentences.
        encoder: its tokenizer counts tokens; some strategies also compare its vectors.
        all_nodes: return all nodes of trees, in tree order, instead of chunks.
        vectors: also return the vectors of chunks; only strategy late has them.
    """

    config: ChunkConfig
    split: SplitSentences
    encoder: str = "minilm"
    all_nodes: bool = False
    vectors: bool = False

    @property
    def makes_trees(self) -> bool:
        """True if the chunks are nodes of trees."""
        return self.all_nodes or self.config.strategy in CHUNKERS.choices("tree")

    @property
    def points(self) -> PointsName | None:
        """The source of boundaries that the strategy uses, or None."""
        return None if self.all_nodes else points_of(self.config)


@dataclass(frozen=True)
class Cut:
    """A document cut into chunks.

    Attributes:
        chunks: in order of their beginnings; all nodes of the tree for `all_nodes`.
        tree: of the chunks; None if the strategy makes none.
        vectors: of the chunks, float32 [chunks, dim]; None if not requested.
        warnings: of the strategy.
    """

    document: Document
    chunks: list[Chunk]
    tree: ChunkTree | None = None
    vectors: np.ndarray | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cutter:
    """Cuts documents, one at a time.

    Attributes:
        request: how to cut.
        tokenizer: counts the tokens.
        embedder: makes vectors, if the strategy needs them.
        build: document -> its tree, if the strategy makes trees.
    """

    request: ChunkRequest
    tokenizer: TextTokenizer
    embedder: "TextEmbedder | None" = None
    build: Callable[[Document], ChunkTree] | None = None

    def cut(self, document: Document, embed: Embed | None = None) -> Cut:
        """Cuts one document.

        Args:
            embed: used instead of the embedder, for example to show progress.
        """
        if self.build is not None:
            tree = self.build(document)
            chunks_of = tree.node_chunks if self.request.all_nodes else tree.chunks
            return Cut(document, chunks_of(document, self.tokenizer.count), tree)
        with warnings.catch_warnings(record=True, action="always", category=UserWarning) as caught:
            config, count = self.request.config, self.tokenizer.count
            chunks = make_chunker(config, count, embed or self.embedder, self.request.split)(document)
            vectors = None if not self.request.vectors else self._late_vectors(document, chunks)
        return Cut(document, chunks, None, vectors, tuple(str(warning.message) for warning in caught))

    def _late_vectors(self, document: Document, chunks: Sequence[Chunk]) -> np.ndarray:
        assert self.embedder is not None
        spans, late = [chunk.spans for chunk in chunks], self.request.config.late
        return late_vectors(
            document.text, spans, self.embedder.tokens, self.tokenizer.count, late.window_tokens, late.overlap_tokens
        )


def make_cutter(request: ChunkRequest, documents: Sequence[Document], tools: PointTools) -> Cutter:
    """Loads a cutter: the tokenizer, the weights if vectors are needed, and the source of boundaries.

    Args:
        documents: all documents; the source of boundaries sees them together.
        tools: of the source of boundaries.

    Raises:
        Estimated: a language model finds the boundaries, and the request asks only for an estimate.
    """
    cutter = _load(request)
    if not request.makes_trees:
        return cutter
    name = request.points
    predict = None if name is None else _find_points(name, tools, documents, request.split)
    count = cutter.tokenizer.count
    return Cutter(request, cutter.tokenizer, None, make_tree_builder(request.config, count, request.split, predict))


def _load(request: ChunkRequest) -> Cutter:
    config = request.config
    if config.strategy not in CHUNKERS.choices("vectors") and not request.vectors:
        return Cutter(request, load_tokenizer(request.encoder))
    from qrag_jax.models.encoder.embedder import make_embedder
    from qrag_jax.models.encoder.weights import load_encoder

    loaded = load_encoder(request.encoder)
    try:
        embedder = make_embedder(loaded, window=config.late.window_tokens if request.vectors else None)
    except UsageError as error:
        raise error.at("late.window_tokens") from error
    return Cutter(request, loaded.tokenizer, embedder)


def _find_points(
    name: PointsName, tools: PointTools, documents: Sequence[Document], split: SplitSentences
) -> PredictPoints:
    """A source with the boundaries of all documents, which it reads together."""
    units = make_unit_splitter(split)
    texts = [SentenceText(document.text, tuple(units(document.text))) for document in documents]
    return predict_at_once(make_source(name, tools), texts, [document.id for document in documents])
