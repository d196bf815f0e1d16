"""`qrag fit`: its help, and what it can train, a module each. Imports nothing heavy: the help answers at once."""

import argparse
from types import ModuleType

from qrag_jax.cli import flags
from qrag_jax.cli.parsers import fit_compressor, fit_router, fit_tagger

# In the order of the help; `cli/verbs/fit_<name>.py` trains it.
KINDS: dict[str, ModuleType] = {"tagger": fit_tagger, "compressor": fit_compressor, "router": fit_router}

SUMMARY = "learn from your own documents: where sections begin, their vectors, what to search"
DESCRIPTION = """\
Train a small model on vectors of your own documents, in minutes and without a GPU. `qrag fit KIND --help` explains
what it learns, from what, and what uses it.

What comes out, in --out: a checkpoint folder that stands alone; and lines that say what to expect of it on documents of
the same kind, measured on some that it had not seen. It works with vectors of the --model that it was trained on, and
refuses others. The same documents, --seed and machine give the same model.
"""
EXAMPLES = """\
examples:
  qrag fit tagger handbook/ --out runs/tagger
  qrag fit tagger handbook/ reports/ --out runs/mixed --seed 1
  qrag fit compressor handbook/ reports/ --out runs/compressor
  qrag fit router study.yaml --out runs/router
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the parsers of all that `qrag fit` can train; the name of the one that is chosen is `what`."""
    group = parser.add_subparsers(title="what to train", metavar="KIND", dest="what", help="one of these, first of all")
    for name, kind in KINDS.items():
        flags.add_parser(group, name, kind).set_defaults(what=name)
