"""Sources of points that ask a language model, as the flags describe them, and what they take."""

import argparse
from collections.abc import Callable, Collection, Sequence

from qrag_jax.annotate.ask_chunks import Estimate, Progressed
from qrag_jax.annotate.hichunk import HiChunkConfig, estimate_hichunk, make_hichunk
from qrag_jax.annotate.lumber import LumberConfig, estimate_lumber, make_lumber
from qrag_jax.annotate.windows import PointsReading
from qrag_jax.chunking.text.chunks import SentenceText
from qrag_jax.chunking.tree.boundaries import Point, PredictPoints
from qrag_jax.cli.llm_flags import llm_config
from qrag_jax.cli.note_readers import Estimated, check_speed, format_estimate, spent_by
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say
from qrag_jax.llm.config import ReadyGenerator
from qrag_jax.llm.prices import Prices
from qrag_jax.models.encoder.sources import find_folder
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.names import BOUNDARY_SOURCES
from qrag_jax.types import CountTokens, UsageError

_OF_WINDOWS = ("window_tokens", "window_lines", "estimate", "tokens_per_second")
_PROMPT_TOKENS = 1_000  # about as many as our prompts have around a window, and a chat template around them

# (source with progress and what hears of its reading, what it takes)
_Made = tuple[Callable[[Progressed, Callable[[PointsReading], None]], PredictPoints],
              Callable[[Sequence[SentenceText]], Estimate]]  # fmt: skip


def make_llm_source(name: str, args: argparse.Namespace, generator: ReadyGenerator) -> PredictPoints:
    """The source of a name that asks a language model; it says what it will take at most, and then what it took.

    Args:
        args: of the command line, with the flags of `add_points_llm_flags`.
        generator: of `make_generator(args)`.

    Returns:
        A source that raises `Estimated` where `--estimate` asks for no more.
    """
    check_speed(args)
    count = generator.count or TextTokenizer.from_file(find_folder(args.model) / "tokenizer.json").count
    make, estimate = {"llm": _hichunk, "lumber": _lumber}[name](args, generator, count)

    def predict(texts: Sequence[SentenceText]) -> list[list[Point]]:
        expected = f"points {name}: {format_estimate(estimate(texts), args)}"
        if args.estimate:
            raise Estimated(expected)
        say(expected)
        told: list[PointsReading] = []
        try:
            with Progress() as progress:
                return make(progress.answered, told.append)(texts)
        finally:
            for reading in told:
                say(f"points {name}: {format_reading(reading, llm_config(vars(args)).load_prices())}")

    return predict


def check_points_llm_flags(args: argparse.Namespace, names: Collection[str]) -> None:
    """Refuses flags of a language model where no source asks one.

    Args:
        names: of all sources that are wanted.
    """
    given = [flag for flag in _OF_WINDOWS if getattr(args, flag) not in (None, False)] + llm_config(vars(args)).given()
    asking = BOUNDARY_SOURCES.choices("llm")
    if given and not set(names) & set(asking):
        raise UsageError(f"--{given[0]}: belongs to points by {' or '.join(asking)}; leave it out")


def format_reading(reading: PointsReading, prices: Prices | None) -> str:
    """One line: what was read, what counts of the answers and what not by reason, and what it took."""
    dropped = ", ".join(f"{number:,} {reason}" for reason, number in sorted(reading.dropped.items()))
    facts = [
        f"{reading.num_texts:,} texts in {reading.num_windows:,} windows",
        f"{reading.num_points:,} points",
        f"{reading.num_rows:,} rows kept",
        f"dropped: {dropped or 'none'}",
        *spent_by(reading.calls, prices),
    ]
    return ", ".join(facts)


def _hichunk(args: argparse.Namespace, generator: ReadyGenerator, count: CountTokens) -> _Made:
    config = HiChunkConfig(
        window_tokens=_window_tokens(args, generator),
        window_lines=args.window_lines,
        max_answer_tokens=args.max_answer_tokens,
        sampling=llm_config(vars(args)).sampling,
        prompts=llm_config(vars(args)).prompts,
    )
    return (
        lambda progress, finished: make_hichunk(generator, count, config, progress=progress, finished=finished),
        lambda texts: estimate_hichunk(texts, count, config),
    )


def _lumber(args: argparse.Namespace, generator: ReadyGenerator, count: CountTokens) -> _Made:
    config = LumberConfig(sampling=llm_config(vars(args)).sampling, prompts=llm_config(vars(args)).prompts)
    return (
        lambda progress, finished: make_lumber(generator, count, config, progress=progress, finished=finished),
        lambda texts: estimate_lumber(texts, count, config),
    )


def _window_tokens(args: argparse.Namespace, generator: ReadyGenerator) -> int:
    """Tokens of lines that a window holds: as given, else as the model has room for beside the prompt and two answers
    (one that cannot be read is shown to it again)."""
    wanted = args.window_tokens
    if generator.window is None:
        return wanted or HiChunkConfig.window_tokens
    room = generator.window - _PROMPT_TOKENS - 2 * args.max_answer_tokens
    least = wanted or 64
    if room < least:
        raise UsageError(
            f"--window_tokens {least}: the model's window of {generator.window:,} tokens has room for {max(room, 0):,} "
            f"beside the prompt and two answers of --max_answer_tokens {args.max_answer_tokens:,}; give fewer of either"
        )
    return wanted or min(HiChunkConfig.window_tokens, room)
