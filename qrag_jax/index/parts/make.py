"""Makes the search files of an index from its catalogue, and finds those that are current."""

import secrets
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Int

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.text.tables import context_of, searched_text
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.files.array_file import ArrayFile
from qrag_jax.files.sqlite import Damaged
from qrag_jax.index.parts.near import LEAST_RECALL, NEAR, RECALL_AT, try_near
from qrag_jax.index.parts.part import Part, StoredPart, write_part
from qrag_jax.index.settings import IndexSettings
from qrag_jax.index.stores.sqlite.document_rows import list_documents, read_document, vector_bytes
from qrag_jax.index.stores.sqlite.entries import (
    PackedNodes,
    Row,
    unpack_document,
    unpack_tree,
    unpack_vectors,
)
from qrag_jax.index.stores.sqlite.note_rows import index_notes, list_notes, read_notes_of
from qrag_jax.search.corpus import (
    NUM_LOOKED_AT,
    UNIT_SLACK,
    are_unknown,
    check_place,
    copy_key_of,
    embed_texts,
    may_be_unknown,
)
from qrag_jax.search.postings import count_words
from qrag_jax.search.rows import CodeKind
from qrag_jax.types import Chunk, Document, Embed, InputError, for_questions
from qrag_jax.unit_rows import are_unit, unit_rows

Load = Callable[[], Embed | None]
FOLDER = "search"  # in the folder of an index
DOCUMENTS, NOTES = ".documents", ".notes"  # the two kinds of files
UNSAID = 2  # a leaf whose words no encoder has checked yet
_MOST_BYTES = 80_000_000  # of the vectors of a part that is made in memory
_NUM_ASKED, _NUM_WORDS = 1000, 12  # questions that measure approximate search, and words of one
_TRIES = 5
_MERGED = 4  # a file is merged with newer ones that have at least a quarter of its rows
_MOST_GONE = 0.25  # share of rows of removed documents in a file that stays


@dataclass(frozen=True, eq=False)
class Listed:
    """Documents that the catalogue lists, in one order, with the keys that their rows in a part must have.

    Attributes:
        ids: of the documents.
        numbers: int64, of their rows.
        keys: uint64, hashes of what a part is made from.
    """

    ids: list[str]
    numbers: Int[np.ndarray, " documents"]
    keys: np.ndarray

    @property
    def by_id(self) -> dict[str, int]:
        """The numbers by the ids."""
        return dict(zip(self.ids, self.numbers.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Placed:
    """A part, and where its documents stand in a list.

    Attributes:
        part: the part.
        documents: int64 [documents of the part], the position of each in the list; -1 if another part has it, or none.
    """

    part: Part | StoredPart
    documents: Int[np.ndarray, " _"]

    @property
    def kept(self) -> Int[np.ndarray, " _"]:
        """The documents of the part that are in the list, by their numbers in the part."""
        return np.flatnonzero(self.documents >= 0)

    @property
    def num_kept(self) -> int:
        """The number of their rows."""
        return int(self.part.sizes[self.documents >= 0].sum())

    def places(self, starts: Int[np.ndarray, " starts"], own: Int[np.ndarray, " _"]) -> Int[np.ndarray, " _"]:
        """The place of each row or text of the part among all of the list; -1 for documents that are not in it.

        Args:
            starts: the first one of each document of the list.
            own: the first one of each document of the part.
        """
        moved = np.where(self.documents >= 0, starts[self.documents] - own[:-1], -1 - own[-1])
        return np.maximum(np.arange(own[-1]) + np.repeat(moved, np.diff(own)), -1)


def listed_documents(connection: sqlite3.Connection, folder: Path) -> Listed:
    """All documents, in the order of their ids."""
    found = list(list_documents(connection, folder))
    return Listed(
        [name for name, _, _ in found],
        np.array([number for _, number, _ in found], np.int64),
        np.array([_key(digest) for _, _, digest in found], np.uint64),
    )


def listed_notes(connection: sqlite3.Connection, folder: Path, documents: Listed) -> Listed:
    """The documents with notes; a key also names the document's own rows, because notes name its chunks."""
    digests = list_notes(connection, folder, documents.by_id)
    places = [place for place, name in enumerate(documents.ids) if name in digests]
    keys = [_key(digests[documents.ids[place]]) for place in places]
    return Listed(
        [documents.ids[place] for place in places],
        documents.numbers[places],
        np.array(keys, np.uint64) ^ documents.keys[places],
    )


def stored_parts(folder: Path, kind: str) -> list[StoredPart]:
    """The files of a kind, those with the most rows first.

    Raises:
        Damaged: a file was changed or cut off.
    """
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):  # a writer has merged a file meanwhile
            found = [StoredPart(path) for path in (folder / FOLDER).glob(f"[!.]*{kind}")]
            return sorted((one for one in found if one.is_current), key=lambda part: -int(part.sizes.sum()))
    return []  # the catalogue has all that is in them


def place(parts: Sequence[Part | StoredPart], listed: Listed) -> tuple[list[Placed], Int[np.ndarray, " _"]]:
    """Where the documents of parts stand in a list, and the positions of those that no part has."""
    if not listed.ids:
        return [Placed(part, np.full(len(part.numbers), -1)) for part in parts], np.zeros(0, np.int64)
    missing = np.full(len(listed.ids), True)
    order = np.argsort(listed.numbers)
    found = []
    for part in parts:
        near = np.searchsorted(listed.numbers[order], part.numbers).clip(max=len(order) - 1)
        documents = order[near]
        is_same = (listed.numbers[documents] == part.numbers) & (listed.keys[documents] == part.keys)
        documents = np.where(is_same & missing[documents], documents, -1)
        missing[documents[documents >= 0]] = False
        found.append(Placed(part, documents))
    return found, np.flatnonzero(missing)


def document_part(
    connection: sqlite3.Connection, folder: Path, listed: Listed, some: Sequence[int], load: Load
) -> Part:
    """The part of some documents, read from the catalogue.

    Args:
        some: positions in the list.
        load: loads the encoder of the index, which tells unknown words; called if some may be.

    Raises:
        Damaged: a document was changed since it was written.
        Moved: a document was removed meanwhile.
    """
    texts: list[str] = []
    looked_at: list[str] = []
    have_context: list[bool] = []
    copy_keys: list[int] = []
    vectors, leaves, num_leaves, num_nodes, num_cut = [], [], [], [], []
    for position in some:
        one, row = read_current(connection, folder, listed, position)
        nodes = list(one.nodes)
        for leaf in one.leaves.tolist():
            spans = nodes[leaf].spans
            text, context = chunk_text(one.document.text, spans), context_of(one.document.text, spans)
            full_text = searched_text(context, text)
            texts.append(readable(full_text))
            copy_keys.append(copy_key_of(full_text))
            looked_at.append(text[:NUM_LOOKED_AT])
            have_context.append(bool(context))
        rows = unpack_vectors(row, len(one.nodes))[one.leaves]
        vectors.append(rows if are_unit(rows, UNIT_SLACK).all() else unit_rows(rows))
        leaves.append(one.leaves)
        num_leaves.append(len(one.leaves))
        num_nodes.append(len(one.nodes))
        num_cut.append(one.num_cut)
    unknown = UNSAID * may_be_unknown(looked_at).astype(np.uint8)
    if unknown.any() and (embed := load()) is not None:
        unknown = are_unknown(embed, looked_at).astype(np.uint8)
    sizes = np.array(num_leaves, np.int64)
    return Part(
        listed.numbers[list(some)],
        listed.keys[list(some)],
        sizes,
        np.concatenate(vectors),
        count_words(texts),
        sizes,
        {"num_nodes": np.array(num_nodes, np.int32), "num_cut": np.array(num_cut, np.int32)},
        {
            "leaves": np.concatenate(leaves).astype(np.int32),
            "unknown": unknown,
            "have_context": np.array(have_context, np.uint8),
            "copy_keys": np.array(copy_keys, np.int64),
        },
    )


def _key(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little")


class Moved(InputError):
    """An index has changed since a reader looked at it; the reader looks again."""


@dataclass(frozen=True, eq=False)
class ReadDocument:
    """A document in memory.

    Attributes:
        document, nodes: the document, and its chunks or all nodes of its tree.
        tree: None if it has none.
        num_cut: number of nodes longer than the encoder's window.
    """

    document: Document
    nodes: Sequence[Chunk]
    tree: ChunkTree | None
    num_cut: int

    @property
    def leaves(self) -> Int[np.ndarray, " leaves"]:
        """The numbers of the nodes that are searched."""
        return np.arange(len(self.nodes)) if self.tree is None else self.tree.leaves


def read_current(
    connection: sqlite3.Connection, folder: Path, listed: Listed, position: int
) -> tuple[ReadDocument, Row]:
    """A document of a list, and its row.

    Raises:
        Damaged: it was changed since it was written.
        Moved: it has another row now, or none.
    """
    name = listed.ids[position]
    known = read_document(connection, folder, name)
    if known is None or known.row is None or known.number != listed.numbers[position]:
        raise Moved(f"{folder}: document {name} has changed since the search began; search again")
    nodes = PackedNodes(name, known.row)
    document, tree = unpack_document(name, known.row), unpack_tree(name, known.row, nodes)
    if not nodes.are_in(document):
        for node in nodes:
            check_place(document, name, node.spans)
    return ReadDocument(document, nodes, tree, int(nodes.is_cut.sum())), known.row


def note_part(
    connection: sqlite3.Connection, folder: Path, listed: Listed, some: Sequence[int], documents: Listed
) -> Part:
    """The part of the notes of some documents, read from the catalogue.

    A row is a note; rows are in the order of the leaves. The words are counted in one text for each leaf: its notes,
    each text once.

    Args:
        some: positions in the list.
        documents: all documents of the index.
    """
    place_of = {name: position for position, name in enumerate(documents.ids)}
    leaf_of: dict[str, dict[str, int]] = {}

    def leaves_of(name: str) -> dict[str, int]:
        """The chunk ids of the leaves of a document, with their numbers."""
        if name not in leaf_of:
            one, _ = read_current(connection, folder, documents, place_of[name])
            leaf_of[name] = {one.nodes[node].id: number for number, node in enumerate(one.leaves.tolist())}
        return leaf_of[name]

    texts: list[str] = []
    vectors: list[np.ndarray] = []
    sizes, num_texts = [], []
    columns: list[tuple[int, ...]] = []
    for position in some:
        name = listed.ids[position]
        found = []
        for number, row in enumerate(read_notes_of(connection, folder, name)):
            if row.pair[1] not in place_of:
                continue
            asking = int(documents.numbers[place_of[row.pair[1]]])
            tokens, rows = row.unpack_vectors()
            for placed, (order, note) in enumerate(row.placed):
                leaf = leaves_of(name)[note.answering], order
                values = asking, leaves_of(row.pair[1])[note.asking], number, placed, int(tokens[placed])
                found.append((leaf, values, note.text, rows[placed]))
        found.sort(key=lambda one: one[0])
        own: list[dict[str, None]] = [{} for _ in leaves_of(name)]
        for (leaf, _), values, text, vector in found:
            own[leaf][text] = None
            vectors.append(vector)
            columns.append((leaf, *values))
        texts += ["".join(f" ({text})" for text in some_texts) for some_texts in own]
        sizes.append(len(found))
        num_texts.append(len(own))
    values = np.array(columns, np.int64).T
    return Part(
        listed.numbers[list(some)],
        listed.keys[list(some)],
        np.array(sizes, np.int64),
        unit_rows(np.array(vectors, np.float32)),
        count_words([readable(text) for text in texts]),
        np.array(num_texts, np.int64),
        {},
        dict(zip(NOTE_COLUMNS, values, strict=True)),
    )


# A note has these columns: its leaf, the row number and the leaf of the document that it comes from, its row in the
# catalogue (counted in its own document), its place in that row, and its number of tokens.
NOTE_COLUMNS = ("answering", "asking_number", "asking", "row", "placed", "num_tokens")


def missing_parts(
    connection: sqlite3.Connection, listed: Listed, missing: Sequence[int], make: Callable[[Sequence[int]], Part]
) -> list[Part]:
    """Parts in memory of the documents that no file has, each of limited size.

    Args:
        missing: positions in the list.
        make: positions -> their part.
    """
    groups: list[list[int]] = []
    room = 0
    for position in missing:
        size = vector_bytes(connection, int(listed.numbers[position]))
        if room < size or not groups:
            groups.append([])
            room = _MOST_BYTES
        groups[-1].append(position)
        room -= size
    return [make(group) for group in groups]


def refresh(
    connection: sqlite3.Connection,
    folder: Path,
    settings: IndexSettings,
    load: Load,
    says: Callable[[str], object] = lambda message: None,
) -> None:
    """Brings the search files up to date with the catalogue; the caller holds the lock of the folder.

    Vectors of removed documents are overwritten. Small files are merged, so that their number grows with the logarithm
    of the number of documents.

    Args:
        load: as in `document_part`; questions to a large file need it too.
        says: called with a message about a damaged file, which is made again, or about approximate search.
    """
    if not uses_parts(settings):
        return
    index_notes(connection, folder)
    documents = listed_documents(connection, folder)
    (folder / FOLDER).mkdir(exist_ok=True)
    notes = listed_notes(connection, folder, documents)
    of_documents = partial(document_part, connection, folder, documents, load=load)
    of_notes = partial(note_part, connection, folder, notes, documents=documents)
    code_kind = None if settings.vectors == "float32" else settings.vectors
    damaged = _refresh(connection, folder, DOCUMENTS, documents, of_documents, code_kind)
    _try_near(connection, folder, documents, load, says)
    damaged += _refresh(connection, folder, NOTES, notes, of_notes)
    for name in damaged:
        says(f"{folder / FOLDER / name}: was damaged; it is made again from the catalogue")


def uses_parts(settings: IndexSettings) -> bool:
    """True if an index has search files: not one with levels, or of a run, which compare all nodes in memory."""
    return settings.parents is None and not settings.is_run


def _refresh(
    connection: sqlite3.Connection,
    folder: Path,
    kind: str,
    listed: Listed,
    make: Callable[[Sequence[int]], Part],
    code_kind: CodeKind | None = None,
) -> tuple[str, ...]:
    stored, damaged = _whole_parts(folder, kind)
    placed, missing = place(stored, listed)
    for one, part in zip(placed, stored, strict=True):
        part.erase(np.flatnonzero(one.documents < 0))
    made = missing_parts(connection, listed, missing.tolist(), make)
    old = _to_merge(placed, sum(int(part.sizes.sum()) for part in made), code_kind)
    parts = [*(one.part for one in old), *made]
    kept = [*(one.kept for one in old), *(np.arange(len(part.numbers)) for part in made)]
    try:
        if sum(map(len, kept)):
            path = folder / FOLDER / f"{secrets.token_hex(4)}{kind}"
            write_part(path, parts, kept, code_kind, with_signs=kind == DOCUMENTS)
    except Damaged:
        again = tuple(path.name for path in damaged_files(folder))
        for name in again:
            _remove(folder / FOLDER / name)
        return damaged + again + _refresh(connection, folder, kind, listed, make, code_kind)
    for one in old:
        assert isinstance(one.part, StoredPart)
        _remove(one.part.path)
    return damaged


def _remove(path: Path) -> None:
    """Removes a search file, and the one that says how well it is searched approximately."""
    path.unlink(missing_ok=True)
    path.with_suffix(NEAR).unlink(missing_ok=True)


def _try_near(
    connection: sqlite3.Connection, folder: Path, listed: Listed, load: Load, says: Callable[[str], object]
) -> None:
    """Measures approximate search of large files for which this was not done, and says whether searches use it."""
    for part in stored_parts(folder, DOCUMENTS):
        if not part.has_signs or part.path.with_suffix(NEAR).exists() or (embed := load()) is None:
            continue
        what = f"{len(part.vectors):,} vectors"
        says(f"{what}: measuring whether a search must compare all of them")
        questions = embed_texts(for_questions(embed), _questions(connection, folder, listed))
        recall = try_near(part, unit_rows(questions))
        used = "so searches use them" if recall >= LEAST_RECALL else f"less than {LEAST_RECALL}, so all are compared"
        says(f"{what}: their signs find {recall:.4f} of the {RECALL_AT} nearest of {_NUM_ASKED:,} sentences, {used}")


def _questions(connection: sqlite3.Connection, folder: Path, listed: Listed) -> list[str]:
    """Beginnings of chunks, a chunk a document as far as there are enough; they are no chunks themselves."""
    rng = np.random.default_rng(0)
    found = []
    for position in rng.choice(len(listed.ids), _NUM_ASKED, replace=len(listed.ids) < _NUM_ASKED).tolist():
        one, _ = read_current(connection, folder, listed, position)
        leaf = one.nodes[int(rng.choice(one.leaves))]
        words = chunk_text(one.document.text, leaf.spans).split()
        found.append(readable(" ".join(words[:_NUM_WORDS]) or leaf.id))
    return found


def damaged_files(folder: Path) -> list[Path]:
    """The search files of an index that differ from what was written."""
    found = []
    for path in sorted((folder / FOLDER).glob("[!.]*.*")):
        try:
            part = None if path.suffix == NEAR else StoredPart(path)
            (part if part is not None and part.is_current else ArrayFile(path)).check()
        except Damaged:
            found.append(path)
    return found


def _whole_parts(folder: Path, kind: str) -> tuple[list[StoredPart], tuple[str, ...]]:
    """Reads the current files of a kind, and removes damaged files and those of other versions.

    Returns:
        The files, and the names of the damaged ones.
    """
    found, damaged = [], []
    for path in (folder / FOLDER).glob(f"*{kind}"):
        try:
            part = StoredPart(path)
        except Damaged:
            damaged.append(path.name)
            _remove(path)
            continue
        if part.is_current:
            found.append(part)
        else:
            _remove(path)
    return found, tuple(damaged)


def _to_merge(placed: Sequence[Placed], num_new: int, code_kind: CodeKind | None) -> list[Placed]:
    """Chooses the files to write again.

    These are files with other codes, with many removed documents, or small beside the new rows.
    """
    found, total = [], num_new
    for one in sorted(placed, key=lambda one: one.num_kept):
        kept, size = one.num_kept, int(one.part.sizes.sum())
        assert isinstance(one.part, StoredPart)
        is_small, is_old = total and kept <= _MERGED * total, one.part.code_kind != code_kind
        if is_small or is_old or size - kept > _MOST_GONE * size or not kept:
            found.append(one)
            total += kept
    return found
