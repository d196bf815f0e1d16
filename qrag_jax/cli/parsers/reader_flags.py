"""Flags of verbs whose notes a language model may write, read by `cli/note_readers.py`. Imports nothing heavy."""

import argparse

from qrag_jax.cli.parsers import flags
from qrag_jax.cli.parsers.llm_flags import add_estimate_flags, add_llm_flags

# As in structure.questions and structure.propositions, whose import takes longer.
NUM_QUESTIONS, MOST_RELEVANT, ANSWER_TOKENS = 10, 40, 200
# What a verb's help says of them.
HELP = """\
Readers that ask a language model: `llm` asks it for questions of every chunk, and puts to each chunk those nearest to
it (SqRAG's index phase); an answer whose evidence stands in the chunk is a note. `propositions` has each chunk taken
apart into statements, which are notes of that chunk itself. --estimate says what that takes at most, and asks nothing.
"""


def add_reader_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of readers that ask a language model, and those of the model."""
    group = parser.add_argument_group("notes by a language model")
    group.add_argument(
        "--num_questions_a_chunk",
        type=flags.positive,
        metavar="N",
        help=f"llm: that it is asked for, at most (default: {NUM_QUESTIONS})",
    )
    group.add_argument(
        "--most_relevant",
        type=flags.positive,
        metavar="N",
        help=f"llm: questions that are put to a chunk, the nearest ones (default: {MOST_RELEVANT})",
    )
    add_estimate_flags(group, "notes")
    add_llm_flags(parser, max_answer_tokens=ANSWER_TOKENS)
