"""Loads an index as a corpus, to search it many times."""

import hashlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.files.sqlite import Damaged, identity
from qrag_jax.index.folder import ABOUT, CATALOGUE, index_folder
from qrag_jax.index.settings import IndexSettings, read_settings
from qrag_jax.index.stores.sqlite.database import advice, named, reading_from
from qrag_jax.index.stores.sqlite.document_rows import Known, read_all
from qrag_jax.index.stores.sqlite.entries import (
    text_key,
    unpack_document,
    unpack_nodes,
    unpack_tree,
    unpack_vectors,
)
from qrag_jax.index.stores.sqlite.note_rows import NoteRow, current_mark, has_notes, read_note_rows
from qrag_jax.index.stores.sqlite.token_rows import find_tokens
from qrag_jax.names import BESIDE, STORES
from qrag_jax.search.corpus import Corpus, MadeBy
from qrag_jax.search.late import StoredTokens
from qrag_jax.search.note_search import NotedCorpus
from qrag_jax.search.store import StoredVectors, StorePlace
from qrag_jax.types import Chunk, Cost, Document, InputError, Note
from qrag_jax.unit_rows import unit_rows

ChooseNames = Callable[[Sequence[str]], Sequence[str]]
_NoteFields = tuple[tuple[Note, ...], np.ndarray, np.ndarray, np.ndarray]  # arguments of a `NotedCorpus`
_TRIES = 3  # if the database is replaced during a read


def load_index(path: str | os.PathLike, choose: ChooseNames | None = None) -> Corpus:
    """Loads the documents of an index, in the order of their ids, and checks each against its hash.

    It does not wait for writers: it sees what they have finished, and nothing unfinished.

    Args:
        path: folder of the index.
        choose: ids -> the ids to load; None loads all.

    Raises:
        UsageError: there is no index.
        InputError: the index is damaged, of a newer format, or empty; the message says what to do.
    """
    corpus, _, _ = _load(index_folder(path), choose, with_notes=False)
    return corpus


def load_noted_index(index: str | os.PathLike, choose: ChooseNames | None = None) -> NotedCorpus:
    """As `load_index`, with the notes; the best note of each chunk comes first. There are none if the index has none.

    Warns if notes are missing because an update was not finished; the others are used.

    Args:
        index, choose: as `path` and `choose` of `load_index`; a note is loaded if both of its documents are.

    Raises:
        UsageError, InputError: as `load_index`, or the notes are damaged.
    """
    corpus, notes, are_complete = _load(index_folder(index), choose, with_notes=True)
    if not are_complete:
        warn_of_missing_notes(index)
    return NotedCorpus(corpus, *notes)


def warn_of_missing_notes(path: str | os.PathLike) -> None:
    """Warns that an update of an index was not finished; the warning points to the code that opened the index."""
    warnings.warn(
        f"{path}: an update was not finished, so some notes are missing; `qrag index add {path} PATHS...` makes them",
        stacklevel=3,
    )


def stored_tokens(path: str | os.PathLike, dim: int, fingerprint: str) -> StoredTokens:
    """Finds the token vectors of texts that an index has now: texts -> int8 [num_tokens, dim] of those it has.

    Args:
        path: folder of the index.
        dim: numbers of the vector of a token.
        fingerprint: of the encoder that asks; nothing is found after another one has made the index anew.

    Raises:
        InputError: of the function: rows were changed since they were written.
    """
    folder = index_folder(path)

    def find(texts: Sequence[str]) -> dict[str, np.ndarray]:
        if read_settings(folder).fingerprint != fingerprint:
            return {}
        keys = {text_key(text): text for text in texts}
        with reading_from(folder) as connection:
            found = find_tokens(connection, folder, list(keys))
        return {keys[key]: np.frombuffer(codes, np.int8).reshape(-1, dim) for key, codes in found.items()}

    return find


def state_of(path: str | os.PathLike) -> str:
    """A hash of all that a search of an index reads: it changes with a document, a note or a setting.

    Raises:
        UsageError: there is no index.
        InputError: the index is damaged.
    """
    folder = index_folder(path)
    digest = hashlib.sha256((folder / ABOUT).read_bytes())
    with reading_from(folder) as connection, named(folder / CATALOGUE):
        queries = "SELECT sha256 FROM ledger ORDER BY id", "SELECT sha256 FROM noted"
        for query in queries[: 1 + has_notes(connection)]:
            for (row,) in connection.execute(query):
                digest.update(row)
            digest.update(b"|")
    return digest.hexdigest()


def _load(folder: Path, choose: ChooseNames | None, *, with_notes: bool) -> tuple[Corpus, _NoteFields, bool]:
    """The corpus, its notes if they are asked for, and True if all notes are there."""
    settings = read_settings(folder)
    rows: list[NoteRow] = []
    current = True
    for left in range(_TRIES, 0, -1):
        before = identity(folder / CATALOGUE)
        try:
            with reading_from(folder) as connection:
                known = [one for one in read_all(connection, folder) if one.row is not None]
                if with_notes and settings.has_notes:
                    rows = list(read_note_rows(connection, folder))
                    current = current_mark(connection, folder, settings.notes.key) is not None
        except Damaged:
            if left == 1 or identity(folder / CATALOGUE) == before:
                raise
            continue
        if identity(folder / CATALOGUE) == before:
            break
    else:
        raise InputError(f"{folder}: was rewritten {_TRIES} times during the read; wait for the writer, then try again")
    if not known:
        raise InputError(f"{folder}: has no documents; add some with `qrag index add {folder} PATHS...`")
    if choose is not None:
        wanted = set(choose([one.id for one in known]))
        known = [one for one in known if one.id in wanted]
    try:
        corpus = _corpus(known, settings, folder)
        return corpus, _notes(rows, corpus), current
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{folder}: its rows are damaged ({error}); {advice(folder)}") from error


def vectors_beside(numbers: Mapping[str, int], settings: IndexSettings, folder: Path) -> StoredVectors | None:
    """The vectors in the store beside the catalogue; None if there is none.

    Args:
        numbers: of the rows of documents, by their ids.
    """
    if settings.store not in STORES.choices(*BESIDE):
        return None
    place = StorePlace(folder, settings.uri, settings.collection)
    return StoredVectors(settings.store, place, numbers)


def _corpus(known: list[Known], settings: IndexSettings, folder: Path) -> Corpus:
    documents: list[Document] = []
    nodes: list[Chunk] = []
    vectors: list[np.ndarray] = []
    trees: list[ChunkTree] = []
    num_cut = 0
    for one in known:
        assert one.row is not None
        found, is_cut = unpack_nodes(one.id, one.row)
        documents.append(unpack_document(one.id, one.row))
        nodes += found
        vectors.append(unpack_vectors(one.row, len(found)))
        num_cut += int(is_cut.sum())
        if (tree := unpack_tree(one.id, one.row, found)) is not None:
            trees.append(tree)
    joined = np.concatenate(vectors)
    return Corpus(
        tuple(documents),
        tuple(nodes),
        np.ascontiguousarray(joined, np.float32),
        MadeBy(settings.chunking, settings.model, settings.fingerprint),
        Cost(index_bytes=joined.nbytes),
        num_cut,
        tuple(trees),
        vectors_beside({one.id: one.number for one in known if one.number is not None}, settings, folder),
    )


def _notes(rows: Sequence[NoteRow], corpus: Corpus) -> _NoteFields:
    place = {corpus.nodes[node].id: leaf for leaf, node in enumerate(corpus.leaves.tolist())}
    found: list[tuple[tuple[int, int], Note]] = []
    told, asked, num_tokens = [], [], []
    for row in rows:
        if not all(name in corpus.by_id for name in row.pair):
            continue
        tokens, vectors = row.unpack_vectors()
        questions = iter(vectors[len(row.placed) :])
        for (number, note), size, vector in zip(row.placed, tokens.tolist(), vectors, strict=False):
            found.append(((place[note.answering], number), note))
            told.append(vector)
            asked.append(next(questions) if note.question else vector)
            num_tokens.append(size)
    order = sorted(range(len(found)), key=lambda number: found[number][0])
    assert corpus.vectors is not None  # every index has vectors
    dim = corpus.vectors.shape[1]
    told, asked = (np.array([vectors[number] for number in order], np.float32) for vectors in (told, asked))
    return (
        tuple(found[number][1] for number in order),
        unit_rows(told.reshape(-1, dim)),
        unit_rows(asked.reshape(-1, dim)),
        np.array(num_tokens, np.int64)[order] if order else np.zeros(0, np.int64),
    )
