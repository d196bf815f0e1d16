"""Sources of boundaries, by their names in `names.BOUNDARY_SOURCES`. A `Point` is a boundary with its level."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from qrag_jax.annotate.ask_chunks import Estimate, Estimated, Progressed
from qrag_jax.annotate.hichunk import HiChunkConfig, estimate_hichunk, make_hichunk
from qrag_jax.annotate.lumber import LumberConfig, estimate_lumber, make_lumber
from qrag_jax.annotate.windows import PointsReading
from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig, make_breakpoint
from qrag_jax.chunking.strategies.clusters import LinkageConfig, make_linkage
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.tree.boundaries import (
    Point,
    PredictPoints,
    equal_points,
    heading_points,
    no_points,
    paragraph_points,
    rule_points,
    strategy_points,
)
from qrag_jax.errors import Arg
from qrag_jax.llm.config import LlmConfig, ReadyGenerator, make_generator
from qrag_jax.models.encoder.sources import load_tokenizer
from qrag_jax.names import BOUNDARY_SOURCES
from qrag_jax.types import CountTokens, Encoder, UsageError

if TYPE_CHECKING:  # it imports JAX, and most sources read no vectors
    from qrag_jax.models.encoder.embedder import TextEmbedder

_PROMPT_TOKENS = 1_000  # rough size of the built-in prompts and chat templates around a window


@dataclass(frozen=True)
class PointsRequest:
    """Settings of the sources; each source uses its own.

    Attributes:
        encoder: for sources that read vectors; its tokenizer counts if a language model cannot.
        tagger: run folder of a tagger; None is the packaged one.
        equal_length: equal: sentences of a part.
        breakpoint, linkage: settings of these sources.
        llm: the language model of sources that ask one.
        window_tokens: llm: tokens of sentences in a window; None: 16,384, or as many as fit into the model's context.
        window_lines: llm: most sentences in a window; None is no limit.
        estimates: raise `Estimated` instead of asking a language model.
    """

    encoder: str = "minilm"
    tagger: str | None = None
    equal_length: int = 10
    breakpoint: BreakpointConfig = BreakpointConfig("percentile", 85.0)
    linkage: LinkageConfig = LinkageConfig(max_sentences=20, lambda_=0.75)
    llm: LlmConfig = LlmConfig(max_answer_tokens=HiChunkConfig.max_answer_tokens)
    window_tokens: int | None = None
    window_lines: int | None = None
    estimates: bool = False


@dataclass(frozen=True)
class PointTools:
    """The models that sources share, each loaded when it is first needed, and callbacks for progress and cost.

    Attributes:
        request: settings of the sources.
        show: wraps the encoder, for example to show progress.
        asking: context around the calls of a language model; gives the progress callback.
        expected: called with the name of a source and its estimate, before it asks a language model.
        read: called with the name and the cost afterwards.
    """

    request: PointsRequest
    show: Callable[[Encoder], Encoder] = lambda encoder: encoder
    asking: Callable[[], AbstractContextManager[Progressed | None]] = nullcontext
    expected: Callable[[str, Estimate], None] = lambda name, estimate: None
    read: Callable[[str, PointsReading], None] = lambda name, reading: None

    @cached_property
    def embedder(self) -> "TextEmbedder":
        """The encoder."""
        from qrag_jax.models.encoder.embedder import make_embedder
        from qrag_jax.models.encoder.weights import load_encoder

        return make_embedder(load_encoder(self.request.encoder))

    @cached_property
    def generator(self) -> ReadyGenerator:
        """The language model."""
        return make_generator(self.request.llm)

    @cached_property
    def count(self) -> CountTokens:
        """Counts tokens like the language model, or like the encoder if the model cannot count."""
        own = self.generator.count
        return own or load_tokenizer(self.request.encoder).count


MakeSource = Callable[[PointTools], PredictPoints]  # of `names.BOUNDARY_SOURCES`


def make_source(name: str, tools: PointTools) -> PredictPoints:
    """Makes the source with this name.

    Raises:
        UsageError: there is no such source.
    """
    make: MakeSource = BOUNDARY_SOURCES.load(name)
    return make(tools)


def none(tools: PointTools) -> PredictPoints:
    """No boundaries."""
    return no_points


def headings(tools: PointTools) -> PredictPoints:
    """Boundaries at Markdown headings."""
    return heading_points


def rule(tools: PointTools) -> PredictPoints:
    """Boundaries at lines that look like headings."""
    return rule_points


def paragraphs(tools: PointTools) -> PredictPoints:
    """Boundaries at the beginning of every paragraph."""
    return paragraph_points


def equal(tools: PointTools) -> PredictPoints:
    """A boundary after every `equal_length` sentences."""
    return equal_points(tools.request.equal_length)


def breakpoint(tools: PointTools) -> PredictPoints:
    """Boundaries where the meaning changes between two sentences."""
    return strategy_points(make_breakpoint(tools.request.breakpoint, tools.show(tools.embedder)))


def linkage(tools: PointTools) -> PredictPoints:
    """Boundaries between groups of sentences that are close in position and meaning."""
    return strategy_points(make_linkage(tools.request.linkage, tools.show(tools.embedder)))


def tagger(tools: PointTools) -> PredictPoints:
    """Boundaries that a tagger predicts."""
    from qrag_jax.models.tagger.predict import make_tagger_points
    from qrag_jax.models.tagger.tagger import load_tagger

    return make_tagger_points(load_tagger(tools.request.tagger), tools.show(tools.embedder))


def llm(tools: PointTools) -> PredictPoints:
    """Boundaries by a language model that names the sentences that begin a part."""
    request, generator, count = tools.request, tools.generator, tools.count
    config = HiChunkConfig(
        window_tokens=_window_tokens(request, generator.window),
        window_lines=request.window_lines,
        max_answer_tokens=request.llm.max_answer_tokens,
        sampling=request.llm.sampling,
        prompts=request.llm.prompts,
    )
    return _asking(
        "llm",
        tools,
        lambda texts: estimate_hichunk(texts, count, config),
        lambda progress, read: make_hichunk(generator, count, config, progress=progress, finished=read),
    )


def lumber(tools: PointTools) -> PredictPoints:
    """Boundaries by a language model that names the first paragraph about another topic."""
    generator, count = tools.generator, tools.count
    config = LumberConfig(sampling=tools.request.llm.sampling, prompts=tools.request.llm.prompts)
    return _asking(
        "lumber",
        tools,
        lambda texts: estimate_lumber(texts, count, config),
        lambda progress, read: make_lumber(generator, count, config, progress=progress, finished=read),
    )


def _asking(
    name: str,
    tools: PointTools,
    estimate: Callable[[Sequence[SentenceText]], Estimate],
    make: Callable[[Progressed | None, Callable[[PointsReading], None]], PredictPoints],
) -> PredictPoints:
    def predict(texts: Sequence[SentenceText]) -> list[list[Point]]:
        expected = estimate(texts)
        if tools.request.estimates:
            raise Estimated(name, expected)
        tools.expected(name, expected)
        readings: list[PointsReading] = []
        try:
            with tools.asking() as progress:
                return make(progress, readings.append)(texts)
        finally:
            for reading in readings:
                tools.read(name, reading)

    return predict


def _window_tokens(request: PointsRequest, window: int | None) -> int:
    """Tokens of lines in a window: as given, or as many as fit next to the prompt and two answers.

    Two, because an unreadable answer is shown to the model again.
    """
    wanted = request.window_tokens
    if window is None:
        return wanted or HiChunkConfig.window_tokens
    room = window - _PROMPT_TOKENS - 2 * request.llm.max_answer_tokens
    least = wanted or 64
    if room < least:
        reason = f"the model's window of {window:,} tokens has room for {max(room, 0):,} next to the prompt and two "
        answers = Arg("max_answer_tokens", f"{request.llm.max_answer_tokens:,}")
        told = (reason, "answers of ", answers, "; lower one of the two")
        raise UsageError(told, field="window_tokens", value=least)
    return wanted or min(HiChunkConfig.window_tokens, room)
