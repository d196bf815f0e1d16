"""Rows of `benchmarks/hichunk/points.py` that learn: taggers by what they were trained on, anew in every split.

tagger mixed            on the training documents of both domains
tagger own domain       on those of the domain that is tested
tagger other domain     on those of the other one: what a tagger is worth on a kind of document that it never saw
..., no paragraphs      the same where all documents are one line, in training and when they are tested

Headings are removed, plain or kept in training as they are in the test. Strength and threshold are chosen within the
training documents (`train/learners/tagger.py`); those for validation are left out, which other methods choose on. A
tagger that two rows need is trained once.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.tree.boundaries import PredictPoints
from qrag_jax.data.corpora.headed_documents import HeadedDocument
from qrag_jax.models.tagger.predict import tagged_points
from qrag_jax.train.learners.tagger import FittedTagger, ReadDocument, TaggerConfig, fit_read, read_documents
from qrag_jax.types import Embed

MIXED, OWN, OTHER = "tagger mixed", "tagger own domain", "tagger other domain"
NO_PARAGRAPHS = ", no paragraphs"
ROWS = tuple(name + end for end in ("", NO_PARAGRAPHS) for name in (MIXED, OWN, OTHER))
CONFIG = TaggerConfig(num_updates=200, num_parts=3, strengths=(1e-3, 1e-1))  # a third of the default's work


def in_one_line(text: SentenceText) -> SentenceText:
    """The text with a blank for every white space, so that nothing tells where a paragraph begins."""
    line = "".join(" " if one.isspace() else one for one in text.text)
    return text if line == text.text else replace(text, text=line)


class Taggers:
    """What was read and trained so far."""

    def __init__(self) -> None:
        self._lines: dict[int, HeadedDocument] = {}
        self._read: dict[int, ReadDocument] = {}
        self._fitted: dict[tuple[int, ...], FittedTagger] = {}

    def row(self, name: str, split: Any, embed: Embed) -> tuple[str, PredictPoints]:
        """A method of `benchmarks/hichunk/points.py`: what was chosen, and the source of points.

        Args:
            name: of `ROWS`.
            split: `points.Split`.
            embed: vectors of sentences.
        """
        plain = name.endswith(NO_PARAGRAPHS)
        kind = name.removesuffix(NO_PARAGRAPHS)
        documents = [*(split.train if kind != OTHER else ()), *(split.others if kind != OWN else ())]
        fitted = self._fit([self._line(one) for one in documents] if plain else documents, embed)
        find = tagged_points(fitted.tagger, embed)
        return "L2 {:g} and {:g}".format(*fitted.strength), (
            lambda texts: find([in_one_line(text) for text in texts])
        ) if plain else find

    def _line(self, document: HeadedDocument) -> HeadedDocument:
        """The same object for the same document, and the document itself where it is one line."""
        if id(document) not in self._lines:
            text = in_one_line(document.text)
            self._lines[id(document)] = document if text is document.text else replace(document, text=text)
        return self._lines[id(document)]

    def _fit(self, documents: Sequence[HeadedDocument], embed: Embed) -> FittedTagger:
        documents = sorted(documents, key=lambda one: one.id)
        key = tuple(map(id, documents))
        if key not in self._fitted:
            begin = time.perf_counter()
            new = [one for one in documents if id(one) not in self._read]
            self._read |= {id(one.document): one for one in read_documents(new, embed)}
            self._fitted[key] = fit_read([self._read[id(one)] for one in documents], "", "minilm", CONFIG)
            print(f"{len(documents)} documents: trained in {time.perf_counter() - begin:.0f} s", flush=True)
        return self._fitted[key]
