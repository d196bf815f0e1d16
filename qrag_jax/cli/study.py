"""`qrag study`: compares the quality and cost of chunkers, on data sets or on your own documents and questions."""

import argparse
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax import service
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, shown_lines, write_json
from qrag_jax.names import FILLS
from qrag_jax.types import UsageError

if TYPE_CHECKING:  # they load the encoder's modules
    from qrag_jax.service.studying import Studied, StudyPlan, StudyRequest

_FEW = 100  # questions: with fewer an interval is wide
_INTERRUPTED = 130
_USAGE = "[CONFIG.yaml | --corpus DIR --questions FILE.jsonl [CONFIG.yaml]] [--out OUT] [key=value ...]"
_DESCRIPTION = """\
Compare chunkers: search their chunks with questions whose answers are known, and report quality and cost.

Give either a config that names tasks (configs/study/ has some; data= is the folder of their data sets), or your own
documents and questions; a config may then set strategies, but no tasks.

DIR contains documents (.txt, .md and others), or is one document. FILE.jsonl has one question on each line, with the
text that answers it or its place: {"question": "...", "evidence": ["exact text", ...]}; see docs/reference/study.md.

The output is a table with one line for each task and strategy. OUT contains table.md, table.csv, plot.png (quality
against cost), results.json, per_query.jsonl (results of each question) and config.yaml, which repeats the study. If a
study is stopped, run the same command again to continue.
"""
_DETAILS = """\
The table has F1, recall and precision of the first 5 chunks (for evidence, by sentences), the difference to fixed-size
chunks with interval and p value, and sizes, seconds and the config. Every question searches all chunks of the corpus.

Each strategy has up to six configs. Dev questions choose one of them; the test questions score it. With few questions
there is no choice: the first config of each strategy is scored on all questions, and a note says so.

--budgets also looks for the evidence in contexts of these sizes, filled as --fill says. A row of results.json for each
budget and fill then has budget, fill, erec, erec_low and erec_high.

--levels adds rows for levels, with plan, level_min, level_max, parents, budget, erec, num_vectors, built_tokens and
sent_tokens. The levels are those of each strategy of kind levels, or by headings if there is none.

Seconds are those of the strategy itself. Sentence vectors that strategies share are computed once and counted for each.

key=value changes a field of the config: report_k=3, model=FOLDER, prices=PRICES.yaml, tasks.squad.num_questions=100. A
word without = is the config.
"""
_EXAMPLES = """\
examples:
  qrag study --corpus notes/ --questions questions.jsonl --out runs/notes
  qrag study --corpus notes/ --questions questions.jsonl mine.yaml prices=configs/study/prices.yaml --json
  qrag study configs/study/paper.yaml data=DATA --out runs/paper
  qrag study --corpus notes/ --questions questions.jsonl --budgets 500,1000,2000 --fill plain,widen,merge
  qrag study configs/study/paper.yaml data=DATA --budgets 128,512 --levels each,all,dev,router --parents best_child,mean
  qrag study runs/paper/config.yaml --out runs/again
"""
_FLAGS = """\
--corpus DIR            your own documents: a folder of texts, PDFs, ..., or one file
--questions FILE.jsonl  questions about them, one on each line
--budgets N,N,...       also measure the share of the evidence in contexts of N tokens (ERec), increasing; for questions
                        with evidence (default: not measured)
--fill M,...            with --budgets, how to fill contexts: plain (the best chunks), widen (with their neighbours) or
                        merge (sections instead of their chunks); each is compared with plain (default: plain)
--levels P,...          with --budgets, levels to search: each (one at a time), all, dev (the range that dev questions
                        choose), router and classifier (trained on dev), planner:RUN, bound (the best level for each
                        question)
--parents P,...         with --levels, how sections get vectors: best_child, mean, direct, windows, compressor:RUN
                        (default: best_child)
--rerank MODEL          let a reranker order the nearest 20 chunks of each question; not with --budgets
--follow_links --max_input_gb --no_compile_cache
--out OUT               folder for results, outside the documents (default: runs/study-NAME)
--json                  print the rows of results.json instead of the table
--table                 with --json: also print the table, on standard error
overrides [CONFIG.yaml key=value ...]  a config, and changes such as report_k=3
"""


def _run(args: argparse.Namespace) -> int:
    request = _request(args)
    plan = service.plan_study(request)
    with _warnings_once():
        try:
            with Progress() as progress:
                studied = service.study(plan, progress.watch())
        except KeyboardInterrupt:
            say(f"stopped; finished work is kept in {plan.out}; continue with:")
            say(f"  qrag study {shlex.join(_again(args, plan.out))}")
            return _INTERRUPTED
        _print_rows(args.json, args.table, studied)
        _say_what_came_out(studied, plan)
    return 0


def _request(args: argparse.Namespace) -> "StudyRequest":
    config, overrides = _split_words(args.overrides)
    if args.fill and not args.budgets:
        raise UsageError(f"--fill {','.join(args.fill)}: needs --budgets; give the sizes of the contexts to fill")
    if args.parents and not args.levels:
        raise UsageError(f"--parents {','.join(args.parents)}: needs --levels; give the levels to search")
    return made(service.StudyRequest, vars(args), config=config, overrides=overrides)


def _split_words(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Splits words into the config and overrides such as `field.of.it=value`. There is at most one config."""
    from qrag_jax.config import is_override

    overrides = tuple(word for word in words if is_override(word))
    configs = [word for word in words if not is_override(word)]
    if len(configs) > 1:
        raise UsageError(f"{', '.join(configs)}: give one config; change a field with field=value, such as report_k=3")
    return configs[0] if configs else None, overrides


@contextmanager
def _warnings_once() -> Iterator[None]:
    """Says each kind of warning once, on standard error. Texts that differ only in numbers are the same kind.

    Chunkers warn for every document; repeated warnings would hide all other messages.
    """
    said: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        kind = re.sub(r"[\d,.]*\d", "0", str(message))
        if kind not in said:
            said.add(kind)
            say(f"{message} (shown once)")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _again(args: argparse.Namespace, out: Path) -> list[str]:
    """The arguments of a command that continues this study."""
    given = {"--corpus": args.corpus, "--questions": args.questions, "--out": str(out), "--rerank": args.rerank}
    lists = {"--budgets": args.budgets, "--fill": args.fill, "--levels": args.levels, "--parents": args.parents}
    given |= {flag: ",".join(map(str, values or ())) for flag, values in lists.items()}
    parts = [[f"{flag}={path}"] if path.startswith("-") else [flag, path] for flag, path in given.items() if path]
    links = ["--follow_links"] if args.follow_links else []
    return [*(part for one in parts for part in one), *links, *args.overrides]


def _print_rows(as_json: bool, with_table: bool, studied: "Studied") -> None:
    from qrag_jax.eval.study.results.report import format_table, summary_values

    if as_json:
        write_json(summary_values(studied.result)["rows"])
    if with_table or not as_json:
        table = shown_lines(format_table(studied.result))
        print(table, end="", file=sys.stderr if as_json else sys.stdout)


def _say_what_came_out(studied: "Studied", plan: "StudyPlan") -> None:
    """Says where the files are, and warns about wide intervals."""
    few = {row.task: row.n for row in studied.result.rows if row.n < _FEW}
    for task, number in few.items():
        say(f"{task}: only {number:,} questions; the intervals are wide, so read them before the means")
    say(f"wrote {', '.join(map(str, studied.paths))}")
    say(f"to repeat this study: qrag study {shlex.quote(str(plan.out / 'config.yaml'))} --out OTHER")


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run, details=_DETAILS, choices={"fill": FILLS}, usage=_USAGE)
