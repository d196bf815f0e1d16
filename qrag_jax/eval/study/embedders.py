"""What a study needs of an embedder, and the lengths that it pads to."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from qrag_jax.types import Counts

Progress = Callable[[int, int], None]


@runtime_checkable
class Embedder(Protocol):
    """What `models.embedder.TextEmbedder` offers, and a study needs."""

    dim: int
    window: int

    @property
    def counts(self) -> Counts:
        """What was read so far."""
        ...

    def __call__(self, texts: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """Vectors of texts, float32 [n, dim]."""
        ...

    def tokens(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of the tokens of a text, as `types.EmbedTokens`."""
        ...

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, special tokens not counted."""
        ...


def padded_lengths(window: int) -> list[int]:
    """Lengths that rows are padded to, below a window and at it: 2^n and 3 * 2^n from 8 on, as in `models.embedder`."""
    sizes = {8 * factor * 2**power for factor in (1, 3) for power in range(window.bit_length())}
    return [*sorted(size for size in sizes if size < window), window]
