"""What a study needs of an embedder."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from qrag_jax.types import Counts

Progress = Callable[[int, int], None]


@runtime_checkable
class Embedder(Protocol):
    """What `models.encoder.embedder.TextEmbedder` offers, and a study needs."""

    dim: int
    window: int

    @property
    def lengths(self) -> Sequence[int]:
        """Lengths that rows are padded to, the longest of them `window`."""
        ...

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
