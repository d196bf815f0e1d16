"""The corpus: documents, the nodes they are cut into, vectors, how it was made and what it cost.

A node id is the position of a node, from 0. Documents come in their order. The nodes of a document are its chunks in
the order of their starts, or all nodes of its `ChunkTree` in preorder. `index/corpus_folder.py` saves a corpus.
"""

import hashlib
import time
import warnings
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.text.chunks import chunk_text, make_chunk
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.text.tables import context_of, searched_text
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.dense import Ranking
from qrag_jax.search.store import SURELY_FOUND, StoredVectors, documents_of, nodes_of
from qrag_jax.types import (
    Chunk,
    Cost,
    CountTokens,
    Document,
    Embed,
    Encoder,
    InputError,
    InputWarning,
    KnowsWords,
    Span,
    for_questions,
)
from qrag_jax.unit_rows import are_unit, checked_vectors, unit_rows

ChunkDocument = Callable[[Document], Sequence[Chunk]]
ReportProgress = Callable[[int, int], None]  # (done, of)

_UNKNOWN_SHARE = 0.4  # chosen in 26 scripts: benchmarks/search/results/scripts.md
_LEAST_BYTES = 1.25  # bytes a character; a text with fewer is mostly ASCII
NUM_LOOKED_AT = 300  # characters of a leaf
UNIT_SLACK = 1e-5  # tolerance for a length of 1 in float32


@dataclass(frozen=True)
class MadeBy:
    """How a corpus was made, as far as it is known.

    Attributes:
        chunking: how documents were cut; None if there was no config.
        encoder: name of the encoder, for messages.
        fingerprint: of the encoder (`types.Encoder`); empty if it has none.
    """

    chunking: ChunkConfig | None = None
    encoder: str = ""
    fingerprint: str = ""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents that are cut and perhaps embedded. Derived values are computed at first use and kept.

    Attributes:
        documents: in their order, with distinct ids.
        nodes: by node id, see the module; for trees all nodes, leaves and parents.
        vectors: float32 [nodes, dim] from the encoder, read-only; None if only words are searched.
        made_by: config of the chunks, encoder of the vectors.
        cost: of chunks and vectors.
        num_beyond_window: number of nodes longer than the encoder's window.
        trees: empty, or one for each document with the same nodes.
        stored: the same vectors in a store beside the index; None compares `vectors` only.

    Raises:
        InputError: there is no node, a node is outside its document or out of order, an id is repeated, or vectors or
            trees do not match the nodes.
    """

    documents: tuple[Document, ...]
    nodes: tuple[Chunk, ...]
    vectors: np.ndarray | None = None
    made_by: MadeBy = field(default_factory=MadeBy)
    cost: Cost = field(default_factory=Cost)
    num_beyond_window: int = 0
    trees: tuple[ChunkTree, ...] = ()
    stored: StoredVectors | None = None
    _starts: tuple[int, ...] = field(init=False, repr=False)  # first node of each document, then the number of nodes

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", _check_nodes(self.documents, self.nodes))
        if self.vectors is not None:
            _check_vectors(self.vectors, len(self.nodes))
            view = self.vectors.view()
            view.setflags(write=False)
            object.__setattr__(self, "vectors", view)
        if self.trees:
            _check_trees(self)

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def by_id(self) -> dict[str, Document]:
        """The documents by their ids."""
        return {document.id: document for document in self.documents}

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The text of every node."""
        return tuple(chunk_text(self.by_id[node.document_id].text, node.spans) for node in self.nodes)

    @cached_property
    def contexts(self) -> tuple[str, ...]:
        """The context of every node (`tables.context_of`), mostly empty: for one that begins in a table, its head."""
        return tuple(context_of(self.by_id[node.document_id].text, node.spans) for node in self.nodes)

    @cached_property
    def full_texts(self) -> tuple[str, ...]:
        """The text of every node with its context, as it is embedded and searched."""
        return tuple(map(searched_text, self.contexts, self.texts))

    def copy_key(self, node: int) -> int:
        """A value that is equal for nodes whose texts with contexts differ at most in white space."""
        return copy_key_of(self.full_texts[node])

    @cached_property
    def num_tokens(self) -> np.ndarray:
        """int32 [nodes], the tokens of every node, as counted when it was made."""
        return np.array([node.num_tokens for node in self.nodes], np.int32)

    @cached_property
    def leaves(self) -> np.ndarray:
        """int64, the nodes without children, which are searched; without trees, all nodes."""
        if not self.trees:
            return np.arange(len(self.nodes))
        return np.concatenate([start + tree.leaves for start, tree in zip(self._starts, self.trees, strict=False)])

    @cached_property
    def words(self) -> Bm25Index:
        """The words of every leaf, counted once; ids are positions in `leaves`."""
        return Bm25Index([readable(self.full_texts[node]) for node in self.leaves.tolist()])

    @cached_property
    def unit_vectors(self) -> np.ndarray:
        """float32 [leaves, dim]: the vectors of the leaves scaled to length 1; zeros stay zero.

        Raises:
            InputError: the corpus has no vectors.
        """
        if self.vectors is None:
            raise InputError("corpus: has no vectors; build it with an encoder, or search it by words (bm25)")
        vectors = self.vectors[self.leaves] if self.trees else self.vectors
        return vectors if are_unit(vectors, UNIT_SLACK).all() else unit_rows(vectors)

    @cached_property
    def asked(self) -> dict[str, np.ndarray]:
        """Vectors of the questions that are asked together now (`asked_together`), by their texts."""
        return {}

    @property
    def finds_near(self) -> bool:
        """True if `find_near` finds the nearest leaves without a comparison of all."""
        return self.stored is not None

    def find_near(self, asked: np.ndarray, k: int) -> Ranking:
        """The leaves that the store finds nearest to a question.

        Args:
            asked: float32 [dim] of length 1.
            k: most leaves. Warns if the store has fewer.

        Returns:
            Positions in `leaves`, and cosines in float32, the best first.

        Raises:
            InputError: the store cannot be reached, or has lost its vectors.
        """
        assert self.stored is not None
        keys, scores = self.stored.search(list(self._numbers), asked, k)
        if len(keys) < min(k, len(self.leaves), SURELY_FOUND):
            reason = (
                f"the store {self.stored.kind} has not all vectors of {self.stored.place.folder}, so hits are missing"
            )
            remedy = "search again when its writer has finished, or put them there with `qrag index add INDEX PATHS...`"
            warnings.warn(InputWarning(reason, remedy=remedy), stacklevel=3)
        starts = np.array(self._starts)[[self._numbers[name] for name in self.stored.names(documents_of(keys))]]
        return np.searchsorted(self.leaves, starts + nodes_of(keys)), scores

    def unknown_leaves(self, embed: Embed) -> np.ndarray:
        """bool [leaves], True for those in words that the encoder does not know; looked up once and kept.

        Args:
            embed: the encoder of the vectors.
        """
        if "_unknown" not in self.__dict__:
            texts = [self.texts[node][:NUM_LOOKED_AT] for node in self.leaves.tolist()]
            self.__dict__["_unknown"] = are_unknown(embed, texts)
        return self.__dict__["_unknown"]

    @cached_property
    def by_chunk(self) -> dict[str, int]:
        """The nodes by the ids of their chunks."""
        return {node.id: number for number, node in enumerate(self.nodes)}

    def nodes_of(self, document_id: str) -> range:
        """Ids of the nodes of a document; empty if there is no such document."""
        number = self._numbers.get(document_id)
        return range(0) if number is None else range(self._starts[number], self._starts[number + 1])

    def tree_of(self, node: int) -> tuple[ChunkTree, int]:
        """The tree of a node, and the node's number in that tree.

        Raises:
            InputError: there is no such node, or the corpus has no trees.
        """
        if not self.trees or not 0 <= node < len(self.nodes):
            raise InputError(
                f"node {node}: not in the {len(self.nodes)} nodes and {len(self.trees)} trees of the corpus"
            )
        number = self._number_of(node)
        return self.trees[number], node - self._starts[number]

    def number_of(self, document_id: str) -> int:
        """The position of a document; it must exist."""
        return self._numbers[document_id]

    def numbers_of(self, nodes: np.ndarray) -> np.ndarray:
        """int64 [nodes], the positions of their documents; the nodes must exist."""
        return np.searchsorted(np.array(self._starts), nodes, side="right") - 1

    def only(self, ids: Collection[str]) -> "Corpus":
        """The corpus of some of its documents, in their order; `num_beyond_window` still counts all.

        Raises:
            InputError: none of them is in the corpus.
        """
        numbers = [number for number, document in enumerate(self.documents) if document.id in ids]
        nodes = [node for number in numbers for node in range(self._starts[number], self._starts[number + 1])]
        return replace(
            self,
            documents=tuple(self.documents[number] for number in numbers),
            nodes=tuple(self.nodes[node] for node in nodes),
            vectors=None if self.vectors is None else self.vectors[nodes],
            trees=tuple(self.trees[number] for number in numbers) if self.trees else (),
        )

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {document.id: number for number, document in enumerate(self.documents)}

    def _number_of(self, node: int) -> int:
        """The position of the document of a node, which must exist."""
        return bisect_right(self._starts, node) - 1


def copy_key_of(text: str) -> int:
    """63 bits of a hash of a text whose words have one space between them.

    Two different texts among a million have the same key with a probability of 1 in 20 million.
    """
    digest = hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def build_corpus(
    documents: Sequence[Document],
    chunk: ChunkDocument,
    embed: Embed | None = None,
    *,
    chunking: ChunkConfig | None = None,
    encoder: str = "",
    sentence_embed: Embed | None = None,
    progress: ReportProgress | None = None,
) -> Corpus:
    """Cuts documents into chunks and embeds them.

    Args:
        documents: with distinct ids.
        chunk: cuts a document (`chunking.chunker.make_chunker`).
        embed: as in `embed_corpus`; None for a corpus that is only searched by words.
        chunking: config of `chunk`, recorded in the corpus.
        encoder: name of `embed`, recorded in the corpus.
        sentence_embed: embeds sentences for `chunk`, to count their tokens in the cost; None is `embed`.
        progress: called during cutting with (characters done, of).

    Raises:
        InputError: as `Corpus`, `embed_corpus` and `chunk`.
    """
    reader = embed if sentence_embed is None else sentence_embed
    before = _tokens_read(reader)
    start = time.perf_counter()
    total, done = sum(len(document.text) for document in documents), 0
    nodes: list[Chunk] = []
    for document in documents:
        nodes += chunk(document)
        done += len(document.text)
        if progress is not None:
            progress(done, total)
    cost = Cost({"chunk": time.perf_counter() - start}, _tokens_read(reader) - before)
    corpus = Corpus(tuple(documents), tuple(nodes), made_by=MadeBy(chunking), cost=cost)
    return corpus if embed is None else embed_corpus(corpus, embed, encoder)


def tree_corpus(documents: Sequence[Document], trees: Sequence[ChunkTree], count: CountTokens) -> Corpus:
    """A corpus of trees, without vectors (`embed_corpus` adds them).

    Args:
        documents: with distinct ids.
        trees: one for each document, in their order.
        count: text -> its tokens.

    Raises:
        InputError: trees and documents do not match, or as `ChunkTree.check_document`.
    """
    nodes = []
    for document, tree in zip(documents, trees, strict=False):
        tree.check_document(document)
        levels = tree.level.tolist()
        nodes += [make_chunk(document, [tree.span(number)], level, count) for number, level in enumerate(levels)]
    return Corpus(tuple(documents), tuple(nodes), trees=tuple(trees))


def embed_corpus(corpus: Corpus, embed: Embed, encoder: str = "") -> Corpus:
    """The corpus with vectors of all its nodes.

    Args:
        corpus: its vectors are replaced.
        embed: texts -> vectors. A `types.Encoder` also reports its fingerprint, tokens, and nodes beyond its window.
        encoder: its name, recorded in the corpus.

    Raises:
        InputError: as `embed_texts`.
    """
    before, start = embed.counts if isinstance(embed, Encoder) else None, time.perf_counter()
    vectors = embed_texts(embed, corpus.full_texts)
    seconds = {**corpus.cost.seconds, "embed": time.perf_counter() - start}
    num_tokens = num_beyond = 0
    fingerprint = ""
    if before is not None and isinstance(embed, Encoder):
        num_tokens = int(embed.counts.num_tokens - before.num_tokens)
        num_beyond = int(embed.counts.num_texts_cut - before.num_texts_cut)
        fingerprint = embed.fingerprint
    cost = replace(
        corpus.cost,
        seconds=seconds,
        embedder_tokens=corpus.cost.embedder_tokens + num_tokens,
        index_bytes=vectors.nbytes,
    )
    made_by = replace(corpus.made_by, encoder=encoder, fingerprint=fingerprint)
    return replace(corpus, vectors=vectors, made_by=made_by, cost=cost, num_beyond_window=num_beyond)


def join_corpora(first: Corpus, second: Corpus) -> Corpus:
    """The documents of both corpora, the second after the first, with the cost of the second.

    Raises:
        InputError: their encoders differ, only one has vectors or trees, or they share a document.
    """
    check_fingerprint(first, second.made_by.fingerprint, "the corpus to add")
    vectors = [one.vectors for one in (first, second) if one.vectors is not None]
    if len(vectors) == 1 or bool(first.trees) != bool(second.trees):
        raise InputError("corpus: only one of the two has vectors or trees; make both in the same way")
    return replace(
        second,
        documents=(*first.documents, *second.documents),
        nodes=(*first.nodes, *second.nodes),
        vectors=np.concatenate(vectors) if vectors else None,
        num_beyond_window=first.num_beyond_window + second.num_beyond_window,
        trees=(*first.trees, *second.trees),
    )


def embed_texts(embed: Embed, texts: Sequence[str]) -> np.ndarray:
    """Vectors of texts, float32 [n, dim]; lone surrogates are read as U+FFFD."""
    return checked_vectors(embed([readable(text) for text in texts]), texts)


def embed_question(corpus: Corpus, embed: Embed, question: str) -> np.ndarray:
    """The vector of a question by the encoder of the corpus, float32 [dim] of length 1."""
    known = corpus.asked.get(question)
    return _embed_questions(corpus, embed, [question])[0] if known is None else known


@contextmanager
def asked_together(corpus: Corpus, embed: Embed, questions: Sequence[str]) -> Iterator[np.ndarray]:
    """Embeds questions together; inside of it, `embed_question` knows their vectors.

    Gives the vectors, float32 [questions, dim]; raises as `embed_question`.
    """
    vectors = _embed_questions(corpus, embed, questions)
    corpus.asked.update(zip(questions, vectors, strict=True))
    try:
        yield vectors
    finally:
        for question in questions:
            corpus.asked.pop(question, None)


def _embed_questions(corpus: Corpus, embed: Embed, questions: Sequence[str]) -> np.ndarray:
    dim = corpus.unit_vectors.shape[1]
    if isinstance(embed, Encoder):
        check_fingerprint(corpus, embed.fingerprint, "the question")
    return np.stack([asked_vector(one, dim) for one in embed_texts(for_questions(embed), questions)])


def asked_vector(vector: np.ndarray, dim: int) -> np.ndarray:
    """The vector of a question scaled to length 1, float32; refuses one of another size than the corpus has."""
    if vector.shape != (dim,):
        raise InputError(
            f"question: its vector has {len(vector)} components, those of the corpus have {dim}; use the encoder "
            "that embedded the corpus"
        )
    if not np.isfinite(vector).all():
        raise InputError("question: its vector has a component that is not finite; fix the encoder")
    return unit_rows(vector[None].astype(np.float32))[0]


def are_unknown(embed: object, texts: Sequence[str]) -> np.ndarray:
    """bool [n], True for texts mostly in words that the encoder does not know, so that their vectors are noise.

    False for an encoder that does not tell (`types.KnowsWords`), and for text that is mostly ASCII.
    """
    unknown = np.zeros(len(texts), bool)
    asked = np.flatnonzero(may_be_unknown(texts)).tolist()
    if isinstance(embed, KnowsWords) and asked:
        unknown[asked] = embed.unknown_shares([readable(texts[number]) for number in asked]) > _UNKNOWN_SHARE
    return unknown


def may_be_unknown(texts: Sequence[str]) -> np.ndarray:
    """bool [n], False for text that is mostly ASCII, whose words every encoder knows."""
    # A character outside ASCII has two bytes or more.
    return np.array([len(readable(text).encode()) > len(text) * _LEAST_BYTES for text in texts], bool)


def check_fingerprint(corpus: Corpus, fingerprint: str, what: str) -> None:
    """Refuses to compare vectors of different encoders; an unknown encoder passes."""
    known = corpus.made_by.fingerprint
    if known and fingerprint and known != fingerprint:
        raise InputError(
            f"corpus: its vectors were made by encoder {corpus.made_by.encoder or '(no name)'} ({known[:12]}), but "
            f"{what} has another one ({fingerprint[:12]}); embed the corpus again (embed_corpus), or use its encoder"
        )


def check_place(document: Document | None, document_id: str, spans: Sequence[Span]) -> None:
    """Refuses spans that are not in their document, in order, because results and citations must exist."""
    if document is None:
        raise InputError(f"passage of {document_id!r}: there is no such document; fix the chunker")
    borders = [border for span in spans for border in span]
    inside = borders and 0 <= borders[0] and borders[-1] <= len(document.text)
    if not inside or borders != sorted(borders) or any(start == end for start, end in spans):
        raise InputError(
            f"{document_id}: passage at {list(spans)}: not in its {len(document.text)} characters; fix the chunker"
        )


def _tokens_read(embed: Embed | None) -> int:
    return int(embed.counts.num_tokens) if isinstance(embed, Encoder) else 0


def _check_nodes(documents: Sequence[Document], nodes: Sequence[Chunk]) -> tuple[int, ...]:
    """The first node of each document, then the number of nodes."""
    by_id: dict[str, tuple[int, Document]] = {}
    for number, document in enumerate(documents):
        if by_id.setdefault(document.id, (number, document))[0] != number:
            raise InputError(f"document {document.id!r}: its id occurs twice; give distinct ids")
    if not nodes:
        raise InputError("no chunk to search; give at least one")
    sizes, last = [0] * len(documents), 0
    for place, node in enumerate(nodes):
        number, document = by_id.get(node.document_id, (-1, None))
        check_place(document, node.document_id, node.spans)
        if number < last:
            raise InputError(
                f"node {place}: its document {node.document_id!r} comes before {documents[last].id!r}; give nodes in "
                "the order of their documents"
            )
        sizes[number] += 1
        last = number
    return (0, *np.cumsum(sizes).tolist())


def _check_vectors(vectors: np.ndarray, num_nodes: int) -> None:
    if vectors.dtype != np.float32 or vectors.ndim != 2 or len(vectors) != num_nodes or not vectors.shape[1]:
        raise InputError(
            f"vectors {vectors.dtype} {list(vectors.shape)}: expected float32 [{num_nodes}, dim], one for each node"
        )
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise InputError(f"vector of node {int(np.argmin(finite))}: not finite; fix the encoder")


def _check_trees(corpus: Corpus) -> None:
    if len(corpus.trees) != len(corpus.documents):
        raise InputError(f"{len(corpus.trees)} trees for {len(corpus.documents)} documents; give one for each")
    for document, tree, (start, stop) in zip(corpus.documents, corpus.trees, pairwise(corpus._starts), strict=True):
        tree.check_document(document)
        spans = [(span,) for span in zip(tree.start.tolist(), tree.end.tolist(), strict=True)]
        here = corpus.nodes[start:stop]
        if spans != [node.spans for node in here] or tree.level.tolist() != [node.level for node in here]:
            raise InputError(f"{document.id}: its nodes are not those of its tree; use tree_corpus")
