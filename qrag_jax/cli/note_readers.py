"""The readers of notes that ask a language model, as the flags describe them, and what they take."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qrag_jax.annotate.ask_chunks import Estimate, Progressed, Reading
from qrag_jax.annotate.chunk_questions import READER as QUESTIONS
from qrag_jax.annotate.chunk_questions import QuestionsConfig, estimate_llm_reader, llm_prompts_sha256, make_llm_reader
from qrag_jax.annotate.propositions import PropositionsConfig, estimate_propositions_reader, make_propositions_reader
from qrag_jax.cli.llm_flags import MOST_RELEVANT, NUM_QUESTIONS, llm_config
from qrag_jax.cli.terminal import say
from qrag_jax.index.prepare import MakeMaker
from qrag_jax.index.settings import NotesSetting
from qrag_jax.llm.config import make_generator
from qrag_jax.llm.prices import Prices, dollars
from qrag_jax.types import Chunk, Cost, CountTokens, Document, Embed, NoteReader, ReadNotes, UsageError

_STATEMENTS = 4  # times the tokens of an answer: all statements of a chunk are one
_OF_QUESTIONS = ("num_questions_a_chunk", "most_relevant")
_OF_READERS = (*_OF_QUESTIONS, "estimate", "tokens_per_second")


class Estimated(Exception):
    """What a language model will take was said, and `--estimate` asks for no more."""


@dataclass(frozen=True)
class LlmReader:
    """A reader that asks a language model.

    Attributes:
        read: the notes of documents and chunks.
        estimate: what reading them takes at most.
        readings: what was read so far, one a call of `read`.
    """

    read: NoteReader
    estimate: Callable[[Sequence[Document], Sequence[Chunk]], Estimate]
    readings: list[Reading] = field(default_factory=list)


def make_note_reader(
    args: argparse.Namespace, name: str, embed: Embed, count: CountTokens, progress: Progressed | None = None
) -> LlmReader:
    """A reader that asks a language model, as the flags of `add_reader_flags` describe it; its model is loaded.

    Args:
        embed: of the chunks, such as of an index.
        count: tokens of a text, where the model does not count.
        progress: as of `make_llm_reader`.
    """
    llm = llm_config(vars(args))
    generator = make_generator(llm)
    count = generator.count or count
    readings: list[Reading] = []
    tell: dict[str, Any] = {"progress": progress, "finished": readings.append}
    if name == QUESTIONS:
        asking = _asking(args)
        return LlmReader(
            make_llm_reader(generator, embed, asking, **tell),
            lambda documents, chunks: estimate_llm_reader(documents, chunks, count, asking),
            readings,
        )
    stating = PropositionsConfig(
        max_tokens=_STATEMENTS * args.max_answer_tokens, sampling=llm.sampling, prompts=llm.prompts
    )
    return LlmReader(
        make_propositions_reader(generator, stating, **tell),
        lambda documents, chunks: estimate_propositions_reader(documents, chunks, count, stating),
        readings,
    )


def notes_setting(args: argparse.Namespace) -> NotesSetting:
    """What an index says of notes that a language model writes, as the flags describe it."""
    asking = _asking(args)
    sampling = asking.sampling
    options = f"{asking.num_questions} questions a chunk, {asking.most_relevant} to each, answers of at most "
    options += f"{asking.max_answer_tokens} tokens, temperature {sampling.temperature:g}"
    model = f"{args.llm} {args.llm_model or ''}".strip()
    return NotesSetting(QUESTIONS, model, options, llm_prompts_sha256(asking))


def index_note_reader(args: argparse.Namespace, make: MakeMaker, progress: Progressed) -> NoteReader:
    """The reader `llm` of an index; its model is loaded when notes are to be written, and what that takes is said.

    Args:
        progress: as of `make_llm_reader`.

    Returns:
        A reader that raises `Estimated` where `--estimate` asks for nothing else, or as `make_note_reader`.
    """

    def read(documents: Sequence[Document], chunks: Sequence[Chunk]) -> ReadNotes:
        maker = make()
        llm = make_note_reader(args, QUESTIONS, maker.embed, maker.count, progress)
        expected = format_estimate(llm.estimate(documents, chunks), args)
        if args.estimate:
            raise Estimated(expected)
        say(expected)
        found = llm.read(documents, chunks)
        say(format_readings(llm.readings, llm_config(vars(args)).load_prices()))
        return found

    return read


def _asking(args: argparse.Namespace) -> QuestionsConfig:
    return QuestionsConfig(
        num_questions=args.num_questions_a_chunk or NUM_QUESTIONS,
        most_relevant=args.most_relevant or MOST_RELEVANT,
        max_answer_tokens=args.max_answer_tokens,
        sampling=llm_config(vars(args)).sampling,
        prompts=llm_config(vars(args)).prompts,
    )


def given_reader_flags(args: argparse.Namespace) -> list[str]:
    """Which flags of language models and their readers were given."""
    return [flag for flag in _OF_READERS if getattr(args, flag) not in (None, False)] + llm_config(vars(args)).given()


def check_reader_flags(args: argparse.Namespace, name: str, llm_readers: Sequence[str]) -> None:
    """Refuses flags of a language model where none is asked, and those of questions where none are."""
    given = [] if name == QUESTIONS else given_reader_flags(args)
    given = [flag for flag in given if flag in _OF_QUESTIONS or name not in llm_readers]
    if given:
        belongs = QUESTIONS if given[0] in _OF_QUESTIONS else " or ".join(llm_readers)
        raise UsageError(f"--{given[0]}: belongs to --reader {belongs}, not to {name}; leave it out")
    check_speed(args)


def check_speed(args: argparse.Namespace) -> None:
    """Refuses a speed of a model that is not of two numbers."""
    if args.tokens_per_second is not None and (len(args.tokens_per_second) != 2 or min(args.tokens_per_second) < 1):
        raise UsageError("--tokens_per_second: two numbers above 0, read and written, as 100,10")


def format_estimate(estimate: Estimate, args: argparse.Namespace) -> str:
    """One line: calls, tokens, dollars with `--prices`, hours with `--tokens_per_second`."""
    prices = llm_config(vars(args)).load_prices()
    facts = [
        f"at most {estimate.num_calls:,} calls of the language model, and those that ask again for what cannot be read",
        f"{estimate.prompt_tokens:,} tokens read ({estimate.new_prompt_tokens:,} without common beginnings)",
        f"{estimate.completion_tokens:,} written",
    ]
    if prices is not None:
        facts.append(f"${estimate.dollars(prices):.4f}")
    if args.tokens_per_second is not None:
        read, write = map(float, args.tokens_per_second)
        facts.append(f"{estimate.seconds(read, write) / 3600:.2f} hours")
    return ", ".join(facts)


def spent_by(reading: Reading, prices: Prices | None) -> list[str]:
    """What calls took: how many, tokens, dollars with prices."""
    facts = [
        f"{reading.num_calls:,} calls now and {reading.num_from_journal:,} of the journal",
        f"{reading.prompt_tokens:,} tokens read, {reading.completion_tokens:,} written",
    ]
    if prices is not None:
        cost = Cost(prompt_tokens=reading.prompt_tokens, completion_tokens=reading.completion_tokens)
        facts.append(f"${dollars(cost, prices):.4f}")
    return facts


def format_readings(readings: Sequence[Reading], prices: Prices | None) -> str:
    """One line: what was asked, what came of it and what it took; a further one for each of the first errors."""
    read = sum(readings, Reading())
    facts = [f"{read.num_chunks:,} chunks"]
    if read.num_pairs:
        facts += [f"{read.num_questions:,} questions", f"{read.num_pairs:,} pairs of chunk and question"]
    facts += [f"{read.num_notes:,} notes", *spent_by(read, prices)]
    failed = [f"{read.num_failed:,} calls failed"] if read.num_failed else []
    return "\n".join([", ".join([*facts, *failed]), *(f"  no answer: {error}" for error in read.errors)])
