"""`qrag llm`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags
from qrag_jax.cli.llm_flags import add_storage

ACTIONS = ("bench",)

SUMMARY = "how quick a language model is on this machine"
DESCRIPTION = """\
Look at a language model of this machine before it is given much to do.

  bench [MODEL]           its seconds to load, tokens a second that it reads (prompts) and writes (answers), memory, and
                          what a build would take that asks it one question a chunk

MODEL is what --llm_model of `qrag ask` takes with --llm local: smollm2 (the embedded one, the default), a folder, a
.gguf file or a hub id. Prompts are random tokens, no prompt comes twice, and no answer ends before --answer_tokens.

What comes out: a few lines, or with --json one object. Speeds are medians over --rounds, with their range, of all rows
together; rounds of all --rows take turns, after one of each that compiles and does not count. Memory is that of this
process, above what Python and JAX took before the model was loaded. A build of --chunks is as many prompts at the speed
of the last of --rows; its hours are an estimate: another length of prompts has another speed, and so has a machine that
does other things meanwhile. A model that does not fit into memory is refused before it is loaded.
"""
EXAMPLES = """\
examples:
  qrag llm bench
  qrag llm bench models/qwen2.5-0.5b-instruct-q4_k_m.gguf --chunks 20000 --prompt_tokens 900 --answer_tokens 40
  qrag llm bench smollm2 --rows 1,4 --rounds 5 --json
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag llm`."""
    parser.usage = "qrag llm {bench} [MODEL] [--chunks N] [--prompt_tokens N] [--answer_tokens N] [flags]"
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help="what to do, as above")
    parser.add_argument(
        "model",
        nargs="?",
        type=flags.filled,
        default="smollm2",
        metavar="MODEL",
        help="smollm2, a folder, a .gguf file or a hub id (default: smollm2)",
    )
    for name, value, what in (
        ("chunks", 1000, "of the build whose time is told"),
        ("prompt_tokens", 512, "tokens of a prompt, of the build and of every round"),
        ("answer_tokens", 64, "tokens of an answer, likewise; at least 2"),
        ("rounds", 3, "that count, for each of --rows"),
    ):
        parser.add_argument(
            f"--{name}", type=flags.positive, default=value, metavar="N", help=f"{what} (default: {value:,})"
        )
    parser.add_argument(
        "--rows",
        type=flags.integers,
        default=(1, 8),
        metavar="N,N",
        help="prompts that are worked on at once; `qrag ask` works on up to 8 (default: 1,8)",
    )
    add_storage(parser)
    flags.add_compile_cache(parser)
    flags.add_json(parser, "one JSON object")
