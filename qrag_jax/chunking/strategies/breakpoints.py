"""Breakpoint chunking: a new chunk begins where the distance of neighbouring sentences, or its slope, is very large.

The four relative thresholds are those of LangChain's SemanticChunker; the two absolute ones are those of "Is Semantic
Chunking Worth the Computational Cost?" (appendix B).
"""

import math
from dataclasses import dataclass

import numpy as np

from qrag_jax.chunking.strategies.distances import neighbour_distances, sentence_vectors
from qrag_jax.chunking.strategies.kind import ChunkerKind
from qrag_jax.chunking.text.chunks import Group, SentenceText, Strategy, groups_of
from qrag_jax.names import THRESHOLDS, Threshold
from qrag_jax.types import Embed, UsageError, check_fields

# The relative ones are LangChain's defaults, the absolute ones the largest of the paper's grids (the fewest breaks).
_DEFAULT_VALUES: dict[Threshold, float] = {
    "percentile": 95.0,
    "standard_deviation": 3.0,
    "interquartile": 1.5,
    "gradient": 95.0,
    "absolute": 0.5,
    "absolute_gradient": 0.2,
}


@dataclass(frozen=True)
class BreakpointConfig:
    """Settings of the places where a text is broken; `x > threshold` is strict for all six.

    Attributes:
        threshold: which values are compared, for the cosine distances d of consecutive sentences.
            `percentile`: d with the value-th percentile of d (linear interpolation);
            `standard_deviation`: d with mean(d) + value * std(d) (population);
            `interquartile`: d with mean(d) + value * (75th - 25th percentile of d);
            `gradient`: g with the value-th percentile of g, the gradient of d by central differences;
            `absolute`: d with the value; `absolute_gradient`: |g| with the value.
        value: percentile in [0, 100], factor or distance; None is 95, 3, 1.5, 95, 0.5 and 0.2 in the order above.
            Choose a distance for your embedder: 0.5 is far for one and near for another.
        window: number of neighbours on each side that are embedded together with a sentence. 0, as in the paper, embeds
            single sentences; LangChain's default is 1.
    """

    threshold: Threshold = "percentile"
    value: float | None = None
    window: int = 0


def make_breakpoint(config: BreakpointConfig, embed: Embed) -> Strategy:
    """Chunks of consecutive sentences, broken where the embeddings of neighbours differ most."""
    value = _checked_value(config)

    def strategy(text: SentenceText) -> list[Group]:
        distances = neighbour_distances(sentence_vectors(embed, windowed_texts(text, config.window)))
        breaks = find_breaks(distances, config.threshold, value)
        return groups_of(text, np.split(np.arange(len(text)), breaks + 1))

    return strategy


def _checked_value(config: BreakpointConfig) -> float:
    if config.threshold not in THRESHOLDS:
        raise UsageError(f"breakpoint.threshold {config.threshold!r}: choose one of {', '.join(THRESHOLDS)}")
    check_fields(config, "breakpoint", at_least={"window": 0})
    value = _DEFAULT_VALUES[config.threshold] if config.value is None else float(config.value)
    if not math.isfinite(value):
        raise UsageError(f"breakpoint.value {value}: give a finite number, or leave it out for the default")
    if config.threshold in ("percentile", "gradient") and not 0 <= value <= 100:
        raise UsageError(f"breakpoint.value {value}: {config.threshold} takes a percentile from 0 to 100")
    if config.threshold in ("absolute", "absolute_gradient") and value < 0:
        raise UsageError(f"breakpoint.value {value}: {config.threshold} takes a distance, at least 0")
    return value


def windowed_texts(text: SentenceText, window: int) -> list[str]:
    """Every sentence with `window` neighbours on each side (fewer at the ends), as written in the document."""
    spans = text.sentences
    last = len(spans) - 1
    return [
        text.text[spans[max(i - window, 0)][0] : spans[min(i + window, last)][1]] for i in range(len(spans))
    ]  # fmt: skip


def find_breaks(distances: np.ndarray, threshold: Threshold, value: float) -> np.ndarray:
    """The places where a text is broken, by the definitions of `BreakpointConfig`.

    Args:
        distances: float [n - 1] of consecutive sentences.
        threshold: see `BreakpointConfig`.
        value: its percentile, factor or distance.

    Returns:
        int64, ascending: i for a break between sentences i and i + 1. One distance has no gradient and never exceeds
        its own percentile or mean, so only `absolute` can cut a text of two sentences.
    """
    if not len(distances):
        return np.zeros(0, np.int64)
    compared = distances
    if threshold in ("gradient", "absolute_gradient"):
        compared = np.gradient(distances) if len(distances) > 1 else np.zeros(1)
    if threshold == "absolute_gradient":
        compared = np.abs(compared)
    if threshold in ("percentile", "gradient"):
        limit = np.percentile(compared, value)
    elif threshold == "standard_deviation":
        limit = np.mean(compared) + value * np.std(compared)
    elif threshold == "interquartile":
        lower, upper = np.percentile(compared, [25, 75])
        limit = np.mean(compared) + value * (upper - lower)
    else:
        limit = value
    return np.flatnonzero(compared > limit)


KIND = ChunkerKind(BreakpointConfig, lambda config, tools: make_breakpoint(config, tools.embed))
