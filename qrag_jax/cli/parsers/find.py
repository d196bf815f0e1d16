"""`qrag find`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags, search_flags

SUMMARY = "find the passages of your own files that answer a question"
DESCRIPTION = f"""\
Find the passages of your own files, or of an INDEX of them (`qrag index`), that answer a question. Needs no training.

{search_flags.WAYS}\
  RUN      a retriever that you have trained: it picks one sentence, reads it, and looks for the next one. It knows
           questions like those that it was trained on, and no others. Named here, or before the paths

What comes out: the --top_k best passages, best first, each with file:line and how it reads; of a run its picks in the
order that they were found in, with their Q values, and once more in the order they stand in. --json adds offsets
(`text` is characters `start` to `end` of the file) and costs.
"""
EXAMPLES = """\
examples:
  qrag find notes/ "Who has the key to the garden?"
  qrag find notes/ letters/*.md "Who has the key?" --top_k 10 --json
  qrag find notes.index "Who has the key?" --only 'letters/*'        what `qrag index build` has made, in a moment
  qrag find notes/ --questions questions.txt --json > found.jsonl
  qrag find runs/mine notes/ "Who has the key?" --num_steps 4        a run, trained on questions like this one
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag find`."""
    # argparse would repeat the last two
    parser.usage = "qrag find [--retriever R] [--top_k K] [--json] [flags] [RUN] PATHS...|INDEX QUESTION"
    flags.add_texts(parser)
    search_flags.add_retriever(parser)
    parser.add_argument("--top_k", type=flags.positive, metavar="K", help="passages to show (default: 5; not of a run)")
    search_flags.add_questions(parser)
    search_flags.add_levels(parser, ("constant", "router"))
    search_flags.add_cutting(parser)
    flags.add_num_steps(parser, "of a run: chunks to pick")
    parser.add_argument(
        "--stop",
        action="store_true",
        help="of a run: only the picks before its own stop, its threshold from held-out questions or its learned STOP",
    )
    search_flags.add_notes_mode(parser)
    search_flags.add_choice(parser)
    flags.add_compile_cache(parser)
    flags.add_json(parser, "one JSON object")
