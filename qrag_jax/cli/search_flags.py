"""Flags of the verbs that search the user's own texts. Imports nothing heavy: the help answers at once."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qrag_jax.cli import flags
from qrag_jax.errors import UsageError
from qrag_jax.names import BOUNDARY_SOURCES, CHUNKERS, NOTE_MODES, PLANNERS, RETRIEVERS

if TYPE_CHECKING:
    from qrag_jax.index.index import Index
    from qrag_jax.service.search import SearchRequest

SHOWN_RETRIEVERS = "hybrid, dense, bm25"  # the last of `RETRIEVERS` is another name of dense
_OF_CUTTING = ("strategy", "max_tokens", "points", "tagger", "sizes")
_REASONS = {
    "strategy": "a run reads sentences",
    "model": "a run has the encoder that it was trained with",
    "top_k": "a run picks --num_steps chunks",
}
# Of the flags below `--help` leaves these out.
RARE = ("--points", "--tagger", "--sizes", "--planner", "--router", "--notes_mode")
WAYS = """\
  hybrid   what is near in meaning and what shares words, by the scores of both: the default, and right for most texts
  dense    the chunks whose vectors are nearest to the question's (also called single_step)
  bm25     the chunks that share its words; loads no model
"""


def add_retriever(parser: argparse.ArgumentParser) -> None:
    """Adds `--retriever`, None where it is not given."""
    parser.add_argument(
        "--retriever",
        type=flags.filled,
        metavar="R",
        help=f"{SHOWN_RETRIEVERS}, or the folder of a run of `qrag train` or `qrag demo` (default: hybrid)",
    )


def add_points(parser: argparse.ArgumentParser) -> None:
    """Adds what strategies that make trees cut by: `--points`, `--tagger` and `--sizes`, each None if not given."""
    parser.add_argument(
        "--points",
        choices=BOUNDARY_SOURCES.choices("tree", without="llm"),
        help="of hierarchy and levels: what tells where a section begins (default: headings, of Markdown; with "
        "--tagger, tagger)",
    )
    flags.add_tagger(parser)
    flags.add_sizes(parser)


def add_cutting(parser: argparse.ArgumentParser) -> None:
    """Adds how texts are cut and by which encoder they are known: `--strategy` and its flags, `--model`."""
    flags.add_strategy(parser, CHUNKERS.names, "how to cut, as in `qrag chunk`", "recursive; not with a run")
    flags.add_max_tokens(parser, "passage", "200; not with a run")
    add_points(parser)
    flags.add_model(parser, "minilm; not with a run")


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Adds what is read of the paths, and how: `--only`, `--encoding`, `--strict` and those of `flags.add_reading`."""
    parser.add_argument(
        "--only",
        type=flags.filled,
        action="append",
        default=[],
        metavar="PATTERN",
        help="search documents of such names alone, as 'reports/*'; may be given several times",
    )
    flags.add_encoding(parser)
    flags.add_strict(parser)
    flags.add_reading(parser)


def add_notes_mode(parser: argparse.ArgumentParser) -> None:
    """Adds `--notes_mode`, None where it is not given."""
    parser.add_argument(
        "--notes_mode",
        choices=[mode for mode in NOTE_MODES if mode != "walk"],
        metavar="M",
        help="of an index, what its notes do: best_of (a chunk counts as the best of itself and its notes), insert "
        "(those nearest to the question are put into their chunks), all, random (a control), none (default: best_of "
        "where there are notes)",
    )


def add_levels(parser: argparse.ArgumentParser, planners: Sequence[str] = PLANNERS) -> None:
    """Adds `--levels`, `--planner` of some kinds and `--router`, each None where it is not given."""
    parser.add_argument(
        "--levels",
        type=flags.filled,
        metavar="MIN:MAX",
        help="of an index with levels: search these, the coarser first, as section:paragraph, or one alone; of sizes "
        "512:128 (document, section, subsection, paragraph, sentence)",
    )
    parser.add_argument(
        "--planner",
        choices=planners,
        help="of such an index, what chooses the levels for each question: constant (--levels, or all of them), router "
        "(--router)" + (", llm (the language model; where it names none, all)" if "llm" in planners else ""),
    )
    parser.add_argument("--router", type=flags.filled, metavar="RUN", help="run folder of `qrag train router`")


def add_questions(parser: argparse.ArgumentParser) -> None:
    """Adds `--questions`, which `cli/main.py:parse` needs in order to tell the question from the paths."""
    parser.add_argument(
        "--questions",
        type=flags.filled,
        metavar="FILE",
        help='in place of QUESTION: a question a line, or {"question": ..., "id": ...}; a line that cannot be asked is '
        "refused by its number before anything is searched. - is standard input, answered line by line, up to such a "
        "line. With --json one object a line",
    )


def search_request(values: Mapping[str, Any], *, run_first: bool = False) -> "SearchRequest":
    """The request that the flags and words of a command make; looks at names and settings alone.

    Flags that say how files are cut and embedded are refused of a run; of an index where that is opened.

    Args:
        values: of the flags above, `paths` and `question`.
        run_first: the first path may be a run, which then searches the others.
    """
    from qrag_jax.index.sources import is_run
    from qrag_jax.service.cutting import CutOptions
    from qrag_jax.service.search import SearchRequest

    paths, retriever = values["paths"], values["retriever"]
    first, *rest = paths
    if run_first and is_run(first):
        if retriever is not None:
            raise UsageError(f"{first}: is a run, and --retriever names {retriever}: leave one of them out")
        if not rest:
            raise UsageError(f"{first}: is a run: name the files or folders to search between it and the question")
        paths, retriever = rest, first
    cuts = CutOptions(**{name: values[name] for name in _OF_CUTTING})
    given = cuts.given + ["model"] * (values["model"] is not None)
    given += ["top_k"] * (values.get("top_k") is not None)
    if given and retriever not in (None, *RETRIEVERS):
        raise UsageError(f"--{given[0]}: belongs to {SHOWN_RETRIEVERS}; {_REASONS.get(given[0], _REASONS['strategy'])}")
    return SearchRequest(
        tuple(paths),
        values["question"],
        values["questions"],
        retriever,
        values["model"],
        cuts,
        tuple(values["only"]),
        values["encoding"],
        values["strict"],
    )


def open_searched(request: "SearchRequest") -> "Index":
    """Opens the files or the index; says on standard error which data a run was trained on."""
    from qrag_jax.cli.progress import WithBar
    from qrag_jax.cli.terminal import say
    from qrag_jax.service.search import run_of, trained_on

    index = request.open(WithBar)
    if (run := run_of(index, request.retriever)) and os.path.isdir(run):  # else the search refuses it
        say(trained_on(run))
    return index


def planner_name(planner: str | None, router: str | None, levels: str | None) -> str:
    """The planner that `--planner`, `--router` and `--levels` ask for; empty where they ask for none."""
    name = planner or ("router" if router else "constant" if levels else "")
    if router and name != "router":
        raise UsageError(f"--router: belongs to --planner router, not to {name}; leave one of both out")
    if name == "router" and not router:
        raise UsageError("--planner router: name a run of `qrag train router` (--router)")
    if levels and name != "constant":
        raise UsageError(f"--levels {levels}: the {name} plans the levels; leave one of both out")
    if router and not os.path.isdir(router):
        raise UsageError(f"--router {router}: no such folder; give one that `qrag train router --out` wrote")
    return name


def levels_of(planner: str, router: str | None, levels: str | None) -> str | None:
    """The levels that are searched by a planner, as of `SearchOptions`."""
    return {"": None, "constant": levels or "all", "router": f"router:{router}", "llm": "llm"}[planner]
