"""Routers: linear planners on the question's vector, or on the profile of a first cheap search.

    s = bias + weights^T ((x - mean) / scale)
    plan = argmax_i s_i   where   s_best - s_fallback > margin,   else the fallback

The scores s of a regression are the evidence recall that it predicts for every range; those of a classifier are logits
of the range that is best (`router_training.py`). The fallback is the best fixed range for the training questions, so a
router that has learned nothing uses that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.tree.level_ranges import LevelRange, format_levels, parse_levels
from qrag_jax.names import FEATURES, FeaturesName
from qrag_jax.search.corpus import check_fingerprint, embed_texts
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.search.levels.planners import Planner, Plans, check_levels
from qrag_jax.search.levels.profiles import profile_names, score_profiles
from qrag_jax.types import Embed, InputError, UsageError, for_questions

KIND = "router"  # in the metadata of a run
_FORMAT = 1
_ARRAYS = ("mean", "scale", "weights", "bias")


@dataclass(frozen=True)
class Router:
    """A linear router; see the module.

    Attributes:
        features: the kind of its input.
        names: of the levels, the coarsest first.
        ranges: that it chooses from.
        fallback: position of the fixed range among them.
        margin: least predicted gain that replaces the fallback; infinite never does.
        mean, scale: float64 [features] of the training questions.
        weights: float64 [features, ranges].
        bias: float64 [ranges].
        fingerprint: of the encoder of the questions and the corpus.
    """

    features: FeaturesName
    names: tuple[str, ...]
    ranges: tuple[LevelRange, ...]
    fallback: int
    margin: float
    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    fingerprint: str = ""


def predict_recall(router: Router, features: Float[np.ndarray, "n f"]) -> Float[np.ndarray, "n r"]:
    """`r` of the module for every question and range; not limited to [0, 1]."""
    if features.shape[1:] != router.mean.shape:
        raise InputError(
            f"router: reads {len(router.mean)} numbers of a question, got {features.shape[1]}; use the encoder and "
            "the levels that it was trained with"
        )
    return router.bias + ((features - router.mean) / router.scale) @ router.weights


def choose_ranges(
    predicted: Float[np.ndarray, "n r"], fallback: int | Int[np.ndarray, " n"], margin: float
) -> Int[np.ndarray, " n"]:
    """The position of the range of every question: the best one if its predicted gain exceeds the margin."""
    best, rows = predicted.argmax(axis=1), np.arange(len(predicted))
    gain = predicted[rows, best] - predicted[rows, fallback]
    return np.where(gain > margin, best, fallback)


def route(router: Router, features: Float[np.ndarray, "n f"]) -> Int[np.ndarray, " n"]:
    """Positions among the router's ranges of the range of every question."""
    return choose_ranges(predict_recall(router, features), router.fallback, router.margin)


def make_planner(router: Router, index: LevelIndex, embed: Embed) -> Planner:
    """The planner of a router.

    Args:
        router: from `load_router` or `router_training.fit_router`.
        index: the index to search; a router on profiles first searches it once at each level.
    """
    check_levels(router.names, index.names, "router")
    check_fingerprint(index.corpus, router.fingerprint, "the router")

    def plan(questions: Sequence[str], heads: Sequence[str]) -> Plans:
        vectors = embed_texts(for_questions(embed), questions)
        features = vectors if router.features == "vectors" else score_profiles(index, questions, vectors)
        return Plans([router.ranges[place] for place in route(router, features).tolist()])

    return plan


def save_router(router: Router, run: str | Path, config: Mapping[str, Any] | None = None) -> Path:
    """Writes a router as a run folder, complete or not at all."""
    from qrag_jax.checkpoint import save_checkpoint  # imports JAX, which nothing else here needs

    about = {
        "kind": KIND,
        "format": _FORMAT,
        "features": router.features,
        "names": list(router.names),
        "ranges": [format_levels(one, router.names) for one in router.ranges],
        "fallback": router.fallback,
        "margin": router.margin if np.isfinite(router.margin) else None,  # JSON has no infinity
        "fingerprint": router.fingerprint,
    }
    arrays = {name: np.asarray(getattr(router, name), np.float64) for name in _ARRAYS}
    return save_checkpoint(run, 0, {KIND: arrays}, dict(config or {}), metadata=about)


def load_router(run: str | Path) -> Router:
    """Loads the router of a run folder.

    Args:
        run: folder that `qrag train router --out` wrote.
    """
    from qrag_jax.checkpoint import load_checkpoint  # as in `save_router`

    if not Path(run).is_dir():
        raise UsageError(f"{run}: no such folder; give one that `qrag train router --out` wrote")
    saved = load_checkpoint(run, groups=lambda about: [KIND] if about.get("kind") == KIND else [])
    if saved.metadata.get("kind") != KIND:
        raise UsageError(f"{run}: not a router; give a folder that `qrag train router --out` wrote")
    return _checked(saved.arrays[KIND], saved.metadata, str(saved.folder))


def _checked(arrays: Mapping[str, Any], about: Mapping[str, Any], where: str) -> Router:
    """The router of values that may be anything."""
    try:
        if about["format"] != _FORMAT or about["features"] not in FEATURES:
            raise InputError(f"format {about['format']!r}, features {about['features']!r}: of another version")
        names = tuple(str(name) for name in about["names"])
        ranges = tuple(parse_levels(text, names) for text in about["ranges"])
        margin = np.inf if about["margin"] is None else float(about["margin"])
        router = Router(
            about["features"],
            names,
            ranges,
            int(about["fallback"]),
            margin,
            *(np.asarray(arrays[name], np.float64) for name in _ARRAYS),
            fingerprint=str(about.get("fingerprint", "")),
        )
        faults = list(_faults(router))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{where}: damaged ({error}); copy it again, or train it again") from error
    if faults:
        raise InputError(f"{where}: damaged ({'; '.join(faults)}); copy it again, or train it again")
    return router


def _faults(router: Router) -> list[str]:
    num_features, num_ranges = len(router.mean), len(router.ranges)
    if router.features == "profiles" and num_features != len(profile_names(router.names)):
        return [f"{num_features} numbers of a profile, expected {len(profile_names(router.names))}"]
    shapes = {"mean": (num_features,), "scale": (num_features,), "weights": (num_features, num_ranges)}
    shapes["bias"] = (num_ranges,)
    faults = [f"{name} is not {list(shape)}" for name, shape in shapes.items() if getattr(router, name).shape != shape]
    faults += [f"{name} is not finite" for name in _ARRAYS if not np.isfinite(getattr(router, name)).all()]
    faults += ["scale is not positive"] if not (router.scale > 0).all() else []
    faults += [] if 0 <= router.fallback < num_ranges else [f"fallback {router.fallback} of {num_ranges} ranges"]
    return [*faults, *([] if router.margin >= 0 else [f"margin {router.margin}"])]
