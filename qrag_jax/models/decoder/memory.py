"""Memory: the need of a decoder, and an error before a model that does not fit is loaded."""

import math
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
from numpy.typing import DTypeLike

from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.table import decoder_table
from qrag_jax.models.weights.machine import available_bytes
from qrag_jax.types import UsageError


def num_parameters(config: DecoderConfig) -> int:
    """Numbers of all tensors; an output layer that is the embedding table counts once."""
    rows = decoder_table(replace(config, num_layers=1))  # layers are alike, so one is looked at
    return sum(math.prod(row.shape) * (config.num_layers if row.place else 1) for row in rows)


def check_memory(config: DecoderConfig, source: str | Path, dtype: DTypeLike) -> None:
    """Raises an error for a model whose parameters alone do not fit into this machine's memory.

    Never on accelerators, or if the memory is unknown.

    Args:
        source: names it in the error.
        dtype: of the parameters.
    """
    available = available_bytes() if jax.default_backend() == "cpu" else None
    number, size = num_parameters(config), jnp.dtype(dtype).itemsize
    if available is None or number * size <= available:
        return
    raise UsageError(
        f"language model {str(source)!r}: its {number / 1e6:,.0f} million parameters take at least "
        f"{number * size / 1e9:,.2f} GB as {jnp.dtype(dtype).name}, and {available / 1e9:,.2f} GB of memory are "
        f"available: a model that fits has at most {available // size / 1e6:,.0f} million parameters"
    )
