"""`qrag export`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags

SUMMARY = "write the encoders for sentence-transformers"
DESCRIPTION = """\
Write the text encoders of a run for sentence_transformers.SentenceTransformer, with the same vectors.

What comes out: of a text run DIR itself, one Router with both towers (encode_query is the state before the first step,
encode_document the action vector, similarity dot); of a latent run DIR/encoder, the frozen encoder that its towers read
the vectors of. Each has weights, tokenizer and a card that says what it cannot express. A DIR that holds anything is
refused.
"""
EXAMPLES = """\
examples:
  qrag export runs/text exported/
  qrag export runs/text /tmp/towers
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag export`."""
    flags.add_run(parser, "`qrag train`")
    parser.add_argument("folder", metavar="DIR", help="folder to write; made when absent")
