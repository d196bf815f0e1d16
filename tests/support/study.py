"""A small study without JAX: an encoder whose vectors are sums of words, documents about a few subjects, questions."""

import hashlib
import re
from dataclasses import dataclass

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.fixed import FixedConfig
from qrag_jax.chunking.strategies.late import LateConfig
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.eval.study.cells.study_encoder import StudyEncoder
from qrag_jax.eval.study.config import StudyConfig, TaskConfig
from qrag_jax.models.encoder.config import EncoderConfig
from qrag_jax.types import Document

CONFIG = EncoderConfig(vocab_size=5, hidden_size=16, num_layers=1, num_heads=1, intermediate_size=8)
SUBJECTS = ("whales", "comets", "bread", "chess", "glaciers", "violins", "bees", "bridges", "opera", "rivers", "tea")
VERBS = ("need", "follow", "change", "cost", "outlive", "surprise", "resemble", "avoid")


@dataclass(frozen=True)
class Counts:
    num_texts: int = 0
    num_tokens: int = 0
    num_texts_cut: int = 0


class WordEmbedder:
    """A token is a word; its vector comes from its sha256; that of a text is the mean of its tokens'."""

    dim = 16

    def __init__(self, window=24):
        self.window = window
        self.lengths = (window,)
        self.counts = Counts()
        self.calls = []

    def __call__(self, texts, progress=None):
        self.calls.append(list(texts))
        vectors = np.array([self._read(text).mean(axis=0) for text in texts], np.float32).reshape(-1, self.dim)
        if progress is not None:
            progress(len(texts), len(texts))
        return vectors

    def tokens(self, text):
        spans = [match.span() for match in re.finditer(r"\S+", text)]
        vectors = self._read(text)[1:] if spans else np.zeros((0, self.dim), np.float32)
        return vectors, np.array(spans, np.int64).reshape(-1, 2)

    def count_tokens(self, text):
        return len(text.split())

    def _read(self, text):
        words = text.split()
        read = words[: self.window - 2]
        counts = self.counts
        self.counts = Counts(
            counts.num_texts + 1, counts.num_tokens + len(read) + 2, counts.num_texts_cut + (len(read) < len(words))
        )
        return np.array([np.zeros(self.dim), *(word_vector(word) for word in read)], np.float32)


def word_vector(word):
    """16 numbers from -1 to 1."""
    digest = hashlib.sha256(word.lower().strip(".?").encode()).digest()
    return np.frombuffer(digest, np.uint8).astype(np.float32)[:16] / 127.5 - 1


def make_encoder(embedder=None, fingerprint="words"):
    return StudyEncoder(embedder or WordEmbedder(), CONFIG, "words", fingerprint)


def make_task(name="facts", kind="evidence", num_documents=12, seed=0):
    """Documents of sentences about three subjects each, and for each document two questions about a sentence of it."""
    rng = np.random.default_rng(seed)
    documents, questions, sentences = [], [], {}
    for number in range(num_documents):
        lines = []
        for subject in rng.choice(SUBJECTS, 3, replace=False):
            for verb, other in zip(rng.choice(VERBS, 4, replace=False), rng.choice(SUBJECTS, 4), strict=True):
                lines.append(f"The {subject} {verb} {other} of type {rng.integers(100)}.")
        document = Document(f"{name}/{number}.txt", " ".join(lines))
        documents.append(document)
        sentences[document.id] = tuple(split_sentences(document.text))
        for line in (1, 7):
            start, end = sentences[document.id][line]
            evidence = (Evidence(document.id, start, end),) if kind == "evidence" else ()
            text = "Why do " + " ".join(document.text[start:end].split()[1:4]) + "?"
            answers = (document.text[start:end],)
            questions.append(StudyQuestion(f"{name}-{number}-{line}", text, (document.id,), evidence, answers))
    return StudyTask(name, kind, tuple(documents), tuple(questions), sentences if kind == "evidence" else {})


def fixed(num_tokens):
    return ChunkConfig("fixed", fixed=FixedConfig(num_tokens=num_tokens))


def make_config(**changes):
    """A task of evidence whose parts share a corpus, and one of documents whose parts do not."""
    values = {
        "tasks": {
            "facts": TaskConfig("files", "facts", "facts.jsonl"),
            "pages": TaskConfig("files", "pages", "pages.jsonl", split="documents"),
        },
        "strategies": {
            "fixed": (fixed(16), fixed(32)),
            "breakpoint": (ChunkConfig("breakpoint"), ChunkConfig("breakpoint", max_tokens=24)),
            "late": (ChunkConfig("late", max_tokens=20, late=LateConfig(overlap_tokens=4)),),
        },
        "ks": (1, 3),
        "report_k": 3,
        "min_dev_questions": 4,
    }
    return StudyConfig(**{**values, **changes})


def make_tasks():
    return [make_task("facts"), make_task("pages", "documents", seed=1)]
