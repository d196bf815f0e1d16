"""How flags have documents cut that are searched."""

import argparse
from typing import cast

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.hierarchy import HierarchyConfig
from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
from qrag_jax.cli.parsers.chunk import TREE
from qrag_jax.index.methods import DEFAULT_CHUNKING
from qrag_jax.names import CHUNKERS, StrategyName
from qrag_jax.types import UsageError

HIERARCHY, LEVELS = "hierarchy", "levels"
OF_POINTS = ("points", "tagger")
OF_TREES = (*OF_POINTS, "sizes", "parents", "compressor")  # flags of strategies that make trees


def make_chunking(args: argparse.Namespace, implied: str = "") -> ChunkConfig:
    """How the flags have documents cut.

    Args:
        args: of the command line; flags of `OF_TREES` that a verb has not are not given.
        implied: strategy where one of these is given and none is named; empty is the one of all verbs.
    """
    given = [flag for flag in OF_TREES if getattr(args, flag, None) is not None]
    name = args.strategy or (implied if given and implied else DEFAULT_CHUNKING.strategy)
    for flag in given:
        owners = CHUNKERS.choices("tree") if flag in OF_POINTS else (LEVELS,)
        if name not in owners:
            raise UsageError(f"--{flag}: belongs to --strategy {' or '.join(owners)}; choose that, or leave it out")
    if args.sizes and (args.points or args.tagger):
        flag = "points" if args.points else "tagger"
        raise UsageError(f"--{flag}: levels of {list(args.sizes)} tokens have no sections; leave one of both out")
    points = args.points or ("tagger" if args.tagger else HierarchyConfig.points)
    if args.tagger and points != "tagger":
        raise UsageError(f"--tagger: belongs to points by tagger, not by {points}; leave one of both out")
    return ChunkConfig(
        cast(StrategyName, "headings" if name == TREE else name),
        max_tokens=args.max_tokens or (None if args.sizes else DEFAULT_CHUNKING.max_tokens),
        hierarchy=HierarchyConfig(points=points if name == HIERARCHY else HierarchyConfig.points),
        levels=LevelsConfig(points if name == LEVELS else LevelsConfig.points, args.sizes or ()),
    )
