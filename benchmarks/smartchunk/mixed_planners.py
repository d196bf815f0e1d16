"""Rows of `mixed_levels.py`: which way of search each takes for every question, chosen on train and dev."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.smartchunk.level_contexts import searched
from benchmarks.smartchunk.mixed_questions import SEED, ways
from qrag_jax.names import RouterMethod
from qrag_jax.search.levels.router import route
from qrag_jax.search.levels.router_training import deal_groups, fit_router, ridge

_STRENGTHS = (0.01, 0.1, 1.0, 10.0)  # of ridges
_NEAREST = 20
_SHARES = (0.0, 0.5, 0.8)  # of a target that is its own, the rest of the nearest questions'
_NUM_FOLDS = 5


@dataclass(frozen=True)
class Mixed:
    """Questions and what every way finds for them at one budget.

    Attributes:
        recall: [questions, ways].
        known: [questions], True in train and dev, on which rows choose.
        vectors, surface, profiles: [questions, numbers] that planners read.
    """

    names: tuple[str, ...]
    kinds: np.ndarray
    groups: np.ndarray
    known: np.ndarray
    recall: np.ndarray
    vectors: np.ndarray
    surface: np.ndarray
    profiles: np.ndarray

    @property
    def alone(self) -> list[int]:
        return self.columns("plain", is_alone=True)

    @property
    def ranges(self) -> list[int]:
        return self.columns("plain")

    @property
    def smooth(self) -> list[int]:
        return [*self.alone, *self.columns("smooth"), *self.columns("deep")]

    @property
    def all(self) -> list[int]:
        return [*self.ranges, *self.columns("smooth"), *self.columns("deep")]

    def columns(self, kind: str, is_alone: bool = False) -> list[int]:
        found = [(place, *name.split()[:2]) for place, name in enumerate(ways(self.names))]
        return [place for place, own, at in found if own == kind and (not is_alone or len(set(at.split(":"))) == 1)]


def surface_features(questions: Sequence[str]) -> np.ndarray:
    """What a question looks like: ln(1 + words), shares of capitals and digits, whether it asks, has a colon, cites."""
    rows = []
    for text in questions:
        words = text.split()
        first = words[0].lower().rstrip("'s") if words else ""
        rows.append(
            [
                np.log1p(len(words)),
                sum(word[0].isupper() for word in words) / max(1, len(words)),
                sum(letter.isdigit() for letter in text) / max(1, len(text)),
                text.rstrip().endswith("?"),
                ":" in text,
                "(" in text,
                text.rstrip().endswith("."),
                text.count("?") > 1,
                first in ("what", "who", "when", "where", "which", "how", "why", "in"),
                first == "compare",
            ]
        )
    return np.array(rows, np.float64)


# --- rows ------------------------------------------------------------------------------------------------------------


def best(mixed: Mixed, columns: Sequence[int], where: np.ndarray) -> int:
    """The column with the highest mean recall over some questions."""
    return columns[int(mixed.recall[where][:, columns].mean(axis=0).argmax())]


def fixed(mixed: Mixed, columns: Sequence[int]) -> np.ndarray:
    return np.full(len(mixed.recall), best(mixed, columns, mixed.known))


def by_kind(mixed: Mixed, columns: Sequence[int], told: np.ndarray) -> np.ndarray:
    """The best column for the kind that is told of each question; best for the true kind, of known questions."""
    own = {kind: best(mixed, columns, mixed.known & (mixed.kinds == kind)) for kind in np.unique(mixed.kinds)}
    return np.array([own[kind] for kind in told])


def classified(mixed: Mixed, features: np.ndarray) -> np.ndarray:
    """The kind of each question, by least squares on one column a kind; of known questions it is that of other folds.

    The strength is the one with which most kinds of other folds are right.
    """
    kinds = np.unique(mixed.kinds)
    targets = (mixed.kinds[:, None] == kinds).astype(np.float64)
    return kinds[_ridged(mixed, features, targets, lambda found, where: targets[where, found[where].argmax(axis=1)])]


def _ridged(
    mixed: Mixed,
    features: np.ndarray,
    targets: np.ndarray,
    worth: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """The best target of each question as a ridge predicts it, with the strength that is worth most on held-out folds.

    Args:
        worth: (predictions of all questions, positions) -> what the best target of each is worth.
    """
    where = np.flatnonzero(mixed.known)
    tried = []
    for strength in _STRENGTHS:
        found = _held_out(mixed, features, targets, strength)
        tried.append((worth(found, where).mean(), found))
    return max(tried, key=lambda one: one[0])[1].argmax(axis=1)


def _held_out(mixed: Mixed, features: np.ndarray, targets: np.ndarray, strength: float) -> np.ndarray:
    """Predictions: of known questions from the other folds, of the rest from all known ones."""
    where = np.flatnonzero(mixed.known)
    folds = deal_groups(mixed.groups[where].tolist(), _NUM_FOLDS, SEED)
    found = np.zeros((len(features), targets.shape[1]))
    for fold in (None, *range(_NUM_FOLDS)):
        train = where if fold is None else where[folds != fold]
        asked = np.flatnonzero(~mixed.known) if fold is None else where[folds == fold]
        mean, scale, weights, bias = ridge(features[train], targets[train], strength)
        found[asked] = bias + ((features[asked] - mean) / scale) @ weights
    return found


def regressed(mixed: Mixed, columns: Sequence[int]) -> np.ndarray:
    """The level with the highest predicted recall; targets are smoothed over the nearest known questions."""
    features = both(mixed)
    near = _nearest(mixed, features)
    recall = mixed.recall[:, columns]

    def worth(found: np.ndarray, where: np.ndarray) -> np.ndarray:
        return recall[where, found[where].argmax(axis=1)]

    tried = []
    for own in _SHARES:
        chosen = _ridged(mixed, features, own * recall + (1 - own) * recall[near].mean(axis=1), worth)
        where = np.flatnonzero(mixed.known)
        tried.append((recall[where, chosen[where]].mean(), chosen))
    return np.array(columns)[max(tried, key=lambda one: one[0])[1]]


def both(mixed: Mixed) -> np.ndarray:
    """Vector and surface, the latter with as much weight as the former."""
    surface = (mixed.surface - mixed.surface.mean(axis=0)) / np.maximum(mixed.surface.std(axis=0), 1e-6)
    return np.concatenate([mixed.vectors, surface], axis=1)


def _nearest(mixed: Mixed, features: np.ndarray) -> np.ndarray:
    """[questions, nearest] known questions, by the surface and the vector in equal parts."""
    unit = features / np.maximum(features.std(axis=0), 1e-6)
    dim = mixed.vectors.shape[1]
    unit[:, dim:] *= np.sqrt(dim / mixed.surface.shape[1])
    where = np.flatnonzero(mixed.known)
    distance = (unit**2).sum(axis=1)[:, None] + (unit[where] ** 2).sum(axis=1) - 2 * unit @ unit[where].T
    return where[np.argsort(distance, axis=1, kind="stable")[:, :_NEAREST]]


def routed(mixed: Mixed, kind: str, method: RouterMethod = "regression") -> np.ndarray:
    """The range that a router chooses."""
    features, where = (mixed.vectors if kind == "vectors" else mixed.profiles), mixed.known
    fitted = fit_router(
        features[where],
        mixed.recall[where][:, mixed.ranges],
        mixed.groups[where].tolist(),
        searched(mixed.names),
        names=mixed.names,
        kind="vectors" if kind == "vectors" else "profiles",
        method=method,
    )
    return np.array(mixed.ranges)[route(fitted.router, features)]


def luckiest(mixed: Mixed) -> np.ndarray:
    return np.array(mixed.alone)[mixed.recall[:, mixed.alone].argmax(axis=1)]


def rows_of(mixed: Mixed) -> dict[str, np.ndarray]:
    """The way of each question in each row."""
    by_vector, by_both = classified(mixed, mixed.vectors), classified(mixed, both(mixed))
    return {
        **{
            f"fixed {mixed.names[level]}": np.full(len(mixed.recall), column)
            for level, column in enumerate(mixed.alone, start=1)
        },
        "dev": fixed(mixed, mixed.alone),
        "range": fixed(mixed, mixed.ranges),
        "smoothed": fixed(mixed, mixed.smooth),
        "router vectors": routed(mixed, "vectors"),
        "router profiles": routed(mixed, "profiles"),
        "router classifier": routed(mixed, "vectors", "classifier"),
        "kind": by_kind(mixed, mixed.alone, mixed.kinds),
        "classifier": by_kind(mixed, mixed.alone, by_vector),
        "classifier surface": by_kind(mixed, mixed.alone, by_both),
        "classifier ranges": by_kind(mixed, mixed.ranges, by_both),
        "regression": regressed(mixed, mixed.alone),
        "smoothed by kind": by_kind(mixed, mixed.all, mixed.kinds),
        "classifier smoothed": by_kind(mixed, mixed.all, by_both),
        "bound": luckiest(mixed),
    }
