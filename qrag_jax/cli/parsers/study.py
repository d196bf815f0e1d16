"""`qrag study`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags

SUMMARY = "compare chunkers on questions: what they find beside what they cost"
USAGE = "qrag study [CONFIG.yaml | --corpus DIR --questions FILE.jsonl [CONFIG.yaml]] [--out OUT] [key=value ...]"
DESCRIPTION = """\
Cut documents by several strategies, embed the chunks, search them with questions whose answers are known, and report
how well each strategy finds them beside what it costs. Either a config names the tasks:

  qrag study CONFIG.yaml data=DIR               configs/study/ has some; data is the folder of their data sets

or the task is your own documents and questions, and the config, if any, names strategies and settings only:

  qrag study --corpus DIR --questions FILE.jsonl

DIR has documents: .txt, .md and others (or is one file). FILE.jsonl has one question a line, with the text that answers
it, or its place: {"question": "...", "evidence": ["exact text", ...]}; docs/study.md describes the format. All chunks
of the corpus are searched.

What comes out: a table, with one line a task and strategy: F1, recall and precision of what the first 5 chunks hold
(of evidence: sentences), the difference to fixed-size chunks with interval and p value, and sizes, seconds and the
config. In OUT: table.md, table.csv, plot.png (quality against cost), results.json, per_query.jsonl (what every question
found) and config.yaml, which gives the same study again: qrag study OUT/config.yaml --out OTHER.

Each strategy has up to six configs. Dev questions choose one of them, the others are reported. With few questions
nothing is chosen: all are reported, with the first config of each strategy, and a note says so.

With --budgets the evidence is also looked for in contexts of these sizes, filled as --fill says; a row of results.json
then has budget, fill, erec, erec_low and erec_high, and there is one for each budget and fill.

With --levels rows of levels come behind: of plan, level_min, level_max, parents and budget, with erec, num_vectors,
built_tokens and sent_tokens. The levels are those of each strategy of kind levels, or by headings where there is none.

A study that was stopped goes on where it was when the same line is run again. The seconds are those of the strategy
alone: sentence vectors that strategies share are computed once and charged to each.

key=value changes a field of the config: report_k=3, model=FOLDER, prices=PRICES.yaml, tasks.squad.num_questions=100.
A name without = is the config.
"""
EXAMPLES = """\
examples:
  qrag study --corpus notes/ --questions questions.jsonl --out runs/notes
  qrag study --corpus notes/ --questions questions.jsonl mine.yaml prices=configs/study/prices.yaml --json
  qrag study configs/study/paper.yaml data=DATA --out runs/paper
  qrag study --corpus notes/ --questions questions.jsonl --budgets 500,1000,2000 --fill plain,widen,merge
  qrag study configs/study/paper.yaml data=DATA --budgets 128,512 --levels each,all,dev,router --parents best_child,mean
  qrag study runs/paper/config.yaml --out runs/again
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag study`."""
    parser.usage = USAGE
    parser.add_argument("--corpus", metavar="DIR", help="your own documents: a folder of texts, PDF, ..., or a file")
    parser.add_argument("--questions", metavar="FILE.jsonl", help="questions about them, one a line")
    parser.add_argument(
        "--budgets",
        type=flags.filled,
        metavar="N,N,...",
        help="also measure how much of the evidence stands in contexts of so many tokens (ERec), increasing; of "
        "questions with evidence (default: not)",
    )
    parser.add_argument(
        "--fill",
        type=flags.filled,
        metavar="F,F,...",
        help="with --budgets, how contexts are filled: plain (the best chunks), widen (each with its neighbours), "
        "merge (sections in place of their chunks), each compared with plain (default: plain)",
    )
    parser.add_argument(
        "--levels",
        type=flags.filled,
        metavar="P,P,...",
        help="with --budgets, also search levels (document, section, ... or sizes): each alone, all of them, the range "
        "that dev chooses, by a router (trained on dev) or router:RUN, and bound, the best level of each question",
    )
    parser.add_argument(
        "--parents",
        type=flags.filled,
        metavar="W,W,...",
        help="with --levels, how parents get vectors: best_child, mean, direct, windows, compressor:RUN "
        "(default: best_child)",
    )
    flags.add_reading(parser)
    flags.add_compile_cache(parser)
    flags.add_out(parser, "folder for results, outside of the documents", "runs/study-NAME", metavar="OUT")
    flags.add_json(parser, "the rows of results.json instead of the table")
    parser.add_argument("--table", action="store_true", help="with --json: show the table too, on standard error")
    parser.add_argument("overrides", nargs="*", metavar="CONFIG.yaml key=value", help="a config; changes as report_k=3")
