"""Prices that turn a cost into dollars: strict YAML, every field optional; see `configs/study/prices.yaml`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from qrag_jax.config import load_config
from qrag_jax.types import Cost, Generation, check_fields

_EMBED_STAGES = ("embed_sentences", "embed_chunks")  # of `Cost.seconds`
_MILLION = 1e6
_SECONDS_AN_HOUR = 3600
_GIB = 2**30


@dataclass(frozen=True)
class Prices:
    """Prices in dollars; a missing price is 0.

    Attributes:
        currency: of all prices.
        embedder: `own`: the machine of the study embeds; you pay its time by the hour, and tokens are free. `hosted`: a
            service embeds; you pay by the token, and its time is free.
        embedder_per_million_tokens: for `hosted`, including special tokens.
        compute_per_hour: of the machine that chunks and, for `own`, embeds.
        storage_per_gib_month: of the vectors of an index; a GiB is 2^30 bytes.
        storage_months: time that an index is stored.
        prompt_per_million_tokens, completion_per_million_tokens: of the language model that answers.
    """

    currency: Literal["dollars"] = "dollars"
    embedder: Literal["own", "hosted"] = "own"
    embedder_per_million_tokens: float = 0.0
    compute_per_hour: float = 0.0
    storage_per_gib_month: float = 0.0
    storage_months: float = 1.0
    prompt_per_million_tokens: float = 0.0
    completion_per_million_tokens: float = 0.0

    def __post_init__(self) -> None:
        numbers = [name for name, value in vars(self).items() if not isinstance(value, str)]
        check_fields(self, within=dict.fromkeys(numbers, "[0, inf)"))


def load_prices(path: str | Path) -> Prices:
    """Reads a price file."""
    return load_config(Prices, path)


def dollars(cost: Cost, prices: Prices) -> float:
    """A cost in dollars.

        own:     hours of chunking and embedding * compute_per_hour
        hosted:  hours of chunking * compute_per_hour + million tokens embedded * embedder_per_million_tokens
        both:    + GiB of the index * storage_per_gib_month * storage_months
                 + million tokens read and written by the language model * their prices

    Embedding is paid either by the hour or by the token. Other stages of `cost.seconds`, such as waiting for a language
    model, are not paid by the hour.
    """
    seconds = cost.seconds.get("chunk", 0.0)
    if prices.embedder == "hosted":
        embedding = cost.embedder_tokens / _MILLION * prices.embedder_per_million_tokens
    else:
        embedding = 0.0
        seconds += sum(cost.seconds.get(stage, 0.0) for stage in _EMBED_STAGES)
    return (
        embedding
        + seconds / _SECONDS_AN_HOUR * prices.compute_per_hour
        + cost.index_bytes / _GIB * prices.storage_per_gib_month * prices.storage_months
        + cost.prompt_tokens / _MILLION * prices.prompt_per_million_tokens
        + cost.completion_tokens / _MILLION * prices.completion_per_million_tokens
    )


def spent(generations: Sequence[Generation], prices: Prices | None = None) -> Cost:
    """The cost of new calls. Answers from the journal are free; failed calls count the tokens that they used.

    Args:
        prices: of the language model; None gives no dollars.
    """
    paid = [generation for generation in generations if not generation.from_journal]
    cost = Cost(
        prompt_tokens=sum(generation.prompt_tokens for generation in paid),
        completion_tokens=sum(generation.completion_tokens for generation in paid),
    )
    return cost if prices is None else replace(cost, dollars=dollars(cost, prices))
