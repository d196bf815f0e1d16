"""What a study needs of an embedder, and the fingerprint of its encoder."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

import numpy as np

from qrag_jax.models.encoder_config import EncoderConfig

Progress = Callable[[int, int], None]


@runtime_checkable
class Counts(Protocol):
    """What an embedder has read, as `models.embedder.EmbedCounts`."""

    @property
    def num_texts(self) -> int:
        """Rows that were encoded."""
        ...

    @property
    def num_tokens(self) -> int:
        """Their tokens, special ones counted."""
        ...

    @property
    def num_texts_cut(self) -> int:
        """Rows that lost tokens at the window."""
        ...


@runtime_checkable
class Embedder(Protocol):
    """What `models.embedder.TextEmbedder` offers, and a study needs."""

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


def encoder_fingerprint(config: EncoderConfig, params: Mapping[str, Any], tokenizer_json: str, window: int) -> str:
    """sha256, in hex, over all that decides on an encoder's vectors.

    Args:
        config: shape, pooling and whether vectors are scaled.
        params: nested dicts of arrays; their names, shapes, types and bytes count.
        tokenizer_json: content of its `tokenizer.json`.
        window: most tokens that are read at once.
    """
    digest = hashlib.sha256(json.dumps([asdict(config), tokenizer_json, window]).encode())
    for name, leaf in _leaves(params):
        array = np.ascontiguousarray(leaf)
        digest.update(json.dumps([name, list(array.shape), str(array.dtype)]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _leaves(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Arrays of nested dicts by their path, in the order of the names."""
    for name in sorted(params):
        path = f"{prefix}/{name}"
        if isinstance(params[name], Mapping):
            yield from _leaves(params[name], path)
        else:
            yield path, params[name]
