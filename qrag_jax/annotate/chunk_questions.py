"""Notes by a language model that writes and answers questions about chunks: SqRAG's index phase (Algorithm 1).

    reader = make_llm_reader(generator, embed)
    notes = reader(documents, chunks).notes

The model writes questions about each chunk. Each question is asked to other chunks, and an answer becomes a note of the
chunk that answers: "Who leads the party that Ann belongs to?" joins the document of Ann to that of the party. Each pair
of chunk and question is one call, so a new document only costs the pairs that it adds; a journal has the others.
Prompts about a chunk begin with the chunk and follow each other, so a model with a prefix cache reads the chunk once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.annotate.ask_chunks import (
    ChunkText,
    Desk,
    Estimate,
    Form,
    Progressed,
    Reading,
    chunk_prompt,
    chunk_texts,
    prompt_tokens,
)
from qrag_jax.annotate.quotes import most_like, quote_places, whole_sentences
from qrag_jax.chunking.text.spans import readable
from qrag_jax.llm.json_answers import ListOf, Record, Text
from qrag_jax.llm.prompts import PromptTemplate, load_prompt, prompts_sha256
from qrag_jax.types import (
    Chunk,
    CountTokens,
    Document,
    Embed,
    InputError,
    Message,
    Note,
    NoteReader,
    ReadNotes,
    Sampling,
    TextGenerator,
    check_fields,
    for_questions,
)
from qrag_jax.unit_rows import checked_vectors, unit_rows

READER = "llm"
# Reasons why an answer gives no note.
ASKED_BEFORE = "question asked before"
BAD_QUESTION = "question empty or too long"
BEYOND_MOST = "question beyond the most of a chunk"
NOT_ANSWERED = "no answer in the chunk"
NO_EVIDENCE = "answer without evidence"
NOT_IN_CHUNK = "evidence not in the chunk"
TWO_PLACES = "evidence in two places"
TOO_LONG = "note longer than its chunk"
_ASK, _ANSWER = "chunk_questions", "chunk_answer"  # prompts
_TOKENS_A_QUESTION, _TOKENS_OF_LIST = 40, 20  # most tokens in the list of a chunk's questions
_QUESTION_CHARS, _MAX_QUESTIONS = 240, 100
_ANSWERED = Form(
    Record({"evidence": Text(0, 600), "answer": Text(0, 300)}), Record({"evidence": Text(0), "answer": Text(0)})
)
_BLOCK = 4_000_000  # scores in memory at a time
_DIGITS = 9  # sums in another order differ in their last bits; after rounding, equal ones tie, and order breaks ties


@dataclass(frozen=True)
class QuestionsConfig:
    """How a language model asks and answers.

    Attributes:
        num_questions: most questions about a chunk.
        most_relevant: most questions to ask a chunk.
        max_answer_tokens: most tokens of an answer with its evidence; each question about a chunk has 40.
        sampling: of all calls, except `max_tokens`.
        max_asks: most calls for a prompt; an unreadable answer is asked again with the reason.
        prompts: folder of the user's templates; None uses the built-in ones.
    """

    num_questions: int = 10
    most_relevant: int = 40
    max_answer_tokens: int = 200
    sampling: Sampling = Sampling()
    max_asks: int = 2
    prompts: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self, "questions", positive=("num_questions", "most_relevant", "max_answer_tokens", "max_asks"))


@dataclass(frozen=True)
class _Asked:
    """A question, and the index of the first chunk that asked it."""

    text: str
    asking: int


@dataclass(frozen=True)
class _Prompts:
    """The templates of both calls, and the template that asks again."""

    ask: PromptTemplate
    answer: PromptTemplate
    again: PromptTemplate


def make_llm_reader(
    generator: TextGenerator,
    embed: Embed,
    config: QuestionsConfig | None = None,
    *,
    progress: Progressed | None = None,
    finished: Callable[[Reading], None] | None = None,
) -> NoteReader:
    """Makes a reader of notes that asks a language model; see the module.

    1. The model writes questions about each chunk. Equal questions count once, for the first chunk that asks them.
    2. Each chunk is asked the nearest questions, by the cosine of their vectors, one in each call.
    3. An answer becomes a note if its evidence is in the chunk (`quotes.quote_places`), at exactly one place.

    A note's `source` is the sentence of the asking chunk with the most words of the question. Its `evidence` is the
    whole sentences around the quote, its `quote` the document's text there, and its `reader` the model's name.

    Args:
        generator: gives questions and answers; with a journal, no finished call is repeated.
        embed: texts -> vectors; used for the texts of chunks and questions only.
        config: None uses the defaults.
        progress: called for every answer, in the stages `questions` and `answers`.
        finished: called with the cost of a reading, before its notes are returned.

    Returns:
        (documents, chunks) -> notes in the order of their chunks, and the number of answers without a note by reason,
        including failed calls. It raises InputError if all calls of a stage fail, if a chunk's document is missing, or
        if `embed` gives no vectors.

    Raises:
        UsageError: a template of the user cannot be used.
    """
    config = config or QuestionsConfig()
    prompts = _load_prompts(config)

    def read(documents: Sequence[Document], chunks: Sequence[Chunk]) -> ReadNotes:
        texts = chunk_texts(documents, chunks)
        desk = Desk(generator, config.sampling, config.max_asks, prompts.again, progress)
        asked = _ask_questions(desk, texts, prompts.ask, config)
        chosen = _choose(texts, asked, embed, config.most_relevant)
        notes = tuple(_answer(desk, texts, asked, chosen, prompts.answer, config))
        if finished is not None:
            counts = Reading(len(texts), len(asked), sum(map(len, chosen)), len(notes))
            finished(desk.reading + counts)
        return ReadNotes(notes, desk.reasons, is_complete=not desk.reading.num_failed)

    return read


def estimate_llm_reader(
    documents: Sequence[Document], chunks: Sequence[Chunk], count: CountTokens, config: QuestionsConfig | None = None
) -> Estimate:
    """An upper bound of the reader's cost, for distinct questions of 40 tokens each.

    Args:
        documents, chunks: to read.
        count: counts tokens, exactly or roughly like the model.
        config: of the reader.

    Raises:
        InputError: a chunk's document is missing.
        UsageError: a template of the user cannot be used.
    """
    config = config or QuestionsConfig()
    prompts = _load_prompts(config)
    texts = chunk_texts(documents, chunks)
    num_pairs = min(config.most_relevant, config.num_questions * len(texts))
    asking = sum(prompt_tokens(_question_prompt(prompts.ask, one, config), count) for one in texts)
    answering = sum(prompt_tokens(chunk_prompt(prompts.answer, one.text, question=""), count) for one in texts)
    of_questions = num_pairs * len(texts) * _TOKENS_A_QUESTION
    return Estimate(
        num_calls=(1 + num_pairs) * len(texts),
        prompt_tokens=asking + num_pairs * answering + of_questions,
        new_prompt_tokens=asking + answering + of_questions,
        completion_tokens=(_questions_tokens(config) + num_pairs * config.max_answer_tokens) * len(texts),
    )


def llm_prompts_sha256(config: QuestionsConfig | None = None) -> str:
    """Hash of the prompts, hexadecimal. Other prompts give other notes."""
    prompts = _load_prompts(config or QuestionsConfig())
    return prompts_sha256([prompts.ask, prompts.answer, prompts.again])


def relevant_questions(
    chunks: Float[np.ndarray, "chunks dim"], questions: Float[np.ndarray, "questions dim"], most: int
) -> list[Int[np.ndarray, " _"]]:
    """For each chunk, the indices of its nearest questions, in the order of the questions.

        Q'_i = the `most` largest chunks[i] . questions[j], ties by j

    Args:
        chunks, questions: unit vectors.
        most: most questions for a chunk.
    """
    found: list[Int[np.ndarray, " _"]] = []
    right = questions.astype(np.float64).T
    step = max(1, _BLOCK // max(1, len(questions)))
    for start in range(0, len(chunks), step):
        scores = np.round(chunks[start : start + step].astype(np.float64) @ right, _DIGITS)
        found += list(np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :most], axis=1))
    return found


def _ask_questions(
    desk: Desk, texts: Sequence[ChunkText], template: PromptTemplate, config: QuestionsConfig
) -> list[_Asked]:
    """The questions of all chunks, each once."""
    form = Form(
        Record({"questions": ListOf(Text(1, _QUESTION_CHARS), 1, config.num_questions)}),
        Record({"questions": ListOf(Text(0), 0, _MAX_QUESTIONS)}),
    )
    prompts = (_question_prompt(template, one, config) for one in texts)
    found: dict[str, _Asked] = {}
    for place, value in enumerate(desk.ask("questions", prompts, len(texts), form, _questions_tokens(config))):
        written = [" ".join(question.split()) for question in value["questions"]] if value is not None else []
        usable = [question for question in written if 0 < len(question) <= _QUESTION_CHARS]
        desk.left_out[BAD_QUESTION] += len(written) - len(usable)
        desk.left_out[BEYOND_MOST] += len(usable[config.num_questions :])
        for plain in usable[: config.num_questions]:
            before = found.setdefault(plain.casefold(), _Asked(plain, place))
            desk.left_out[ASKED_BEFORE] += before.asking != place or before.text != plain
    return list(found.values())


def _choose(
    texts: Sequence[ChunkText], asked: Sequence[_Asked], embed: Embed, most: int
) -> list[Int[np.ndarray, " _"]]:
    """For each chunk, the indices of the questions to ask it."""
    if not asked:
        return [np.zeros(0, np.int64) for _ in texts]
    said, wanted = [one.text for one in texts], [readable(one.text) for one in asked]
    chunks = unit_rows(checked_vectors(embed(said), said))
    questions = unit_rows(checked_vectors(for_questions(embed)(wanted), wanted))
    if chunks.shape[1] != questions.shape[1]:
        raise InputError(
            f"embedder: vectors of {chunks.shape[1]} components for chunks and {questions.shape[1]} for questions; "
            "use the same encoder for both"
        )
    return relevant_questions(chunks, questions, most)


def _answer(
    desk: Desk,
    texts: Sequence[ChunkText],
    asked: Sequence[_Asked],
    chosen: Sequence[Int[np.ndarray, " _"]],
    template: PromptTemplate,
    config: QuestionsConfig,
) -> Iterator[Note]:
    """Asks each pair of chunk and question, chunk by chunk, and yields the notes."""
    pairs = [(place, int(number)) for place, numbers in enumerate(chosen) for number in numbers]
    prompts = (chunk_prompt(template, texts[place].text, question=asked[number].text) for place, number in pairs)
    values = desk.ask("answers", prompts, len(pairs), _ANSWERED, config.max_answer_tokens)
    return desk.kept(
        _note(texts[place], texts[asked[number].asking], asked[number].text, value, desk.generator.model)
        for (place, number), value in zip(pairs, values, strict=True)
        if value is not None  # counted by the desk
    )


def _note(answering: ChunkText, asking: ChunkText, question: str, value: Mapping[str, str], reader: str) -> Note | str:
    """The note of an answer, or the reason why there is none."""
    answer = " ".join(value["answer"].split())
    if not answer:
        return NOT_ANSWERED
    if not value["evidence"].strip():
        return NO_EVIDENCE
    spans = answering.chunk.spans
    places = quote_places(value["evidence"], answering.document, spans)
    if len(places) != 1:
        return TWO_PLACES if places else NOT_IN_CHUNK
    text = f"{question} {answer}"
    if len(text) > len(answering.text):
        return TOO_LONG
    start, end = whole_sentences(places[0], answering.document, spans)
    return Note(
        asking=asking.chunk.id,
        answering=answering.chunk.id,
        text=text,
        source=most_like(question, asking.document, asking.chunk.spans) or asking.chunk.spans[0],
        evidence=(start, end),
        quote=answering.document[start:end],
        reader=reader,
        question=question,
        answer=answer,
    )


def _question_prompt(template: PromptTemplate, one: ChunkText, config: QuestionsConfig) -> tuple[Message, ...]:
    return chunk_prompt(template, one.text, num_questions=str(config.num_questions))


def _questions_tokens(config: QuestionsConfig) -> int:
    return _TOKENS_OF_LIST + _TOKENS_A_QUESTION * config.num_questions


def _load_prompts(config: QuestionsConfig) -> _Prompts:
    return _Prompts(*(load_prompt(name, config.prompts) for name in (_ASK, _ANSWER, "again")))
