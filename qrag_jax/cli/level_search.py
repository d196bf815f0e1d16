"""Which levels of an index `qrag find` and `qrag ask` search, by their flags, and how that is told."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from qrag_jax.chunking.tree.level_ranges import format_levels, full_range, parse_levels
from qrag_jax.cli.llm_flags import llm_config
from qrag_jax.cli.searching.sources import Source
from qrag_jax.cli.terminal import say
from qrag_jax.index.methods import Method
from qrag_jax.llm.config import ReadyGenerator
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import WORDS_WEIGHT
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.search.levels.llm_planner import PlansConfig, PlansReading, make_llm_planner
from qrag_jax.search.levels.planned_search import PlannedSearch
from qrag_jax.search.levels.planners import Planner, constant, load_router, make_planner
from qrag_jax.types import Generation, UsageError


@dataclass
class LevelSearch:
    """The search of a command, and what its planner was told.

    Attributes:
        search: by the planner.
        planner: its name.
    """

    search: PlannedSearch
    planner: str
    _readings: list[PlansReading] = field(default_factory=list)

    def told(self, sent_tokens: int | None = None) -> dict[str, object]:
        """What was searched for the last question, as `--json` prints it; tokens sent where there is a context."""
        last = self.search.last
        assert last is not None  # a question was asked
        sent = {} if sent_tokens is None else {"sent_tokens": sent_tokens}
        return {
            "levels": format_levels(last.levels, self.search.index.names),
            "planner": self.planner,
            "num_vectors": last.num_vectors,
            "built_tokens": last.built_tokens,
            **sent,
        }

    def calls(self) -> list[Generation]:
        """What a planner has asked of a language model since this was asked for, as one call."""
        readings, self._readings[:] = [one.reading for one in self._readings], []
        return [
            Generation("", "stop", prompt_tokens=one.prompt_tokens, completion_tokens=one.completion_tokens)
            for one in readings
        ]

    def say(self, told: Mapping[str, object]) -> None:
        """What `told` says, in a line on standard error; and why a language model's plan did not count."""
        sent = f", {told['sent_tokens']:,} sent" if "sent_tokens" in told else ""
        say(
            f"levels: {told['levels']} ({told['planner']}); {told['num_vectors']:,} vectors compared, "
            f"{told['built_tokens']:,} tokens built{sent}"
        )
        for reading in self._readings:
            for reason in reading.fallbacks:
                say(f"levels: no plan ({reason}), so all of them")


def make_level_search(
    args: argparse.Namespace,
    source: Source,
    index: LevelIndex,
    method: Method,
    generator: ReadyGenerator | None = None,
) -> LevelSearch:
    """The search that the flags ask for.

    Args:
        args: with the flags of `search_flags.add_levels`.
        generator: of plans, where a language model makes them.
    """
    assert method.embed is not None  # `find_source` has refused words alone
    name = planner_name(args)
    readings: list[PlansReading] = []
    heads: tuple[str, ...] | None = ()
    if name == "router":
        planner: Planner = make_planner(load_router(args.router), index, method.embed)
    elif name == "llm":
        if generator is None:
            raise UsageError("--planner llm: a language model plans, and none is asked; leave --no_llm out")
        config, heads = PlansConfig(prompts=llm_config(vars(args)).prompts), None
        count = generator.count or method.count
        planner = make_llm_planner(generator, count, index.names, config, finished=readings.append)
    else:
        planner = constant(parse_levels(args.levels, index.names) if args.levels else full_range(index.names))
    weight = WORDS_WEIGHT if source.retriever == "hybrid" else 0.0
    return LevelSearch(PlannedSearch(index, method.embed, planner, weight=weight, heads=heads), name, readings)


def planner_name(args: argparse.Namespace) -> str:
    """The planner that the flags ask for; empty where they ask for none."""
    name = args.planner or ("router" if args.router else "constant" if args.levels else "")
    if args.router and name != "router":
        raise UsageError(f"--router: belongs to --planner router, not to {name}; leave one of both out")
    if name == "router" and not args.router:
        raise UsageError("--planner router: name a run of `qrag fit router` (--router)")
    if args.levels and name != "constant":
        raise UsageError(f"--levels {args.levels}: the {name} plans the levels; leave one of both out")
    if args.router and not os.path.isdir(args.router):
        raise UsageError(f"--router {args.router}: no such folder; give one that `qrag fit router --out` wrote")
    return name


def check_level_flags(args: argparse.Namespace, source: Source) -> bool:
    """Whether levels are searched; refuses them where there are none, before anything is read."""
    name = planner_name(args)
    if not name:
        return False
    flag = next(f"--{flag}" for flag in ("levels", "planner", "router") if getattr(args, flag))
    if source.index is None:
        raise UsageError(
            f"{flag}: {source.paths[0]}: files have no levels that are kept: `qrag index build INDEX PATHS... "
            "--strategy levels`, and ask that"
        )
    from qrag_jax.index.build import check_levels  # imports what builds one

    check_levels(source.index, source.paths[0])
    if source.retriever == "bm25":
        raise UsageError(f"{flag}: levels are searched by meaning, and bm25 goes by words; choose hybrid or dense")
    if source.is_run:
        raise UsageError(f"{flag}: levels are searched at once, and a run goes step by step; leave --retriever out")
    for other in ("merge", "notes_mode"):
        if getattr(args, other, None) not in (None, False, "none"):
            raise UsageError(f"--{other}: not with {flag}; leave one of both out")
    return True


def level_index_of(corpus: Corpus, source: Source, method: Method) -> LevelIndex:
    """The index of levels of what was read."""
    from qrag_jax.index.build import level_index

    assert source.index is not None
    return level_index(corpus, source.index, method)
