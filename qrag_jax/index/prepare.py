"""Turns files into entries: reads and cuts them, and embeds text for which the index has no vector yet.

`prepare` runs in any process. `KnownVectors` looks up stored vectors in the process that has the index open.

The key of a vector is the embedded text. In a tree whose parents have their own kind of vectors
(`tree/parent_vectors.py`), a parent's text read in that way has another key than the same text read as a leaf. A vector
made from children has no key; it is made again with its document.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.text.tables import context_of, searched_text
from qrag_jax.chunking.tree.parent_vectors import Parents, fill_parents
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.documents.converted import ReadOptions
from qrag_jax.documents.read import DocumentFile, read_document
from qrag_jax.index.folder import CATALOGUE
from qrag_jax.index.settings import Reading
from qrag_jax.index.stores.sqlite.database import (
    FORMAT,
    add_tables,
    format_of,
    looked_through,
    named,
    reading_from,
    transaction,
    writing_to,
)
from qrag_jax.index.stores.sqlite.document_rows import (
    Known,
    Survey,
    look_over,
    read_ledger,
    read_row,
    read_whole,
)
from qrag_jax.index.stores.sqlite.entries import (
    Entry,
    Failure,
    Origin,
    parents_in,
    text_key,
    to_text,
    unpack_nodes,
    unpack_vectors,
)
from qrag_jax.index.stores.sqlite.text_rows import TextKeys, pack_keys, put_keys
from qrag_jax.index.stores.sqlite.token_rows import find_tokens
from qrag_jax.search.corpus import ChunkDocument, embed_texts
from qrag_jax.types import Chunk, CountTokens, Document, Embed, Encoder, InputError, ReadsTokens
from qrag_jax.unit_rows import unit_rows

_OF_PARENT, _KEY_BYTES = b"p", 32  # suffix of the key of a parent's text; size of a key without it
_START = 8  # bytes of a key that are stored
MakeTree = Callable[[Document], tuple[ChunkTree, Sequence[Chunk]]]
Vector = tuple[np.ndarray, bool, bytes]  # of a text; whether the text is cut; codes of its tokens, if they are kept
Ask = Callable[[Sequence[bytes]], dict[bytes, Vector]]  # keys of texts -> the vectors of those that are known


@dataclass(frozen=True)
class Maker:
    """Makes entries of documents.

    Attributes:
        chunk: cuts a document.
        embed: texts of chunks -> vectors.
        count: text -> its tokens, by the encoder's tokenizer.
        tree: makes the tree of a document and its nodes, if trees are kept.
        parents: how nodes above the leaves get vectors; None embeds their text like that of leaves.
        keeps_tokens: the vectors of the leaves' tokens are kept too; `embed` then is a `types.ReadsTokens`.
    """

    chunk: ChunkDocument
    embed: Encoder
    count: CountTokens
    tree: MakeTree | None = None
    parents: Parents | None = None
    keeps_tokens: bool = False

    @property
    def reading(self) -> Reading:
        """How the text of nodes above the leaves is read."""
        if self.parents is None:
            return "alike"
        return "never" if self.parents.of_texts is None else "apart"


MakeMaker = Callable[[], Maker]  # loads it, also in another process, so it can be pickled


@dataclass(frozen=True)
class Task:
    """A file to read.

    Attributes:
        file: gives the id of its document.
        raw: its bytes.
        origin: of the bytes.
        options: of its reader.
    """

    file: DocumentFile
    raw: bytes
    origin: Origin
    options: ReadOptions


Group = Sequence[Task]  # files that are read and embedded together


@dataclass(frozen=True)
class Made:
    """The results of some tasks.

    Attributes:
        results: for each task an entry, or the reason for its failure.
        num_embedded: chunks embedded.
        num_reused: chunks whose vectors were known.
    """

    results: tuple[Entry | Failure, ...]
    num_embedded: int = 0
    num_reused: int = 0


def prepare(maker: Maker, tasks: Group, ask: Ask | None) -> Made:
    """Reads, cuts and embeds some files together. A file that cannot be read or cut becomes a failure.

    Args:
        ask: looks up known vectors; None if equal texts may have different vectors.
    """
    cut = [_cut(maker, task) for task in tasks]
    whole = [(task, found) for task, found in zip(tasks, cut, strict=True) if not isinstance(found, Failure)]
    read = [_Read(one, keys_of(one.document.text, one.nodes, one.holds, maker.reading)) for _, one in whole]
    texts = [text for one in read for text in one.texts(maker.count)]
    known = {} if ask is None else ask([text.key for text in texts])
    missing = [place for place, text in enumerate(texts) if text.key not in known]
    if ask is not None:  # embed equal texts once
        missing = list({texts[place].key: place for place in reversed(missing)}.values())[::-1]
    made = _embed_all(maker, [texts[place] for place in missing])
    if ask is None:
        rows = made
    else:
        new = {texts[place].key: row for place, row in zip(missing, made, strict=True)}
        rows = [known[text.key] if text.key in known else new[text.key] for text in texts]
    entries = iter(_entries(maker, whole, read, rows))
    results = tuple(found if isinstance(found, Failure) else next(entries) for found in cut)
    return Made(results, len(missing), len(texts) - len(missing))


def keys_of(
    text: str, nodes: Sequence[Chunk], holds: Bool[np.ndarray, " nodes"], reading: Reading, *, plain: bool = False
) -> list[bytes | None]:
    """The key of the vector of each node: its embedded text and how it was read; None if no text was embedded.

    Args:
        holds: which nodes have children.
        reading: how the text of those is read.
        plain: nodes were embedded without their context, as by the first version of `update.READER`.
    """
    keys = []
    for node, is_parent in zip(nodes, holds.tolist(), strict=True):
        is_own = is_parent and reading != "alike"
        context = "" if plain else context_of(text, node.spans)
        key = text_key(searched_text(context, chunk_text(text, node.spans))) + _OF_PARENT * is_own
        keys.append(None if is_own and reading == "never" else key)
    return keys


@dataclass(frozen=True)
class _Text:
    """A text to embed.

    Attributes:
        text: of a node.
        key: of its vector.
        num_tokens: of the text.
    """

    text: str
    key: bytes
    num_tokens: int

    @property
    def is_parent(self) -> bool:
        """True if it is the text of a parent that is read differently from leaves."""
        return len(self.key) > _KEY_BYTES


@dataclass(frozen=True)
class _Read:
    """A document that was cut, and the keys of the vectors of its nodes."""

    cut: "_Cut"
    keys: Sequence[bytes | None]

    def texts(self, count: CountTokens) -> list[_Text]:
        """The texts of the embedded nodes, in their order."""
        text, found = self.cut.document.text, []
        for node, key in zip(self.cut.nodes, self.keys, strict=True):
            if key is not None:
                context = context_of(text, node.spans)
                full = searched_text(context, chunk_text(text, node.spans))
                found.append(_Text(full, key, count(readable(full)) if context else node.num_tokens))
        return found

    @property
    def are_embedded(self) -> Bool[np.ndarray, " nodes"]:
        """Which nodes are embedded."""
        return np.array([key is not None for key in self.keys])


@dataclass(frozen=True)
class _Cut:
    """A document and its chunks or nodes."""

    document: Document
    nodes: tuple[Chunk, ...]
    tree: ChunkTree | None

    @property
    def holds(self) -> Bool[np.ndarray, " nodes"]:
        """Which nodes have children."""
        holds = np.full(len(self.nodes), self.tree is not None)
        if self.tree is not None:
            holds[self.tree.leaves] = False
        return holds


def _cut(maker: Maker, task: Task) -> _Cut | Failure:
    try:
        document = read_document(task.file, raw=task.raw, options=task.options)
        tree, nodes = (None, maker.chunk(document)) if maker.tree is None else maker.tree(document)
        if not nodes:
            raise InputError("contains no text to search; leave it out", file=document.id)
        return _Cut(document, tuple(nodes), tree)
    except InputError as error:
        reason = error.text(with_file=error.file != task.file.id)
    except (RecursionError, MemoryError) as error:  # from hostile text
        reason = f"cannot be read ({error!r}); leave it out"
    return Failure(task.file.id, reason, task.origin)


def _embed_all(maker: Maker, texts: Sequence[_Text]) -> list[Vector]:
    """The vectors of texts. Parents are read in their way, others by the encoder."""
    is_own = np.array([text.is_parent for text in texts], bool)
    found: list[Vector] = [(np.zeros(0, np.float32), False, b"")] * len(texts)
    ways: list[tuple[Embed | None, np.ndarray]] = [
        (maker.embed, ~is_own),
        (maker.parents and maker.parents.of_texts, is_own),
    ]
    for embed, own in ways:
        places = np.flatnonzero(own).tolist()
        if places:
            assert embed is not None  # texts without it have no key
            for place, vector in zip(places, _embed(maker, embed, [texts[place] for place in places]), strict=True):
                found[place] = vector
    return found


def _embed(maker: Maker, embed: Embed, texts: Sequence[_Text]) -> list[Vector]:
    """The vectors of texts. The encoder gives the number of those that were cut, and they are the longest."""
    before = maker.embed.counts.num_texts_cut
    codes: list[np.ndarray] = [np.zeros(0, np.int8)] * len(texts)

    def with_tokens(texts: Sequence[str]) -> np.ndarray:
        assert isinstance(maker.embed, ReadsTokens)  # an encoder whose tokens are kept
        vectors, codes[:] = maker.embed.with_tokens(texts)
        return vectors

    keeps = maker.keeps_tokens and embed is maker.embed
    vectors = embed_texts(with_tokens if keeps else embed, [text.text for text in texts])
    is_cut = np.zeros(len(texts), bool)
    longest = np.argsort(-np.array([text.num_tokens for text in texts]), kind="stable")
    is_cut[longest[: maker.embed.counts.num_texts_cut - before]] = True
    return list(zip(vectors, is_cut.tolist(), [one.tobytes() for one in codes], strict=True))


def _entries(
    maker: Maker, whole: Sequence[tuple[Task, _Cut]], read: Sequence[_Read], rows: Sequence[Vector]
) -> list[Entry]:
    entries, start = [], 0
    for (task, one), own in zip(whole, read, strict=True):
        there = own.are_embedded
        here = rows[start : start + int(there.sum())]
        start += len(here)
        vectors = np.zeros((len(one.nodes), len(here[0][0])), np.float32)
        vectors[there] = [vector for vector, *_ in here]
        is_cut = np.zeros(len(one.nodes), bool)
        is_cut[there] = [cut for _, cut, _ in here]
        tokens: dict[int, tuple[bytes, bytes]] = {}
        if maker.keeps_tokens:
            embedded = zip(np.flatnonzero(there).tolist(), here, strict=True)
            keys = {node: (own.keys[node] or b"", codes) for node, (*_, codes) in embedded}
            tokens = {node: keys[node] for node in np.flatnonzero(~one.holds).tolist()}
        if one.tree is not None and maker.parents is not None and maker.parents.of_children is not None:
            num_tokens = np.array([node.num_tokens for node in one.nodes], np.int64)
            made = fill_parents(one.tree, unit_rows(vectors), num_tokens, maker.parents.of_children)
            vectors[~there], there = made[~there], np.full(len(one.nodes), True)
        texts = pack_keys(own.keys)
        entries.append(Entry(one.document, one.nodes, vectors, is_cut, task.origin, one.tree, there, tokens, texts))
    return entries


@dataclass
class KnownVectors:
    """Finds stored vectors by the text of their chunks; an `Ask`. Keys are read at the first lookup.

    Attributes:
        connection, folder: of the index.
        reading: of the text of nodes above the leaves.
        needs_tokens: texts without stored tokens count as unknown.
    """

    connection: sqlite3.Connection
    folder: Path
    reading: Reading = "alike"
    needs_tokens: bool = False
    _stored: TextKeys | None = field(default=None, repr=False)
    _added: dict[bytes, tuple[int, int]] = field(default_factory=dict, repr=False)

    def __call__(self, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """The vectors of known texts, by their keys.

        Raises:
            Damaged: a document with one of these texts was changed.
        """
        if self._stored is None:
            with named(self.folder / CATALOGUE):
                self._stored = TextKeys.read(self.connection)
        read: dict[int, _Stored | None] = {}
        places, found = self._stored.find(keys), {}
        for key in dict.fromkeys(keys):
            added = [self._added[key[:_START]]] if key[:_START] in self._added else []
            for number, node in (*added, *places.get(key[:_START], ())):
                if number not in read:
                    known = read_whole(self.connection, self.folder, number)
                    read[number] = None if known is None else _Stored.of(known)
                one = read[number]
                if one is not None and one.key(node, self.reading) == key:
                    found[key] = one.vectors[node], bool(one.is_cut[node]), b""
                    break
        if not self.needs_tokens:
            return found
        codes = find_tokens(self.connection, self.folder, list(found))
        is_known = lambda key: len(key) > _KEY_BYTES or key in codes  # noqa: E731
        return {key: (*one[:2], codes.get(key, b"")) for key, one in found.items() if is_known(key)}

    def add(self, number: int, entry: Entry) -> None:
        """Adds an entry that was written."""
        for node in range(len(entry.nodes)):
            self._added[entry.keys[node * _START : (node + 1) * _START]] = number, node


@dataclass(frozen=True)
class _Stored:
    """A stored document, with its vectors."""

    text: str
    nodes: Sequence[Chunk]
    holds: Bool[np.ndarray, " nodes"]
    is_cut: Bool[np.ndarray, " nodes"]
    vectors: np.ndarray
    is_plain: bool  # its nodes were embedded without their context

    @classmethod
    def of(cls, known: Known) -> "_Stored":
        assert known.row is not None  # `read_whole` found it by its row
        nodes, is_cut = unpack_nodes(known.id, known.row)
        vectors, holds = unpack_vectors(known.row, len(nodes)), parents_in(known.row, len(nodes))
        return cls(to_text(known.row.text), nodes, holds, is_cut, vectors, known.origin.reader.startswith("1 "))

    def key(self, node: int, reading: Reading) -> bytes | None:
        """The key of the vector of a node; None if it is not that of a text, or there is no such node."""
        here = slice(node, node + 1)
        return next(iter(keys_of(self.text, self.nodes[here], self.holds[here], reading, plain=self.is_plain)), None)


def bring_up_to_format(folder: Path, says: Callable[[str], object]) -> Survey | None:
    """Adds the tables that a catalogue of an older format lacks, in one transaction, after a check of every row.

    Args:
        says: called with a message before it begins, because every document is read.

    Returns:
        The result of the check; None if the format is the newest.
    """
    with looked_through(folder), reading_from(folder) as connection:
        if format_of(connection) == FORMAT:
            return None
    says(f"{folder}: is brought up to format {FORMAT} of the catalogue, once; older versions of qrag_jax refuse it")
    found = look_over(folder, None)
    with writing_to(folder) as connection, transaction(connection, folder / CATALOGUE):
        if format_of(connection) != FORMAT:  # a repair has written a new file
            add_tables(connection)
        for one in read_ledger(connection, folder).values():
            if one.number is not None and (row := read_row(connection, one.number)) is not None:
                nodes, _ = unpack_nodes(one.id, row)
                keys = keys_of(to_text(row.text), nodes, np.zeros(len(nodes), bool), "alike")
                put_keys(connection, one.number, pack_keys(keys))
    return found
