"""Passages with the sentences around them: a retriever that picks sentences leaves a reader without their context."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

from qrag_jax.retrieval.context.fill import Budget, Context, Passage, make_context
from qrag_jax.retrieval.corpus.corpus import Corpus
from qrag_jax.types import InputError, Span, UsageError


def widen_context(corpus: Corpus, context: Context, budget: Budget, num_around: int) -> Context:
    """Widens every passage by the sentence before and the one after, and again, while the budget holds.

    Best passages first, one sentence at a time. A widened passage is all text of its document between its first and its
    last sentence, so its offsets stay exact; passages that overlap then become one.

    Args:
        corpus: whose leaves are the sentences, of one span each and not overlapping.
        context: passages of one span each.
        budget: that the context was filled by.
        num_around: most sentences to add on either side of a passage; 0 changes nothing.

    Raises:
        UsageError: `num_around` is negative.
        InputError: a passage or a sentence of several spans.
    """
    if num_around < 0:
        raise UsageError(f"num_around {num_around}: 0 sentences or more")
    sentences = [corpus.nodes[node] for node in corpus.leaves.tolist()]
    several = [part.document_id for part in (*context.passages, *sentences) if len(part.spans) != 1]
    if several:
        raise InputError(f"{several[0]}: a passage of several spans cannot be widened; give sentences")
    texts = {document.id: document.text for document in corpus.documents}
    spans: dict[str, list[Span]] = {}
    for sentence in sentences:
        spans.setdefault(sentence.document_id, []).append(sentence.spans[0])
    passages = sorted(context.passages, key=lambda passage: passage.rank)
    for _ in range(num_around):
        for rank in [passage.rank for passage in passages]:
            for side in (-1, 1):
                passages = _widened(passages, rank, side, spans, texts, budget)
    return make_context(corpus, passages, budget, context.num_left_out)


def _widened(
    passages: Sequence[Passage],
    rank: int,
    side: int,
    spans: Mapping[str, Sequence[Span]],
    texts: Mapping[str, str],
    budget: Budget,
) -> list[Passage]:
    """The passages after one of them grew by a sentence, if it is still there and the budget allows it."""
    grown = next((passage for passage in passages if passage.rank == rank), None)
    span = None if grown is None else _grown(grown.spans[0], side, spans.get(grown.document_id, ()))
    if grown is None or span is None:
        return list(passages)
    met = [passage for passage in passages if passage.document_id == grown.document_id and _overlap(passage, span)]
    start, end = min(p.spans[0][0] for p in met), max(p.spans[0][1] for p in met)
    start, end = min(start, span[0]), max(end, span[1])
    text = texts[grown.document_id][start:end]
    best = min(met, key=lambda passage: passage.rank)
    joined = replace(best, spans=((start, end),), text=text, num_tokens=budget.tokens(text))
    result = sorted([*(p for p in passages if p not in met), joined], key=lambda passage: passage.rank)
    num_tokens = sum(passage.num_tokens + budget.overhead for passage in result)
    return result if num_tokens <= budget.max_tokens else list(passages)


def _grown(span: Span, side: int, sentences: Sequence[Span]) -> Span | None:
    """The span up to the next sentence on one side; None where there is none."""
    if side < 0:
        number = bisect_right(sentences, span[0], key=lambda sentence: sentence[1]) - 1
        return (sentences[number][0], span[1]) if number >= 0 else None
    number = bisect_left(sentences, span[1], key=lambda sentence: sentence[0])
    return (span[0], sentences[number][1]) if number < len(sentences) else None


def _overlap(passage: Passage, span: Span) -> bool:
    start, end = passage.spans[0]
    return start < span[1] and span[0] < end
