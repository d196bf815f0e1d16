"""One search file: vectors and word counts of some documents, or of their notes, made from the catalogue.

    numbers, keys      of each document its row number, and a hash of what its rows here were made from
    sizes              of each document the number of its rows here
    vectors, digests   unit vectors [rows, dim], and a digest of those of each document (`digests_of`)
    codes, ...         the same in one or two bytes a number, if wanted; scales, code_digests (`search/rows.py`)
    signs, ...         their signs in a large file; sign_digests (`search/signs.py`)
    words, ...         the arrays of `WordArrays`, over the texts of the documents
    more arrays        with one value for each document or row, as a kind of file needs them

The catalogue has all that is in such a file, so a file may be missing or out of date: a reader uses the documents whose
number and key are those of the catalogue, and reads the others from there. Vectors of removed documents, their codes
and signs are overwritten with zeros. No search compares their digest after that, so a writer may be killed meanwhile.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt32, UInt64

from qrag_jax.chunking.text.words import TOKENS_VERSION
from qrag_jax.files.array_file import ArrayFile, digests_of, write_arrays
from qrag_jax.files.sqlite import Damaged
from qrag_jax.search.postings import WordArrays, WordPart, join_words
from qrag_jax.search.rows import CodeKind, Codes, RowPart, code
from qrag_jax.search.signs import signs_of

_WORDS = tuple(field.name for field in fields(WordArrays))
_OF_DOCUMENTS = ("numbers", "keys", "sizes", "num_texts")
_DIGESTS = {"vectors": "digests", "codes": "code_digests", "signs": "sign_digests"}
LEAST_SIGNS = 200_000  # vectors of a file that gets signs; fewer are compared as fast
_VERSION = [4, TOKENS_VERSION]  # of the arrays and of the words in them; files of another version are made again


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

    def row_part(self, places: Int[np.ndarray, " rows"], documents: Int[np.ndarray, " _"]) -> RowPart:
        """The vectors, for a pool in which the rows have these places."""
        return RowPart(self.vectors, places)

    def word_part(self, places: Int[np.ndarray, " texts"]) -> WordPart:
        """The words, for a pool in which the texts have these places."""

        def read(name: str, first: int, last: int) -> np.ndarray:
            return getattr(self.words, name)[first:last]

        return WordPart(self.words.words, self.words.bounds, read, places)


class StoredPart:
    """Vectors and words of some documents in a file, with the attributes of `Part`.

    Attributes:
        path: of the file.
        is_current: this version of the package made it; otherwise nothing of it may be read.
    """

    def __init__(self, path: Path) -> None:
        """Maps a file.

        Raises:
            Damaged: the file was changed or cut off.
            FileNotFoundError: there is no such file.
        """
        self.path, self._file = path, ArrayFile(path)
        self.is_current = self._file.about["version"] == _VERSION
        if not self.is_current:
            return
        self.numbers, self.keys, self.sizes, self.num_texts = map(self._file.read, _OF_DOCUMENTS)
        self.per_document, self.per_row = (
            {name: self._file.read(name) for name in self._file.about[group]} for group in ("per_document", "per_row")
        )
        self.vectors = self._file.unchecked("vectors")
        self._checked = {name: np.zeros(len(self.numbers), bool) for name in self._coded}

    @cached_property
    def words(self) -> WordArrays:
        """All word counts, compared with their hashes."""
        return WordArrays(*map(self._file.read, _WORDS))

    @cached_property
    def starts(self) -> Int[np.ndarray, " starts"]:
        """The first row of each document, then the number of rows."""
        return starts_of(self.sizes)

    @property
    def code_kind(self) -> CodeKind | None:
        """How vectors are coded for a first comparison; None if they are not."""
        return self._file.about["codes"]

    @property
    def has_signs(self) -> bool:
        """True for a large file."""
        return self._file.has("signs")

    def signs(self, documents: Int[np.ndarray, " _"] | None = None) -> UInt32[np.ndarray, "rows words"]:
        """The signs of all vectors.

        Args:
            documents: those of the file whose signs must be right; None is all that were not removed.

        Raises:
            Damaged: theirs were changed.
        """
        self._check("signs", self._filled("signs") if documents is None else documents)
        return self._file.unchecked("signs")

    def row_part(self, places: Int[np.ndarray, " rows"], documents: Int[np.ndarray, " _"]) -> RowPart:
        """The vectors, for a pool in which the rows have these places; what is read is compared with its digests first.

        Args:
            documents: those of the file that are in the pool.
        """

        def check(rows: Int[np.ndarray, " _"] | None) -> None:
            if not self._checked["vectors"].all():
                some = documents if rows is None else np.searchsorted(self.starts, rows, side="right") - 1
                self._check("vectors", some)

        if self.code_kind is None:
            return RowPart(self.vectors, places, check)
        codes = Codes(self._file.unchecked("codes"), self._file.read("scales"), self._file.about["code_error"])
        return RowPart(self.vectors, places, check, codes, lambda: self._check("codes", documents))

    def _check(self, name: str, documents: Int[np.ndarray, " _"]) -> None:
        """Compares vectors or codes of documents with their digests, once.

        Raises:
            Damaged: they were changed.
        """
        unchecked = np.unique(documents[~self._checked[name][documents]])
        if not len(unchecked):
            return
        expected, rows = self._file.read(_DIGESTS[name]), self._file.unchecked(name)
        for run in np.split(unchecked, np.flatnonzero(np.diff(unchecked) > 1) + 1):
            starts = self.starts[run[0] : run[-1] + 2]
            found = digests_of(rows[starts[0] : starts[-1]], np.diff(starts))
            wrong = run[found != expected[run]]
            if len(wrong):
                raise Damaged(
                    f"{self.path}: damaged ({name} of document {wrong[0]} have changed since they were written); "
                    "remove this file, and the next `qrag index add` makes it again"
                )
        self._checked[name][unchecked] = True

    def _rows(self, name: str, document: int) -> np.ndarray:
        return self._file.unchecked(name)[self.starts[document] : self.starts[document + 1]]

    def word_part(self, places: Int[np.ndarray, " texts"]) -> WordPart:
        """The words, for a pool in which the texts have these places; postings are read when they are asked for."""
        return WordPart(self._file.read("words"), self._file.read("bounds"), self._file.read, places)

    def check(self) -> None:
        """Compares everything in the file with its hashes; vectors may be those of a document that is gone, zeros.

        Raises:
            Damaged: something has changed.
        """
        self._file.check()
        for name in self._coded:
            self._checked[name][:] = False
            self._check(name, self._filled(name))

    def _filled(self, name: str) -> Int[np.ndarray, " _"]:
        """The documents that were not overwritten with zeros."""
        filled = [document for document in range(len(self.sizes)) if self._rows(name, document).any()]
        return np.array(filled, np.int64)

    def erase(self, documents: Int[np.ndarray, " _"]) -> None:
        """Overwrites what is kept of the vectors of documents with zeros."""
        filled = [one for one in documents.tolist() if any(self._rows(name, one).any() for name in self._coded)]
        for name in self._coded if filled else ():
            old = self._file.unchecked(name)
            writable = np.memmap(self.path, old.dtype, "r+", self._file.offset(name), old.shape)
            for one in filled:
                writable[self.starts[one] : self.starts[one + 1]] = 0
            writable.flush()

    @property
    def _coded(self) -> tuple[str, ...]:
        """The arrays that have a digest for each document."""
        return tuple(name for name in _DIGESTS if self._file.has(name))


def write_part(
    path: Path,
    parts: Sequence[Part | StoredPart],
    kept: Sequence[Int[np.ndarray, " _"]],
    code_kind: CodeKind | None = None,
    *,
    with_signs: bool = False,
) -> None:
    """Writes a file with documents of several parts.

    Args:
        path: of the file.
        parts: of one kind.
        kept: of each part, the increasing positions of the documents to write.
        code_kind: how to code vectors for a first comparison; None compares them as they are.
        with_signs: write the signs of vectors too, if there are many.
    """
    pairs = list(zip(parts, kept, strict=True))
    rows = [rows_of(part.starts, some) for part, some in pairs]
    texts = [rows_of(starts_of(part.num_texts), some) for part, some in pairs]
    words = join_words([part.words for part, _ in pairs], texts)
    arrays: dict[str, Iterable[np.ndarray]] = {
        name: [getattr(part, name)[some] for part, some in pairs] for name in _OF_DOCUMENTS
    }
    arrays |= {name: [part.per_document[name][some] for part, some in pairs] for name in parts[0].per_document}
    for name in parts[0].per_row:
        arrays[name] = [part.per_row[name][some] for part, some in zip(parts, rows, strict=True)]
    arrays |= {name: [getattr(words, name)] for name in _WORDS}
    for part, some in pairs:
        if isinstance(part, StoredPart):
            part._check("vectors", some)
    # Views of files.
    vectors = [part.vectors[part.starts[one] : part.starts[one + 1]] for part, some in pairs for one in some.tolist()]
    arrays |= {"digests": map(_digest, vectors), "vectors": vectors}
    about = {"version": _VERSION, "per_document": list(parts[0].per_document), "per_row": list(parts[0].per_row)}
    about |= {"codes": code_kind, "code_error": 0.0}
    if code_kind is not None:
        coded = [code(some, code_kind) for some in vectors]
        about["code_error"] = max(one.lost for one in coded)
        arrays |= {"scales": [one.scales for one in coded], "codes": [one.codes for one in coded]}
        arrays["code_digests"] = [_digest(one.codes) for one in coded]
    if with_signs and sum(map(len, vectors)) >= LEAST_SIGNS:
        signs = [signs_of(some) for some in vectors]
        arrays |= {"sign_digests": map(_digest, signs), "signs": signs}
    write_arrays(path, about, arrays, unchecked=tuple(_DIGESTS))


def starts_of(sizes: Int[np.ndarray, " n"]) -> Int[np.ndarray, " starts"]:
    """The first of the rows of each, then the number of all rows."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def rows_of(starts: Int[np.ndarray, " starts"], some: Int[np.ndarray, " _"]) -> Int[np.ndarray, " _"]:
    """The numbers of all rows of some documents, in their order."""
    sizes = starts[some + 1] - starts[some]
    return np.repeat(starts[some] - starts_of(sizes)[:-1], sizes) + np.arange(sizes.sum())


def _digest(rows: np.ndarray) -> UInt64[np.ndarray, " one"]:
    """The digest of one document."""
    return digests_of(rows, np.array([len(rows)]))
