"""`qrag points`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags, llm_flags
from qrag_jax.names import BOUNDARY_SOURCES, THRESHOLDS, VIEWS

_DEFAULT_METHODS = tuple(name for name in BOUNDARY_SOURCES.choices(without="llm") if name not in ("headings", "tagger"))

SUMMARY = "how well the sections of documents are found"
DESCRIPTION = f"""\
Score what finds the points of documents, the sentences at which their sections begin, where headings say what is right.

{BOUNDARY_SOURCES.help()}
PATHS are Markdown files and folders, scisumm:PATH (papers of CL-SciSumm) or wikitext2:PATH (articles). Documents
without a section, and those that are there twice, are left out with a warning. What is seen of the headings is the
--view: kept, with their marks; plain, as lines of text; removed, not at all, and no gap tells where they were. With
headings in sight a score tells how well headings are recognised, not whether the text is understood: beside such a row
always stands that of removed.

What comes out: a row a method and view. f1_l1, f1_l2: micro F1 over documents of points of levels 1 and 2, sentence and
level both right; f1_any: of all points whatever their level, with its 95% bootstrap interval over documents, low to
high. Exact sentences count, and a point at the first sentence counts for nothing: all documents begin there. pk,
window_diff: means over documents, 0 is best. seconds: to find the points of all documents, embedding included.

All rows are of the same documents. So no threshold is chosen here: the defaults were, on other documents
(benchmarks/results/points.md); choose yours on documents that are not scored.

{llm_flags.POINTS_HELP}
{llm_flags.HELP}"""
EXAMPLES = """\
examples:
  qrag points notes/ --view plain --methods rule,paragraphs,none
  qrag points wikitext2:articles.jsonl.gz scisumm:papers/ --json points.json
  qrag points notes/ --methods none,llm,lumber --llm_model qwen.gguf --window_lines 60 --estimate
  qrag points notes/ --methods breakpoint --breakpoint_threshold percentile --breakpoint_value 90
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag points`."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="Markdown file or folder, scisumm:PATH or wikitext2:PATH"
    )
    parser.add_argument(
        "--view", choices=VIEWS, default="removed", help="what is seen of the headings (default: %(default)s)"
    )
    parser.add_argument(
        "--methods",
        type=flags.chosen("method", BOUNDARY_SOURCES.names),
        default=_DEFAULT_METHODS,
        metavar="M,M,...",
        help=f"rows to compute, of {', '.join(BOUNDARY_SOURCES)} (default: all but headings, tagger "
        "and language models)",
    )
    parser.add_argument(
        "--equal_length", type=flags.positive, default=10, metavar="N", help="of equal (default: %(default)s)"
    )
    parser.add_argument(
        "--breakpoint_threshold",
        choices=THRESHOLDS,
        default="percentile",
        help="of breakpoint: what a distance is compared with (default: %(default)s)",
    )
    parser.add_argument(
        "--breakpoint_value",
        type=flags.amount,
        default=85.0,
        metavar="X",
        help="of breakpoint: the percentile, factor or distance (default: %(default)s)",
    )
    parser.add_argument(
        "--linkage_sentences",
        type=flags.positive,
        default=20,
        metavar="N",
        help="of linkage: the most of a part (default: %(default)s)",
    )
    parser.add_argument(
        "--linkage_lambda",
        type=flags.amount,
        default=0.75,
        metavar="W",
        help="of linkage: weight of the position, 0 to 1 (default: %(default)s)",
    )
    flags.add_tagger(parser)
    flags.add_model(parser, "%(default)s", value="minilm")
    flags.add_seed(parser)
    parser.add_argument("--json", metavar="OUT", help="write the rows as JSON; - prints them instead of the table")
    flags.add_reading(parser)
    llm_flags.add_points_llm_flags(parser)
    flags.add_compile_cache(parser)
