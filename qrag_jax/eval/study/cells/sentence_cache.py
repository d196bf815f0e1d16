"""Vectors of sentences on disk, by content and encoder, with what they cost: nothing is embedded twice in a study."""

import hashlib
import io
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, astuple
from pathlib import Path

import numpy as np

from qrag_jax.eval.study.cells.costs import Meter
from qrag_jax.files.reading import read_limited
from qrag_jax.files.vector_files import NPY_ERRORS
from qrag_jax.files.whole_file import write_whole
from qrag_jax.types import InputError

_SUFFIX = ".vectors"


class SentenceCache:
    """One file for each call of an encoder: all of its texts together, their vectors, and what they cost.

    Whole calls are cached, so computed and cached vectors are bit-equal: the last bits of a text's vector depend on
    the other texts of its batch. A file begins with the sha256 of the rest; a damaged file is reported in a warning
    and ignored.

    Attributes:
        folder: made when something is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, fingerprint: str, texts: Sequence[str]) -> tuple[np.ndarray, Meter] | None:
        """Vectors float32 [n, dim] of a call and its cost; None if it is not cached or its file is damaged.

        Args:
            texts: all texts of the call, in order.
        """
        path = self.path(fingerprint, texts)
        if not path.is_file():
            return None
        try:
            return _parse(read_limited(path), path.stem, len(texts))
        except InputError as error:
            warnings.warn(f"{path}: damaged ({error}); its sentences are embedded again", UserWarning, stacklevel=2)
            return None

    def put(self, fingerprint: str, texts: Sequence[str], vectors: np.ndarray, cost: Meter) -> None:
        """Stores the vectors of a call, float32 [n, dim], and its cost."""
        if not np.isfinite(vectors).all():
            raise InputError("vectors: not finite, so none are kept")
        path = self.path(fingerprint, texts)
        write_whole(path, _content(path.stem, vectors, cost))

    def path(self, fingerprint: str, texts: Sequence[str]) -> Path:
        """The file of a call, whether there is one or not."""
        digest = hashlib.sha256(json.dumps([fingerprint, *texts]).encode())
        return self.folder / f"{digest.hexdigest()}{_SUFFIX}"


def _content(key: str, vectors: np.ndarray, cost: Meter) -> bytes:
    """sha256 of the rest, a line of JSON, and the array in NumPy's format."""
    array = io.BytesIO()
    np.save(array, vectors, allow_pickle=False)
    header = json.dumps({"key": key, "cost": asdict(cost)}, allow_nan=False)
    body = header.encode() + b"\n" + array.getvalue()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _parse(content: bytes, key: str, num_texts: int) -> tuple[np.ndarray, Meter]:
    digest, _, body = content.partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise InputError("its sha256 differs")
    header, _, array = body.partition(b"\n")
    try:
        values = json.loads(header)
        vectors = np.load(io.BytesIO(array), allow_pickle=False)
        known, cost = values["key"], Meter(**values["cost"])
    except NPY_ERRORS as error:
        raise InputError(f"not written by this version: {error}") from error
    if known != key or vectors.shape[:1] != (num_texts,) or vectors.ndim != 2 or vectors.dtype != np.float32:
        raise InputError("it contains another call")
    if not np.isfinite(vectors).all() or not all(type(spent) in (int, float) for spent in astuple(cost)):
        raise InputError("its numbers are invalid")
    return vectors, cost
