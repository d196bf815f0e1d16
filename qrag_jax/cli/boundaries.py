"""`qrag boundaries`: scores methods that find section boundaries, on documents whose headings give the right ones."""

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
Score methods that find section boundaries, on documents whose headings give the right ones.

PATHS are Markdown files and folders, scisumm:PATH (papers of CL-SciSumm) or wikitext2:PATH (articles). Documents
without sections and duplicates are skipped with a warning. --view says how much of the headings the methods see: kept
(with marks), plain (as lines of text) or removed (nothing, not even a gap).

The output is one row for each method and view:
  f1_l1, f1_l2      micro F1 over documents of boundaries of level 1 and 2; sentence and level must match
  f1_any, low, high micro F1 of all boundaries at any level, with its 95% bootstrap interval over documents
  pk, window_diff   mean over documents; 0 is best
  seconds           time to find the boundaries of all documents, including embedding
"""
_DETAILS = f"""\
If a method sees headings, its score says how well it recognises headings, not whether it understands the text. So each
such row comes with a row for removed. Only exact sentences count. A boundary at the first sentence does not count,
because all documents begin there.

{BOUNDARY_SOURCES.help()}
All rows use the same documents, so no threshold is fitted here. The defaults were chosen on other documents
(benchmarks/hichunk/results/points.md); choose yours on documents that you do not score.

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
--view = removed             how much of the headings the methods see
--methods M,M,... = {",".join(_METHODS)}  methods to score, from {", ".join(BOUNDARY_SOURCES)}
. --equal_length N = 10      equal: sentences of a part
. --breakpoint_threshold = percentile  breakpoint: how to set the threshold of the distance
. --breakpoint_value X = 85  breakpoint: the percentile, factor or distance
. --linkage_sentences N = 20  linkage: most sentences of a part
. --linkage_lambda X = 0.75  linkage: weight of the position, 0 to 1
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
            print(f"{view}: boundaries by {one.name}: {expected}; nothing was asked (--estimate)")
        return 0
    rows = score_sources(request, tools)
    if args.json != STDOUT:
        print(shown_lines(format_rows(rows)), flush=True)
    if args.json:
        write_json([asdict(row) for row in rows], args.json)
    return 0


def _check_json(args: argparse.Namespace) -> None:
    """Refuses an output file that would replace an input."""
    from qrag_jax.cli.output_paths import check_place
    from qrag_jax.data.corpora.headed_documents import split_source

    check_place("json", Path(args.json))
    place = Path(os.path.realpath(args.json))
    given = [split_source(one)[1] for one in args.paths]
    read = [Path(os.path.realpath(one)) for one in (*given, args.llm_model, args.prices) if one]
    is_document = place.is_file() and place.suffix != ".json" and any(place.is_relative_to(one) for one in read)
    if place in read or is_document:
        raise UsageError(f"--json {args.json}: is an input file; name another file")


def format_rows(rows: "Sequence[BoundaryRow]") -> str:
    """Formats rows as a table, with the numbers of documents and boundaries below."""
    from qrag_jax.eval.tables import align, share

    table = [["method", "view", *_SHARES, "seconds"]]
    table += [
        [row.method, row.view, *(share(getattr(row, name)) for name in _SHARES), f"{row.seconds:.1f}"] for row in rows
    ]
    right = (False, False, *(True for _ in _SHARES), True)
    counts = [f"{row.view}: {row.n_documents:,} documents, {row.n_points:,} boundaries" for row in rows]
    return "\n".join([*align(table, right), "", *dict.fromkeys(counts)])


VERB = Verb(
    _DESCRIPTION,
    _EXAMPLES,
    _FLAGS,
    _run,
    details=_DETAILS,
    choices={"methods": BOUNDARY_SOURCES.names, "breakpoint_threshold": THRESHOLDS},
)
