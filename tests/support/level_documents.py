"""Two documents with levels by size, an embedder that counts words, and questions about one sentence each."""

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig, level_names, make_tree_builder
from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.tree.parent_vectors import Parents
from qrag_jax.search.corpus import embed_corpus, tree_corpus
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.types import Document
from support.passages import count

CONFIG = ChunkConfig("levels", levels=LevelsConfig(sizes=(16, 8, 4)))
NAMES = level_names(CONFIG)
WORDS = ("whales", "comets", "bread", "chess", "bees", "opera", "eat", "fly", "sing")
TEXTS = {
    "sea": "Whales eat bees. Whales sing opera. Whales fly far off. Bread is old. Chess is long. Chess is opera now.",
    "sky": "Comets fly. Comets eat bread. Bees fly home. Bees sing in the opera. Bread can fly. Comets sing of chess.",
}
DOCUMENTS = tuple(Document(name, text) for name, text in TEXTS.items())


def embed(texts):
    rows = [[text.lower().count(word) + 1e-3 for word in WORDS] for text in texts]
    return np.array(rows, np.float32).reshape(len(texts), len(WORDS))


def tiny_corpus():
    build = make_tree_builder(CONFIG, count, split_sentences)
    return embed_corpus(tree_corpus(DOCUMENTS, [build(one) for one in DOCUMENTS], count), embed)


def tiny_index(way="direct"):
    return LevelIndex(tiny_corpus(), NAMES, Parents(way, of_texts=embed), has_parents=True)
