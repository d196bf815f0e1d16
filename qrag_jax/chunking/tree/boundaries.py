"""Boundaries (points): the first sentences of the parts of a document, each with its level; and sources of them.

A part of level k begins at its boundary and goes on to the next boundary of level k or less
(`chunking/tree/build.py:tree_from_points` makes the tree). Sentence 0 always begins the document.

Some sources are baselines: the borders of flat strategies, and parts of equal lengths.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool

from qrag_jax.chunking.text.blocks import find_blocks, is_mark, opens_with_heading
from qrag_jax.chunking.text.chunks import SentenceText, Strategy
from qrag_jax.chunking.text.sentences import BLANK_LINE, LINE_BORDER
from qrag_jax.types import InputError, UsageError

Point = tuple[int, int]  # (sentence from 0, level from 1)
# Texts -> the boundaries of each, by sentence, at most one for each sentence (`checked_points`). A call has many texts,
# so a model can read them together.
PredictPoints = Callable[[Sequence[SentenceText]], list[list[Point]]]


class TextFault(InputError):
    """A source found no boundaries for a text. The error has the text's position; the caller knows its name.

    Attributes:
        place: position among the texts of the call.
    """

    def __init__(self, message: str, place: int):
        super().__init__(message)
        self.place = place


_NUMBER = re.compile(r"\s*((?:\d+|[A-Z])(?:\.\d+)*)\.?\s")
_MAX_WORDS = 12  # of a line that the rule takes for a heading
_CLOSING = ".!?:;,\u2026\u3002\uff01\uff1f\uff1a\uff1b\uff0c\u3001\u061f\u06d4\u0964"
_AFTER_CLOSING = "\"')]}*_\u201d\u2019\u300d\u300f\uff09"


def checked_points(points: Sequence[Point], num_sentences: int, where: str) -> list[Point]:
    """The boundaries of one text from a source, checked.

    Args:
        where: the document and source, for errors.
    """
    before = -1
    for number, (sentence, level) in enumerate(points):
        fault = f"{where}: points[{number}] ({sentence}, {level})"
        if not 0 <= sentence < num_sentences:
            raise InputError(f"{fault}: there are only {num_sentences} sentences, counted from 0")
        if sentence <= before:
            raise InputError(
                f"{fault}: comes after sentence {before}; give points in the order of the text, one for each sentence"
            )
        if level < 1:
            raise InputError(f"{fault}: levels start at 1, because the document is 0")
        before = sentence
    return list(points)


def predict_checked(predict: PredictPoints, texts: Sequence[SentenceText], names: Sequence[str]) -> list[list[Point]]:
    """The boundaries of each text from a source, checked because the source may be custom.

    Args:
        names: of the texts, for errors.
    """
    try:
        given = predict(texts)
    except TextFault as error:
        raise InputError(str(error), file=names[error.place]) from error
    if len(given) != len(texts):
        raise InputError(f"source of points: {len(given)} lists for {len(texts)} texts; return one for each")
    rows = zip(given, texts, names, strict=True)
    return [checked_points(points, len(text), name) for points, text, name in rows]


def predict_at_once(predict: PredictPoints, texts: Sequence[SentenceText], names: Sequence[str]) -> PredictPoints:
    """A source that reads all of these texts together now, and later returns the boundaries of any of them."""
    known = dict(zip(texts, predict_checked(predict, texts, names), strict=True))
    return lambda wanted: [known[text] for text in wanted]


def starts_paragraph(text: SentenceText) -> Bool[np.ndarray, " sentences"]:
    """Which sentences begin a paragraph: the first one, and those after a blank line.

    If no blank line is between any two sentences, those after a line break.
    """
    ends = [end for _, end in text.sentences[:-1]]
    gaps = [text.text[end:start] for end, (start, _) in zip(ends, text.sentences[1:], strict=True)]
    border = BLANK_LINE if any(map(BLANK_LINE.search, gaps)) else LINE_BORDER
    return np.array([True, *(border.search(gap) is not None for gap in gaps)][: len(text)], bool)


def no_points(texts: Sequence[SentenceText]) -> list[list[Point]]:
    """No boundaries: the baseline."""
    return [[] for _ in texts]


def paragraph_points(texts: Sequence[SentenceText]) -> list[list[Point]]:
    """Every start of a paragraph except the first, level 1 (`starts_paragraph`)."""
    return [[(i, 1) for i in np.flatnonzero(starts_paragraph(text)).tolist() if i] for text in texts]


def heading_points(texts: Sequence[SentenceText]) -> list[list[Point]]:
    """The Markdown sections: a boundary at the sentence with a heading's words, levels by `section_levels`."""
    return [_heading_points(text) for text in texts]


def _heading_points(text: SentenceText) -> list[Point]:
    blocks = find_blocks(text.text)
    heads = [block for block in blocks if block.level and not is_mark(text.text, block)]
    titles = ["" if head.title is None else text.text[slice(*head.title)] for head in heads]
    levels = section_levels([head.level for head in heads], titles, opens=opens_with_heading(text.text, blocks))
    ends = [end for _, end in text.sentences]
    least: dict[int, int] = {}
    for head, level in zip(heads, levels, strict=True):
        sentence = bisect_right(ends, head.start)
        if level:
            least[sentence] = min(level, least.get(sentence, level))
    return sorted(least.items())


def section_levels(written: Sequence[int], titles: Sequence[str], *, opens: bool) -> list[int]:
    """The levels of a document's headings, in order, from 1; 0 is the title of the document.

    - The first heading is the document's title if it opens the text and all others are deeper.
    - If all others have one written level, numbers decide: "2.1 Data" is one deeper than "2 Method".
    - A level is one more than that of the section around it, so written 1, 4, 2 become 1, 2, 2: none is skipped.

    Args:
        written: marks of each heading, from 1.
        opens: the text begins with the first heading.
    """
    has_title = opens and all(level > written[0] for level in written[1:])
    rest = list(written[has_title:])
    if len(set(rest)) == 1:
        rest = [_parts_of_number(title) for title in titles[has_title:]]
    levels, around = [0] * has_title, list[int]()
    for level in rest:
        while around and around[-1] >= level:
            around.pop()
        around.append(level)
        levels.append(len(around))
    return levels


def _parts_of_number(title: str) -> int:
    """2 for "2.1 Data", 1 for "2 Method" and for "Method"."""
    number = _NUMBER.match(title)
    return 1 if number is None else number[1].count(".") + 1


def rule_points(texts: Sequence[SentenceText]) -> list[list[Point]]:
    """Lines that look like headings, level 1: alone on their line, at most 12 words, no closing mark at the end."""
    return [[(i, 1) for i in range(len(text)) if _looks_like_heading(text, i)] for text in texts]


def _looks_like_heading(text: SentenceText, number: int) -> bool:
    start, end = text.sentences[number]
    before = text.text[text.sentences[number - 1][1] if number else 0 : start]
    after = text.text[end : text.sentences[number + 1][0] if number + 1 < len(text) else len(text.text)]
    words = text.text[start:end]
    is_alone = (not number or LINE_BORDER.search(before)) and (
        number + 1 == len(text) or LINE_BORDER.search(after)
    )  # fmt: skip
    return bool(
        is_alone
        and not LINE_BORDER.search(words)
        and len(words.split()) <= _MAX_WORDS
        and not words.rstrip(_AFTER_CLOSING).endswith(tuple(_CLOSING))
    )


def strategy_points(strategy: Strategy) -> PredictPoints:
    """The borders of a strategy that groups whole sentences, as boundaries of level 1.

    If groups are not contiguous, as for clusters, a boundary is wherever two neighbours are in different ones.
    """
    return lambda texts: [_borders(text, strategy) for text in texts]


def _borders(text: SentenceText, strategy: Strategy) -> list[Point]:
    group_of = {span: number for number, group in enumerate(strategy(text)) for span in group.spans}
    labels = np.array([group_of[span] for span in text.sentences])
    return [(int(i) + 1, 1) for i in np.flatnonzero(labels[1:] != labels[:-1])]


def equal_points(num_sentences: int) -> PredictPoints:
    """A boundary of level 1 after every `num_sentences` sentences."""
    if num_sentences < 1:
        raise UsageError(f"num_sentences {num_sentences}: give at least 1")

    def predict(texts: Sequence[SentenceText]) -> list[list[Point]]:
        return [[(i, 1) for i in range(num_sentences, len(text), num_sentences)] for text in texts]

    return predict
