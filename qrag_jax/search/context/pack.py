"""Packs a context: the best chunks that fit a budget of tokens, in document order.

Notes that brought a chunk in follow it, separate from its text.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qrag_jax.chunking.size.packing import longest
from qrag_jax.chunking.text.spans import readable
from qrag_jax.chunking.text.tables import join_context
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.search.note_texts import GivenNote, is_said_in, note_head
from qrag_jax.types import Arg, CountTokens, InputError, Note, Span, UsageError, check_fields

Order = Literal["document", "rank"]


@dataclass(frozen=True, slots=True)
class Passage:
    """A text for the model, and its place.

    Attributes:
        number: from 1, in the order of the context; what the answer cites.
        document_id: of its document.
        spans: half-open character offsets into the document's text, in order; mostly one.
        text: `chunk_text(document.text, spans)`, exactly.
        num_tokens: of the text.
        score: of its node; the best one of several nodes.
        rank: of that node, from 1.
        node: its id in the corpus.
        copies: (document id, first and last character) of each other place of the same text.
        context: given to the model above the text and counted with it (`tables.context_of`); mostly empty.
    """

    number: int
    document_id: str
    spans: tuple[Span, ...]
    text: str
    num_tokens: int
    score: float
    rank: int
    node: int
    copies: tuple[tuple[str, Span], ...] = ()
    context: str = ""

    @property
    def full_text(self) -> str:
        """The text after its context."""
        return join_context(self.context, self.text)


@dataclass(frozen=True)
class Context:
    """The passages of one prompt.

    Attributes:
        passages: in document order or by rank, numbered from 1.
        num_tokens: of all passages and notes, with what the prompt adds around each.
        max_tokens: the budget.
        num_left_out: number of ranked nodes that did not fit.
        notes: after passages, in the order of the passages.
    """

    passages: tuple[Passage, ...]
    num_tokens: int
    max_tokens: int
    num_left_out: int
    notes: tuple[GivenNote, ...] = ()


@dataclass(frozen=True)
class Budget:
    """The size of a context.

    Attributes:
        max_tokens: of all passages together.
        count: text -> its tokens, as the model counts or approximately; None uses the counts of the nodes.
        overhead: tokens that the prompt adds around a passage.
        max_passages: most nodes; None is no limit.
        max_notes: most notes after a passage, which together have at most the tokens of the passage; 0 is none.
        cut_last: cut the first node that does not fit to the remaining tokens. This fills the budget exactly, so large
            and small chunks give equal contexts when measured. Needs `count`.
        heads: a passage that begins inside a table gets the head of the table as its context.
    """

    max_tokens: int
    count: CountTokens | None = None
    overhead: int = 0
    max_passages: int | None = None
    max_notes: int = 3
    cut_last: bool = False
    heads: bool = False

    def __post_init__(self) -> None:
        check_fields(self, positive=("max_tokens", "max_passages"), at_least={"overhead": 0, "max_notes": 0})

    def tokens(self, text: str) -> int:
        """Tokens of a text; lone surrogates count as U+FFFD.

        Raises:
            UsageError: the budget has no `count`.
        """
        if self.count is None:
            raise UsageError("budget: must count the tokens of a passage, but has no `count`; give one")
        return self.count(readable(text))


def fill_context(corpus: Corpus, ranked: Ranked, budget: Budget) -> Context:
    """Takes the best nodes until one does not fit, and puts them in document order.

    Nodes are not cut, unless the budget says so: the first node that does not fit ends the context. Notes are added
    where they fit; a note is left out if another passage contains its sentence.

    Args:
        corpus: that was searched.
        ranked: its nodes, best first, with the notes that brought them in.
        budget: most tokens and passages.

    Returns:
        The passages; empty if nothing was ranked.

    Raises:
        InputError: the best node alone exceeds the budget.
    """
    candidates = ranked.ids.tolist()[: budget.max_passages]
    taken: list[Passage] = []
    notes: dict[int, list[_Taken]] = {}
    used = 0
    for rank, node in enumerate(candidates, start=1):
        passage = make_passage(corpus, node, rank, float(ranked.scores[rank - 1]), budget)
        passage = replace(passage, copies=copies_of(corpus, ranked, node))
        if used + passage.num_tokens + budget.overhead > budget.max_tokens:
            taken += last_passage(passage, budget, used)
            notes[node] = []
            break
        used += passage.num_tokens + budget.overhead
        taken.append(passage)
        notes[node] = _fitting(corpus, ranked.notes_of(node), taken, budget, budget.max_tokens - used)
        used += sum(one.num_tokens + budget.overhead for one in notes[node])
    context = make_context(corpus, taken, budget, num_left_out=len(candidates) - len(taken))
    return _with_notes(context, notes, budget)


def make_context(
    corpus: Corpus, passages: Iterable[Passage], budget: Budget, num_left_out: int = 0, order: Order = "document"
) -> Context:
    """Passages in the order of the corpus or by rank, numbered from 1."""
    in_order = sorted(
        passages, key=lambda passage: (corpus.number_of(passage.document_id), passage.spans, passage.rank)
    )
    if order == "rank":
        in_order.sort(key=lambda passage: passage.rank)
    numbered = tuple(
        passage if passage.number == number else replace(passage, number=number)
        for number, passage in enumerate(in_order, start=1)
    )
    num_tokens = sum(passage.num_tokens + budget.overhead for passage in numbered)
    return Context(numbered, num_tokens, budget.max_tokens, num_left_out)


def make_passage(
    corpus: Corpus, node: int, rank: int, score: float, budget: Budget, num_tokens: int | None = None, number: int = 0
) -> Passage:
    """The passage of a node, with a preliminary number; counts its tokens if they are not given."""
    chunk, text = corpus.nodes[node], corpus.texts[node]
    context = corpus.contexts[node] if budget.heads else ""
    if num_tokens is None:
        about = -(-chunk.num_tokens * len(context) // len(text))  # tokens of the context, in proportion
        num_tokens = chunk.num_tokens + about if budget.count is None else budget.tokens(join_context(context, text))
    return Passage(number, chunk.document_id, chunk.spans, text, num_tokens, score, rank, node, context=context)


def copies_of(corpus: Corpus, ranked: Ranked, node: int) -> tuple[tuple[str, Span], ...]:
    """(document id, first and last character) of each copy of a ranked node."""
    chunks = [corpus.nodes[copy] for copy in ranked.copies.get(node, ())]
    return tuple((chunk.document_id, (chunk.spans[0][0], chunk.spans[-1][1])) for chunk in chunks)


def last_passage(passage: Passage, budget: Budget, used: int) -> list[Passage]:
    """The part of a passage that still fits: none, or with `cut_last` its beginning.

    Args:
        passage: too large for the rest of the budget.
        used: tokens of all passages before it, with those around each.
    """
    if budget.cut_last:
        cut = cut_passage(passage, budget, budget.max_tokens - used - budget.overhead)
        return [] if cut is None else [cut]
    if not used:
        raise InputError(
            f"the best passage has {passage.num_tokens + budget.overhead} tokens, including citation marks, but the "
            f"context has room for only {budget.max_tokens}",
            remedy=("allow more (", Arg("max_context_tokens"), "), or cut smaller chunks (", Arg("max_tokens"), ")"),
        )
    return []


def cut_passage(passage: Passage, budget: Budget, room: int) -> Passage | None:
    """The longest beginning of a passage with at most `room` tokens; None if no character fits."""
    text = passage.text
    fits = lambda n: budget.tokens(join_context(passage.context, text[:n])) <= room  # noqa: E731
    size = longest(fits, len(text), 4 * max(0, room)) if room > 0 else 0
    text = text[:size].rstrip()
    if not text:
        return None
    spans, left = [], len(text)
    for start, end in passage.spans:
        if left > 0:
            spans.append((start, min(end, start + left)))
        left -= end - start + 1  # and the line break after it
    num_tokens = budget.tokens(join_context(passage.context, text))
    return replace(passage, spans=tuple(spans), text=text, num_tokens=num_tokens)


def line_of(text: str, start: int) -> int:
    """The 1-based line of a character, as editors count: CR LF, CR and LF end a line."""
    line = 1 + text.count("\n", 0, start)
    if returns := text.count("\r", 0, start):
        inside_end = text[start - 1 : start + 1] == "\r\n"
        line += returns - text.count("\r\n", 0, start) - inside_end
    return line


@dataclass(frozen=True)
class _Taken:
    """A note in the context, the document that it comes from, and its tokens."""

    note: Note
    asking: str
    num_tokens: int


def _fitting(
    corpus: Corpus, notes: Sequence[Note], taken: Sequence[Passage], budget: Budget, room: int
) -> list[_Taken]:
    """The notes of the last passage that fit its limits and the rest of the budget; earlier notes come first."""
    places = [(passage.document_id, passage.spans) for passage in taken]
    own, found = taken[-1].num_tokens, []
    for note in notes:
        asking = corpus.nodes[corpus.by_chunk[note.asking]].document_id
        if len(found) == budget.max_notes:
            break
        if is_said_in(note, asking, places):
            continue
        told = budget.tokens(note.text)
        num_tokens = told + budget.tokens(note_head("[10] note on [10]", note, asking))
        if told <= own and num_tokens + budget.overhead <= room:
            found.append(_Taken(note, asking, num_tokens))
            own, room = own - told, room - num_tokens - budget.overhead
    return found


def _with_notes(context: Context, notes: Mapping[int, Sequence[_Taken]], budget: Budget) -> Context:
    """The context with the notes that no passage contains, numbered after the passages."""
    places = [(passage.document_id, passage.spans) for passage in context.passages]
    behind = [
        (passage, one)
        for passage in context.passages
        for one in notes[passage.node]
        if not is_said_in(one.note, one.asking, places)  # a passage of lower rank may contain it
    ]
    given = tuple(
        GivenNote(number, passage.number, one.note, one.asking, passage.document_id, one.num_tokens)
        for number, (passage, one) in enumerate(behind, start=len(context.passages) + 1)
    )
    num_tokens = sum(one.num_tokens + budget.overhead for one in given)
    return replace(context, notes=given, num_tokens=context.num_tokens + num_tokens)
