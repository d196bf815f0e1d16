"""Flags of verbs whose points a language model may find, read by `cli/points_llm.py`. Imports nothing heavy."""

import argparse

from qrag_jax.cli.parsers import flags
from qrag_jax.cli.parsers.llm_flags import add_estimate_flags, add_llm_flags

WINDOW_TOKENS, ANSWER_TOKENS = 16_384, 2_000  # as in structure.hichunk, whose import takes longer
# What a verb's help says of them.
HELP = """\
Points by a language model: `llm` shows it numbered sentences, window by window, and it names those that begin a part,
with their levels (HiChunk); `lumber` shows it paragraphs, and it names the first one about another matter, which gives
one level (LumberChunker). Without training for it, small models do neither well: look at the points before you use
them. --estimate says what that takes at most, and asks nothing.
"""


def add_points_llm_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of sources of points that ask a language model, and those of the model."""
    group = parser.add_argument_group("points by a language model")
    group.add_argument(
        "--window_tokens",
        type=flags.positive,
        metavar="N",
        help=f"llm: of sentences shown at a time (default: {WINDOW_TOKENS:,}, or what the model has room for)",
    )
    group.add_argument(
        "--window_lines",
        type=flags.positive,
        metavar="N",
        help="llm: most sentences shown at a time; of up to 200 a model that takes grammars can name each only once "
        "(default: no limit)",
    )
    add_estimate_flags(group, "points")
    add_llm_flags(parser, max_answer_tokens=ANSWER_TOKENS)
