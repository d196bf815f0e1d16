"""`qrag export`: writes the text encoders of a run for sentence-transformers."""

import argparse

from qrag_jax import service
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.terminal import say

_DESCRIPTION = """\
Write the text encoders of a run for sentence_transformers.SentenceTransformer; their vectors are the same.

For a text run, DIR is one Router with both towers: encode_query is the state before the first step, encode_document the
action vector, and the similarity is the dot product. For a latent run, DIR/encoder is the frozen encoder whose vectors
its towers read. Each has weights, a tokenizer and a card that says what it leaves out. DIR must be empty or new.
"""
_EXAMPLES = """\
examples:
  qrag export runs/text exported/
  qrag export runs/text /tmp/towers
"""
_FLAGS = """\
run RUN     run folder of `qrag train`
folder DIR  folder to write; empty or new
"""


def _run(args: argparse.Namespace) -> int:
    written = service.export_run(args.run, args.folder)
    say(f"wrote {written.path}")
    if not written.is_text:
        say(f"the trained layers (latent towers) read vectors, not text, so they stay in {args.run}")
    return 0


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run)
