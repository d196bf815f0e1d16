"""The encoder by which a trained run knows chunks, so that a corpus can be embedded for it once and kept."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from qrag_jax.chunking.text.spans import readable
from qrag_jax.models.encoder.embedder import EmbedCounts, make_embedder
from qrag_jax.models.encoder.weights import LoadedEncoder


class ChunkEncoder:
    """Vectors of chunks as a run reads them, on one line. A `types.Encoder`; `QRagRetriever.chunk_encoder` is one."""

    def __init__(self, loaded: LoadedEncoder, window: int, scale: float | None = None) -> None:
        """Wraps an encoder.

        Args:
            loaded: the frozen encoder, or the action tower.
            window: most tokens of a chunk, special tokens counted.
            scale: what vectors are divided by; None for nothing.
        """
        self._embedder = make_embedder(loaded, window=window)
        self._scale = scale

    @property
    def fingerprint(self) -> str:
        """Of the encoder, its window and what its vectors are divided by."""
        found = self._embedder.fingerprint
        return found if self._scale is None else hashlib.sha256(f"{found} {self._scale}".encode()).hexdigest()

    @property
    def counts(self) -> EmbedCounts:
        """What was read so far."""
        return self._embedder.counts

    def __call__(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """Vectors of texts, float32 [n, dim].

        Args:
            progress: called with (texts done, texts in all).
        """
        vectors = self._embedder([one_line(text) for text in texts], progress)
        return vectors if self._scale is None else vectors / np.float32(self._scale)


def one_line(text: str) -> str:
    """The text with its white space collapsed: what an encoder of sentences reads."""
    return " ".join(readable(text).split())
