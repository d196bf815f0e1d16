"""Flags of the verbs that search the user's own texts. Imports nothing heavy: the help answers at once."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qrag_jax.cli import flags
from qrag_jax.errors import UsageError
from qrag_jax.names import RETRIEVERS

if TYPE_CHECKING:
    from qrag_jax.index.index import Index
    from qrag_jax.service.search import SearchRequest

SHOWN_RETRIEVERS = "hybrid, dense, bm25"  # the last of `RETRIEVERS` is another name of dense
CUTTING = """\
--strategy
--max_tokens N   no passage has more (default: 200; not with a run)
. --points --tagger --sizes
--model M        encoder: minilm, a folder or a hub id (default: minilm; not with a run)
"""
CHOICE = "--only --encoding --strict --follow_links --max_input_gb\n"
_REASONS = {
    "strategy": "a run reads sentences",
    "model": "a run has the encoder that it was trained with",
    "top_k": "a run picks --num_steps chunks",
}
WAYS = """\
  hybrid   what is near in meaning and what shares words, by the scores of both: the default, and right for most texts
  dense    the chunks whose vectors are nearest to the question's (also called single_step)
  bm25     the chunks that share its words; loads no model
"""


def search_request(values: Mapping[str, Any], *, run_first: bool = False) -> "SearchRequest":
    """The request that the flags and words of a command make; looks at names and settings alone.

    Flags that say how files are cut and embedded are refused of a run; of an index where that is opened.

    Args:
        values: of the flags of `qrag find` or `qrag ask`, `paths` and `question`.
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
    cuts = flags.made(CutOptions, values)
    given = cuts.given + ["model"] * (values["model"] is not None)
    given += ["top_k"] * (values.get("top_k") is not None)
    if given and retriever not in (None, *RETRIEVERS):
        raise UsageError(f"--{given[0]}: belongs to {SHOWN_RETRIEVERS}; {_REASONS.get(given[0], _REASONS['strategy'])}")
    return flags.made(SearchRequest, values, paths=tuple(paths), retriever=retriever, cuts=cuts)


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
