"""Small documents with their chunks, for tests of contexts and citations."""

import numpy as np

from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.search.corpus import Corpus, build_corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.types import Document


def count(text):
    """Tokens are words."""
    return len(text.split())


def split_lines(document):
    """A chunk a line."""
    chunks, start = [], 0
    for line in document.text.split("\n"):
        if line.strip():
            chunks.append(make_chunk(document, ((start, start + len(line)),), 1, count))
        start += len(line) + 1
    return chunks


def documents(*texts):
    return [Document(f"{name}.txt", text) for name, text in zip("abcdef", texts, strict=False)]


def lines_corpus(*texts):
    """A corpus of `documents`, whose nodes are their lines."""
    return build_corpus(documents(*texts), split_lines)


def corpus_of(found, chunks):
    """A corpus of these chunks as they are."""
    return Corpus(tuple(found), tuple(chunks))


def ranked(*ids, scores=None):
    scores = [1 - i / 10 for i in range(len(ids))] if scores is None else scores
    return Ranked(np.array(ids, np.int64), np.array(scores, np.float64))
