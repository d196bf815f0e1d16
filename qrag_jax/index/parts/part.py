"""One search file: vectors and word counts of some documents, or of their notes, made from the catalogue.

    numbers, keys      of each document its row number, and a hash of what its rows here were made from
    sizes              of each document the number of its rows here
    vectors, digests   unit vectors [rows, dim], and the sha256 of those of each document
    words, ...         the arrays of `WordArrays`, over the texts of the documents
    more arrays        with one value for each document or row, as a kind of file needs them

The catalogue has all that is in such a file, so a file may be missing or out of date: a reader uses the documents whose
number and key are those of the catalogue, and reads the others from there. Vectors of removed documents are overwritten
with zeros. Their digest is not looked at again, so a writer may be killed in the middle.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.files.array_file import ArrayFile, write_arrays
from qrag_jax.files.sqlite import Damaged
from qrag_jax.search.postings import WordArrays, WordPart, join_words

_WORDS = tuple(field.name for field in fields(WordArrays))
_OF_DOCUMENTS = ("numbers", "keys", "sizes", "num_texts")
_COPIED_ROWS = 10_000  # vectors written at a time
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Part:
    """Vectors and words of some documents, in memory.

    Attributes:
        numbers, keys, sizes: int64, uint64, int64 [documents], see the module.
        vectors: float32 [rows, dim], of length 1 or 0.
        words: of the texts of the documents.
        num_texts: int64 [documents], how many texts each has in `words`.
        per_document, per_row: more arrays by name, with one value for each document or row.
    """

    numbers: Int[np.ndarray, " documents"]
    keys: np.ndarray
    sizes: Int[np.ndarray, " documents"]
    vectors: Float[np.ndarray, "rows dim"]
    words: WordArrays
    num_texts: Int[np.ndarray, " documents"]
    per_document: Mapping[str, np.ndarray]
    per_row: Mapping[str, np.ndarray]

    @cached_property
    def starts(self) -> Int[np.ndarray, " starts"]:
        """The first row of each document, then the number of rows."""
        return starts_of(self.sizes)

    def vectors_of(self, document: int) -> Float[np.ndarray, "rows dim"]:
        """The vectors of a document."""
        return self.vectors[self.starts[document] : self.starts[document + 1]]

    def check_vectors(self, documents: Int[np.ndarray, " _"]) -> None:
        """Vectors in memory need no check."""

    def word_part(self, places: Int[np.ndarray, " texts"]) -> WordPart:
        """The words, for a pool in which the texts have these places."""

        def read(name: str, first: int, last: int) -> np.ndarray:
            return getattr(self.words, name)[first:last]

        return WordPart(self.words.words, self.words.bounds, read, places)


class StoredPart:
    """Vectors and words of some documents in a file, with the attributes of `Part`.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        """Maps a file.

        Raises:
            Damaged: the file was changed or cut off.
            FileNotFoundError: there is no such file.
        """
        self.path, self._file = path, ArrayFile(path)
        if self._file.about["format"] != _FORMAT:
            raise Damaged(f"{path}: made by another version; remove it, and the next `qrag index add` makes it again")
        self.numbers, self.keys, self.sizes, self.num_texts = map(self._file.read, _OF_DOCUMENTS)
        self.per_document, self.per_row = (
            {name: self._file.read(name) for name in self._file.about[group]} for group in ("per_document", "per_row")
        )
        self.vectors = self._file.unchecked("vectors")
        self._checked = np.zeros(len(self.numbers), bool)

    @property
    def about(self) -> dict[str, Any]:
        """What the writer said about the file."""
        return self._file.about

    @cached_property
    def words(self) -> WordArrays:
        """All word counts, compared with their hashes."""
        return WordArrays(*map(self._file.read, _WORDS))

    @cached_property
    def starts(self) -> Int[np.ndarray, " starts"]:
        """The first row of each document, then the number of rows."""
        return starts_of(self.sizes)

    def vectors_of(self, document: int) -> Float[np.ndarray, "rows dim"]:
        """The vectors of a document, compared with their digest."""
        self.check_vectors(np.array([document]))
        return self._rows(document)

    def check_vectors(self, documents: Int[np.ndarray, " _"]) -> None:
        """Compares the vectors of documents with their digests, once.

        Raises:
            Damaged: they were changed.
        """
        unchecked = documents[~self._checked[documents]]
        if len(unchecked):
            digests = self._file.read("digests")
            for document in unchecked.tolist():
                if _digest(self._rows(document)) != digests[document].tobytes():
                    raise Damaged(
                        f"{self.path}: damaged (vectors of document {document} have changed since they were written); "
                        "remove this file, and the next `qrag index add` makes it again"
                    )
            self._checked[unchecked] = True

    def _rows(self, document: int) -> Float[np.ndarray, "rows dim"]:
        return self.vectors[self.starts[document] : self.starts[document + 1]]

    def word_part(self, places: Int[np.ndarray, " texts"]) -> WordPart:
        """The words, for a pool in which the texts have these places; postings are read when they are asked for."""
        return WordPart(self._file.read("words"), self._file.read("bounds"), self._file.read, places)

    @property
    def lengths(self) -> Int[np.ndarray, " texts"]:
        """The number of tokens of each text."""
        return self._file.read("lengths")

    def check(self) -> None:
        """Compares everything in the file with its hashes; vectors may be those of a document that is gone, zeros.

        Raises:
            Damaged: something has changed.
        """
        self._file.check()
        kept = [document for document in range(len(self.sizes)) if self._rows(document).any()]
        self._checked[:] = False
        self.check_vectors(np.array(kept, np.int64))

    def erase(self, documents: Int[np.ndarray, " _"]) -> None:
        """Overwrites the vectors of documents with zeros."""
        rows = [range(self.starts[one], self.starts[one + 1]) for one in documents.tolist()]
        filled = [one for one in rows if len(one) and self.vectors[one.start : one.stop].any()]
        if filled:
            offset = self._file.offset("vectors")
            writable = np.memmap(self.path, np.float32, "r+", offset, self.vectors.shape)
            for one in filled:
                writable[one.start : one.stop] = 0
            writable.flush()


def write_part(
    path: Path, parts: Sequence[Part | StoredPart], kept: Sequence[Int[np.ndarray, " _"]], about: Mapping[str, Any]
) -> None:
    """Writes a file with documents of several parts.

    Args:
        path: of the file.
        parts: of one kind.
        kept: of each part, the increasing positions of the documents to write.
        about: what to say about the file.
    """
    pairs = list(zip(parts, kept, strict=True))
    rows = [rows_of(part.starts, some) for part, some in pairs]
    texts = [rows_of(starts_of(part.num_texts), some) for part, some in pairs]
    words = join_words([part.words for part, _ in pairs], texts)
    digests = [np.frombuffer(_digest(part.vectors_of(one)), np.uint8) for part, some in pairs for one in some.tolist()]
    arrays: dict[str, Iterable[np.ndarray]] = {
        name: [getattr(part, name)[some] for part, some in pairs] for name in _OF_DOCUMENTS
    }
    arrays |= {name: [part.per_document[name][some] for part, some in pairs] for name in parts[0].per_document}
    for name in parts[0].per_row:
        arrays[name] = [part.per_row[name][some] for part, some in zip(parts, rows, strict=True)]
    arrays |= {name: [getattr(words, name)] for name in _WORDS}
    arrays["digests"] = [np.stack(digests)]
    arrays["vectors"] = _vectors(parts, rows)
    said = {"format": _FORMAT, "per_document": list(parts[0].per_document), "per_row": list(parts[0].per_row)}
    write_arrays(path, {**about, **said}, arrays, unchecked=("vectors",))


def _vectors(
    parts: Sequence[Part | StoredPart], rows: Sequence[Int[np.ndarray, " _"]]
) -> Iterator[Float[np.ndarray, "n dim"]]:
    """The vectors of rows of several parts, a few at a time."""
    yield np.zeros((0, parts[0].vectors.shape[1]), np.float32)
    for part, some in zip(parts, rows, strict=True):
        for start in range(0, len(some), _COPIED_ROWS):
            yield part.vectors[some[start : start + _COPIED_ROWS]]


def starts_of(sizes: Int[np.ndarray, " n"]) -> Int[np.ndarray, " starts"]:
    """The first of the rows of each, then the number of all rows."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def rows_of(starts: Int[np.ndarray, " starts"], some: Int[np.ndarray, " _"]) -> Int[np.ndarray, " _"]:
    """The numbers of all rows of some documents, in their order."""
    sizes = starts[some + 1] - starts[some]
    return np.repeat(starts[some] - starts_of(sizes)[:-1], sizes) + np.arange(sizes.sum())


def _digest(vectors: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(vectors)).digest()
