"""Two small documents with an encoder of their words, and a tree of the first."""

import numpy as np

from qrag_jax.chunking.tree.tree import ChunkTree
from support.study import Counts

TEXTS = ("one two\nthree\n", "four\nfive six seven\n")
WORDS = "one two three four five six seven".split()


class WordEncoder:
    """One component a word, of a window of two words; satisfies `types.Encoder`."""

    def __init__(self, fingerprint="words"):
        self.fingerprint = fingerprint
        self.num_texts = self.num_tokens = self.num_texts_cut = 0
        self.calls = []

    @property
    def counts(self):
        return Counts(self.num_texts, self.num_tokens, self.num_texts_cut)

    def __call__(self, texts, progress=None):
        self.calls.append(list(texts))
        self.num_texts += len(texts)
        self.num_tokens += sum(min(len(text.split()), 2) for text in texts)
        self.num_texts_cut += sum(len(text.split()) > 2 for text in texts)
        return np.array([[text.split()[:2].count(word) for word in WORDS] for text in texts], np.float32)


def make_tree(name="a.txt"):
    """Of the first text: the whole, its first line, its second."""
    values = ([0, 0, 8], [13, 7, 13], [0, 1, 1], [-1, 0, 0], [1, 2])
    return ChunkTree(name, *(np.array(value, np.int64) for value in values))
