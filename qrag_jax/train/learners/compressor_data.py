"""The training data of a compressor: sections with the vectors of their sentences, in batches and as questions.

A question is a sentence that is removed from the children of its section (inverse cloze). It must find the vector of
the section, which no longer contains it. Sections of one document are in the same batch, because they are the hardest
to distinguish.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.size.packing import cut_words, pack_spans
from qrag_jax.chunking.strategies.distances import sentence_vectors
from qrag_jax.chunking.tree.parent_vectors import FromTexts
from qrag_jax.data.corpora.headed_documents import HeadedDocument
from qrag_jax.train.learners.fitting import embedded_groups
from qrag_jax.train.trainer import Report
from qrag_jax.types import CountTokens, Embed

MIN_CHILDREN = 2
MIN_QUESTION_TOKENS = 8  # of a sentence that asks
_CHILDREN_A_QUESTION = 4  # so many children for each that is taken out
_LEAST_KEPT = 0.3  # share of the children that a batch has of a section, at least


@dataclass(frozen=True, eq=False)
class Section:
    """A section as a compressor reads it.

    Attributes:
        document: number of its document.
        children: float32 [c, dim], vectors of its sentences, of length 1 or 0.
        num_tokens: int64 [c].
        target: float32 [dim], what its vector is to be near to.
    """

    document: int
    children: np.ndarray
    num_tokens: np.ndarray
    target: np.ndarray


class Batch(NamedTuple):
    """Sections of one update, as arrays; those beyond a section's children or questions are zeros.

    Attributes:
        children: float32 [sections, children, dim].
        num_tokens: int32 [sections, children].
        mask: bool [sections, children], which are there.
        questions: float32 [sections, questions, dim].
        asked: bool [sections, questions], which are there.
        targets: float32 [sections, dim].
    """

    children: Any
    num_tokens: Any
    mask: Any
    questions: Any
    asked: Any
    targets: Any


@dataclass(frozen=True)
class Shape:
    """The shape of a batch.

    Attributes:
        num_sections: of a batch.
        num_children: most of a section; more are drawn from.
        num_questions: most of a section.
        from_document: most sections of a document, as long as others are left.
    """

    num_sections: int = 64
    num_children: int = 48
    num_questions: int = 2
    from_document: int = 8


def section_spans(document: HeadedDocument) -> list[tuple[int, int]]:
    """(first unit, one behind the last) between neighbouring points, of at least two units."""
    borders = [0, *(unit for unit, _ in document.points if unit), len(document.text)]
    return [(first, end) for first, end in zip(borders, borders[1:], strict=False) if end - first >= MIN_CHILDREN]


def read_sections(
    documents: Sequence[HeadedDocument],
    embed: Embed,
    count: CountTokens,
    targets: FromTexts,
    report: Report = lambda *_: None,
) -> list[Section]:
    """The sections of documents, with their sentences embedded.

    Args:
        targets: texts of sections -> what their vectors are to be near to.
    """
    found: list[Section] = []
    for numbers in embedded_groups(documents, report):
        found += _read_group(documents, numbers, embed, count, targets)
    return found


def _read_group(
    documents: Sequence[HeadedDocument], numbers: range, embed: Embed, count: CountTokens, targets: FromTexts
) -> list[Section]:
    spans = [(number, *span) for number in numbers for span in section_spans(documents[number])]
    if not spans:
        return []
    sentences = [documents[number].text.texts()[first:end] for number, first, end in spans]
    vectors = sentence_vectors(embed, [one for own in sentences for one in own])
    near = targets([_text(documents[number], first, end) for number, first, end in spans])
    ends = np.cumsum([len(own) for own in sentences])
    return [
        Section(number, children, np.array([count(one) for one in own], np.int64), target)
        for (number, *_), own, children, target in zip(
            spans, sentences, np.split(vectors, ends[:-1]), near, strict=True
        )
    ]


def _text(document: HeadedDocument, first: int, end: int) -> str:
    spans = document.text.sentences
    return document.text.text[spans[first][0] : spans[end - 1][1]]


def make_lead_targets(embed: Embed, count: CountTokens, num_tokens: int) -> FromTexts:
    """Vectors of the first `num_tokens` of texts, cut at a word, of length 1 or 0."""

    def lead_vectors(texts: Sequence[str]) -> Float[np.ndarray, "texts dim"]:
        cut = [next(pack_spans(text, cut_words(text, (0, len(text))), num_tokens, count)) for text in texts]
        return sentence_vectors(
            embed, [text[spans[0][0] : spans[-1][1]] for text, spans in zip(texts, cut, strict=True)]
        )

    return lead_vectors


def draw_batch(sections: Sequence[Section], shape: Shape, seed: int, number: int) -> Batch:
    """The batch of an update, a function of seed and number alone.

    Documents come in random order, each with some of its sections. A section gives up to `num_questions` sentences as
    questions: at most a quarter of its sentences and at least one. Half of the sections then lose random children.
    """
    draw = np.random.default_rng([seed, 2, number])
    chosen = _draw_sections(sections, shape, draw)
    dim = sections[0].children.shape[1]
    children = np.zeros((len(chosen), shape.num_children, dim), np.float32)
    questions = np.zeros((len(chosen), shape.num_questions, dim), np.float32)
    num_tokens, mask = np.zeros(children.shape[:2], np.int32), np.zeros(children.shape[:2], bool)
    asked = np.zeros(questions.shape[:2], bool)
    for row, place in enumerate(chosen):
        own = sections[place]
        out = draw_questions(own, shape.num_questions, draw)
        rest = draw.permutation(np.setdiff1d(np.arange(len(own.children)), out))
        if draw.random() < 0.5:
            rest = rest[: max(1, round(len(rest) * draw.uniform(_LEAST_KEPT, 1)))]
        rest = rest[: shape.num_children]
        questions[row, : len(out)], asked[row, : len(out)] = own.children[out], True
        children[row, : len(rest)], mask[row, : len(rest)] = own.children[rest], True
        num_tokens[row, : len(rest)] = own.num_tokens[rest]
    return Batch(children, num_tokens, mask, questions, asked, np.stack([sections[place].target for place in chosen]))


def _draw_sections(sections: Sequence[Section], shape: Shape, draw: np.random.Generator) -> list[int]:
    """Places of distinct sections, as many as a batch has, or all."""
    by_document: dict[int, list[int]] = {}
    for place, one in enumerate(sections):
        by_document.setdefault(one.document, []).append(place)
    groups = list(by_document.values())
    first, left = list[int](), list[int]()
    for group in draw.permutation(len(groups)).tolist():
        own = draw.permutation(groups[group]).tolist()
        first += own[: shape.from_document]
        left += own[shape.from_document :]
    return [*first, *left][: min(shape.num_sections, len(sections))]


def draw_questions(section: Section, most: int, draw: np.random.Generator) -> Int[np.ndarray, " questions"]:
    """Places of the children that are taken out to ask; none where no sentence is long enough."""
    number = min(most, max(1, len(section.children) // _CHILDREN_A_QUESTION))
    long = np.flatnonzero(section.num_tokens >= MIN_QUESTION_TOKENS)
    return draw.permutation(long)[:number]


@dataclass(frozen=True, eq=False)
class Asked:
    """Sections, and questions that were taken out of them.

    Attributes:
        sections: without what asks.
        questions: float32 [n, dim].
        right: int64 [n], place of the section of each.
    """

    sections: list[Section]
    questions: np.ndarray
    right: np.ndarray


def ask_sections(sections: Sequence[Section], most: int, seed: int) -> Asked:
    """Takes up to `most` questions out of each section; all sections are searched for each."""
    draw = np.random.default_rng([seed, 3])
    outs = [draw_questions(one, most, draw) for one in sections]
    kept = [np.setdiff1d(np.arange(len(one.children)), out) for one, out in zip(sections, outs, strict=True)]
    rest = [
        replace(one, children=one.children[own], num_tokens=one.num_tokens[own])
        for one, own in zip(sections, kept, strict=True)
    ]
    questions = [one.children[out] for one, out in zip(sections, outs, strict=True)]
    return Asked(rest, np.concatenate(questions), np.repeat(np.arange(len(outs)), [len(out) for out in outs]))
