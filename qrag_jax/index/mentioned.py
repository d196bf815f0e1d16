"""Notes by names (`annotate/mentions.py`), updated by what changed, and equal to those of all documents at once.

A change of documents changes names: some come, some go, some become terms, and some are in more or fewer chunks.

1. `read_names` finds the names of new documents and the mentions in them. A name that comes or goes changes mentions in
   chunks of other documents; these are matched again, because a longer name hides a shorter one. Chunks that own a name
   with other mentions become stale.
2. `stale_notes` selects the notes of stale chunks, and gives the rows that differ from those stored.
3. `finish` records that nothing is stale.

A writer that is killed leaves what was removed (`changed`) and what is stale, and the next one continues there.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qrag_jax.annotate.mentions import (
    BEYOND_MOST,
    NAME_AMBIGUOUS,
    NAME_COMMON,
    SENTENCE_TOO_LONG,
    MentionsConfig,
    Sentence,
    make_note,
    names_of,
    sentences_of,
)
from qrag_jax.chunking.text.proper_names import Name, NameFinder, find_words
from qrag_jax.index.folder import CATALOGUE
from qrag_jax.index.stores.sqlite.database import transaction
from qrag_jax.index.stores.sqlite.document_rows import read_whole
from qrag_jax.index.stores.sqlite.entries import unpack_document, unpack_nodes, unpack_tree
from qrag_jax.index.stores.sqlite.mention_rows import (
    ALL,
    AMBIGUOUS,
    BEGIN_WORDS,
    COMMON,
    PLACE,
    ChunkCount,
    MentionRows,
    begin_key,
    name_key,
    text_hash,
)
from qrag_jax.index.stores.sqlite.note_rows import (
    Pair,
    documents_with_notes,
    pack_notes,
    read_notes_of,
    unpack_notes,
)
from qrag_jax.types import Chunk, Document, Note

CONFIG = MentionsConfig()
_MOST_KEPT = 100_000  # chunks in memory
_MANY = 100  # new documents; for more of them all names are read at once
_Chunk = tuple[int, int]  # number of the document, and of the chunk in it
_Places = dict[int, list[tuple]]  # key of a name -> its places


@dataclass(frozen=True)
class _Read:
    """A document in the catalogue, with the chunks that are searched."""

    document: Document
    leaves: Sequence[Chunk]
    _sentences: dict[int, list[Sentence]] = field(default_factory=dict)

    def sentences(self, node: int) -> list[Sentence]:
        """The sentences of a chunk."""
        if node not in self._sentences:
            self._sentences[node] = sentences_of(node, self.document.text, self.leaves[node].spans)
        return self._sentences[node]

    def names(self) -> list[tuple[Name, int, bool]]:
        """The names that its chunks own, as `names_of`."""
        spans = [(*span, node) for node, leaf in enumerate(self.leaves) if self.sentences(node) for span in leaf.spans]
        return names_of(self.document, spans, CONFIG.min_chars)

    def pairs(self) -> set[int]:
        """The keys of the pairs of words in its sentences, and of words with a capital letter."""
        return self._keys(range(len(self.leaves)), 2)

    def begins(self, nodes: Iterable[int]) -> set[int]:
        """The keys of the words in chunks with which names may begin."""
        return self._keys(nodes, BEGIN_WORDS)

    def _keys(self, nodes: Iterable[int], most: int) -> set[int]:
        found: set[tuple[str, ...]] = set()
        for node in nodes:
            for sentence in self.sentences(node):
                words = sentence.words
                texts = [word.text for word in words]
                found |= {(word.text,) for word in words if word.is_capital}
                for size in range(2, most + 1):
                    found |= {tuple(texts[start : start + size]) for start in range(len(texts) - size + 1)}
        return {begin_key(words) for words in found}


class NamesUpdate:
    """An update of the notes by names.

    Args:
        connection: may write; no transaction is open.
        setting: of the notes; another one makes all notes again.
    """

    def __init__(self, connection: sqlite3.Connection, folder: Path, setting: str) -> None:
        self.connection, self.folder, self.setting = connection, folder, f"{setting} {CONFIG}"
        self.rows = MentionRows(connection, folder)
        self._kept: dict[int, _Read] = {}
        self._ids: dict[int, bytes] = {}
        self._counts: dict[_Chunk, ChunkCount] = {}

    def read_names(self) -> None:
        """Brings names and mentions up to date, in one transaction."""
        with transaction(self.connection, self.folder / CATALOGUE):
            new = self.rows.new_documents()
            if self.rows.setting() != self.setting or not (new or self.rows.is_pending()):
                # If nothing is recorded as changed, nobody knows which notes are stale.
                self.rows.begin_anew(self.setting)
                new = self.rows.new_documents()
            self._read_names(new)

    def _read_names(self, new: Sequence[int]) -> None:
        rows, was_first = self.rows, not self.rows.has_read()
        removed = rows.take_changed()
        before = {key: _either(rows.is_owned(key), there) for key, there in removed.items()}
        for number in new:
            document = self._read(number)
            names = document.names()
            for key in {name_key(name) for name, _, _ in names} - before.keys():
                before[key] = (False, False) if was_first else rows.is_owned(key)
            rows.put_names(number, names)
            rows.put_read(number, document.pairs())
        affected = set(before)
        every = _finder(rows.names_by_begin(None)) if len(new) > _MANY else None
        for number in new:
            document = self._read(number)
            nodes = range(len(document.leaves))
            found = _find(document, nodes, every or _finder(rows.names_by_begin(document.begins(nodes))))
            rows.put_mentions(number, _packed(found))
            affected |= found.keys()
        if not was_first:
            after = {key: rows.is_owned(key) for key in before}
            gone = {key for key in before if after[key] < before[key]}
            come = {key for key in before if after[key] > before[key]}
            affected |= self._match_again(gone, come, set(new))
        for key in affected:
            self._judge(key, before.get(key, (not was_first, False))[0])

    def _match_again(self, gone: Set[int], come: Set[int], new: Set[int]) -> set[int]:
        """Matches chunks of other documents in which names have come or gone; returns the names with other places."""
        chunks: defaultdict[int, set[int]] = defaultdict(set)
        for key in gone:
            for number, places in self.rows.places_of(key):
                chunks[number] |= set(places["node"].tolist())
        names = {self.rows.name(key): self.rows.is_owned(key)[1] for key in come}
        finder = _finder(names)
        for number in self.rows.documents_with(names):
            if number not in new:
                chunks[number] |= _chunks_with(finder, self._read(number))
        affected: set[int] = set()
        for number, nodes in chunks.items():
            if number in new or not nodes:
                continue
            document = self._read(number)
            finder = _finder(self.rows.names_by_begin(document.begins(nodes)))
            found = _packed(_find(document, sorted(nodes), finder))
            stored = self.rows.places_in(number)
            changed = {}
            for key in stored.keys() | found.keys():
                old, now = stored.get(key, _NO_PLACES), found.get(key, _NO_PLACES)
                kept = old[~np.isin(old["node"], list(nodes))]
                joined = np.sort(np.concatenate([kept, now]), order=["node", "sentence"])
                if joined.tobytes() != old.tobytes():
                    changed[key] = joined
            self.rows.put_mentions(number, changed)
            affected |= changed.keys()
        return affected

    def _judge(self, key: int, was_owned: bool) -> None:
        """Decides whether a name makes notes; its owners become stale if it does or did."""
        rows, was_silent = self.rows, self.rows.is_silent(key)
        owners, reason = rows.owners(key, CONFIG.max_owners + 1), 0
        if len(owners) > CONFIG.max_owners:
            reason = AMBIGUOUS
        elif owners and rows.count_chunks(key, CONFIG.max_naming) > CONFIG.max_naming:
            reason = COMMON
        rows.silence(key, reason)
        if not reason:
            rows.put_stale(owners)
        elif was_owned and not was_silent:
            rows.put_stale(rows.owners(key))

    def stale_notes(self) -> dict[Pair, bytes]:
        """The rows of notes that differ from those stored; empty ones are to be removed."""
        stale = self.rows.stale()
        of_document: defaultdict[int, list[int]] = defaultdict(list)
        for number, node in stale:
            if (number, node) != ALL:
                of_document[number].append(node)
        if ALL in stale:
            for number in documents_with_notes(self.connection, self.folder):
                of_document[number] += []
        changed: dict[Pair, bytes] = {}
        for number, nodes in of_document.items():
            changed |= self._notes_of(number, nodes, every=ALL in stale)
        return changed

    def _notes_of(self, number: int, nodes: Sequence[int], *, every: bool) -> dict[Pair, bytes]:
        """The rows of a document with other notes of some chunks; `every`: its other chunks have none."""
        document = self._read(number)
        name, node_of = document.document.id, {leaf.id: node for node, leaf in enumerate(document.leaves)}
        stored = {row.pair: row.content for row in read_notes_of(self.connection, self.folder, name)}
        rows: defaultdict[Pair, list[tuple[int, int, Note]]] = defaultdict(list)  # (chunk, place, note)
        if not every:
            for pair, content in stored.items():
                placed = [(node_of[note.answering], place, note) for place, note in unpack_notes(content)]
                rows[pair] += [one for one in placed if one[0] not in nodes]
        for node in nodes:
            for place, (asking, note) in enumerate(self._select(number, node)):
                rows[name, asking].append((node, place, note))
        packed = {
            pair: pack_notes([one[1:] for one in sorted(own, key=lambda one: one[:2])]) if own else b""
            for pair, own in rows.items()
        }
        now = {pair: packed.get(pair, b"") for pair in stored.keys() | packed.keys()}
        return {pair: content for pair, content in now.items() if content != stored.get(pair, b"")}

    def _select(self, number: int, node: int) -> list[tuple[str, Note]]:
        """The notes of a chunk, the best first, each with the id of the asking document."""
        document, candidates, too_long = self._read(number), [], 0
        own = document.sentences(node)
        spans = {sentence.span for sentence in own}
        for key, name in self.rows.names_of_chunk(number, node):
            if self.rows.is_silent(key):
                continue
            places = self.rows.places_of(key)
            num_naming = sum(len(np.unique(one["node"])) for _, one in places)
            for asking, one in places:
                for place in one.tolist():
                    where, sentence, start, end, order, is_whole, text = place
                    if (asking, where) == (number, node) or is_whole:
                        continue
                    if end - start > CONFIG.max_chars:
                        too_long += 1
                    elif asking != number or (start, end) not in spans:
                        rank = (num_naming, -sum(map(len, name)), self._id(asking), where, sentence, order)
                        candidates.append((rank, text, name, asking, where, (start, end)))
        best: dict[int, tuple] = {}
        for candidate in sorted(candidates):
            best.setdefault(candidate[1], candidate)
        kept = list(best.values())[: CONFIG.max_notes]
        self._counts[number, node] = ChunkCount(len(kept), too_long, len(best) - len(kept))
        notes = []
        for *_, name, asking, where, span in kept:
            there = self._read(asking)
            sentence = Sentence(where, span, there.document.text[slice(*span)])
            asks, answers = there.leaves[where].id, document.leaves[node].id
            notes.append((there.document.id, make_note(name, sentence, asks, answers, own)))
        return notes

    def finish(self) -> tuple[int, dict[str, int]]:
        """Records that nothing is stale; the caller has opened a transaction.

        Returns:
            The number of notes, and the number left out by reason.
        """
        self.rows.finish(self._counts)
        total = self.rows.total()
        left_out = {
            BEYOND_MOST: total.beyond,
            NAME_AMBIGUOUS: self.rows.count_silent(AMBIGUOUS),
            NAME_COMMON: self.rows.count_silent(COMMON),
            SENTENCE_TOO_LONG: total.too_long,
        }
        return total.num_notes, {reason: number for reason, number in sorted(left_out.items()) if number}

    def _id(self, number: int) -> bytes:
        """The id of a document, as it is sorted."""
        if number not in self._ids:
            self._ids[number] = self.rows.document_id(number)
        return self._ids[number]

    def _read(self, number: int) -> _Read:
        """A document, checked; the last ones are kept."""
        if number not in self._kept:
            known = read_whole(self.connection, self.folder, number)
            assert known is not None and known.row is not None  # its rows leave in its transaction
            nodes, _ = unpack_nodes(known.id, known.row)
            tree = unpack_tree(known.id, known.row, nodes)
            leaves = nodes if tree is None else [nodes[node] for node in tree.leaves.tolist()]
            if sum(len(one.leaves) for one in self._kept.values()) > _MOST_KEPT:
                self._kept.clear()
            self._kept[number] = _Read(unpack_document(known.id, known.row), leaves)
        return self._kept[number]


_NO_PLACES = np.zeros(0, PLACE)


def _either(one: tuple[bool, bool], other: tuple[bool, bool] | None) -> tuple[bool, bool]:
    return one if other is None else (one[0] or other[0], one[1] or other[1])


def _finder(names: Mapping[Name, bool]) -> NameFinder:
    return NameFinder(names, [name for name, is_term in names.items() if is_term])


def _find(document: _Read, nodes: Iterable[int], finder: NameFinder) -> _Places:
    """The places of names in chunks of a document."""
    found: _Places = defaultdict(list)
    for node in nodes:
        for number, sentence in enumerate(document.sentences(node)):
            words = sentence.words
            own = dict.fromkeys(name for name, _ in finder.find(words))
            text = text_hash(sentence.text) if own else 0
            for order, name in enumerate(own):
                place = (node, number, *sentence.span, order, len(name) == len(words), text)
                found[name_key(name)].append(place)
    return found


def _packed(places: _Places) -> dict[int, np.ndarray]:
    return {key: np.array(own, PLACE) for key, own in places.items()}


def _chunks_with(finder: NameFinder, document: _Read) -> set[int]:
    """The chunks in which a name may stand: those that touch a place of one in the whole text."""
    leaves = [(begin, end, node) for node, leaf in enumerate(document.leaves) for begin, end in leaf.spans]
    begins, ends, nodes = np.array(leaves).reshape(-1, 3).T
    found: set[int] = set()
    for _, (start, end) in finder.find(find_words(document.document.text)):
        found |= set(nodes[(begins < end) & (start < ends)].tolist())
    return found
