"""Tables of a pool of many documents, made once: words, names, titles, and which chunk names which.

They hold what `text_links` compares, for chunks of which a step looks at a few: so no pair of all chunks is compared.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from flax import struct

from qrag_jax.chunking.text.proper_names import NameFinder, find_words, is_term, normal_name
from qrag_jax.chunking.text.words import plain_tokens
from qrag_jax.models.towers.q_network import AnyArray, VectorRows
from qrag_jax.qrag.text_links import idf_of, names_in
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.hybrid import WORDS_WEIGHT, fused_with_words
from qrag_jax.search.pool_texts import PoolTexts
from qrag_jax.types import InputError
from qrag_jax.unit_rows import unit_rows

IN_NAME, IN_TITLE = 1, 2  # flags of a word of a chunk
_MOST_WORDS = 128  # distinct words of a chunk that count
_MULTIPLE = 32  # of the number of words of a row, so that pools share compiled shapes
_RARE = 12  # a word of a name that is in more chunks joins none of them


@struct.dataclass
class Texts:
    """Words of texts, a row each, and the chunks that each of them leads to.

    Attributes:
        words: int32 [n, words], numbers of the distinct words; -1 at padding.
        flags: uint8 [n, words], `IN_NAME` and `IN_TITLE`.
        mass: float32 [n, 3], sums of the idf of all words, of those in names and of those in the title.
        named: int32 [n, links], chunks whose title the text contains; -1 at padding.
    """

    words: AnyArray
    flags: AnyArray
    mass: AnyArray
    named: AnyArray

    def take(self, rows: AnyArray) -> "Texts":
        """The given rows, in their order."""
        return Texts(self.words[rows], self.flags[rows], self.mass[rows], self.named[rows])


@struct.dataclass
class PoolTable:
    """All chunks of a pool; node ids are rows.

    Attributes:
        rows: inputs of the towers.
        texts: words of the chunks.
        namers: int32 [n, links], chunks that contain the title of the chunk; -1 at padding.
        kin: int32 [n, links], chunks that share rare names with it; -1 at padding.
        title: int32 [n], number of the title; -1 without one.
        idf: float32 [vocabulary].
        shared: bool [vocabulary], in at least two chunks.
        mean: float32 [dim], of the vectors; cosines are between differences from it.
        document, index, length: int32 [n], the document of a chunk, its place there, and the chunks of the document.
    """

    rows: VectorRows
    texts: Texts
    namers: AnyArray
    kin: AnyArray
    title: AnyArray
    idf: AnyArray
    shared: AnyArray
    mean: AnyArray
    document: AnyArray
    index: AnyArray
    length: AnyArray

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return self.document.shape[0]


@struct.dataclass
class AskedRows:
    """Questions to a pool: inputs of the towers, words, and the best chunks by words.

    Attributes:
        rows: inputs of the towers.
        texts: words of the questions, flagged where in a name.
        found: int32 [n, words], the best chunks by BM25; -1 at padding.
        scores: float32 [n, words], their scores as shares of the best one.
        plain: float32 [n, chunks], scores of plain search (`PoolReader.plain`); None where Q does not read them.
    """

    rows: VectorRows
    texts: Texts
    found: AnyArray
    scores: AnyArray
    plain: AnyArray = None

    def take(self, rows: AnyArray) -> "AskedRows":
        """The given rows, in their order."""
        plain = None if self.plain is None else self.plain[rows]
        return AskedRows(self.rows.take(rows), self.texts.take(rows), self.found[rows], self.scores[rows], plain)


class PoolReader:
    """Turns a pool and questions to it into tables."""

    def __init__(self, pool: PoolTexts, num_links: int, num_words: int) -> None:
        """Counts the words of the pool.

        Args:
            num_links: chunks that a chunk leads to, at most, in each way.
            num_words: chunks that a question finds by words, at most.
        """
        if not len(pool.texts):
            raise InputError("the pool has no chunk to search in: give at least one document with text")
        self.pool, self._num_links, self._num_words = pool, num_links, num_words
        tokens = [set(plain_tokens(text)) for text in pool.texts]
        self._found = Counter(word for own in tokens for word in own)
        self._numbers = {word: number for number, word in enumerate(self._found)}
        self._idf = {word: idf_of(found, len(pool.texts)) for word, found in self._found.items()}
        self._idf_of_none = idf_of(0, len(pool.texts))
        self.words = Bm25Index(pool.texts)
        owners: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        terms = set()
        for chunk, title in enumerate(pool.titles):
            name = normal_name(title, 2) if title else None
            if name is not None:
                owners[name].append(chunk)
                terms |= {name} if is_term(title) else set()
        self._owners, self._finder = owners, NameFinder(owners, terms)

    def table(self, vectors: np.ndarray) -> PoolTable:
        """The table of the pool.

        Args:
            vectors: float32 [n, dim], of the chunks.
        """
        pool = self.pool
        texts = self._texts(pool.texts, pool.titles)
        names = {title: number for number, title in enumerate(dict.fromkeys(filter(None, pool.titles)))}
        _, first, number, length = np.unique(pool.documents, return_index=True, return_inverse=True, return_counts=True)
        return PoolTable(
            rows=VectorRows(np.asarray(vectors, np.float32)),
            texts=texts,
            namers=_padded(self._inverse(texts.named), self._num_links),
            kin=_padded(self._kin(), self._num_links),
            title=np.array([names.get(title, -1) for title in pool.titles], np.int32),
            idf=np.array(list(self._idf.values()), np.float32),
            shared=np.array([self._found[word] > 1 for word in self._numbers]),
            mean=np.mean(vectors, axis=0, dtype=np.float64).astype(np.float32),
            document=number.astype(np.int32),
            index=(np.arange(len(number)) - first[number]).astype(np.int32),
            length=length[number].astype(np.int32),
        )

    def questions(
        self, questions: Sequence[str], vectors: np.ndarray, of_chunks: np.ndarray | None = None
    ) -> AskedRows:
        """The tables of questions.

        Args:
            vectors: float32 [n, dim], of the questions.
            of_chunks: float32 [chunks, dim], to score all chunks by plain search; rows beyond the pool score 0.
        """
        most = min(self._num_words, len(self.pool.texts))
        best = [self.words.top_k(question, most) for question in questions]
        scores = np.array([found for _, found in best], np.float32).reshape(len(questions), -1)
        top = np.maximum(scores.max(axis=1, initial=0.0, keepdims=True), 1e-9)
        found = np.array([ids for ids, _ in best], np.int32).reshape(len(questions), -1)
        more = [(0, 0), (0, self._num_words - most)]  # pools of any size share one shape
        return AskedRows(
            VectorRows(np.asarray(vectors, np.float32)),
            self._texts(questions, [""] * len(questions)),
            np.pad(np.where(scores > 0, found, -1), more, constant_values=-1),
            np.pad(scores / top, more),
            None if of_chunks is None else self.plain(questions, vectors, of_chunks),
        )

    def plain(self, questions: Sequence[str], vectors: np.ndarray, of_chunks: np.ndarray) -> np.ndarray:
        """Scores of plain search by vectors and words of the pool, float32 [n, chunks]; arguments as of `questions`."""
        found, number = np.zeros((len(questions), len(of_chunks)), np.float32), len(self.pool.texts)
        cosines = unit_rows(vectors) @ unit_rows(of_chunks[:number]).T
        for row, question, own in zip(found, questions, cosines, strict=True):
            row[:number] = fused_with_words(own, self.words, question, WORDS_WEIGHT)
        return found

    def _texts(self, texts: Sequence[str], titles: Sequence[str]) -> Texts:
        rows, flags, mass = [], [], []
        for text, title in zip(texts, titles, strict=True):
            words = list(dict.fromkeys(plain_tokens(text)))
            in_name, in_title = set(names_in(text)), set(plain_tokens(title))
            flags.append([IN_NAME * (word in in_name) + IN_TITLE * (word in in_title) for word in words])
            weights = np.array([self._idf.get(word, self._idf_of_none) for word in words])
            own = np.array(flags[-1], np.int64).reshape(-1)
            mass.append([weights.sum(), weights[own & IN_NAME > 0].sum(), weights[own & IN_TITLE > 0].sum()])
            rows.append([self._numbers.get(word, -1) for word in words])
        width = min(_MOST_WORDS, -(-max(map(len, rows), default=1) // _MULTIPLE) * _MULTIPLE)
        named = [self._named(text, own) for text, own in zip(texts, titles, strict=True)]
        return Texts(
            _padded(rows, width), _padded(flags, width, 0).astype(np.uint8),
            np.array(mass, np.float32).reshape(-1, 3), _padded(named, self._num_links),
        )  # fmt: skip

    def _named(self, text: str, title: str) -> list[int]:
        """Chunks of other titles that a text names, those of rarer titles first."""
        own = normal_name(title, 2) if title else None
        names = dict.fromkeys(name for name, _ in self._finder.find(find_words(text)))
        rarest = sorted((name for name in names if name != own), key=lambda name: len(self._owners[name]))
        return [chunk for name in rarest for chunk in self._owners[name]]

    def _inverse(self, named: np.ndarray) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.pool.texts]
        for chunk, others in enumerate(named.tolist()):
            for other in others:
                if other >= 0:
                    found[other].append(chunk)
        return found

    def _kin(self) -> list[list[int]]:
        """For each chunk the others that share the most rare words of names, by idf."""
        at: defaultdict[str, list[int]] = defaultdict(list)
        rare = [
            [word for word in dict.fromkeys(names_in(text)) if 1 < self._found[word] <= _RARE]
            for text in self.pool.texts
        ]
        for chunk, words in enumerate(rare):
            for word in words:
                at[word].append(chunk)
        found = []
        for chunk, words in enumerate(rare):
            weights: defaultdict[int, float] = defaultdict(float)
            for word in words:
                for other in at[word]:
                    weights[other] += self._idf[word]
            weights.pop(chunk, None)
            found.append(sorted(weights, key=lambda other: -weights[other])[: self._num_links])
        return found


def _padded(rows: Sequence[Sequence[int]], width: int, fill: int = -1) -> np.ndarray:
    """The rows as int32 [n, width]; what is longer is cut."""
    padded = np.full((len(rows), width), fill, np.int32)
    for out, row in zip(padded, rows, strict=True):
        out[: min(len(row), width)] = row[:width]
    return padded
