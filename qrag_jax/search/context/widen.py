"""Adds the sentences around each passage, because a retriever that picks sentences leaves out their context."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qrag_jax.chunking.text.tables import context_of, join_context
from qrag_jax.search.context.pack import Budget, Context, Passage, last_passage, make_context, make_passage
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.types import Chunk, InputError, Span, UsageError


def widen_context(corpus: Corpus, context: Context, budget: Budget, num_around: int) -> Context:
    """Widens every passage by the sentence before and the one after, and again, while the budget allows it.

    The best passages grow first, one sentence at a time. A widened passage is all text of its document from its first
    to its last sentence, so its offsets stay exact. Passages that overlap are joined.

    Args:
        corpus: its leaves are sentences, of one span each, without overlap.
        context: passages of one span each.
        budget: the one that the context was filled with.
        num_around: most sentences to add on either side of a passage; 0 changes nothing.

    Raises:
        UsageError: `num_around` is negative.
        InputError: a passage or a sentence has several spans.
    """
    sentences = [corpus.nodes[node] for node in corpus.leaves.tolist()]
    _check([*context.passages, *sentences], num_around)
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


def fill_widened(corpus: Corpus, ranked: Ranked, budget: Budget, num_around: int = 1) -> Context:
    """Takes the best leaves until one does not fit, each together with the neighbours that fit, nearest first.

    `widen_context` only spends what a filled context leaves. This function spends tokens on neighbours first, so the
    context contains fewer leaves. Neighbours are leaves of the same document; adjacent ones become one passage.

    Args:
        corpus: its leaves have one span each and do not overlap.
        ranked: its leaves, best first.
        budget: most tokens and passages; needs `count`.
        num_around: most neighbours on either side of a leaf.
    """
    leaves = corpus.leaves.tolist()
    _check([corpus.nodes[leaf] for leaf in leaves], num_around)
    place_of, runs = {leaf: place for place, leaf in enumerate(leaves)}, _Runs(corpus, leaves, budget)
    candidates = ranked.ids.tolist()[: budget.max_passages]
    last: list[Passage] = []
    num_left_out = 0
    for rank, leaf in enumerate(candidates, start=1):
        place, score = place_of[leaf], float(ranked.scores[rank - 1])
        if not runs.take(place, make_passage(corpus, leaf, rank, score, budget)):
            last = last_passage(make_passage(corpus, leaf, rank, score, budget), budget, runs.used)
            num_left_out = sum(place_of[other] not in runs.passages for other in candidates) - len(last)
            break
        for distance in range(1, num_around + 1):
            for near in (place - distance, place + distance):
                if 0 <= near < len(leaves) and _same_document(corpus, leaf, leaves[near]):
                    runs.take(near, make_passage(corpus, leaves[near], rank, score, budget))
    passages = {id(passage): passage for passage in runs.passages.values()}
    return make_context(corpus, [*passages.values(), *last], budget, num_left_out)


@dataclass
class _Runs:
    """Passages of adjacent leaves.

    Attributes:
        passages: the passage of each leaf that is taken, by its position.
        used: tokens of all of them, with those around each.
    """

    corpus: Corpus
    leaves: Sequence[int]
    budget: Budget

    def __post_init__(self) -> None:
        self.passages: dict[int, Passage] = {}
        self.used = 0

    def take(self, place: int, passage: Passage) -> bool:
        """Takes a leaf if the budget allows it, joined with its neighbours. Returns whether it is in the context."""
        if place in self.passages:
            return True
        met = {place: passage}
        for near in (place - 1, place + 1):
            if near in self.passages and self.passages[near].document_id == passage.document_id:
                met[near] = self.passages[near]
        joined = passage if len(met) == 1 else self._joined(list(met.values()))
        before = sum(one.num_tokens + self.budget.overhead for near, one in met.items() if near != place)
        used = self.used + joined.num_tokens + self.budget.overhead - before
        if used > self.budget.max_tokens:
            return False
        self.used = used
        for near, one in met.items():
            step = near - place
            self.passages[near] = joined
            while step and self.passages.get(near + step) is one:
                near += step
                self.passages[near] = joined
        return True

    def _joined(self, passages: Sequence[Passage]) -> Passage:
        start, end = min(p.spans[0][0] for p in passages), max(p.spans[0][1] for p in passages)
        best = min(passages, key=lambda passage: passage.rank)
        return _stretched(best, (start, end), self.corpus.by_id[best.document_id].text, self.budget)


def _check(parts: Sequence[Passage | Chunk], num_around: int) -> None:
    if num_around < 0:
        raise UsageError(f"num_around {num_around}: must be at least 0")
    several = [part.document_id for part in parts if len(part.spans) != 1]
    if several:
        raise InputError(f"{several[0]}: a passage of several spans cannot be widened; give sentences")


def _same_document(corpus: Corpus, one: int, other: int) -> bool:
    return corpus.nodes[one].document_id == corpus.nodes[other].document_id


def _widened(
    passages: Sequence[Passage],
    rank: int,
    side: int,
    spans: Mapping[str, Sequence[Span]],
    texts: Mapping[str, str],
    budget: Budget,
) -> list[Passage]:
    """The passages after one of them has grown by a sentence, if it still exists and the budget allows it."""
    grown = next((passage for passage in passages if passage.rank == rank), None)
    span = None if grown is None else _grown(grown.spans[0], side, spans.get(grown.document_id, ()))
    if grown is None or span is None:
        return list(passages)
    met = [passage for passage in passages if passage.document_id == grown.document_id and _overlap(passage, span)]
    start, end = min(p.spans[0][0] for p in met), max(p.spans[0][1] for p in met)
    start, end = min(start, span[0]), max(end, span[1])
    best = min(met, key=lambda passage: passage.rank)
    joined = _stretched(best, (start, end), texts[grown.document_id], budget)
    result = sorted([*(p for p in passages if p not in met), joined], key=lambda passage: passage.rank)
    num_tokens = sum(passage.num_tokens + budget.overhead for passage in result)
    return result if num_tokens <= budget.max_tokens else list(passages)


def _stretched(passage: Passage, span: Span, text: str, budget: Budget) -> Passage:
    """The passage with another span of its document."""
    context, own = context_of(text, [span]) if budget.heads else "", text[slice(*span)]
    num_tokens = budget.tokens(join_context(context, own))
    return replace(passage, spans=(span,), text=own, num_tokens=num_tokens, context=context)


def _grown(span: Span, side: int, sentences: Sequence[Span]) -> Span | None:
    """The span up to the next sentence on one side; None if there is none."""
    if side < 0:
        number = bisect_right(sentences, span[0], key=lambda sentence: sentence[1]) - 1
        return (sentences[number][0], span[1]) if number >= 0 else None
    number = bisect_left(sentences, span[1], key=lambda sentence: sentence[0])
    return (span[0], sentences[number][1]) if number < len(sentences) else None


def _overlap(passage: Passage, span: Span) -> bool:
    start, end = passage.spans[0]
    return start < span[1] and span[0] < end
