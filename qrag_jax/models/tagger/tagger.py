"""A trained tagger as one object: the packaged one, one of a run folder, and how both are checked and kept.

The tagger's model: softmax regression over none and the levels of a section, on features and hashed cues.
"""

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.files.reading import read_limited
from qrag_jax.files.whole_file import write_whole
from qrag_jax.models.tagger.features import Basis
from qrag_jax.models.tagger.surface import NUM_CUES
from qrag_jax.types import InputError, UsageError

NUM_LEVELS = 3  # deeper ones count as the deepest
NUM_CLASSES = NUM_LEVELS + 1  # class 0: no section begins
Params = dict[str, Any]


def init(num_features: int, num_columns: int = NUM_CLASSES, num_cues: int = NUM_CUES) -> Params:
    """Parameters that prefer no class: all are zero. The problem is convex, so no draw is needed.

    Args:
        num_columns: classes; or those of several taggers that are trained side by side.
    """
    return {
        "weights": jnp.zeros((num_features, num_columns)),
        "cues": jnp.zeros((num_cues, num_columns)),
        "bias": jnp.zeros(num_columns),
    }


def scores(
    params: Params, features: Float[Array, "gaps features"], cues: Int[Array, "gaps cues"]
) -> Float[Array, "gaps columns"]:
    """Before the softmax:  z = x W + sum of the rows of its cues + b."""
    return features @ params["weights"] + params["cues"][cues].sum(axis=1) + params["bias"]


def tag(
    params: Params, features: Float[Array, "gaps features"], cues: Int[Array, "gaps cues"]
) -> Float[Array, "gaps classes"]:
    """Log-probabilities that no section begins after a gap (class 0), or one of level 1, 2, 3.

    Args:
        params: of `init`.
    """
    return jax.nn.log_softmax(scores(params, features, cues))


KIND = "tagger"  # in the metadata of a run
_FORMAT = 1
_ABOUT = "about"  # the JSON beside the arrays of a file
_BASIS, _PARAMS = ("centre", "components", "mean", "std"), ("weights", "cues", "bias")
_AXES = {
    "centre": ("dim",), "components": ("dim", "components"), "mean": ("features",), "std": ("features",),
    "weights": ("features", "classes"), "cues": ("cues", "classes"), "bias": ("classes",),
}  # fmt: skip
_HALF = ("components", "weights", "cues")  # kept in 16 bits in a file, or it would be twice as large
_MAX_BYTES = 2**24


@dataclass(frozen=True)
class Tagger:
    """Finds the sections of texts from the vectors of one encoder.

    Attributes:
        params: of `network.init`, float32 arrays.
        basis: of the features.
        threshold: a section begins where the probability that one does is above it, in (0, 1).
        fingerprint: of the encoder whose vectors it was trained on.
        encoder: where that encoder comes from, as `load_encoder` takes it.
        trained_on: description of the documents.
    """

    params: Mapping[str, np.ndarray]
    basis: Basis
    threshold: float
    fingerprint: str
    encoder: str
    trained_on: Mapping[str, Any] = field(default_factory=dict)


def load_tagger(source: str | Path | None = None) -> Tagger:
    """A tagger of a run, or the one that comes with the package.

    Args:
        source: run folder of `qrag train tagger`, or a file of `save_tagger`; None is the packaged one, trained on
            papers and encyclopedia articles with vectors of `minilm`.

    Raises:
        UsageError: there is no such folder or file, or the run is no tagger.
        InputError: it is damaged.
    """
    if source is None:
        packaged = resources.files("qrag_jax.models.tagger") / "default" / "tagger.npz"
        return _from_file(packaged.read_bytes(), "the packaged tagger")
    path = Path(source)
    if path.is_file():
        return _from_file(read_limited(path, _MAX_BYTES), str(path))
    if not path.exists():
        raise UsageError("no such folder or file; give a folder that `qrag train tagger --out` wrote", file=path)
    saved = load_checkpoint(path, groups=lambda about: [KIND] if about.get("kind") == KIND else [])
    if saved.metadata.get("kind") != KIND:
        raise UsageError("is not a tagger: give a folder that `qrag train tagger --out` wrote", file=path)
    return _checked(saved.arrays[KIND], saved.metadata, str(saved.folder))


def tagger_arrays(tagger: Tagger) -> dict[str, np.ndarray]:
    """All that a tagger has learned, by name."""
    return asdict(tagger.basis) | {name: np.asarray(tagger.params[name]) for name in _PARAMS}


def describe_tagger(tagger: Tagger) -> dict[str, Any]:
    """The other fields of a tagger, as JSON values."""
    known = {"kind": KIND, "format": _FORMAT, "threshold": tagger.threshold, "fingerprint": tagger.fingerprint}
    return known | {"encoder": tagger.encoder, "trained_on": dict(tagger.trained_on)}


def tagger_sha256(tagger: Tagger) -> str:
    """Identifies a tagger: hexadecimal digest of its learned values, without the description of its training data."""
    digest = hashlib.sha256(f"{tagger.fingerprint} {tagger.threshold!r}".encode())
    for name, array in sorted(tagger_arrays(tagger).items()):
        digest.update(f"{name} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array, "<f4").tobytes())
    return digest.hexdigest()


def save_tagger(tagger: Tagger, path: str | Path) -> None:
    """Writes a tagger as one small file: large arrays in 16 bits, and the same bytes for the same tagger."""
    about = json.dumps(describe_tagger(tagger), sort_keys=True, ensure_ascii=False, allow_nan=False)
    arrays: dict[str, np.ndarray] = {_ABOUT: np.frombuffer(about.encode(), np.uint8)}
    for name, array in tagger_arrays(tagger).items():
        arrays[name] = array.astype(np.float16 if name in _HALF else np.float32)
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_whole(Path(path), content.getvalue())


def _from_file(content: bytes, where: str) -> Tagger:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            if sum(one.file_size for one in packed.infolist()) > _MAX_BYTES:
                raise InputError("damaged (larger than any tagger): copy it again", file=where)
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        about = json.loads(arrays.pop(_ABOUT).tobytes())
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, OSError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"damaged, or not a file of a tagger ({error}): copy it again", file=where) from error
    return _checked(arrays, about, where)


def _checked(arrays: Mapping[str, Any], about: Any, where: str) -> Tagger:
    """The tagger from the values of a file, which may be arbitrary."""
    if faults := _faults(arrays, about):
        raise InputError(f"damaged: {'; '.join(faults)}; copy it again, or train it again", file=where)
    read = {name: np.asarray(arrays[name], np.float32) for name in _AXES}
    return Tagger(
        {name: read[name] for name in _PARAMS},
        Basis(*(read[name] for name in _BASIS)),
        float(about["threshold"]),
        about["fingerprint"],
        about["encoder"],
        about["trained_on"],
    )


def _faults(arrays: Mapping[str, Any], about: Any) -> list[str]:
    kinds = {"format": int, "threshold": float, "fingerprint": str, "encoder": str, "trained_on": dict}
    if not isinstance(about, dict) or about.get("kind") != KIND:
        return ["does not say that it is a tagger"]
    faults = [f"{name} is not a {kind.__name__}" for name, kind in kinds.items() if type(about.get(name)) is not kind]
    if not faults and about["format"] != _FORMAT:
        faults.append(f"format {about['format']}, this version reads {_FORMAT}")
    if not faults and not 0 < about["threshold"] < 1:
        faults.append(f"threshold {about['threshold']} is not in (0, 1)")
    if missing := [name for name in _AXES if name not in arrays]:
        return [*faults, f"{', '.join(missing)} missing"]
    sizes = {"classes": NUM_CLASSES, "cues": NUM_CUES}  # of axes; others are what the first array with one has
    for name, axes in _AXES.items():
        array = np.asarray(arrays[name])
        needed = [sizes.setdefault(axis, size) for axis, size in zip(axes, array.shape, strict=False)]
        if array.ndim != len(axes) or [*array.shape] != needed:
            faults.append(f"{name} is {[*array.shape]} and not {needed} ({', '.join(axes)})")
        elif array.dtype.kind != "f" or not np.isfinite(array).all():
            faults.append(f"{name} is not finite")
        elif name == "std" and not (array > 0).all():
            faults.append("std is not positive")
    return faults
