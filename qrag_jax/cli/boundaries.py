"""`qrag boundaries`: what finds the sections of documents, scored on documents whose headings say what is right."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.cli import llm_flags
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.names import BOUNDARY_SOURCES, THRESHOLDS
from qrag_jax.types import UsageError

if TYPE_CHECKING:
    from qrag_jax.service.headed import BoundaryRow

_METHODS = [name for name in BOUNDARY_SOURCES.choices(without="llm") if name not in ("headings", "tagger")]
_SHARES = ("f1_l1", "f1_l2", "f1_any", "low", "high", "pk", "window_diff")

_DESCRIPTION = """\
Score what finds the points of documents, the sentences at which their sections begin, where headings say what is right.

PATHS are Markdown files and folders, scisumm:PATH (papers of CL-SciSumm) or wikitext2:PATH (articles). Documents
without a section, and those that are there twice, are left out with a warning. What is seen of the headings is the
--view: kept, with their marks; plain, as lines of text; removed, not at all, and no gap tells where they were.

What comes out: a row a method and view. f1_l1, f1_l2: micro F1 over documents of points of levels 1 and 2, sentence and
level both right; f1_any: of all points whatever their level, with its 95% bootstrap interval over documents, low to
high. pk, window_diff: means over documents, 0 is best. seconds: to find the points of all documents, with embedding.
"""
_DETAILS = f"""\
With headings in sight a score tells how well headings are recognised, not whether the text is understood: beside such a
row always stands that of removed. Exact sentences count, and a point at the first sentence counts for nothing: all
documents begin there.

{BOUNDARY_SOURCES.help()}
All rows are of the same documents. So no threshold is chosen here: the defaults were, on other documents
(benchmarks/results/points.md); choose yours on documents that are not scored.

{llm_flags.POINTS_HELP}
{llm_flags.HELP}"""
_EXAMPLES = """\
examples:
  qrag boundaries notes/ --view plain --methods rule,paragraphs,none
  qrag boundaries wikitext2:articles.jsonl.gz scisumm:papers/ --json points.json
  qrag boundaries notes/ --methods none,llm,lumber --llm_model qwen.gguf --window_lines 60 --estimate
  qrag boundaries notes/ --methods breakpoint --breakpoint_threshold percentile --breakpoint_value 90
"""
_FLAGS = f"""\
paths PATH ...               Markdown file or folder, scisumm:PATH or wikitext2:PATH
--view = removed             what is seen of the headings
--methods M,M,... = {",".join(_METHODS)}  rows to compute, of {", ".join(BOUNDARY_SOURCES)}
. --equal_length N = 10      of equal
. --breakpoint_threshold = percentile  of breakpoint: what a distance is compared with
. --breakpoint_value X = 85  of breakpoint: the percentile, factor or distance
. --linkage_sentences N = 20  of linkage: the most of a part
. --linkage_lambda X = 0.75  of linkage: weight of the position, 0 to 1
--tagger --model --seed
--json OUT                   write the rows as JSON; - prints them instead of the table
--follow_links --max_input_gb --no_compile_cache
{llm_flags.POINTS}"""


def _run(args: argparse.Namespace) -> int:
    from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig
    from qrag_jax.chunking.strategies.clusters import LinkageConfig
    from qrag_jax.cli.llm_output import format_estimate, shown_tools
    from qrag_jax.cli.output_paths import STDOUT
    from qrag_jax.cli.terminal import shown_lines, write_json
    from qrag_jax.service.headed import ScoreRequest, estimate_sources, score_sources

    if args.json and args.json != STDOUT:
        _check_json(args)
    llm_flags.check_points_flags(vars(args), args.methods)
    request = made(ScoreRequest, vars(args))
    tools = shown_tools(
        vars(args),
        breakpoint=BreakpointConfig(args.breakpoint_threshold, args.breakpoint_value),
        linkage=LinkageConfig(max_sentences=args.linkage_sentences, lambda_=args.linkage_lambda),
    )
    if args.estimate:
        for view, one in estimate_sources(request, tools):
            expected = format_estimate(one.estimate, vars(args))
            print(f"{view}: points {one.name}: {expected}; nothing is asked (--estimate)")
        return 0
    rows = score_sources(request, tools)
    if args.json != STDOUT:
        print(shown_lines(format_rows(rows)), flush=True)
    if args.json:
        write_json([asdict(row) for row in rows], args.json)
    return 0


def _check_json(args: argparse.Namespace) -> None:
    """Refuses a file for the rows that would take the place of something that is read."""
    from qrag_jax.cli.output_paths import check_place
    from qrag_jax.data.corpora.headed_documents import split_source

    check_place("json", Path(args.json))
    place = Path(os.path.realpath(args.json))
    given = [split_source(one)[1] for one in args.paths]
    read = [Path(os.path.realpath(one)) for one in (*given, args.llm_model, args.prices) if one]
    is_document = place.is_file() and place.suffix != ".json" and any(place.is_relative_to(one) for one in read)
    if place in read or is_document:
        raise UsageError(f"--json {args.json}: is a file that is read; name another file")


def format_rows(rows: "Sequence[BoundaryRow]") -> str:
    """Rows as a table, and below it what they are of."""
    from qrag_jax.eval.tables import align, share

    table = [["method", "view", *_SHARES, "seconds"]]
    table += [
        [row.method, row.view, *(share(getattr(row, name)) for name in _SHARES), f"{row.seconds:.1f}"] for row in rows
    ]
    right = (False, False, *(True for _ in _SHARES), True)
    counts = [f"{row.view}: {row.n_documents:,} documents, {row.n_points:,} points" for row in rows]
    return "\n".join([*align(table, right), "", *dict.fromkeys(counts)])


VERB = Verb(
    _DESCRIPTION,
    _EXAMPLES,
    _FLAGS,
    _run,
    details=_DETAILS,
    choices={"methods": BOUNDARY_SOURCES.names, "breakpoint_threshold": THRESHOLDS},
)
