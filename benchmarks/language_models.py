"""Language models of the benchmarks: a file that this package loads, or a server that has loaded one.

A source is what `load_decoder` reads (MODEL.gguf, smollm2), or NAME@URL of an OpenAI-compatible server, such as
qwen2.5-coder-1.5b-instruct-q4_k_m@http://127.0.0.1:8080/v1. A file and a server of it round differently, so their
answers are not the same: tables name which of them answered.
"""

from pathlib import Path

from qrag_jax.llm.journal.journal import JournaledGenerator
from qrag_jax.llm.journal.journal_file import Journal
from qrag_jax.llm.local import LocalGenerator
from qrag_jax.llm.server.openai import OpenAIGenerator
from qrag_jax.types import TextGenerator

_DEADLINE = 900.0  # seconds of a call: those of two cores take their time
_AT_ONCE = 8  # calls to a server: start it with as many slots, of 4,096 tokens each
_AT = "@http"
MODEL_HELP = "a file that load_decoder reads, or NAME@URL of a server"


def open_model(source: str, journal: Path | None = None, *, claim_size: int = 512) -> TextGenerator:
    """The model of a source, with a journal around it where one is named."""
    if _AT in source:
        name, _, address = source.partition("@")
        generator: TextGenerator = OpenAIGenerator(
            name, address, concurrency=_AT_ONCE, deadline=_DEADLINE, grammar_field="response_format"
        )
    else:
        generator = LocalGenerator(source)
    return JournaledGenerator(generator, Journal(journal), claim_size=claim_size) if journal else generator


def model_name(source: str) -> str:
    """As tables call it: without folders and addresses."""
    name, at, _ = source.partition(_AT)
    return f"{name} (server)" if at else Path(source).stem
