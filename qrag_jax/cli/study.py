"""`qrag study`: what chunkers find beside what they cost, on data sets or on your own documents and questions."""

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
Cut documents by several strategies, embed the chunks, search them with questions whose answers are known, and report
how well each strategy finds them beside what it costs. Either a config names the tasks (configs/study/ has some; data
is the folder of their data sets), or the task is your own documents and questions, and the config, if any, names
strategies and settings only.

DIR has documents: .txt, .md and others (or is one file). FILE.jsonl has one question a line, with the text that answers
it, or its place: {"question": "...", "evidence": ["exact text", ...]}; docs/reference/study.md describes the format.

What comes out: a table, with one line a task and strategy; in OUT: table.md, table.csv, plot.png (quality against
cost), results.json, per_query.jsonl (what every question found) and config.yaml, which gives the same study again.

A study that was stopped goes on where it was when the same line is run again.
"""
_DETAILS = """\
The table has F1, recall and precision of what the first 5 chunks hold (of evidence: sentences), the difference to
fixed-size chunks with interval and p value, and sizes, seconds and the config. All chunks of the corpus are searched.

Each strategy has up to six configs. Dev questions choose one of them, the others are reported. With few questions
nothing is chosen: all are reported, with the first config of each strategy, and a note says so.

With --budgets the evidence is also looked for in contexts of these sizes, filled as --fill says; a row of results.json
then has budget, fill, erec, erec_low and erec_high, and there is one for each budget and fill.

With --levels rows of levels come behind: of plan, level_min, level_max, parents and budget, with erec, num_vectors,
built_tokens and sent_tokens. The levels are those of each strategy of kind levels, or by headings where there is none.

The seconds are those of the strategy alone: sentence vectors that strategies share are computed once and charged to
each.

key=value changes a field of the config: report_k=3, model=FOLDER, prices=PRICES.yaml, tasks.squad.num_questions=100.
A name without = is the config.
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
--corpus DIR            your own documents: a folder of texts, PDF, ..., or a file
--questions FILE.jsonl  questions about them, one a line
--budgets N,N,...       also measure how much of the evidence stands in contexts of so many tokens (ERec), increasing;
                        of questions with evidence (default: not)
--fill M,...            with --budgets, how contexts are filled: plain (the best chunks), widen (each with its
                        neighbours), merge (sections in place of their chunks), each compared with plain (default:
                        plain)
--levels P,...          with --budgets, also search levels (document, section, ... or sizes): each alone, all of them,
                        the range that dev chooses, by a router (trained on dev) or router:RUN, and bound, the best
                        level of each question
--parents P,...         with --levels, how parents get vectors: best_child, mean, direct, windows, compressor:RUN
                        (default: best_child)
--follow_links --max_input_gb --no_compile_cache
--out OUT               folder for results, outside of the documents (default: runs/study-NAME)
--json                  print the rows of results.json instead of the table
--table                 with --json: show the table too, on standard error
overrides [CONFIG.yaml key=value ...]  a config; changes as report_k=3
"""


def _run(args: argparse.Namespace) -> int:
    request = _request(args)
    plan = service.plan_study(request)
    with _warnings_once():
        try:
            with Progress() as progress:
                studied = service.study(plan, progress.watch())
        except KeyboardInterrupt:
            say(f"stopped; what is done is kept in {plan.out}: the same line goes on from there")
            say(f"  qrag study {shlex.join(_again(args, plan.out))}")
            return _INTERRUPTED
        _print_rows(args.json, args.table, studied)
        _say_what_came_out(studied, plan)
    return 0


def _request(args: argparse.Namespace) -> "StudyRequest":
    config, overrides = _split_words(args.overrides)
    if args.fill and not args.budgets:
        raise UsageError(f"--fill {','.join(args.fill)}: goes with --budgets, the tokens of the contexts to be filled")
    if args.parents and not args.levels:
        raise UsageError(f"--parents {','.join(args.parents)}: goes with --levels, whose parents get vectors")
    return made(service.StudyRequest, vars(args), config=config, overrides=overrides)


def _split_words(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Overrides are `field.of.it=value`; what is not is the config, of which there is at most one."""
    from qrag_jax.config import is_override

    overrides = tuple(word for word in words if is_override(word))
    configs = [word for word in words if not is_override(word)]
    if len(configs) > 1:
        raise UsageError(f"{', '.join(configs)}: give one config; a change to it is field=value, as report_k=3")
    return configs[0] if configs else None, overrides


@contextmanager
def _warnings_once() -> Iterator[None]:
    """Says each kind of warning once, on standard error: texts that differ in their numbers only are of one kind.

    Chunkers warn for every document, so that a corpus would otherwise hide everything else that is said.
    """
    said: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        kind = re.sub(r"[\d,.]*\d", "0", str(message))
        if kind not in said:
            said.add(kind)
            say(f"{message} (said once)")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _again(args: argparse.Namespace, out: Path) -> list[str]:
    """The arguments of a line that goes on with this study."""
    given = {"--corpus": args.corpus, "--questions": args.questions, "--out": str(out)}
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
    """Where the files are, and how far the numbers can be trusted."""
    few = {row.task: row.n for row in studied.result.rows if row.n < _FEW}
    for task, number in few.items():
        say(f"{task}: {number:,} questions: the intervals are wide, look at them before at the means")
    say(f"wrote {', '.join(map(str, studied.paths))}")
    say(f"the same study again: qrag study {shlex.quote(str(plan.out / 'config.yaml'))} --out OTHER")


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run, details=_DETAILS, choices={"fill": FILLS}, usage=_USAGE)
