"""How two chunks of one context join to answer a question (ours): by a name that both have and the question lacks.

MuSiQue's questions are composed of questions about one paragraph each; the answer of one, a name, stands in the place
of a blank of the next. So the question's words are spread over its paragraphs, and a name that the question does not
say joins two of them.

No label is read, and all statistics are those of the context alone, as of `rank.links`.
"""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from qrag_jax.chunking.text.words import bm25_tokens
from qrag_jax.retrieval.rank.links import idf_of, idf_weights, incidence, names_in, title_of, vocabulary_of

BRIDGES = ("sentence", "rarest", "joint")

_STEM = 5  # letters: "publi" is of published and of publisher
_FEW = 3  # chunks of a context that a name may stand in to join two of them
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def bridge_features(question: str, chunks: Sequence[str]) -> Float[np.ndarray, "sources chunks bridges"]:
    """How each text (the source) and each chunk join to answer the question, in [0, 1]; float32, `BRIDGES` last.

    Sources, shares and idf are those of `links.link_features`. Stems are the first five letters of words; a new name of
    a chunk is one that the question does not have; two chunks share it where it is a new name of one and a word of the
    other.

    * `sentence`: share of the question's stems in one sentence of the chunk, the best one. Of a source chunk, of the
      stems that it lacks, in the best sentence that has a new name of it.
    * `rarest`: idf of the rarest new name that both share, 1 where no other chunk has it. Of the question, of the
      rarest name of its own in the chunk.
    * `joint`: share of the question's stems that both have together, where they share a new name of at most three
      chunks, else 0. Of the question the largest of all chunks' ones.

    Args:
        chunks: texts of its context, n of them.
    """
    n, texts = len(chunks), [question, *chunks]
    words, names = [bm25_tokens(text) for text in texts], [names_in(text) for text in texts]
    sentences = [(own, sentence) for own, chunk in enumerate(chunks) for sentence in _sentences(chunk)]
    owners, spoken = (
        np.array([own for own, _ in sentences], np.int64),
        [bm25_tokens(sentence) for _, sentence in sentences],
    )
    vocabulary = vocabulary_of((*words, *names, *spoken))
    in_text, in_names, in_sentence = (incidence(rows, vocabulary) for rows in (words, names, spoken))
    weights, new = idf_weights(words[1:], vocabulary), in_names[1:] & ~in_text[0]

    asked = {stem: i for i, stem in enumerate(dict.fromkeys(_stems(words[0])))}
    stem_weights = idf_weights([_stems(row) for row in words[1:]], asked)
    stem_weights /= stem_weights.sum() or 1.0
    has, says = (incidence([[s for s in _stems(r) if s in asked] for r in rows], asked) for rows in (words[1:], spoken))

    links = np.zeros((1 + n, n, len(BRIDGES)), np.float32)
    left = np.where(in_sentence @ new.T, (says * stem_weights) @ ~has.T, 0.0)
    np.maximum.at(links[0, :, 0], owners, says @ stem_weights)
    np.maximum.at(links[1:, :, 0].T, owners, left)
    shared = new[:, None] & in_text[None, 1:]
    shared |= shared.swapaxes(0, 1)
    links[0, :, 1] = ((in_names[0] & in_text[1:]) * weights).max(axis=1, initial=0.0) / idf_of(1, n)
    links[1:, :, 1] = (shared * weights).max(axis=2, initial=0.0) / idf_of(2, n)
    joined = (shared & (in_text[1:].sum(axis=0) <= _FEW)).any(axis=2)
    links[1:, :, 2] = np.where(joined, (has[:, None] | has[None]) @ stem_weights, 0.0)
    links[np.arange(1, 1 + n), np.arange(n)] = 0
    links[0, :, 2] = links[1:, :, 2].max(axis=0, initial=0.0)
    return np.clip(links, 0, 1)


def _stems(words: Sequence[str]) -> list[str]:
    return [word[:_STEM] for word in words]


def _sentences(chunk: str) -> list[str]:
    """Sentences of a chunk without its title."""
    return _SENTENCE_END.split(chunk.partition(": ")[2] if title_of(chunk) else chunk)
