"""What the texts of one context say of each other (ours): shared words, shared names, a title that another text names.

Questions over several paragraphs are mostly answered along names: the question names a page, that page names the next.
HotpotQA and 2WikiMultihopQA were made by following such names, MuSiQue was not.

No label is read, and all statistics are those of the context alone, as of `rank.bm25` within one.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from qrag_jax.chunking.text.names import without_bracket
from qrag_jax.chunking.text.words import bm25_tokens

COVERAGE = ("covered", "adds", "elsewhere")  # made of `shared_words` by `mdp.heads.coverage_inputs`
MOST_WORDS = 256  # shared words of a context that are told apart
LINKS = ("shared", "names", "named", "title", "names_it", "own_title", "same_title", "new_names")

_WORD = re.compile(r"\w+")
_LONGEST_TITLE = 100  # characters: more before a colon is a sentence


def title_of(text: str) -> str:
    """The title of a chunk `TITLE: PARAGRAPH`, without a bracket at its end; empty where there is none."""
    title, colon, _ = text.partition(": ")
    return without_bracket(title) if colon and len(title) <= _LONGEST_TITLE else ""


def names_in(text: str) -> list[str]:
    """Tokens of the words that begin with a capital letter or a digit."""
    return bm25_tokens(" ".join(word for word in _WORD.findall(text) if word[0].isupper() or word[0].isdigit()))


def link_features(question: str, chunks: Sequence[str]) -> Float[np.ndarray, "sources chunks links"]:
    """What each text (the source) says of each chunk, in [0, 1]; float32, `LINKS` in the last axis.

    Source 0 is the question, source 1 + i is chunk i, which says nothing of itself. A share of a set of words is

        share(A in B) = sum_{w in A and B} idf_w / sum_{w in A} idf_w
        idf_w = log(1 + (n - df_w + 1/2) / (df_w + 1/2))

    with df_w out of the n chunks, and 0 where A is empty.

    * `shared`: share of the source's words in the chunk.
    * `names`: share of the source's names in the chunk; a name is a word with a capital letter or a digit in front.
    * `named`: 1 where the chunk's title stands in the source, word for word.
    * `title`: share of the words of the chunk's title in the source.
    * `names_it`: 1 where the source's title stands in the chunk, word for word.
    * `own_title`: share of the words of the source's title in the chunk.
    * `same_title`: 1 where both have one title.
    * `new_names`: share of the names of the source that the question does not have, in the names of the chunk.

    Args:
        chunks: texts of its context, n of them.
    """
    texts = [question, *chunks]
    words = [bm25_tokens(text) for text in texts]
    titles = [[], *(bm25_tokens(title_of(chunk)) for chunk in chunks)]
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
    """What share of each text each word is that it has in common with another text of the context; float32.

        x(t, w) = idf_w / sum_{v in t} idf_v  for w in t and in another text,   0 elsewhere

    Source 0 is the question, source 1 + i chunk i; idf as of `link_features`. The words have `MOST_WORDS` columns, in
    order of appearance; of more words several share one.
    """
    words = [bm25_tokens(text) for text in (question, *chunks)]
    vocabulary = vocabulary_of(words)
    in_text = incidence(words, vocabulary)
    mass = in_text * idf_weights(words[1:], vocabulary)
    total = mass.sum(axis=1, keepdims=True)
    share = np.divide(mass, total, out=np.zeros(mass.shape), where=total > 0)
    shares = np.zeros((len(words), MOST_WORDS), np.float32)
    for column, word in enumerate(np.flatnonzero(in_text.sum(axis=0) > 1)):
        shares[:, column % MOST_WORDS] += share[:, word]
    return shares


def vocabulary_of(rows: Sequence[Sequence[str]]) -> dict[str, int]:
    """The words of all rows, numbered in order of appearance."""
    return {word: i for i, word in enumerate(dict.fromkeys(word for row in rows for word in row))}


def incidence(rows: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> Bool[np.ndarray, "texts words"]:
    """Which words of a vocabulary each row has."""
    found = np.zeros((len(rows), len(vocabulary)), bool)
    for row, tokens in zip(found, rows, strict=True):
        row[[vocabulary[token] for token in tokens]] = True
    return found


def idf_weights(chunks: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> Float[np.ndarray, " words"]:
    """`idf_of` of every word of a vocabulary."""
    found = Counter(word for tokens in chunks for word in set(tokens))
    return np.array([idf_of(found[word], len(chunks)) for word in vocabulary])


def idf_of(num_found: int, num_chunks: int) -> float:
    """`log(1 + (n - df + 1/2) / (df + 1/2))` of a word that stands in df of n chunks."""
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
    """Whether the words of a title follow each other in a text."""
    wanted = [f" {' '.join(title)} " if title else None for title in titles]
    joined = [f" {' '.join(words)} " for words in texts]
    return np.array([[title is not None and title in text for title in wanted] for text in joined])
