"""What makes two encoders give the same vectors, as a hash: shape, pooling, weights, tokenizer, window."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from qrag_jax.models.encoder.config import EncoderConfig


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
