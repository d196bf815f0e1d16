"""Defines the JSON that the server takes and gives."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qrag_jax.search.answer import Answer
from qrag_jax.search.citations import Citation
from qrag_jax.service.library import Located, Query
from qrag_jax.types import Document, Hit, Place, Sentence

MAX_QUESTION = 4_000  # characters
MAX_TOP_K = 100
MAX_PATTERNS = 20
Name = Annotated[str, Field(max_length=1_000)]
Quota = Annotated[int, Field(ge=0, le=MAX_TOP_K)]
Question = Annotated[str, Field(max_length=MAX_QUESTION, pattern=r"\S")]
Way = Literal["hybrid", "dense", "bm25"]


class PlaceFound(BaseModel):
    """A part of a document: half-open characters of its text, and where a person finds it."""

    document: str
    place: str = Field(description="for people: file:line, or file#page=N")
    line: int = Field(description="from 1, of the text of the document")
    page: int | None = Field(None, description="from 1; null if the document has no pages")
    start: int
    end: int


class SentenceFound(PlaceFound):
    """The sentence of a passage that answers best, word for word."""

    text: str
    score: float = Field(description="how well it answers by its words; 0 if nothing was asked")


class Passage(BaseModel):
    """A passage; `text` is that of `spans`."""

    index: str = Field(description="name of the index that it comes from")
    document: str = Field(description="its id; GET /v1/documents/{id} has the whole text")
    place: str = Field(description="of the sentence, for people: file:line, or file#page=N")
    line: int
    page: int | None = None
    spans: list[tuple[int, int]] = Field(description="half-open characters of the text of the document")
    text: str
    context: str = Field("", description="above a passage that begins inside a table: its heading and its columns")
    sentence: SentenceFound
    copies: list[PlaceFound] = Field([], description="other places of the same text")
    left_out: dict[str, int] = Field({}, description="what the reader of the file left out, by kind")


class HitFound(Passage):
    """A passage that a search found."""

    rank: int = Field(description="from 1, within its index")
    score: float = Field(description="of the search, on its own scale; of a run, its Q value")
    notes: list[str] = Field([], description="notes that led to the passage")

    @classmethod
    def of(cls, located: Located) -> "HitFound":
        """A hit as JSON."""
        hit = located.hit
        notes = [note.text for note in hit.notes]
        return cls(**_passage(hit, located.index), rank=hit.rank, score=hit.score, notes=notes)


class CitationFound(Passage):
    """A passage that was given to the model, or that an answer cites."""

    number: int = Field(description="as the answer cites it: [1]")
    note: str | None = None

    @classmethod
    def of(cls, citation: Citation, index: str) -> "CitationFound":
        """A citation as JSON."""
        return cls(**_passage(citation, index), number=citation.number, note=citation.note)


class SearchBody(BaseModel):
    """A question to search for."""

    model_config = ConfigDict(extra="forbid")

    question: Question
    top_k: int | None = Field(None, ge=1, le=MAX_TOP_K, description="most passages; 5, or for a run all its picks")
    index: Name | None = Field(None, description="name of the index to search; all if it is left out")
    retriever: Way | None = Field(None, description="that of the server if it is left out")
    only: list[Name] = Field([], max_length=MAX_PATTERNS, description="search only documents that match: letters/*")
    quotas: dict[Name, Quota] = Field(
        {}, description="most passages of an index by its name, in a search of several; 0 leaves an index out"
    )

    @property
    def query(self) -> Query:
        """The question for the library."""
        return Query(self.question, self.top_k, self.index, self.retriever, tuple(self.only), self.quotas)


class SearchAnswer(BaseModel):
    """The best passages, the best first."""

    hits: list[HitFound]
    warnings: list[str] = Field([], description="indexes that cannot be read now; their last state was searched")


class AskBody(BaseModel):
    """A question to answer."""

    model_config = ConfigDict(extra="forbid")

    question: Question
    index: Name | None = Field(None, description="name of the index; needed if the server has several")
    retriever: Way | None = None
    only: list[Name] = Field([], max_length=MAX_PATTERNS)
    stream: bool = Field(True, description="false: one JSON answer at the end")

    @property
    def query(self) -> Query:
        """The question for the library."""
        return Query(self.question, index=self.index, retriever=self.retriever, only=tuple(self.only))


class AskAnswer(BaseModel):
    """An answer with the passages that it cites."""

    answer: str | None = Field(description="null if no model answered, or its call failed")
    error: str | None = Field(None, description="why the language model gave no answer")
    finish_reason: str | None = None
    citations: list[CitationFound]
    unknown_citations: list[int] = Field([], description="numbers that the model made up")
    quotes: list[SentenceFound] = Field([], description="sentences that answer, if no language model is asked")
    model: str | None = None
    seconds: dict[str, float] = {}
    warnings: list[str] = Field([], description="indexes that cannot be read now; their last state was searched")

    @classmethod
    def of(cls, answer: Answer, index: str, warnings: list[str]) -> "AskAnswer":
        """An answer as JSON."""
        made = answer.generation
        return cls(
            answer=answer.text,
            error=made and made.error,
            finish_reason=made and made.finish_reason,
            citations=[CitationFound.of(one, index) for one in answer.cited.citations],
            unknown_citations=list(answer.cited.unknown),
            quotes=[_sentence(quote) for quote in answer.quotes],
            model=answer.model,
            seconds=dict(answer.cost.seconds),
            warnings=warnings,
        )


class Given(BaseModel):
    """The passages that were found for an answer, in document order."""

    passages: list[CitationFound]


class Written(BaseModel):
    """The next part of an answer, while a model writes it."""

    text: str


class DocumentFound(BaseModel):
    """A document; offsets of passages are characters of its text."""

    index: str
    document: str
    title: str | None = None
    text: str
    pages: list[int] | None = Field(None, description="first character of each page")

    @classmethod
    def of(cls, document: Document, index: str) -> "DocumentFound":
        """A document as JSON."""
        title, pages = document.metadata.get("title"), document.metadata.get("pages")
        return cls(
            index=index,
            document=document.id,
            title=title if isinstance(title, str) else None,
            text=document.text,
            pages=[int(page) for page in pages] if isinstance(pages, list | tuple) else None,
        )


class Fault(BaseModel):
    """Why a request was refused, and what to do."""

    reason: str
    field: str | None = None


class Refusal(BaseModel):
    """The answer to a request that was refused."""

    error: Fault


def _place(place: Place) -> dict[str, Any]:
    return {
        "document": place.document,
        "place": str(place),
        "line": place.line,
        "page": place.page,
        "start": place.start,
        "end": place.end,
    }


def _sentence(sentence: Sentence) -> SentenceFound:
    return SentenceFound(**_place(sentence.place), text=sentence.text, score=sentence.score)


def _passage(one: Hit | Citation, index: str) -> dict[str, Any]:
    sentence = _sentence(one.sentence)
    return {
        "index": index,
        **sentence.model_dump(include={"document", "place", "line", "page"}),
        "spans": list(one.spans),
        "text": one.text,
        "context": one.context,
        "sentence": sentence,
        "copies": [_place(place) for place in one.copies],
        "left_out": dict(one.left_out),
    }
