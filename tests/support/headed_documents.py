"""Headed documents that a tagger learns from in seconds: each section has a topic and opens with a word of its own."""

import hashlib

import numpy as np

from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.data.corpora.headed_documents import HeadedDocument

DIM = 8
TOPICS = ("river", "engine", "garden", "treaty", "planet")


def sentence_text(sentences, gap=" "):
    spans, at = [], 0
    for one in sentences:
        spans.append((at, at + len(one)))
        at += len(one) + len(gap)
    return SentenceText(gap.join(sentences), tuple(spans))


def headed_document(number, *, gap=" ", num_sections=5, words=TOPICS):
    """Sections of 4 to 7 sentences; one in three is of level 2."""
    rng = np.random.default_rng(number)
    sentences, points = [], []
    for section in range(num_sections):
        topic = words[int(rng.integers(len(words)))]
        level = 2 if section % 3 == 2 else 1
        if section:
            points.append((len(sentences), level))
        opening = "Initially" if level == 1 else "Besides"
        sentences.append(f"{opening} the {topic} number {rng.integers(100)} is described.")
        sentences += [f"Then the {topic} did thing {rng.integers(100)}." for _ in range(int(rng.integers(3, 7)))]
    return HeadedDocument(f"d{number}", sentence_text(sentences, gap), tuple(points), tuple(("t",) for _ in points))


def headed_markdown(document):
    """A document with its headings."""
    levels = dict(document.points)
    lines = []
    for i, sentence in enumerate(document.text.texts()):
        lines += ["", "#" * levels[i] + f" Part {i}", ""] if i in levels else []
        lines.append(sentence)
    return "\n".join(lines) + "\n"


def hashed_vectors(texts):
    """A vector a text that depends on nothing but the text; sentences of a topic are alike."""
    rows = []
    for text in texts:
        topic = next((word for word in TOPICS if word in text), text)
        seeds = [int.from_bytes(hashlib.sha256(part.encode()).digest()[:4], "little") for part in (topic, text)]
        common, own = (np.random.default_rng(seed).normal(size=DIM) for seed in seeds)
        rows.append(common + 0.3 * own)
    return np.array(rows, np.float32).reshape(len(texts), DIM)
