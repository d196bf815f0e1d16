"""The sentence of a passage that answers a question best, and its place.

Sentences of all passages of a question are scored together, like chunks in `search/hybrid.py`:

    score(s) = (1 - w) * cosine(q, s) + w * bm25(q, s) / bound(q)

BM25 uses only the words of these sentences, so it needs no statistics of the corpus. Without an encoder w is 1. For the
best sentence of one passage, words alone do as well as both; among sentences of several passages, both find it more
often (benchmarks/search/results/sentences.md).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from qrag_jax.chunking.text.blocks import block_units, find_blocks, is_mark
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.chunking.text.spans import readable
from qrag_jax.documents.read import page_of
from qrag_jax.search.bm25 import Bm25Index
from qrag_jax.search.context.pack import Passage, line_of
from qrag_jax.search.corpus import embed_texts
from qrag_jax.search.hybrid import WORDS_WEIGHT, fused_with_words
from qrag_jax.types import Chunk, Document, Embed, Place, Sentence, Span
from qrag_jax.unit_rows import unit_rows

_NO_ANSWERS = ("heading", "rule", "front_matter", "definitions")  # kinds of blocks that name or divide
_FENCES = ("```", "~~~")


def best_sentences(
    question: str, passages: Sequence[Chunk | Passage], documents: Mapping[str, Document], embed: Embed | None = None
) -> list[Sentence]:
    """The best sentence of every passage, in the order of the passages; the first of equal ones.

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
        span = max(scores, key=scores.__getitem__)
        best.append(make_sentence(documents[passage.document_id], span, scores[span]))
    return best


def score_sentences(
    question: str, passages: Sequence[Chunk | Passage], documents: Mapping[str, Document], embed: Embed | None = None
) -> list[dict[Span, float]]:
    """The score of every sentence of every passage, in document order; arguments as in `best_sentences`.

    A sentence in two passages counts once.
    """
    cut = [passage_sentences(documents[passage.document_id], passage.spans) for passage in passages]
    places = [[(passage.document_id, span) for span in spans] for passage, spans in zip(passages, cut, strict=True)]
    numbers = {place: number for number, place in enumerate(dict.fromkeys(sum(places, [])))}
    if not numbers:
        return []
    texts = [readable(documents[name].text[slice(*span)]) for name, span in numbers]
    near, weight = (np.zeros(len(texts)), 1.0) if embed is None else (_cosines(question, texts, embed), WORDS_WEIGHT)
    scores = fused_with_words(near, Bm25Index(texts), question, weight).tolist()
    return [{place[1]: scores[numbers[place]] for place in some} for some in places]


def passage_sentences(document: Document, spans: Sequence[Span]) -> list[Span]:
    """The sentences, list items, table rows and lines of code of a passage, in order.

    Headings and other blocks that say nothing alone are left out, unless there is nothing else.

    Args:
        document: of the passage.
        spans: of the passage, half-open characters of the document.

    Returns:
        Half-open characters of the document, each within one of the spans.
    """
    said: list[Span] = []
    rest: list[Span] = []
    for begin, stop in spans:
        text = document.text[begin:stop]
        for block in find_blocks(text):
            says_nothing = block.kind in _NO_ANSWERS or is_mark(text, block)
            for start, end in block_units(text, block, split_sentences):
                is_fence = block.kind == "fence" and text.startswith(_FENCES, start)
                (rest if says_nothing or is_fence else said).append((begin + start, begin + end))
    return said or rest or list(spans)


def make_sentence(document: Document, span: Span, score: float = 0.0) -> Sentence:
    """The sentence at a place of its document."""
    return Sentence(document.text[slice(*span)], make_place(document, span), score)


def make_place(document: Document, span: Span) -> Place:
    """A place with its line, and its page if the document has pages."""
    start, end = span
    return Place(document.id, start, end, line_of(document.text, start), page_of(document, start))


def _cosines(question: str, texts: Sequence[str], embed: Embed) -> np.ndarray:
    """Cosines of the question and every text; equal texts are embedded once."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    asked, *vectors = unit_rows(embed_texts(embed, [question, *numbers]).astype(np.float64))
    return (np.stack(vectors) @ asked)[[numbers[text] for text in texts]]
