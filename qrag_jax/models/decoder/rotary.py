"""Rotary positions of decoders (RoPE, Su et al. 2021) and how they are stretched to longer texts.

Component k of a head turns together with component k + head_dim / 2 ("halves", the layout of Hugging Face files) by
`position * frequency[k]`. `models/towers/positions.py` is the other layout, neighbouring pairs, on pooled vectors.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from qrag_jax.models.decoder.config import DecoderConfig, RopeScaling
from qrag_jax.types import InputError


def inverse_frequencies(config: DecoderConfig) -> tuple[np.ndarray, float]:
    """Radians a position for every component pair, and the factor on cosines and sines.

    With `f_k = rope_theta^(-2k / head_dim)`, factor s and original length L0:

    - default: `f_k`; linear (position interpolation): `f_k / s`.
    - yarn (Peng et al. 2023): a mix of `f_k` (more than beta_fast turns over L0) and `f_k / s` (fewer than beta_slow),
      linear in k between; cosines and sines are multiplied by the attention factor.
    - llama3: `f_k` for wavelengths below L0 / high_freq_factor, `f_k / s` above L0 / low_freq_factor, between them a
      mix that is linear in L0 / wavelength.

    Returns:
        float32 [head_dim / 2], computed in float64; and the factor, 1 but for yarn.
    """
    scaling, size = config.rope_scaling, config.head_dim
    frequencies = config.rope_theta ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    kept, factor = float(scaling.kind == "default"), 1.0
    if scaling.kind == "yarn":
        kept = _yarn_kept(config)
        factor = scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1
    elif scaling.kind == "llama3":
        kept = _llama3_kept(scaling, frequencies)
    return (frequencies * (kept + (1 - kept) / scaling.factor)).astype(np.float32), factor


def _yarn_kept(config: DecoderConfig) -> np.ndarray:
    """Share of the unstretched frequency in each pair: 1 for fast pairs, 0 for slow ones, a ramp over k between."""
    scaling, size = config.rope_scaling, config.head_dim
    if config.rope_theta <= 1 or min(scaling.beta_fast, scaling.beta_slow) <= 0:
        raise InputError(
            f"rope scaling yarn: rope_theta {config.rope_theta} must be above 1, beta_fast {scaling.beta_fast} and "
            f"beta_slow {scaling.beta_slow} above 0"
        )

    def pair_with(turns: float) -> float:
        """The k (no whole number) whose frequency makes so many turns over the original length."""
        radians = scaling.original_max_positions / (2 * math.pi * turns)
        return size * math.log(radians) / (2 * math.log(config.rope_theta))

    low, high = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low or 0.001  # a ramp without width would divide by zero
    return 1 - np.clip((np.arange(size // 2) - low) / width, 0, 1)


def _llama3_kept(scaling: RopeScaling, frequencies: np.ndarray) -> np.ndarray:
    turns = scaling.original_max_positions * frequencies / (2 * math.pi)
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return np.clip(share, 0, 1)


def turns_at(
    positions: Int[Array, "B C"], frequencies: np.ndarray, factor: float = 1.0
) -> tuple[Float[Array, "B 1 C pairs"], Float[Array, "B 1 C pairs"]]:
    """Cosines and sines of `position * frequency`, times the factor; float32, shared by all heads and layers."""
    angles = positions.astype(jnp.float32)[:, None, :, None] * jnp.asarray(frequencies, jnp.float32)
    # A loop, because its results are stored: XLA on CPU would compute both anew for every head of every layer.
    cosines, sines = jax.lax.map(lambda of: jnp.where(of, jnp.sin(angles), jnp.cos(angles)), jnp.array([False, True]))
    return cosines * jnp.float32(factor), sines * jnp.float32(factor)
