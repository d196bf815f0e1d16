"""Where a token stands, as RoBERTa and MPNet read it: counted positions and buckets of relative distance."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

NUM_BUCKETS = 32
MAX_DISTANCE = 128


def counted_positions(tokens: Int[Array, "n L"], padding_id: int) -> Int[Array, "n L"]:
    """Rows of the position table: real tokens count on from `padding_id + 1`, padding stays at `padding_id`.

        position_i = padding_id + m_i * sum_{j <= i} m_j,   m_j = [token_j != padding_id]

    A padding token that is written out inside of a text is skipped too, as in transformers.
    """
    real = (tokens != padding_id).astype(tokens.dtype)
    return padding_id + real * jnp.cumsum(real, axis=1)


def relative_buckets(length: int) -> Int[Array, "L L"]:
    """Bucket of the distance from every position (row) to every other (column), in [0, NUM_BUCKETS).

    With h = NUM_BUCKETS / 2 buckets a side and e = h / 2 of them for one distance each, a distance of n backwards has

        bucket = n  if n < e,  else  min(h - 1, e + floor((h - e) * log(n / e) / log(MAX_DISTANCE / e)))

    and forwards h more. The borders are found in whole numbers, so no rounding can move one.
    """
    place = jnp.arange(length)
    ahead = place[None, :] - place[:, None]
    steps = jnp.searchsorted(jnp.asarray(_bucket_borders()), jnp.abs(ahead), side="right")
    return steps + jnp.where(ahead > 0, NUM_BUCKETS // 2, 0)


def _bucket_borders() -> np.ndarray:
    """Smallest distance of each bucket of one side but the first: 1, 2, .., 8, 12, 16, 23, 32, 46, 64, 91."""
    side = NUM_BUCKETS // 2
    exact = side // 2
    far = side - exact
    # n reaches bucket exact + k when (n / exact) ** far >= (MAX_DISTANCE / exact) ** k.
    reaches = lambda n, k: (n**far) * exact**k >= MAX_DISTANCE**k * exact**far  # noqa: E731
    distant = [next(n for n in range(exact, MAX_DISTANCE) if reaches(n, k)) for k in range(1, far)]
    return np.asarray([*range(1, exact + 1), *distant], np.int32)
