"""What a language model is given to read: the best chunks that a budget of tokens holds, in document order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qrag_jax.chunking.groups import chunk_text
from qrag_jax.chunking.spans import readable
from qrag_jax.retrieval.hybrid import Ranked
from qrag_jax.types import Chunk, CountTokens, Document, InputError, Span, UsageError


@dataclass(frozen=True)
class Passage:
    """A text that a model is given, and where it stands.

    Attributes:
        number: from 1, in document order; what the answer cites.
        document_id: of its document.
        spans: half-open character offsets into the document's text, in order; mostly one.
        text: `chunk_text(document.text, spans)`, exactly.
        num_tokens: of the text.
        score: by which its chunk was ranked; of several chunks the best one's.
        rank: of that chunk, from 1.
    """

    number: int
    document_id: str
    spans: tuple[Span, ...]
    text: str
    num_tokens: int
    score: float
    rank: int


@dataclass(frozen=True)
class Context:
    """The passages of one prompt.

    Attributes:
        passages: in document order, numbered from 1.
        num_tokens: of all of them, with what the prompt writes around each.
        max_tokens: the budget.
        num_left_out: chunks that were ranked and did not fit.
    """

    passages: tuple[Passage, ...]
    num_tokens: int
    max_tokens: int
    num_left_out: int


@dataclass(frozen=True)
class Budget:
    """How much a model may be given.

    Attributes:
        max_tokens: of all passages together.
        count: tokens of a text, as the model counts or near it.
        overhead: tokens that the prompt writes around a passage.
        max_passages: most chunks that are taken; None is no limit.
    """

    max_tokens: int
    count: CountTokens
    overhead: int = 0
    max_passages: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.overhead < 0:
            raise UsageError(f"budget of {self.max_tokens} tokens, {self.overhead} a passage: at least 1 and 0")
        if self.max_passages is not None and self.max_passages < 1:
            raise UsageError(f"max_passages {self.max_passages}: at least 1")

    def tokens(self, text: str) -> int:
        """Tokens of a text; lone surrogates count as U+FFFD."""
        return self.count(readable(text))


def fill_context(documents: Sequence[Document], chunks: Sequence[Chunk], ranked: Ranked, budget: Budget) -> Context:
    """Takes the best chunks until one does not fit, and puts them in document order.

    Nothing is cut: a chunk is in as a whole, or left out with all that are ranked below it.

    Args:
        documents: of the chunks, in the order wanted.
        chunks: what `ranked` numbers.
        ranked: best first.
        budget: how much may be taken.

    Returns:
        The passages; none where nothing was ranked.

    Raises:
        InputError: the best chunk alone is larger than the budget, or a chunk is of no document or out of its text.
    """
    by_id = {document.id: document for document in documents}
    candidates = ranked.ids.tolist()[: budget.max_passages]
    taken: list[Passage] = []
    used = 0
    for rank, number in enumerate(candidates, start=1):
        passage = _passage(chunks[number], by_id, rank, float(ranked.scores[rank - 1]), budget)
        used += passage.num_tokens + budget.overhead
        if used > budget.max_tokens:
            break
        taken.append(passage)
    if candidates and not taken:
        raise InputError(
            f"the best passage has {used} tokens with its fence, the context takes {budget.max_tokens}: allow more "
            "(--max_context_tokens), or cut smaller (--max_tokens)"
        )
    return make_context(documents, taken, budget, num_left_out=len(candidates) - len(taken))


def make_context(
    documents: Sequence[Document], passages: Iterable[Passage], budget: Budget, num_left_out: int = 0
) -> Context:
    """Passages in document order, numbered from 1; `documents` says in which order documents come."""
    places = {document.id: place for place, document in enumerate(documents)}
    in_order = sorted(passages, key=lambda passage: (places[passage.document_id], passage.spans, passage.rank))
    numbered = tuple(replace(passage, number=number) for number, passage in enumerate(in_order, start=1))
    num_tokens = sum(passage.num_tokens + budget.overhead for passage in numbered)
    return Context(numbered, num_tokens, budget.max_tokens, num_left_out)


def check_place(document: Document | None, document_id: str, spans: Sequence[Span]) -> None:
    """Refuses spans that are not in their document, in order: what is cited must exist.

    Raises:
        InputError: there is no such document, or no such place in it.
    """
    if document is None:
        raise InputError(f"passage of {document_id!r}: there is no such document; mend the chunker")
    borders = [border for span in spans for border in span]
    inside = borders and 0 <= borders[0] and borders[-1] <= len(document.text)
    if not inside or borders != sorted(borders) or any(start == end for start, end in spans):
        raise InputError(
            f"{document_id}: passage at {list(spans)}: not in its {len(document.text)} characters; mend the chunker"
        )


def line_of(text: str, start: int) -> int:
    """The 1-based line of a character, as editors count: CR LF, CR and LF end a line."""
    before = text[:start]
    inside_end = text[start - 1 : start + 1] == "\r\n" and start > 0
    return 1 + before.count("\n") + before.count("\r") - before.count("\r\n") - inside_end


def _passage(chunk: Chunk, documents: Mapping[str, Document], rank: int, score: float, budget: Budget) -> Passage:
    document = documents.get(chunk.document_id)
    check_place(document, chunk.document_id, chunk.spans)
    assert document is not None
    text = chunk_text(document.text, chunk.spans)
    return Passage(0, chunk.document_id, chunk.spans, text, budget.tokens(text), score, rank)
