"""The cost of a strategy: a meter of an encoder's work, its FLOPs by formula, and `Cost`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qrag_jax.llm.prices import Prices, dollars
from qrag_jax.models.encoder.config import EncoderConfig
from qrag_jax.types import Cost


@dataclass
class Meter:
    """The cost of embedding so far; `StudyEncoder` adds to it.

    Attributes:
        seconds: wall time of embedding, as if nothing had been cached.
        tokens: read by the encoder, special tokens counted, padding not.
        flops: as `encoder_flops`.
        num_texts: that the encoder read.
        num_texts_cut: of these, longer than the window, so that only their beginning was read.
        waited: seconds that passed in fact, with reads and writes of a cache; a clock around the caller subtracts
            them.
    """

    seconds: float = 0.0
    tokens: int = 0
    flops: float = 0.0
    num_texts: int = 0
    num_texts_cut: int = 0
    waited: float = 0.0

    def add(self, other: "Meter") -> None:
        """Adds all that another meter holds."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def encoder_flops(config: EncoderConfig, lengths: Sequence[int] | np.ndarray) -> float:
    """FLOPs of the forward passes over texts of these numbers of tokens, with special tokens and without padding.

        sum over texts of num_layers * (2 L (4 d^2 + 2 d f) + 4 L^2 d)

    with L tokens, d the hidden and f the intermediate size. A multiplication and an addition are two: 4 d^2 of them a
    token are those of queries, keys, values and their output, 2 d f those of the feed-forward part; L^2 d are those of
    scores, and again of their weighted sums. As usual, embeddings, norms, activations and pooling are left out.
    """
    tokens = np.asarray(lengths, np.float64)
    d, f = config.hidden_size, config.intermediate_size
    return float(config.num_layers * (2 * tokens.sum() * (4 * d**2 + 2 * d * f) + 4 * np.square(tokens).sum() * d))


def make_cost(chunk_seconds: float, sentence_meter: Meter, chunk_meter: Meter, index_bytes: int) -> Cost:
    """The cost of chunking documents and embedding their chunks, as if the strategy had run alone.

    Args:
        chunk_seconds: wall time of chunking, without embedding (`Meter.waited` taken off).
        sentence_meter: of the embedding that finds boundaries.
        chunk_meter: of the vectors of its chunks.

    Returns:
        With `seconds` by "chunk", "embed_sentences" and "embed_chunks", without dollars.
    """
    return Cost(
        seconds={
            "chunk": chunk_seconds,
            "embed_sentences": sentence_meter.seconds,
            "embed_chunks": chunk_meter.seconds,
        },
        embedder_tokens=sentence_meter.tokens + chunk_meter.tokens,
        flops=sentence_meter.flops + chunk_meter.flops,
        index_bytes=index_bytes,
    )


def with_dollars(cost: Cost, prices: Prices | None) -> Cost:
    """The same cost with `dollars` by a price list; None without one."""
    return replace(cost, dollars=None if prices is None else dollars(cost, prices))
