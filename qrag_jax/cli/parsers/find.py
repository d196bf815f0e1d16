"""`qrag find`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli.parsers import flags

SUMMARY = "ask a trained retriever about your own files"
DESCRIPTION = """\
Ask a trained retriever about your own text files: it picks one chunk, reads it, and looks for the next one.

What comes out: the chunks in the order they were found, each with file:line and its Q value, and once more in the
order they stand in. --json adds offsets and costs.
"""
EXAMPLES = """\
examples:
  qrag find runs/demo diary.txt "Where is the milk?"
  qrag find runs/demo notes/ letters/*.md "Who took the key to the garden?" --num_steps 4 --json
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag find`."""
    # argparse would repeat the last two
    parser.usage = "qrag find [-h] [--num_steps T] [--stop] [--json] [...] RUN PATHS... QUESTION"
    flags.add_run(parser)
    flags.add_texts(parser)
    flags.add_num_steps(parser)
    parser.add_argument(
        "--stop",
        action="store_true",
        help="only the picks before the run's own stop: its threshold from held-out questions, or its learned STOP",
    )
    flags.add_reading(parser)
    flags.add_json(parser, "the steps as JSON")
