"""Sources of boundaries (points) of documents, by their names in `names.BOUNDARY_SOURCES`."""

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
from qrag_jax.models.encoder.sources import find_folder
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.names import BOUNDARY_SOURCES
from qrag_jax.types import CountTokens, Encoder, UsageError

if TYPE_CHECKING:  # it imports JAX, and most sources read no vectors
    from qrag_jax.models.encoder.embedder import TextEmbedder

_PROMPT_TOKENS = 1_000  # about as many as our prompts have around a window, and a chat template around them


@dataclass(frozen=True)
class PointsRequest:
    """How sources find points; each reads what is its own.

    Attributes:
        encoder: of those that read vectors; its tokenizer counts where a language model does not.
        tagger: run folder of a tagger; None is the packaged one.
        equal_length: of equal: sentences of a part.
        breakpoint, linkage: of these.
        llm: the language model of those that ask one.
        window_tokens: llm: of sentences shown at a time; None: 16,384, or what the model has room for.
        window_lines: llm: the most sentences shown at a time; None is no limit.
        estimates: ask nothing, and raise `Estimated` in place of it.
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
    """The models that sources share, each loaded when it is first needed, and the listeners of their work.

    Attributes:
        request: how they find points.
        show: wraps the encoder in what shows that it is at work.
        asking: a context around the calls of a language model, which gives what is told of each.
        expected: told what a source that asks one will take at most.
        read: told what it took.
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
        """Tokens as the language model counts them, or else the encoder."""
        own = self.generator.count
        return own or TextTokenizer.from_file(find_folder(self.request.encoder) / "tokenizer.json").count


MakeSource = Callable[[PointTools], PredictPoints]  # of `names.BOUNDARY_SOURCES`


def make_source(name: str, tools: PointTools) -> PredictPoints:
    """The source of a name."""
    make: MakeSource = BOUNDARY_SOURCES.load(name)
    return make(tools)


def none(tools: PointTools) -> PredictPoints:
    """No point at all."""
    return no_points


def headings(tools: PointTools) -> PredictPoints:
    """The headings of Markdown."""
    return heading_points


def rule(tools: PointTools) -> PredictPoints:
    """Lines that look like headings."""
    return rule_points


def paragraphs(tools: PointTools) -> PredictPoints:
    """Every start of a paragraph."""
    return paragraph_points


def equal(tools: PointTools) -> PredictPoints:
    """A point after so many sentences."""
    return equal_points(tools.request.equal_length)


def breakpoint(tools: PointTools) -> PredictPoints:
    """A point where the next sentence means something else."""
    return strategy_points(make_breakpoint(tools.request.breakpoint, tools.show(tools.embedder)))


def linkage(tools: PointTools) -> PredictPoints:
    """A point where sentences end that are near in text and meaning."""
    return strategy_points(make_linkage(tools.request.linkage, tools.show(tools.embedder)))


def tagger(tools: PointTools) -> PredictPoints:
    """A point where a tagger predicts one."""
    from qrag_jax.models.tagger.predict import make_tagger_points
    from qrag_jax.models.tagger.tagger import load_tagger

    return make_tagger_points(load_tagger(tools.request.tagger), tools.show(tools.embedder))


def llm(tools: PointTools) -> PredictPoints:
    """A language model that names the sentences which begin a part."""
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
    """A language model that names the first paragraph about another matter."""
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
    """Tokens of lines that a window holds: as given, else as the model has room for beside the prompt and two answers
    (one that cannot be read is shown to it again)."""
    wanted = request.window_tokens
    if window is None:
        return wanted or HiChunkConfig.window_tokens
    room = window - _PROMPT_TOKENS - 2 * request.llm.max_answer_tokens
    least = wanted or 64
    if room < least:
        reason = f"the model's window of {window:,} tokens has room for {max(room, 0):,} beside the prompt and two "
        answers = Arg("max_answer_tokens", f"{request.llm.max_answer_tokens:,}")
        told = (reason, "answers of ", answers, "; give fewer of either")
        raise UsageError(told, field="window_tokens", value=least)
    return wanted or min(HiChunkConfig.window_tokens, room)
