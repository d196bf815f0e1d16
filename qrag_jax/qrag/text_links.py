"""Features of pairs of texts of one context (ours): shared words, shared names, a title that another text names.

Questions over several paragraphs mostly follow names: the question names a page, and that page names the next.
HotpotQA and 2WikiMultihopQA were made by following such names, MuSiQue was not.

No label is read. All statistics come from the context alone, as in BM25 within one context.

Two chunks join to answer a question where they share a name that the question lacks (bridges).

MuSiQue's questions are composed of questions about one paragraph each; the answer of one, a name, fills a blank of
the next. So the question's words are spread over its paragraphs, and a name that is not in the question joins two of
them.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from qrag_jax.chunking.text.proper_names import without_bracket
from qrag_jax.chunking.text.words import plain_tokens

COVERAGE = ("covered", "adds", "elsewhere")  # made of `shared_words` by `heads.coverage_inputs`
POOL = ("cosine", "of_taken", "words")  # of a chunk of a pool: `pool.pool_links`
MAX_WORDS = 256  # distinct shared words of a context that are counted
LINKS = ("shared", "names", "named", "title", "names_it", "own_title", "same_title", "new_names")

_WORD = re.compile(r"\w+")
_LONGEST_TITLE = 100  # characters: more before a colon is a sentence


def title_of(text: str) -> str:
    """The title of a chunk `TITLE: PARAGRAPH`, without a bracket at its end; empty if there is none."""
    title, colon, _ = text.partition(": ")
    return without_bracket(title) if colon and len(title) <= _LONGEST_TITLE else ""


def names_in(text: str) -> list[str]:
    """Tokens of the words that begin with a capital letter or a digit."""
    return plain_tokens(" ".join(word for word in _WORD.findall(text) if word[0].isupper() or word[0].isdigit()))


def link_features(question: str, chunks: Sequence[str]) -> Float[np.ndarray, "sources chunks links"]:
    """Features in [0, 1] of each pair of a text (the source) and a chunk; float32, `LINKS` in the last axis.

    Source 0 is the question, source 1 + i is chunk i; its features of itself are 0. A share of a set of words is

        share(A in B) = sum_{w in A and B} idf_w / sum_{w in A} idf_w
        idf_w = log(1 + (n - df_w + 1/2) / (df_w + 1/2))

    with df_w out of the n chunks, and 0 where A is empty.

    * `shared`: share of the source's words in the chunk.
    * `names`: share of the source's names in the chunk; a name is a word that begins with a capital letter or a
    digit.
    * `named`: 1 if the source contains the chunk's title, word for word.
    * `title`: share of the words of the chunk's title in the source.
    * `names_it`: 1 if the chunk contains the source's title, word for word.
    * `own_title`: share of the words of the source's title in the chunk.
    * `same_title`: 1 if both have the same title.
    * `new_names`: share of the source's names that are not in the question, in the names of the chunk.

    Args:
        chunks: texts of its context, n of them.
    """
    texts = [question, *chunks]
    words = [plain_tokens(text) for text in texts]
    titles = [[], *(plain_tokens(title_of(chunk)) for chunk in chunks)]
    names = [names_in(text) for text in texts]
    vocabulary = vocabulary_of((*words, *titles, *names))
    in_text, in_title, in_names = (incidence(rows, vocabulary) for rows in (words, titles, names))
    weights = idf_weights(words[1:], vocabulary)
    new = in_names & ~in_text[0]
    named = _stands_in(titles, words)
    columns = {
        "shared": _share(in_text, in_text, weights),
        "names": _share(in_names, in_text, weights),
        "named": named,
        "title": _share(in_title, in_text, weights).T,
        "names_it": named.T,
        "own_title": _share(in_title, in_text, weights),
        "same_title": [[bool(a) and a == b for b in titles] for a in titles],
        "new_names": _share(new, in_names, weights),
    }
    links = np.stack([np.asarray(columns[name], np.float32) for name in LINKS], axis=-1)[:, 1:]
    links[np.arange(1, len(texts)), np.arange(len(chunks))] = 0
    return links


def shared_words(question: str, chunks: Sequence[str]) -> Float[np.ndarray, "sources words"]:
    """The weight of each shared word in each text; float32. A word is shared if another text of the context contains
    it.

        x(t, w) = idf_w / sum_{v in t} idf_v  for w in t and in another text,   0 elsewhere

    Source 0 is the question, source 1 + i chunk i; idf as of `link_features`. The words have `MAX_WORDS` columns, in
    order of appearance; if there are more words, some share a column.
    """
    words = [plain_tokens(text) for text in (question, *chunks)]
    vocabulary = vocabulary_of(words)
    in_text = incidence(words, vocabulary)
    mass = in_text * idf_weights(words[1:], vocabulary)
    total = mass.sum(axis=1, keepdims=True)
    share = np.divide(mass, total, out=np.zeros(mass.shape), where=total > 0)
    shares = np.zeros((len(words), MAX_WORDS), np.float32)
    for column, word in enumerate(np.flatnonzero(in_text.sum(axis=0) > 1)):
        shares[:, column % MAX_WORDS] += share[:, word]
    return shares


def vocabulary_of(rows: Sequence[Sequence[str]]) -> dict[str, int]:
    """The words of all rows, numbered in order of appearance."""
    return {word: i for i, word in enumerate(dict.fromkeys(word for row in rows for word in row))}


def incidence(rows: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> Bool[np.ndarray, "texts words"]:
    """For each row, the words of a vocabulary that it contains."""
    found = np.zeros((len(rows), len(vocabulary)), bool)
    for row, tokens in zip(found, rows, strict=True):
        row[[vocabulary[token] for token in tokens]] = True
    return found


def idf_weights(chunks: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> Float[np.ndarray, " words"]:
    """`idf_of` of every word of a vocabulary."""
    found = Counter(word for tokens in chunks for word in set(tokens))
    return np.array([idf_of(found[word], len(chunks)) for word in vocabulary])


def idf_of(num_found: int, num_chunks: int) -> float:
    """`log(1 + (n - df + 1/2) / (df + 1/2))` of a word that df of n chunks contain."""
    return math.log(1 + (num_chunks - num_found + 0.5) / (num_found + 0.5))


def _share(
    of: Bool[np.ndarray, "a words"], other: Bool[np.ndarray, "b words"], weights: Float[np.ndarray, " words"]
) -> Float[np.ndarray, "a b"]:
    """Share of each set of words in each other one; 0 of an empty set."""
    mass = of * weights
    total = mass.sum(axis=1, keepdims=True)
    # Sums in two orders may differ in their last bit: no share is above 1.
    return np.minimum(np.divide(mass @ other.T, total, out=np.zeros((len(of), len(other))), where=total > 0), 1)


def _stands_in(titles: Sequence[Sequence[str]], texts: Sequence[Sequence[str]]) -> Bool[np.ndarray, "texts titles"]:
    """True if a text contains the words of a title in sequence."""
    wanted = [f" {' '.join(title)} " if title else None for title in titles]
    joined = [f" {' '.join(words)} " for words in texts]
    return np.array([[title is not None and title in text for title in wanted] for text in joined])


BRIDGES = ("sentence", "rarest", "joint")

_STEM = 5  # letters: "publi" is of published and of publisher
_FEW = 3  # chunks of a context that a name may stand in to join two of them
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def bridge_features(question: str, chunks: Sequence[str]) -> Float[np.ndarray, "sources chunks bridges"]:
    """How each text (the source) and each chunk join to answer the question, in [0, 1]; float32, `BRIDGES` last.

    Sources, shares and idf are those of `links.link_features`. Stems are the first five letters of words; a new name
    of a chunk is one that is not in the question; two chunks share it if it is a new name of one and a word of the
    other.

    * `sentence`: share of the question's stems in one sentence of the chunk, the best one. Of a source chunk, of the
      stems that it lacks, in the best sentence that has a new name of it.
    * `rarest`: idf of the rarest new name that both share, 1 if no other chunk contains it. Of the question, of the
      rarest name of its own in the chunk.
    * `joint`: share of the question's stems that both contain together, if they share a new name of at most three
      chunks, else 0. Of the question the largest of all chunks' ones.

    Args:
        chunks: texts of its context, n of them.
    """
    n, texts = len(chunks), [question, *chunks]
    words, names = [plain_tokens(text) for text in texts], [names_in(text) for text in texts]
    sentences = [(own, sentence) for own, chunk in enumerate(chunks) for sentence in _sentences(chunk)]
    owners, spoken = (
        np.array([own for own, _ in sentences], np.int64),
        [plain_tokens(sentence) for _, sentence in sentences],
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
