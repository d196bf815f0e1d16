"""The encoder of the chunks of a trained run: a corpus is embedded with it once and kept."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from qrag_jax.chunking.text.spans import readable
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.weights import LoadedEncoder
from qrag_jax.types import TextCounts


class ChunkEncoder:
    """Embeds chunks, each joined to one line, as a run reads them. A `types.Encoder`, given by
    `QRagRetriever.chunk_encoder`."""

    def __init__(self, loaded: LoadedEncoder, window: int, scale: float | None = None) -> None:
        """Wraps an encoder.

        Args:
            loaded: the frozen encoder, or the action tower.
            window: most tokens of a chunk, special tokens counted.
            scale: divisor of the vectors; None leaves them unchanged.
        """
        self._embedder = make_embedder(loaded, window=window)
        self._scale = scale

    @property
    def fingerprint(self) -> str:
        """Digest of the encoder, its window and its scale."""
        found = self._embedder.fingerprint
        return found if self._scale is None else hashlib.sha256(f"{found} {self._scale}".encode()).hexdigest()

    @property
    def counts(self) -> TextCounts:
        """Numbers of texts and tokens read so far."""
        return self._embedder.counts

    def __call__(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """Vectors of texts, float32 [n, dim].

        Args:
            progress: called with (texts done, texts in all).
        """
        vectors = self._embedder([one_line(text) for text in texts], progress)
        return vectors if self._scale is None else vectors / np.float32(self._scale)


def one_line(text: str) -> str:
    """The text with each run of white space replaced by one space."""
    return " ".join(readable(text).split())
