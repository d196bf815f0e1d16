"""Levels in an index for tests: documents, ways of parents that can be sent to other processes, and what is found."""

import hashlib
import os
import signal
from functools import partial

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig, level_names, make_chunker, make_tree_builder
from qrag_jax.chunking.tree.level_ranges import all_ranges
from qrag_jax.chunking.tree.parent_vectors import Parents, mean_of_children
from qrag_jax.index import update as update_module
from qrag_jax.index.load import load_index
from qrag_jax.index.prepare import Maker
from qrag_jax.index.settings import IndexSettings, ParentsSetting
from qrag_jax.search.corpus import embed_corpus, tree_corpus
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.unit_rows import unit_rows
from support.indices import HashEncoder, count_words, update

CHUNKING = ChunkConfig("levels", max_tokens=20)
NAMES = level_names(CHUNKING)
WAYS = ("best_child", "mean", "windows")
ONE = """# Garden

Mary has the key. It rained all day.

John went home. Nobody saw him there.

# House

The door is closed. Sandra waits in the hall. She has no key.
"""
TWO = "# Garden\n\nMary has the key. The dog sleeps.\n"


def last_word(embed, texts):
    """A way to read parents that no leaf is read in."""
    return unit_rows(embed([text.split()[-1] for text in texts]))


def parents_of(name, embed):
    if name == "mean":
        return Parents("mean", of_children=mean_of_children)
    return Parents(name, of_texts=partial(last_word, embed)) if name == "windows" else Parents("best_child")


def load_maker(name, log=None):
    embed = HashEncoder(log=log)
    build = make_tree_builder(CHUNKING, count_words)

    def tree(document):
        made = build(document)
        return made, made.node_chunks(document, count_words)

    return Maker(make_chunker(CHUNKING, count_words), embed, count_words, tree, parents_of(name, embed))


def settings_of(name):
    return IndexSettings(CHUNKING, "hashes", is_tree=True, parents=ParentsSetting(name))


def build(folder, *paths, name, log=None, **plan):
    return update(folder, *paths, make=partial(load_maker, name, log), settings=settings_of(name), **plan)


def fresh(name, folder="i"):
    """The index of the same documents, made without a catalogue."""
    documents = load_index(folder).documents
    trees = [make_tree_builder(CHUNKING, count_words)(document) for document in documents]
    embed = HashEncoder()
    corpus = embed_corpus(tree_corpus(documents, trees, count_words), embed)
    return LevelIndex(corpus, NAMES, parents_of(name, embed))


def loaded(name, folder="i"):
    return LevelIndex(load_index(folder), NAMES, parents_of(name, HashEncoder()), has_parents=name != "best_child")


def searched(index):
    """What is found at every range."""
    rng = np.random.default_rng(0)
    asked = ((levels, vector) for levels in all_ranges(NAMES) for vector in rng.normal(size=(3, 8)))
    return [index.rank("Who has the key?", vector.astype(np.float32), levels) for levels, vector in asked]


def rankings(index):
    """The bytes of that."""
    parts = (part.tobytes() for found in searched(index) for part in (found.ids, found.scores))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def check_fresh(name, folder="i"):
    """The ranking of an index is that of its documents, but for the rounding of vectors that are kept."""
    for kept, made in zip(searched(loaded(name, folder)), searched(fresh(name, folder)), strict=True):
        np.testing.assert_array_equal(kept.ids, made.ids)
        np.testing.assert_allclose(kept.scores, made.scores, rtol=0, atol=1e-6)


def build_and_die(folder, notes, name, number):
    """Is killed when so many documents are written."""
    update_module._MAX_FILES = 1

    def die(done, of):
        if done == number:
            os.kill(os.getpid(), signal.SIGKILL)

    build(folder, notes, name=name, progress=die)
