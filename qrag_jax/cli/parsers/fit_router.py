"""`qrag fit router`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags
from qrag_jax.names import FEATURES

BUDGET = 512

SUMMARY = "which levels of documents to search for a question"
DESCRIPTION = """\
Learn from questions with evidence which levels of documents (section, paragraph, ... or spans of sizes) a question
should search. For every range of levels the router predicts how much of the evidence a context of --budget tokens will
hold, from the question's vector or from the profile of scores of a first cheap search. It leaves the best fixed range
only where it predicts to gain more than a margin, which is chosen with the strength of its regression on questions that
it has not seen, document by document; where nothing is gained it is that fixed range.

CONFIG is a config of `qrag study`: its tasks give documents, questions and evidence, its model the encoder, its first
strategy of kind levels the levels (by headings where it has none), the first of its parents the vectors of parents.

What comes out, in --out: a checkpoint folder that stands alone, for `qrag study --levels router:RUN`, and for `qrag
find` and `qrag ask` with --router RUN. It works with vectors of the encoder and the levels that it was trained on, and
refuses others. It learns from searches by meaning alone: ask with --retriever dense, and of an index with the same
parents, if what is said here is to hold. At the end stands what to expect:
evidence recall of the ranges that it chose for questions that it had not seen, beside the best fixed range of the same
folds; and how many questions have a label, the cheapest range that holds all of their evidence.

A router seldom pays: docs/study.md says what was measured.
"""
EXAMPLES = """\
examples:
  qrag fit router mine.yaml --out runs/router
  qrag fit router mine.yaml --budget 1024 --features vectors --out runs/router data=DATA
  qrag study mine.yaml --budgets 512 --levels dev,router:runs/router,bound
  qrag ask levels.index "Who has the key?" --router runs/router --retriever dense
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag fit router`."""
    parser.usage = "qrag fit router CONFIG [key=value ...] --out RUN [flags]"
    parser.add_argument("config", metavar="CONFIG", help="config of a study, with tasks of evidence")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of the config, as data=DATA")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    parser.add_argument(
        "--budget", type=flags.positive, default=BUDGET, help="tokens of a context (default: %(default)s)"
    )
    parser.add_argument(
        "--features", choices=FEATURES, help="what it reads of a question (default: the one that held out finds better)"
    )
    flags.add_seed(parser)
    flags.add_compile_cache(parser)
    flags.add_json(parser, "what came out as JSON")
