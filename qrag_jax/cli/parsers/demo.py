"""`qrag demo`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags

SUMMARY = "learn to find facts hidden in speeches, and measure it"
DESCRIPTION = """\
Train a small retriever on questions that need two facts, hidden among sentences of State of the Union speeches, then
measure it on texts 1, 4, 16 and 64 times as long as those it was trained on. Needs no network and no GPU.

What comes out, in --out: a table and a plot, results.json (one row a task, method and length: exact match and F1 of
the facts, 95% interval, number of questions, seconds) and the trained run, which `qrag find` and `qrag eval` take. It
knows questions like those; in files of your own `qrag find FILES... QUESTION` is right, without a run.
"""
EXAMPLES = """\
examples:
  qrag demo
  qrag demo --smoke --out /tmp/smoke            a minute's worth, to see that everything is installed
  qrag demo --babi qa2_valid.txt                score the same retriever on real bAbI questions too
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag demo`."""
    parser.add_argument("--smoke", action="store_true", help="a short run that shows that it works, not how well")
    flags.add_out(parser, "folder for results", "runs/demo; with --smoke runs/demo-smoke")
    parser.add_argument("--babi", metavar="PATH", help="bAbI file, or folder of them, to score the retriever on too")
    flags.add_haystack(parser)
    flags.add_reading(parser)
    flags.add_compile_cache(parser)
    flags.add_seed(parser)
    flags.add_json(parser, "the rows of results.json instead of the table")
