"""Notes that state the facts of a chunk one by one: propositions (Dense X Retrieval), a baseline for notes.

Each is a note of its own chunk, so a chunk is found by its best fact. Such notes do not link chunks, so use
`best_of_uncapped`: with a cap, a note would score at most as high as its own chunk.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from qrag_jax.annotate.quotes import most_like, share_of_words
from qrag_jax.llm.json_answers import ListOf, Record, Text
from qrag_jax.llm.prompts import PromptTemplate, load_prompt
from qrag_jax.types import (
    Chunk,
    CountTokens,
    Document,
    Note,
    NoteReader,
    ReadNotes,
    Sampling,
    TextGenerator,
    check_fields,
)

READER = "propositions"
# Reasons why a statement is not a note.
SAID_BEFORE = "statement made before"
NOT_OF_CHUNK = "statement in other words than its chunk's"
TOO_LONG = "note longer than its chunk"
_PROMPT = "propositions"
_MIN_SHARE = 2 / 3  # least share of a statement's words in its chunk; small models repeat the prompt's example
_STATEMENTS = Form(Record({"statements": ListOf(Text(1, 400), 0, 40)}), Record({"statements": ListOf(Text(0), 0)}))


@dataclass(frozen=True)
class PropositionsConfig:
    """How a language model splits chunks into statements.

    Attributes:
        max_tokens: of all statements of a chunk.
        sampling: of all calls, except `max_tokens`.
        max_asks: most calls for a prompt.
        prompts: folder of the user's templates; None uses the built-in ones.
    """

    max_tokens: int = 800
    sampling: Sampling = Sampling()
    max_asks: int = 2
    prompts: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self, "propositions", positive=("max_tokens", "max_asks"))


def make_propositions_reader(
    generator: TextGenerator,
    config: PropositionsConfig | None = None,
    *,
    progress: Progressed | None = None,
    finished: Callable[[Reading], None] | None = None,
) -> NoteReader:
    """Makes a reader whose notes are the statements of each chunk, in the model's words.

    `source` and `evidence` of a statement are the sentence of the chunk with the most of its words. A statement is left
    out if its chunk has fewer than two thirds of its words, as in scripts without blanks. Its text is also its
    `answer`, because the document does not contain it word for word.

    Args:
        generator: writes the statements.
        config: None uses the defaults.
        progress: called for every answer, in the stage `statements`.
        finished: called with the cost of a reading, before its notes are returned.

    Returns:
        (documents, chunks) -> notes, as in `chunk_questions.make_llm_reader`.

    Raises:
        UsageError: a template of the user cannot be used.
    """
    config = config or PropositionsConfig()
    template, again = load_prompt(_PROMPT, config.prompts), load_prompt("again", config.prompts)

    def read(documents: Sequence[Document], chunks: Sequence[Chunk]) -> ReadNotes:
        texts = chunk_texts(documents, chunks)
        desk = Desk(generator, config.sampling, config.max_asks, again, progress)
        notes = tuple(_notes(desk, texts, template, config))
        if finished is not None:
            finished(desk.reading + Reading(len(texts), num_notes=len(notes)))
        return ReadNotes(notes, desk.reasons, is_complete=not desk.reading.num_failed)

    return read


def estimate_propositions_reader(
    documents: Sequence[Document], chunks: Sequence[Chunk], count: CountTokens, config: PropositionsConfig | None = None
) -> Estimate:
    """An upper bound of the reader's cost, as in `chunk_questions.estimate_llm_reader`."""
    config = config or PropositionsConfig()
    template = load_prompt(_PROMPT, config.prompts)
    texts = chunk_texts(documents, chunks)
    num_tokens = sum(prompt_tokens(chunk_prompt(template, one.text), count) for one in texts)
    return Estimate(len(texts), num_tokens, num_tokens, config.max_tokens * len(texts))


def _notes(
    desk: Desk, texts: Sequence[ChunkText], template: PromptTemplate, config: PropositionsConfig
) -> Iterator[Note]:
    prompts = (chunk_prompt(template, one.text) for one in texts)
    values = desk.ask("statements", prompts, len(texts), _STATEMENTS, config.max_tokens)
    for one, value in zip(texts, values, strict=True):
        statements = [" ".join(statement.split()) for statement in value["statements"]] if value is not None else []
        different = dict.fromkeys(statements)
        desk.left_out[SAID_BEFORE] += len(statements) - len(different)
        yield from desk.kept(_note(one, statement, desk.generator.model) for statement in different)


def _note(one: ChunkText, statement: str, reader: str) -> Note | str:
    """The note of a statement, or the reason why there is none."""
    if len(statement) > len(one.text):
        return TOO_LONG
    place = most_like(statement, one.document, one.chunk.spans)
    if place is None or share_of_words(statement, one.text) < _MIN_SHARE:
        return NOT_OF_CHUNK
    return Note(
        asking=one.chunk.id,
        answering=one.chunk.id,
        text=statement,
        source=place,
        evidence=place,
        quote=one.document[slice(*place)],
        reader=reader,
        answer=statement,
    )
