"""An index as a corpus that stays on disk: a search maps vectors and words, and reads only the documents that it finds.

It shows the state in which it was opened. If it needs a document that has changed since, it raises `Moved`.
"""

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar, overload
from weakref import finalize

import numpy as np
from jaxtyping import Bool, Float, Int

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.chunking.text.tables import context_of, searched_text
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.index.load import ChooseNames, vectors_beside, warn_of_missing_notes
from qrag_jax.index.parts.make import (
    DOCUMENTS,
    NOTES,
    UNSAID,
    Listed,
    Moved,
    Placed,
    ReadDocument,
    document_part,
    listed_documents,
    listed_notes,
    missing_parts,
    note_part,
    place,
    read_current,
    stored_parts,
)
from qrag_jax.index.parts.near import Near, open_near
from qrag_jax.index.parts.part import Part, StoredPart, starts_of
from qrag_jax.index.settings import IndexSettings
from qrag_jax.index.stores.sqlite.database import follow
from qrag_jax.index.stores.sqlite.entries import unpack_vectors
from qrag_jax.index.stores.sqlite.note_rows import NoteRow, current_mark, read_notes_of
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.corpus import NUM_LOOKED_AT, Corpus, MadeBy, are_unknown
from qrag_jax.search.dense import Ranking, may_be_best, rough_error_of, search_vectors
from qrag_jax.search.note_search import NotedCorpus
from qrag_jax.search.note_texts import check_note
from qrag_jax.search.postings import StoredWords, WordPart
from qrag_jax.search.rows import Rows
from qrag_jax.types import Chunk, Cost, Document, Embed, InputError, Note
from qrag_jax.unit_rows import unit_rows

_LEAST_KEPT = 0.9  # of the rows of a file are searched, or its signs are not used: their recall is that of all rows
_MOST_READ = 256  # documents in memory
T = TypeVar("T")


def open_corpus(folder: Path, settings: IndexSettings, choose: ChooseNames | None) -> "StoredCorpus":
    """The documents of an index, for a search.

    Args:
        folder: of the index.
        settings: of the index.
        choose: ids -> those to search; None searches all.

    Raises:
        InputError: the index is damaged or empty.
    """
    catalogue = follow(folder)
    listed = listed_documents(catalogue, folder)
    if not listed.ids:
        catalogue.close()
        raise InputError(f"{folder}: has no documents; add some with `qrag index add {folder} PATHS...`")
    read = partial(document_part, catalogue, folder, listed, load=lambda: None)
    corpus = StoredCorpus(folder, settings, _arranged(catalogue, folder, DOCUMENTS, listed, read), catalogue)
    finalize(corpus, catalogue.close)
    return corpus if choose is None else corpus.only(set(choose(listed.ids)))


def open_notes(corpus: "StoredCorpus") -> "StoredNotes":
    """The notes of the documents of an index; those that come from other documents are left out.

    Warns if notes are missing because an update was not finished; the others are used.

    Raises:
        InputError: the index is damaged.
    """
    folder, documents = corpus.folder, corpus.parts.listed
    listed = listed_notes(corpus.catalogue, folder, documents)
    read = partial(note_part, corpus.catalogue, folder, listed, documents=documents)
    arranged = _arranged(corpus.catalogue, folder, NOTES, listed, read)
    if current_mark(corpus.catalogue, folder, corpus.settings.notes.key) is None:
        warn_of_missing_notes(folder)
    return StoredNotes(corpus, arranged)


def _arranged(
    connection: sqlite3.Connection, folder: Path, kind: str, listed: Listed, read: Callable[[Sequence[int]], Part]
) -> "_Arranged":
    placed, missing = place(stored_parts(folder, kind), listed)
    made = missing_parts(connection, listed, missing.tolist(), read)
    more, _ = place(made, listed)
    return _Arranged(listed, (*placed, *more))


@dataclass(frozen=True, eq=False)
class _Arranged:
    """Documents in an order, and the parts that together have them all."""

    listed: Listed
    placed: tuple[Placed, ...]

    @cached_property
    def starts(self) -> Int[np.ndarray, " _"]:
        """The first row of each document."""
        return starts_of(self.of_documents("sizes"))

    @cached_property
    def places(self) -> list[Int[np.ndarray, " _"]]:
        """Of each part, the number of each of its rows among all; -1 if it is not among them."""
        return [one.places(self.starts, one.part.starts) for one in self.placed]

    def of_documents(self, name: str) -> Int[np.ndarray, " _"]:
        """The values of an array of documents."""
        found = np.zeros(len(self.listed.ids), np.int64)
        for one in self.placed:
            values = one.part.per_document[name] if name in one.part.per_document else getattr(one.part, name)
            found[one.documents[one.kept]] = values[one.kept]
        return found

    def of_rows(self, name: str) -> Int[np.ndarray, " _"]:
        """The values of an array of rows."""
        found = np.zeros(self.starts[-1], np.int64)
        for one, places in zip(self.placed, self.places, strict=True):
            found[places[places >= 0]] = one.part.per_row[name][places >= 0]
        return found

    def vectors(self, dim: int) -> Rows:
        """The vectors of all rows."""
        pairs = zip(self.placed, self.places, strict=True)
        parts = [one.part.row_part(places, one.kept) for one, places in pairs]
        return Rows(parts, int(self.starts[-1]), dim)

    def words(self, starts: Int[np.ndarray, " _"]) -> tuple[list[WordPart], Int[np.ndarray, " _"]]:
        """The words of all texts, and how many each has.

        Args:
            starts: the first text of each document.
        """
        lengths, parts = np.zeros(starts[-1], np.int64), []
        for one in self.placed:
            places = one.places(starts, starts_of(one.part.num_texts))
            lengths[places[places >= 0]] += one.part.words.lengths[places >= 0]
            parts.append(one.part.word_part(places))
        return parts, lengths

    def only(self, ids: Collection[str]) -> "_Arranged":
        """Some of the documents."""
        kept = np.array([position for position, name in enumerate(self.listed.ids) if name in ids], np.int64)
        new = np.full(len(self.listed.ids) + 1, -1)  # the last one is that of -1
        new[kept] = np.arange(len(kept))
        names = [self.listed.ids[one] for one in kept.tolist()]
        listed = Listed(names, self.listed.numbers[kept], self.listed.keys[kept])
        placed = (Placed(one.part, new[one.documents]) for one in self.placed)
        return _Arranged(listed, tuple(one for one in placed if len(one.kept)))


class _Lazy(Sequence[T]):
    """A sequence whose items are made when they are asked for, and are not kept."""

    def __init__(self, size: int, make: Callable[[int], T]) -> None:
        self._size, self._make = int(size), make

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, number: int) -> T: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[T, ...]: ...

    def __getitem__(self, number: int | slice) -> T | tuple[T, ...]:
        if isinstance(number, slice):
            return tuple(map(self._make, range(*number.indices(self._size))))
        return self._make(range(self._size)[number])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


class _LazyDict(Mapping[str, T]):
    """A mapping whose values are made when they are asked for, and are not kept."""

    def __init__(self, numbers: Mapping[str, int], make: Callable[[int], T]) -> None:
        self._numbers, self._make = numbers, make

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __getitem__(self, name: str) -> T:
        return self._make(self._numbers[name])


class _ByChunk(Mapping[str, int]):
    """The nodes of a corpus by the ids of their chunks.

    It knows the chunks of the notes that were read. For another chunk it reads all documents.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._corpus, self._known = corpus, dict[str, int]()

    def __len__(self) -> int:
        return len(self._corpus.nodes)

    def __iter__(self) -> Iterator[str]:
        return (node.id for node in self._corpus.nodes)

    def __getitem__(self, name: str) -> int:
        if name not in self._known:
            self._known = {node.id: number for number, node in enumerate(self._corpus.nodes)}
        return self._known[name]

    def add(self, node: int) -> Chunk:
        """The chunk of a node, whose id is known from now on."""
        chunk = self._corpus.nodes[node]
        self._known[chunk.id] = node
        return chunk


class StoredCorpus(Corpus):
    """A corpus of an index on disk; made by `open_corpus`. Only `vectors` and `num_tokens` read all documents.

    Attributes:
        folder, settings: of the index.
        parts: its documents, and the parts that have them.
        catalogue: a connection to read them.
    """

    folder: Path
    settings: IndexSettings
    parts: _Arranged
    catalogue: sqlite3.Connection
    _kept: OrderedDict[int, ReadDocument]
    _turn: threading.Lock

    def __init__(self, folder: Path, settings: IndexSettings, parts: _Arranged, catalogue: sqlite3.Connection) -> None:
        starts, num_documents = starts_of(parts.of_documents("num_nodes")).tolist(), len(parts.listed.ids)
        size = starts[-1]
        self.__dict__.update(  # the class is frozen
            folder=folder,
            settings=settings,
            parts=parts,
            catalogue=catalogue,
            documents=_Lazy(num_documents, lambda number: self._read(number).document),
            nodes=_Lazy(size, self._node),
            made_by=MadeBy(settings.chunking, settings.model, settings.fingerprint),
            stored=vectors_beside(parts.listed.by_id, settings, folder),
            cost=Cost(index_bytes=4 * size * parts.placed[0].part.vectors.shape[1]),
            num_beyond_window=int(parts.of_documents("num_cut").sum()),
            trees=_Lazy(num_documents if settings.is_tree else 0, self._tree),
            texts=_Lazy(size, self._text),
            contexts=_Lazy(size, self._context),
            full_texts=_Lazy(size, lambda node: searched_text(self._context(node), self._text(node))),
            _starts=tuple(starts),
            _kept=OrderedDict(),
            _turn=threading.Lock(),  # a model may write, and its answer be cited, beside a search
        )

    @cached_property
    def by_id(self) -> Mapping[str, Document]:  # type: ignore[override]
        """The documents by their ids."""
        return _LazyDict(self._numbers, lambda number: self._read(number).document)

    @cached_property
    def by_chunk(self) -> _ByChunk:  # type: ignore[override]
        """The nodes by the ids of their chunks."""
        return _ByChunk(self)

    @cached_property
    def vectors(self) -> np.ndarray:  # type: ignore[override]
        """float32 [nodes, dim] from the encoder, read from the catalogue."""
        listed, read = self.parts.listed, partial(read_current, self.catalogue, self.folder)
        found = (read(listed, position) for position in range(len(listed.ids)))
        return np.concatenate([unpack_vectors(row, len(one.nodes)) for one, row in found])

    @cached_property
    def leaves(self) -> Int[np.ndarray, " _"]:
        """int64, the nodes without children, which are searched."""
        first = np.repeat(np.array(self._starts[:-1]), np.diff(self.parts.starts))
        return self.parts.of_rows("leaves") + first

    @cached_property
    def words(self) -> Bm25Index:
        """The words of every leaf; ids are positions in `leaves`."""
        return Bm25Index(StoredWords(*self.parts.words(self.parts.starts)))

    @cached_property
    def unit_vectors(self) -> Rows:  # type: ignore[override]
        """float32 [leaves, dim], of length 1 or 0."""
        return self.parts.vectors(self.parts.placed[0].part.vectors.shape[1])

    @property
    def finds_near(self) -> bool:
        """As `Corpus.finds_near`; true if there is a store, or a large file that may be searched approximately."""
        return self.stored is not None or bool(self._near)

    def find_near(self, asked: np.ndarray, k: int) -> Ranking:
        """As `Corpus.find_near`; among those that signs find in large files, and all rows of the others."""
        if self.stored is not None:
            return super().find_near(asked, k)
        vectors, found = self.unit_vectors, []
        for number, places in enumerate(self.parts.places):
            near = self._near.get(number)
            if near is not None and k <= near.most:
                own = places[near.find(asked, k)]
                own = own[own >= 0]
            else:
                products = vectors.part_products(asked, number)
                there = np.flatnonzero(places >= 0)
                own = places[there[may_be_best(products[there], k, rough_error_of(vectors))]]
            found.append(own)
        ((best, scores),) = search_vectors(asked[None], vectors, k, [np.sort(np.concatenate(found))])
        return best, scores

    @cached_property
    def _near(self) -> dict[int, Near]:
        """By the numbers of their parts; none for a small selection, of which too little may be found."""
        found = {
            number: open_near(one.part, one.kept)
            for number, one in enumerate(self.parts.placed)
            if isinstance(one.part, StoredPart) and one.num_kept >= _LEAST_KEPT * len(one.part.vectors)
        }
        return {number: near for number, near in found.items() if near is not None}

    def unknown_leaves(self, embed: Embed) -> Bool[np.ndarray, " leaves"]:
        """As `Corpus.unknown_leaves`; looked up only for documents that no file has."""
        if "_unknown" not in self.__dict__:
            told = self.parts.of_rows("unknown")
            unsaid = np.flatnonzero(told == UNSAID)
            texts = [self.texts[node][:NUM_LOOKED_AT] for node in self.leaves[unsaid].tolist()]
            told[unsaid] = are_unknown(embed, texts)
            self.__dict__["_unknown"] = told.astype(bool)
        return self.__dict__["_unknown"]

    def only(self, ids: Collection[str]) -> "StoredCorpus":
        """The corpus of some of its documents, in their order.

        Raises:
            InputError: none of them is in the corpus.
        """
        parts = self.parts.only(ids)
        if not parts.listed.ids:
            raise InputError("no chunk to search; give at least one")
        found = StoredCorpus(self.folder, self.settings, parts, self.catalogue)
        found.__dict__["_whole"] = self  # kept, because the catalogue is closed when the whole corpus is deleted
        return found

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.parts.listed.ids)}

    def _read(self, number: int) -> ReadDocument:
        """A document, read from the catalogue and kept for a while."""
        with self._turn:
            if number not in self._kept:
                self._kept[number], _ = read_current(self.catalogue, self.folder, self.parts.listed, number)
                if len(self._kept) > _MOST_READ:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(number)
            return self._kept[number]

    def _node(self, node: int) -> Chunk:
        number = self._number_of(node)
        return self._read(number).nodes[node - self._starts[number]]

    def _tree(self, number: int) -> ChunkTree:
        tree = self._read(number).tree
        assert tree is not None  # the index keeps trees
        return tree

    def _text(self, node: int) -> str:
        return chunk_text(self._read(self._number_of(node)).document.text, self.nodes[node].spans)

    def copy_key(self, node: int) -> int:
        """As `Corpus.copy_key`; read from the search files for leaves, so that no document is read."""
        leaf = int(np.searchsorted(self.leaves, node))
        if leaf < len(self.leaves) and self.leaves[leaf] == node:
            return int(self._copy_keys[leaf])
        return super().copy_key(node)

    @cached_property
    def _copy_keys(self) -> Int[np.ndarray, " leaves"]:
        return self.parts.of_rows("copy_keys")

    @cached_property
    def _have_context(self) -> Bool[np.ndarray, " nodes"]:
        """Which nodes may have a context: most leaves have none, and to find it means to parse their document."""
        found = np.full(len(self), True)
        found[self.leaves] = self.parts.of_rows("have_context")
        return found

    def _context(self, node: int) -> str:
        if not self._have_context[node]:
            return ""
        return context_of(self._read(self._number_of(node)).document.text, self.nodes[node].spans)


class StoredNotes(NotedCorpus):
    """The notes of a `StoredCorpus`; made by `open_notes`."""

    corpus: StoredCorpus
    _parts: _Arranged
    _rows: dict[str, list[NoteRow]]

    def __init__(self, corpus: StoredCorpus, parts: _Arranged) -> None:
        self.__dict__.update(  # the class is frozen
            corpus=corpus,
            notes=_Lazy(int(parts.starts[-1]), self._note),
            vectors=parts.vectors(corpus.unit_vectors.shape[1]),
            num_tokens=parts.of_rows("num_tokens"),
            _parts=parts,
            _rows={},
        )

    @cached_property
    def keys(self) -> Float[np.ndarray, "notes dim"]:  # type: ignore[override]
        """As `NotedCorpus.keys`; reads all notes."""
        found = np.zeros(self.vectors.shape, np.float32)
        for number in range(len(found)):
            row, placed = self._row_of(number)
            asked = [place for place, (_, note) in enumerate(row.placed) if note.question]
            at = len(row.placed) + asked.index(placed) if placed in asked else placed
            found[number] = row.unpack_vectors()[1][at]
        return unit_rows(found)

    @cached_property
    def answering(self) -> Int[np.ndarray, " _"]:
        """As `NotedCorpus.answering`."""
        documents = [self.corpus._numbers[name] for name in self._parts.listed.ids]
        return self._leaves("answering", np.repeat(documents, np.diff(self._parts.starts)).astype(np.int64))

    @cached_property
    def asking(self) -> Int[np.ndarray, " _"]:
        """As `NotedCorpus.asking`."""
        numbers = self.corpus.parts.listed.numbers
        order = np.argsort(numbers)
        return self._leaves("asking", order[np.searchsorted(numbers[order], self._parts.of_rows("asking_number"))])

    @cached_property
    def words(self) -> Bm25Index:
        """As `NotedCorpus.words`."""
        starts = self.corpus.parts.starts
        parts, lengths = self.corpus.parts.words(starts)
        places = [self.corpus._numbers[name] for name in self._parts.listed.ids]
        mapped = _Arranged(
            self.corpus.parts.listed,
            tuple(
                Placed(one.part, np.where(one.documents >= 0, np.array([*places, -1])[one.documents], -1))
                for one in self._parts.placed
            ),
        )
        more, added = mapped.words(starts)
        return Bm25Index(StoredWords([*parts, *more], lengths + added))

    def only(self, ids: Collection[str]) -> "StoredNotes":
        """As `NotedCorpus.only`."""
        return open_notes(self.corpus.only(ids))

    def _leaves(self, name: str, documents: Int[np.ndarray, " _"]) -> Int[np.ndarray, " _"]:
        """Positions of the leaves that a column of the notes names in documents."""
        return self.corpus.parts.starts[documents] + self._parts.of_rows(name)

    def _row_of(self, number: int) -> tuple[NoteRow, int]:
        """The row of a note in the catalogue, and its place there; the rows of a document are read once."""
        rows, position = self._rows, int(np.searchsorted(self._parts.starts, number, side="right")) - 1
        name = self._parts.listed.ids[position]
        if name not in rows:
            rows[name] = read_notes_of(self.corpus.catalogue, self.corpus.folder, name)
        row, placed = int(self._places["row"][number]), int(self._places["placed"][number])
        if row >= len(rows[name]) or placed >= len(rows[name][row].placed):
            raise Moved(f"{self.corpus.folder}: the notes of {name} have changed since the search began; search again")
        return rows[name][row], placed

    @cached_property
    def _places(self) -> dict[str, np.ndarray]:
        return {name: self._parts.of_rows(name) for name in ("row", "placed")}

    def _note(self, number: int) -> Note:
        """A note, checked against the text of its chunks."""
        row, placed = self._row_of(number)
        _, note = row.placed[placed]
        leaves = self.corpus.leaves[[self.asking[number], self.answering[number]]]
        chunks = {chunk.id: chunk for chunk in map(self.corpus.by_chunk.add, leaves.tolist())}
        if {note.asking, note.answering} != chunks.keys():
            raise Moved(f"{self.corpus.folder}: the notes of {row.pair[0]} have changed; search again")
        check_note(note, number, chunks, self.corpus.by_id)
        return note
