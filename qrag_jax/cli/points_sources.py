"""What finds the points of documents, by the names that `qrag chunk --points` and `qrag points --methods` know."""

import argparse
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig, make_breakpoint
from qrag_jax.chunking.strategies.clusters import LinkageConfig, make_linkage
from qrag_jax.chunking.tree.boundaries import (
    PredictPoints,
    equal_points,
    heading_points,
    no_points,
    paragraph_points,
    rule_points,
    strategy_points,
)
from qrag_jax.cli.llm_flags import llm_config
from qrag_jax.cli.points_llm import make_llm_source
from qrag_jax.cli.progress import Progress, WithBar
from qrag_jax.llm.config import ReadyGenerator, make_generator
from qrag_jax.types import Embed, UsageError

if TYPE_CHECKING:  # it imports JAX, and most sources read no vectors
    from qrag_jax.models.encoder.embedder import TextEmbedder


@dataclass(frozen=True)
class PointTools:
    """What sources are made of.

    Attributes:
        args: flags of the verb.
    """

    args: argparse.Namespace

    @cached_property
    def embedder(self) -> "TextEmbedder":
        """The encoder of `--model`, loaded when it is first asked for."""
        from qrag_jax.models.encoder.embedder import make_embedder
        from qrag_jax.models.encoder.weights import load_encoder

        return make_embedder(load_encoder(self.args.model))

    @cached_property
    def generator(self) -> ReadyGenerator:
        """The language model of `--llm`, loaded when it is first asked for."""
        return make_generator(llm_config(vars(self.args)))

    @cached_property
    def embed(self) -> Embed:
        """The same as a function that shows how far it is."""
        embedder = self.embedder  # loaded now: what follows may be timed

        def embed(texts: Sequence[str]) -> np.ndarray:
            with Progress(transient=True) as progress:
                return embedder(texts, progress.stage("embed"))

        return embed


def make_source(name: str, tools: PointTools) -> PredictPoints:
    """The source of a name."""
    if name not in SOURCES:
        raise UsageError(f"points {name!r}: choose one of {', '.join(SOURCES)}")
    return SOURCES[name](tools)


def check_tagger_flag(args: argparse.Namespace, names: Collection[str]) -> None:
    """Refuses a tagger that no source is.

    Args:
        names: of all sources that are wanted.
    """
    if args.tagger and "tagger" not in names:
        raise UsageError("--tagger: belongs to points by tagger; ask for those too, or leave it out")


def _breakpoint(tools: PointTools) -> PredictPoints:
    config = BreakpointConfig(tools.args.breakpoint_threshold, tools.args.breakpoint_value)
    return strategy_points(make_breakpoint(config, tools.embed))


def _linkage(tools: PointTools) -> PredictPoints:
    config = LinkageConfig(max_sentences=tools.args.linkage_sentences, lambda_=tools.args.linkage_lambda)
    return strategy_points(make_linkage(config, tools.embed))


def _tagger(tools: PointTools) -> PredictPoints:
    from qrag_jax.models.tagger.predict import make_tagger_points
    from qrag_jax.models.tagger.tagger import load_tagger

    return make_tagger_points(load_tagger(tools.args.tagger), WithBar(tools.embedder))


SOURCES: dict[str, Callable[[PointTools], PredictPoints]] = {
    "none": lambda _: no_points,
    "headings": lambda _: heading_points,
    "rule": lambda _: rule_points,
    "paragraphs": lambda _: paragraph_points,
    "equal": lambda tools: equal_points(tools.args.equal_length),
    "breakpoint": _breakpoint,
    "linkage": _linkage,
    "tagger": _tagger,
    "llm": lambda tools: make_llm_source("llm", tools.args, tools.generator),
    "lumber": lambda tools: make_llm_source("lumber", tools.args, tools.generator),
}
