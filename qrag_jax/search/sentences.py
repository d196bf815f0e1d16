"""The sentence of a passage that answers a question best, and its place.

Sentences of all passages of a question are scored together, like chunks in `search/hybrid.py`:

    score(s) = (1 - w) * cosine(q, s) + w * share(q, s)

The share of BM25 (`Bm25Index.shares`) uses only the words of these sentences, so it needs no statistics of the corpus.
Without an encoder w is 1. For the best sentence of one passage, words alone do as well as both; among sentences of
several passages, both find it more often (benchmarks/search/results/sentences.md).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import cast

import numpy as np

from qrag_jax.chunking.text.blocks import block_units, find_blocks, is_mark
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.text.tables import cut_at_rows
from qrag_jax.documents.read import CONVERTED, page_label_of, page_of
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.context.pack import Passage, line_of
from qrag_jax.search.corpus import embed_texts
from qrag_jax.search.hybrid import WORDS_WEIGHT, fused_with_words, words_weight
from qrag_jax.types import Chunk, Document, Embed, Place, Sentence, Span, for_questions
from qrag_jax.unit_rows import unit_rows

_NO_ANSWERS = ("heading", "rule", "front_matter", "definitions")  # kinds of blocks that name or divide
_FENCES = ("```", "~~~")
_LEAST_LINES = 3  # after the first, which tell a poem or a log from prose
_FULL = 2 / 3  # of the longest line: shorter lines are not wrapped prose
# A line of a table: a Markdown row, a border, or a line that ends in a number.
_ROW = re.compile(r"^\s*\|(?!\s*:?-)|^\s*\+[-=+]+\+\s*$|[0-9][)%*\s]*$")


def best_sentences(
    question: str, passages: Sequence[Chunk | Passage], documents: Mapping[str, Document], embed: Embed | None = None
) -> list[Sentence]:
    """The best sentence of every passage, in the order of the passages; the first of equal ones.

    If no sentence has a word of the question, a heading may.

    Args:
        question: what is asked.
        passages: that were found for it.
        documents: of the passages, by id.
        embed: texts -> vectors; None scores only by words.

    Raises:
        InputError: as `embed_texts`.
    """
    best = []
    for passage, scores in zip(passages, score_sentences(question, passages, documents, embed), strict=True):
        if not any(scores.values()):
            scores = score_sentences(question, [passage], documents, embed, headings=True)[0]
        span = max(scores, key=scores.__getitem__)
        best.append(make_sentence(documents[passage.document_id], span, scores[span]))
    return best


def score_sentences(
    question: str,
    passages: Sequence[Chunk | Passage],
    documents: Mapping[str, Document],
    embed: Embed | None = None,
    *,
    headings: bool = False,
) -> list[dict[Span, float]]:
    """The score of every sentence of every passage, in document order; arguments as in `best_sentences`.

    A sentence in two passages counts once. `headings` is that of `passage_sentences`.
    """
    cut: list[list[Span]] = [[] for _ in passages]
    for number in sorted(range(len(passages)), key=lambda number: passages[number].document_id):  # parses each once
        document = documents[passages[number].document_id]
        cut[number] = passage_sentences(document, passages[number].spans, headings=headings)
    places = [[(passage.document_id, span) for span in spans] for passage, spans in zip(passages, cut, strict=True)]
    numbers = {place: number for number, place in enumerate(dict.fromkeys(sum(places, [])))}
    if not numbers:
        return []
    texts = [readable(documents[name].text[slice(*span)]) for name, span in numbers]
    near, weight = np.zeros(len(texts)), 1.0
    if embed is not None:
        near, weight = _cosines(question, texts, embed), words_weight(question, embed, WORDS_WEIGHT)
    scores = fused_with_words(near, Bm25Index(texts), question, weight).tolist()
    return [{place[1]: scores[numbers[place]] for place in some} for some in places]


def passage_sentences(document: Document, spans: Sequence[Span], *, headings: bool = False) -> list[Span]:
    """The sentences, list items, table rows and lines of code of a passage, in order.

    Headings, heads of tables and other blocks that say nothing alone are left out, unless there is nothing else.

    Args:
        document: of the passage.
        spans: of the passage, half-open characters of the document.
        headings: give those blocks too, after the others.

    Returns:
        Half-open characters of the document, each within one of the spans.
    """
    said: list[Span] = []
    rest: list[Span] = []
    for (begin, stop), row in (part for span in spans for part in cut_at_rows(document.text, span)):
        if row is not None:
            (said if row else rest).append((begin, stop))
            continue
        text = document.text[begin:stop]
        for block in find_blocks(text):
            says_nothing = block.kind in _NO_ANSWERS or is_mark(text, block)
            for unit in block_units(text, block, split_sentences):
                is_fence = block.kind == "fence" and text.startswith(_FENCES, unit[0])
                told = rest if says_nothing or is_fence else said
                told += [(begin + start, begin + end) for start, end in _lines_apart(text, unit)]
    return (said + rest if headings else said or rest) or list(spans)


def _lines_apart(text: str, unit: Span) -> Iterator[Span]:
    """A sentence in one piece, or the lines of a slide or a table without full stops, each alone.

    A line ends alone if the next one does not begin in lower case, and it leaves a third of the longest line free, or
    both look like rows of a table. Lines of wrapped prose are full. If most lines end alone, all of them do that are
    not before lower case; so do the lines of a poem or a log, of which each one begins with a capital or a digit.
    """
    start, end = unit
    lines = text[start:end].splitlines(keepends=True)
    sizes = [len(line) for line in lines]
    sizes[0] += start - text.rfind("\n", 0, start) - 1  # from the beginning of its line
    begins = [following.lstrip()[:1] for following in lines[1:]]
    may_end = [not begin.islower() for begin in begins]
    is_row = [_ROW.search(line) is not None for line in lines]
    alone = [
        may and (size < _FULL * max(sizes) or rows == (True, True))
        for may, size, rows in zip(may_end, sizes, pairwise(is_row), strict=False)
    ]
    is_list = len(begins) >= _LEAST_LINES and all(begin.isupper() or begin.isdigit() for begin in begins)
    ends = may_end if is_list or 2 * sum(alone) > sum(may_end) else alone
    begin, place = start, start
    for line, is_end in zip(lines, [*ends, True], strict=True):
        place += len(line)
        if is_end and text[begin:place].strip():
            piece = text[begin:place]
            yield place - len(piece.lstrip()), begin + len(piece.rstrip())
            begin = place


def make_sentence(document: Document, span: Span, score: float = 0.0) -> Sentence:
    """The sentence at a place of its document."""
    return Sentence(document.text[slice(*span)], make_place(document, span), score)


def make_place(document: Document, span: Span) -> Place:
    """A place with its line, its page if the document has pages, and what was converted."""
    start, end = span
    line, page = line_of(document.text, start), page_of(document, start)
    converted = cast(str | None, document.metadata.get(CONVERTED))
    return Place(document.id, start, end, line, page, converted, page_label_of(document, page))


def copy_places(
    copies: Sequence[tuple[str, Span]], documents: Mapping[str, Document], sentence: Sentence
) -> tuple[Place, ...]:
    """The places of a sentence in the copies of its passage; the whole copy where its white space is different.

    Args:
        copies: (document id, first and last character).
        documents: of the copies, by id.
    """
    places = []
    for name, span in copies:
        found = documents[name].text.find(sentence.text, *span)
        places.append(make_place(documents[name], span if found < 0 else (found, found + len(sentence.text))))
    return tuple(places)


def _cosines(question: str, texts: Sequence[str], embed: Embed) -> np.ndarray:
    """Cosines of the question and every text; equal texts are embedded once."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    (asked,) = unit_rows(embed_texts(for_questions(embed), [question]).astype(np.float64))
    vectors = unit_rows(embed_texts(embed, list(numbers)).astype(np.float64))
    return (vectors @ asked)[[numbers[text] for text in texts]]
