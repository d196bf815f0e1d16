"""From documents to an answer with citations, as one function whose parts are handed in."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from qrag_jax.chunking.groups import chunk_text
from qrag_jax.chunking.spans import readable
from qrag_jax.llm.calls import ask_all
from qrag_jax.llm.prompts import PromptTemplate, passages_prompt
from qrag_jax.retrieval.citations import Citation, Cited, cite, make_citation
from qrag_jax.retrieval.context import Context, check_place
from qrag_jax.retrieval.hybrid import Ranked
from qrag_jax.types import Chunk, Cost, CountTokens, Document, Generation, InputError, Message, Sampling, TextGenerator

PROMPT = "answer"  # of llm/prompts: places $mark, $passages and $question

ReadDocuments = Callable[[], Sequence[Document]]
ChunkDocument = Callable[[Document], Sequence[Chunk]]
# (question, texts of the chunks) -> chunks by number, best first.
RankTexts = Callable[[str, Sequence[str]], Ranked]
# (documents, chunks, ranking) -> what the model is given.
FillContext = Callable[[Sequence[Document], Sequence[Chunk], Ranked], Context]


@dataclass(frozen=True)
class Answer:
    """What a language model said to a question about documents, and what it was given.

    Attributes:
        question: as asked.
        generation: text, why it ended, tokens; or the error, and then nothing is cited.
        context: passages in the prompt.
        given: the same as citations, checked, in their order.
        cited: what the answer cites.
        num_chunks: that were searched.
        model: that was asked.
        prompt_sha256: of the template.
        cost: seconds by stage (read, chunk, retrieve, context, generate), and the tokens of a call that was made now.
    """

    question: str
    generation: Generation
    context: Context
    given: tuple[Citation, ...]
    cited: Cited
    num_chunks: int
    model: str
    prompt_sha256: str
    cost: Cost


def answer_question(
    question: str,
    *,
    read: ReadDocuments,
    chunk: ChunkDocument,
    rank: RankTexts,
    fill: FillContext,
    template: PromptTemplate,
    generator: TextGenerator,
    sampling: Sampling,
) -> Answer:
    """Answers a question from documents: read, chunk, retrieve, choose a context, ask, cite.

    A model that fails is no exception: `generation.error` says why, and all that was retrieved is there.

    Args:
        question: what is asked.
        read: gives the documents.
        chunk: cuts one of them.
        rank: the retriever.
        fill: chooses passages; `retrieval.context.fill_context` with a budget.
        template: of the prompt, with places for the mark, the passages and the question.
        generator: the language model.
        sampling: of the answer.

    Raises:
        InputError: a blank question, nothing was found, a passage does not stand in its document, the generator breaks
            its contract, or as the parts.
    """
    check_question(question)
    seconds: dict[str, float] = {}
    with _timed("read", seconds):
        documents = read()
    with _timed("chunk", seconds):
        chunks = [part for document in documents for part in chunk(document)]
        texts = _texts(documents, chunks)
    with _timed("retrieve", seconds):
        ranked = rank(question, texts)
    if not len(ranked):
        raise InputError(
            f"none of {len(chunks):,} passages shares a word with the question: ask in the words of the text, or "
            "search by meaning (--retriever hybrid)"
        )
    with _timed("context", seconds):
        context = fill(documents, chunks, ranked)
        by_id = {document.id: document for document in documents}
        given = tuple(make_citation(passage, by_id.get(passage.document_id)) for passage in context.passages)
        messages = make_prompt(template, question, [passage.text for passage in context.passages])
    with _timed("generate", seconds):
        (generation,) = ask_all(generator, [messages], sampling=sampling)
    cited = cite(generation.text, context, documents) if generation.error is None else Cited((), ())
    paid = Generation("", "stop") if generation.from_journal else generation
    cost = Cost(seconds, prompt_tokens=paid.prompt_tokens, completion_tokens=paid.completion_tokens)
    return Answer(question, generation, context, given, cited, len(chunks), generator.model, template.sha256, cost)


def check_question(question: str) -> None:
    """Refuses a blank question.

    Raises:
        InputError: it is one.
    """
    if not question.strip():
        raise InputError("question: nothing to ask; write a question")


def make_prompt(template: PromptTemplate, question: str, passages: Sequence[str]) -> tuple[Message, ...]:
    """The conversation that asks a question about numbered passages, which stand as data between marks.

    The same question and passages give the same prompt. Lone surrogates, which no model reads, become U+FFFD.
    """
    texts, question = [readable(text) for text in passages], readable(question)
    return passages_prompt(template, question, texts, question, numbered=True)


def prompt_size(template: PromptTemplate, question: str, count: CountTokens) -> tuple[int, int]:
    """Tokens of the prompt without its passages, and those that it writes around each passage; both near, not exact."""
    empty, one = (
        sum(count(message.content) for message in make_prompt(template, question, passages)) for passages in ([], ["a"])
    )
    return empty, max(0, one - empty)


def _texts(documents: Sequence[Document], chunks: Sequence[Chunk]) -> list[str]:
    by_id = {document.id: document for document in documents}
    for part in chunks:
        check_place(by_id.get(part.document_id), part.document_id, part.spans)
    return [chunk_text(by_id[part.document_id].text, part.spans) for part in chunks]


@contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = round(time.perf_counter() - start, 3)
