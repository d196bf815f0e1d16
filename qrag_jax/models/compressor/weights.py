"""A trained compressor as one object, and how that of a run is checked."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.models.compressor.network import KINDS, Kind, shapes
from qrag_jax.types import InputError, UsageError

KIND = "compressor"  # in the metadata of a run
_FORMAT = 1
_FIELDS = {"format": int, "network": str, "dim": int, "hidden": int, "fingerprint": str, "encoder": str}
_FIELDS |= {"trained_on": dict}


@dataclass(frozen=True)
class Compressor:
    """What makes the vector of a parent from those of its children.

    Attributes:
        params: of `network.init`, float32 arrays.
        kind: of the network.
        fingerprint: of the encoder whose vectors it was trained on.
        encoder: where that encoder comes from, as `load_encoder` takes it.
        trained_on: what the documents were, and how it was trained.
    """

    params: Mapping[str, np.ndarray]
    kind: Kind
    fingerprint: str
    encoder: str
    trained_on: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dim(self) -> int:
        """Size of the vectors."""
        return self._sizes[0]

    @property
    def hidden(self) -> int:
        """Units of the inner layers."""
        return self._sizes[1]

    @property
    def identity(self) -> str:
        """Equal for equal vectors of parents: a hash of the network and its parameters."""
        digest = hashlib.sha256(self.kind.encode())
        for name in sorted(self.params):
            digest.update(np.ascontiguousarray(self.params[name], np.float32).tobytes())
        return digest.hexdigest()

    @property
    def _sizes(self) -> tuple[int, int]:
        first = self.params["child" if "child" in self.params else "score_child"]
        return int(first.shape[0]), int(first.shape[1])


def load_compressor(run: str | Path) -> Compressor:
    """The compressor of a run folder of `qrag fit compressor`.

    Raises:
        UsageError: there is no such folder, or the run is none of a compressor.
        InputError: it is damaged.
    """
    path = Path(run)
    if not path.is_dir():
        raise UsageError(f"{path}: no such folder; give one that `qrag fit compressor --out` wrote")
    saved = load_checkpoint(path, groups=lambda about: [KIND] if about.get("kind") == KIND else [])
    about = saved.metadata
    if about.get("kind") != KIND:
        raise UsageError(f"{path}: is no compressor: give a folder that `qrag fit compressor --out` wrote")
    arrays = saved.arrays[KIND]
    if faults := _faults(arrays, about):
        raise InputError(f"{saved.folder}: damaged: {'; '.join(faults)}; copy it again, or train it anew")
    params = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    return Compressor(params, about["network"], about["fingerprint"], about["encoder"], about["trained_on"])


def describe_compressor(compressor: Compressor) -> dict[str, Any]:
    """What there is to a compressor beside its parameters, as JSON values."""
    return {
        "kind": KIND,
        "format": _FORMAT,
        "network": compressor.kind,
        "dim": compressor.dim,
        "hidden": compressor.hidden,
        "fingerprint": compressor.fingerprint,
        "encoder": compressor.encoder,
        "trained_on": dict(compressor.trained_on),
    }


def _faults(arrays: Any, about: Mapping[str, Any]) -> list[str]:
    faults = [f"{name} is no {kind.__name__}" for name, kind in _FIELDS.items() if type(about.get(name)) is not kind]
    if faults:
        return faults
    if about["format"] != _FORMAT:
        return [f"format {about['format']}, this version reads {_FORMAT}"]
    if about["network"] not in KINDS:
        return [f"network {about['network']!r} is none of {', '.join(KINDS)}"]
    wanted = shapes(about["network"], about["dim"], about["hidden"])
    if not isinstance(arrays, Mapping) or set(arrays) != set(wanted):
        return [f"parameters are not {', '.join(wanted)}"]
    for name, shape in wanted.items():
        array = np.asarray(arrays[name])
        if array.shape != shape:
            faults.append(f"{name} is {list(array.shape)} and not {list(shape)}")
        elif array.dtype.kind != "f" or not np.isfinite(array).all():
            faults.append(f"{name} is not finite")
    return faults
