"""The texts of many documents as one pool, which a run of Q-RAG searches in several steps. Imports no JAX."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from qrag_jax.search.corpus import Corpus
from qrag_jax.types import Document, InputError


@dataclass(frozen=True)
class PoolTexts:
    """The texts of a pool before they are tables.

    Attributes:
        texts: of the chunks, in the order of their documents.
        titles: of the chunks; empty where there is none.
        documents: int [n], the number of the document of each chunk, ascending.
        vectors: float32 [n, dim] of the chunks, if they are known.
        fingerprint: of the encoder that made the vectors; empty if it has none.
    """

    texts: Sequence[str]
    titles: Sequence[str]
    documents: np.ndarray
    vectors: np.ndarray | None = None
    fingerprint: str = ""


def pool_of(corpus: Corpus) -> PoolTexts:
    """The leaves of a corpus as a pool; every chunk has the title of its document.

    Raises:
        InputError: the corpus has no vectors.
    """
    if corpus.vectors is None:
        raise InputError("the index has no vectors, which a run searches: build it with an encoder")
    documents = corpus.numbers_of(corpus.leaves)
    titles = [_title_of(document) for document in corpus.documents]
    texts = [corpus.full_texts[node] for node in corpus.leaves.tolist()]
    own = [titles[number] for number in documents.tolist()]
    whole = [text if text.startswith(title) else f"{title}: {text}" for text, title in zip(texts, own, strict=True)]
    vectors = corpus.vectors[corpus.leaves] if corpus.trees else np.asarray(corpus.vectors)
    return PoolTexts(whole, own, documents, vectors, corpus.made_by.fingerprint)


def _title_of(document: Document) -> str:
    """The title of a document, or the name of its file without its ending."""
    title = document.metadata.get("title")
    if isinstance(title, str) and title.strip():
        return title
    return PurePath(document.id).stem.replace("_", " ")
