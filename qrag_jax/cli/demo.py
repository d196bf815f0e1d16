"""`qrag demo`: trains a small retriever on facts hidden in speeches, measures it, and asks it a question."""

import argparse

from qrag_jax import service
from qrag_jax.cli.find import format_steps
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, write_json

_DESCRIPTION = """\
Train a small retriever on questions that need two facts, and measure it. Needs no network and no GPU.

The facts are hidden among sentences of State of the Union speeches. The test texts are 1, 4, 16 and 64 times as long as
the training texts.

--out contains a table, a plot, results.json (one row for each task, method and length: exact match and F1 of the facts,
95% interval, number of questions, seconds) and the run, which `qrag find` and `qrag eval` take. The run works only for
questions like these; search your own files without it: `qrag find FILES... QUESTION`.
"""
_EXAMPLES = """\
examples:
  qrag demo
  qrag demo --smoke --out /tmp/smoke            about a minute; checks the installation
  qrag demo --babi qa2_valid.txt                also score the retriever on real bAbI questions
"""
_FLAGS = """\
--smoke      run briefly, to check the installation; the scores mean nothing
--out RUN    folder for results (default: runs/demo; with --smoke runs/demo-smoke)
--babi PATH  bAbI file, or folder of them, to score the retriever on too
--haystack --follow_links --max_input_gb --no_compile_cache --seed
--json       print the rows of results.json instead of the table
"""


def _run(args: argparse.Namespace) -> int:
    from qrag_jax.eval.retrieval.records import row_values
    from qrag_jax.eval.retrieval.report import format_table
    from qrag_jax.index.index import open_index

    out = args.out or ("runs/demo-smoke" if args.smoke else "runs/demo")
    request = made(service.DemoRequest, vars(args), out=out)
    with Progress() as progress:
        shown = service.run_demo(request, progress.watch())
    if args.json:
        write_json(row_values(shown.rows))
    else:
        print(format_table(shown.rows))
        print(f'\n$ qrag find {out} {shown.sample} "{shown.question}"')
        with open_index(shown.sample, retriever=shown.retriever) as index:
            print(format_steps(index.search(shown.question, None)))
        print(f"(right facts and answer: {' / '.join(shown.needed)} -> {shown.answer})")
    say(f"\nwrote to {out}: results.json, table.md, plot.png, queries.jsonl and the run")
    say("The run works only for questions like the one above. Search your own files without it:")
    say('  qrag find YOUR_FILES... "your question"')
    return 0


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run)
