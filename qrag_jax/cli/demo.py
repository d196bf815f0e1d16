"""`qrag demo`: learns to find facts hidden in speeches, measures it, and asks it."""

import argparse

from qrag_jax import service
from qrag_jax.cli.find import format_steps
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, write_json

_DESCRIPTION = """\
Train a small retriever on questions that need two facts, hidden among sentences of State of the Union speeches, then
measure it on texts 1, 4, 16 and 64 times as long as those it was trained on. Needs no network and no GPU.

What comes out, in --out: a table and a plot, results.json (one row a task, method and length: exact match and F1 of
the facts, 95% interval, number of questions, seconds) and the trained run, which `qrag find` and `qrag eval` take. It
knows questions like those; in files of your own `qrag find FILES... QUESTION` is right, without a run.
"""
_EXAMPLES = """\
examples:
  qrag demo
  qrag demo --smoke --out /tmp/smoke            a minute's worth, to see that everything is installed
  qrag demo --babi qa2_valid.txt                score the same retriever on real bAbI questions too
"""
_FLAGS = """\
--smoke      a short run that shows that it works, not how well
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
        print(f"(what the story needs: {' / '.join(shown.needed)} -> {shown.answer})")
    say(f"\nwritten to {out}: results.json, table.md, plot.png, queries.jsonl and the run itself")
    say("The run knows questions like the one above, and no others. In files of your own search without it:")
    say('  qrag find YOUR_FILES... "your question"')
    return 0


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run)
