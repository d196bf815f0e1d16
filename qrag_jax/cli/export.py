"""`qrag export`: the text encoders of a run for sentence-transformers."""

import argparse

from qrag_jax import service
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.terminal import say

_DESCRIPTION = """\
Write the text encoders of a run for sentence_transformers.SentenceTransformer, with the same vectors.

What comes out: of a text run DIR itself, one Router with both towers (encode_query is the state before the first step,
encode_document the action vector, similarity dot); of a latent run DIR/encoder, the frozen encoder that its towers read
the vectors of. Each has weights, tokenizer and a card that says what it cannot express. A DIR that holds anything is
refused.
"""
_EXAMPLES = """\
examples:
  qrag export runs/text exported/
  qrag export runs/text /tmp/towers
"""
_FLAGS = """\
run RUN     run folder of `qrag train`
folder DIR  folder to write; made when absent
"""


def _run(args: argparse.Namespace) -> int:
    written = service.export_run(args.run, args.folder)
    say(f"wrote {written.path}")
    if not written.is_text:
        say(f"the latent towers read vectors, not texts: they stay in {args.run}")
    return 0


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run)
