"""Files to entries: read, cut, and embedded as far as the index has no vector of a text yet.

`prepare` runs in any process; what knows the vectors of an index, `KnownVectors`, in the one that has it open.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.data.files.documents import DocumentFile, read_document
from qrag_jax.retrieval.catalogue.entries import (
    Entry,
    Failure,
    Origin,
    text_key,
    to_text,
    unpack_nodes,
    unpack_vectors,
)
from qrag_jax.retrieval.catalogue.rows import read_row
from qrag_jax.retrieval.corpus.corpus import ChunkDocument, embed_texts
from qrag_jax.types import Chunk, CountTokens, Document, Encoder, InputError

MakeTree = Callable[[Document], tuple[ChunkTree, Sequence[Chunk]]]
# Keys of texts -> of those that are known, the vector and whether the text is cut.
Ask = Callable[[Sequence[bytes]], dict[bytes, tuple[np.ndarray, bool]]]


@dataclass(frozen=True)
class Maker:
    """What makes entries of documents.

    Attributes:
        chunk: cuts one.
        embed: texts of chunks -> vectors.
        count: tokens of a text, by the encoder's tokenizer.
        tree: makes the tree of one and its nodes, where that is kept in place of chunks.
    """

    chunk: ChunkDocument
    embed: Encoder
    count: CountTokens
    tree: MakeTree | None = None


MakeMaker = Callable[[], Maker]  # loads it; in a process of its own too, so it can be pickled


@dataclass(frozen=True)
class Task:
    """A file to read.

    Attributes:
        file: whose id its document has.
        raw: its bytes.
        origin: of them.
        encoding: of a text.
    """

    file: DocumentFile
    raw: bytes
    origin: Origin
    encoding: str


@dataclass(frozen=True)
class Made:
    """What became of some tasks, and what it took.

    Attributes:
        results: of each task an entry, or why there is none.
        num_embedded: chunks whose vectors were computed.
        num_reused: chunks whose vectors were known.
    """

    results: tuple[Entry | Failure, ...]
    num_embedded: int = 0
    num_reused: int = 0


def prepare(maker: Maker, tasks: Sequence[Task], ask: Ask | None) -> Made:
    """Reads, cuts and embeds some files together; one that cannot be read or cut is a failure of its own.

    Args:
        maker: cuts and embeds.
        tasks: the files.
        ask: for the vectors that are known; None where texts do not decide on vectors.

    Raises:
        InputError: the encoder gives no vectors.
    """
    cut = [_cut(maker, task) for task in tasks]
    whole = [(task, found) for task, found in zip(tasks, cut, strict=True) if not isinstance(found, Failure)]
    keys = [key for _, one in whole for key in _keys_of(one.document, one.nodes)]
    texts = [chunk_text(one.document.text, node.spans) for _, one in whole for node in one.nodes]
    num_tokens = [node.num_tokens for _, one in whole for node in one.nodes]
    known = {} if ask is None else ask(keys)
    missing = [place for place, key in enumerate(keys) if key not in known]
    if ask is not None:  # equal texts are embedded once
        missing = list({keys[place]: place for place in reversed(missing)}.values())[::-1]
    vectors, is_cut = _embed(maker, [texts[place] for place in missing], [num_tokens[place] for place in missing])
    if ask is None:
        rows = list(zip(vectors, is_cut, strict=True))
    else:
        new = {keys[place]: found for place, *found in zip(missing, vectors, is_cut, strict=True)}
        rows = [known[key] if key in known else new[key] for key in keys]
    entries = iter(_entries(whole, rows))
    results = tuple(found if isinstance(found, Failure) else next(entries) for found in cut)
    return Made(results, len(missing), len(keys) - len(missing))


def _keys_of(document: Document, nodes: Sequence[Chunk]) -> list[bytes]:
    """The key of the text of each chunk."""
    return [text_key(chunk_text(document.text, node.spans)) for node in nodes]


@dataclass(frozen=True)
class _Cut:
    """A document and what it was cut into."""

    document: Document
    nodes: tuple[Chunk, ...]
    tree: ChunkTree | None


def _cut(maker: Maker, task: Task) -> _Cut | Failure:
    try:
        document = read_document(task.file, task.encoding, raw=task.raw)
        tree, nodes = (None, maker.chunk(document)) if maker.tree is None else maker.tree(document)
        if not nodes:
            raise InputError(f"{document.id}: holds nothing to search in; leave it out")
        return _Cut(document, tuple(nodes), tree)
    except InputError as error:
        reason = str(error).removeprefix(f"{task.file.id}: ")
    except (RecursionError, MemoryError) as error:  # of a text that was made to
        reason = f"cannot be read ({error!r}); leave it out"
    return Failure(task.file.id, reason, task.origin)


def _embed(maker: Maker, texts: Sequence[str], num_tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Vectors, and which texts the window has cut: as many as the encoder says, which are the longest ones."""
    if not texts:
        return np.zeros((0, 1), np.float32), np.zeros(0, bool)
    before = maker.embed.counts.num_texts_cut
    vectors = embed_texts(maker.embed, texts)
    is_cut = np.zeros(len(texts), bool)
    longest = np.argsort(-np.array(num_tokens), kind="stable")
    is_cut[longest[: maker.embed.counts.num_texts_cut - before]] = True
    return vectors, is_cut


def _entries(whole: Sequence[tuple[Task, _Cut]], rows: Sequence) -> list[Entry]:
    entries, start = [], 0
    for task, one in whole:
        here = rows[start : start + len(one.nodes)]
        start += len(one.nodes)
        vectors = np.array([vector for vector, _ in here], np.float32)
        is_cut = np.array([cut for _, cut in here], bool)
        entries.append(Entry(one.document, one.nodes, vectors, is_cut, task.origin, one.tree))
    return entries


@dataclass
class KnownVectors:
    """Finds vectors of an index by the texts of their chunks; an `Ask`.

    Texts are hashed when first asked for: where nothing is to be embedded, none is.
    """

    connection: sqlite3.Connection
    numbers: Sequence[int]  # of the rows that were there before
    _places: dict[bytes, tuple[int, int]] | None = field(default=None, repr=False)  # row and chunk by text

    def __call__(self, keys: Sequence[bytes]) -> dict[bytes, tuple[np.ndarray, bool]]:
        """The vectors of the texts that are known, by their keys."""
        if self._places is None:
            self._places = {}
            for number in self.numbers:
                row = read_row(self.connection, number)
                if row is not None:
                    self._enter(number, to_text(row.text), unpack_nodes("", row)[0])
        wanted: dict[int, list[tuple[bytes, int]]] = {}
        for key in keys:
            if key in self._places:
                number, node = self._places[key]
                wanted.setdefault(number, []).append((key, node))
        found = {}
        for number, places in wanted.items():
            row = read_row(self.connection, number)
            if row is None:  # removed since
                continue
            nodes, is_cut = unpack_nodes("", row)
            vectors = unpack_vectors(row, len(nodes))
            found |= {key: (vectors[node], bool(is_cut[node])) for key, node in places}
        return found

    def add(self, number: int, entry: Entry) -> None:
        """Takes up what was written."""
        if self._places is not None:
            self._enter(number, entry.document.text, entry.nodes)

    def _enter(self, number: int, text: str, nodes: Sequence[Chunk]) -> None:
        assert self._places is not None
        for place, node in enumerate(nodes):
            self._places[text_key(chunk_text(text, node.spans))] = number, place
