"""Files to entries: read, cut, embedded, as far as their texts have no vector yet. Runs in any process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.data.files.documents import DocumentFile, read_document
from qrag_jax.retrieval.catalogue.entries import Entry, Failure, Origin
from qrag_jax.retrieval.catalogue.reuse import Ask, keys_of
from qrag_jax.retrieval.corpus.corpus import ChunkDocument, embed_texts
from qrag_jax.types import Chunk, Document, Encoder, InputError

MakeTree = Callable[[Document], tuple[ChunkTree, Sequence[Chunk]]]


@dataclass(frozen=True)
class Maker:
    """What makes entries of documents.

    Attributes:
        chunk: cuts one.
        embed: texts of chunks -> vectors.
        tree: makes the tree of one and its nodes, where that is kept in place of chunks.
    """

    chunk: ChunkDocument
    embed: Encoder
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
    keys = [key for _, one in whole for key in keys_of(one.document, one.nodes)]
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
