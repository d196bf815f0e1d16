"""Readers of notes by name. Readers that ask a language model report an estimate before, and the cost afterwards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from qrag_jax.annotate.ask_chunks import Estimate, Progressed, Reading
from qrag_jax.annotate.chunk_questions import QuestionsConfig, estimate_llm_reader, make_llm_reader
from qrag_jax.annotate.mentions import mention_notes
from qrag_jax.annotate.propositions import PropositionsConfig, estimate_propositions_reader, make_propositions_reader
from qrag_jax.data.stories.story_notes import read_stories
from qrag_jax.llm.config import LlmConfig, make_generator
from qrag_jax.names import NOTE_READERS
from qrag_jax.types import Chunk, CountTokens, Document, Embed, NoteReader

_STATEMENTS = 4  # times the tokens of an answer, because all statements of a chunk are one answer


@dataclass(frozen=True)
class NoteReading:
    """A reader of notes and its settings.

    Attributes:
        reader: of `names.NOTE_READERS`.
        llm: the language model of readers that ask one.
        num_questions_a_chunk: llm: most questions to write about a chunk.
        most_relevant: llm: number of nearest questions to ask a chunk.
        wrong_share, seed: scripted: share of answers that are wrong, drawn by the seed.
    """

    reader: str
    llm: LlmConfig = LlmConfig(max_answer_tokens=QuestionsConfig.max_answer_tokens)
    num_questions_a_chunk: int = QuestionsConfig.num_questions
    most_relevant: int = QuestionsConfig.most_relevant
    wrong_share: float = 0.0
    seed: int = 0

    @property
    def questions(self) -> QuestionsConfig:
        """The settings of reader `llm`."""
        return QuestionsConfig(
            num_questions=self.num_questions_a_chunk,
            most_relevant=self.most_relevant,
            max_answer_tokens=self.llm.max_answer_tokens,
            sampling=self.llm.sampling,
            prompts=self.llm.prompts,
        )


@dataclass(frozen=True)
class ReaderTools:
    """The functions that readers share.

    Attributes:
        embed: makes vectors of chunks and questions.
        count: counts tokens, if the model cannot.
        progress: as for `make_llm_reader`.
    """

    embed: Embed
    count: CountTokens
    progress: Progressed | None = None


@dataclass(frozen=True)
class ReadyReader:
    """A reader of notes that is ready to use.

    Attributes:
        read: (documents, chunks) -> notes.
        estimate: (documents, chunks) -> upper bound of the cost; None without a language model.
        readings: the cost of each call of `read`; empty without a language model.
    """

    read: NoteReader
    estimate: Callable[[Sequence[Document], Sequence[Chunk]], Estimate] | None = None
    readings: list[Reading] = field(default_factory=list)


MakeReader = Callable[[NoteReading, ReaderTools], ReadyReader]  # of `names.NOTE_READERS`


def make_note_reader(reading: NoteReading, tools: ReaderTools) -> ReadyReader:
    """Makes the reader with this name, and loads its language model, if any.

    Raises:
        UsageError: there is no such reader.
    """
    make: MakeReader = NOTE_READERS.load(reading.reader)
    return make(reading, tools)


def by_mentions(reading: NoteReading, tools: ReaderTools) -> ReadyReader:
    """Notes from sentences that name the topic of another chunk."""
    return ReadyReader(mention_notes)


def by_script(reading: NoteReading, tools: ReaderTools) -> ReadyReader:
    """Notes from facts of bAbI stories."""
    return ReadyReader(partial(read_stories, wrong_share=reading.wrong_share, seed=reading.seed))


def by_questions(reading: NoteReading, tools: ReaderTools) -> ReadyReader:
    """Notes from questions about every chunk that the nearest chunks answer."""
    generator, readings, config = make_generator(reading.llm), list[Reading](), reading.questions
    count = generator.count or tools.count
    return ReadyReader(
        make_llm_reader(generator, tools.embed, config, progress=tools.progress, finished=readings.append),
        lambda documents, chunks: estimate_llm_reader(documents, chunks, count, config),
        readings,
    )


def by_propositions(reading: NoteReading, tools: ReaderTools) -> ReadyReader:
    """Notes from the statements of every chunk; they are notes of that chunk."""
    generator, readings, llm = make_generator(reading.llm), list[Reading](), reading.llm
    count = generator.count or tools.count
    config = PropositionsConfig(
        max_tokens=_STATEMENTS * llm.max_answer_tokens, sampling=llm.sampling, prompts=llm.prompts
    )
    return ReadyReader(
        make_propositions_reader(generator, config, progress=tools.progress, finished=readings.append),
        lambda documents, chunks: estimate_propositions_reader(documents, chunks, count, config),
        readings,
    )
