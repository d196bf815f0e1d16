"""Training of a router on the evidence recall of every range, with a limit on possible losses.

    regression   weights = argmin_W |Y - Z W|^2 + strength * n * |W|^2      Z standardised, Y [n, ranges] centred
    classifier   weights = argmin_W -sum_q sum_i t_qi log softmax(b + W^T z_q)_i + strength * n * |W|^2 / 2

A target t_q spreads 1 evenly over the ranges with the most recall; a question with the same recall in all ranges has
none and is left out.

Strength and margin are chosen by cross-validation on the recall of the chosen ranges; groups of questions (of one
document) are held out together. A router leaves the fallback only if that gains more than one standard error over the
fallback on the same folds; otherwise its margin is infinite.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.tree.level_ranges import LevelRange, all_ranges
from qrag_jax.names import FeaturesName, RouterMethod
from qrag_jax.search.levels.router import Router, choose_ranges
from qrag_jax.types import InputError

_STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
_MARGINS: Mapping[RouterMethod, tuple[float, ...]] = {  # of recall; of log odds
    "regression": (0.0, 0.01, 0.02, 0.05, 0.1),
    "classifier": (0.0, 0.25, 0.5, 1.0, 2.0),
}
_NEVER = -1e3  # bias of a range that is best for no question
_NUM_FOLDS = 5
_MIN_SCALE = 1e-9  # of a number that is the same for all questions


@dataclass(frozen=True)
class FittedRouter:
    """A router and the results of its cross-validation.

    Attributes:
        router: trained on all questions.
        strength: of the penalty on weights.
        held_out: mean recall of the ranges chosen for held-out questions.
        fallback_held_out: mean recall of the best fixed range of the other folds, on the same questions.
        n: number of questions.
    """

    router: Router
    strength: float
    held_out: float
    fallback_held_out: float
    n: int


def deal_groups(groups: Sequence[str], num_folds: int, seed: int) -> Int[np.ndarray, " n"]:
    """The fold of every question: groups in random order, each into the fold with the fewest questions so far.

    Args:
        groups: the group of each question; a group stays in one fold.
        num_folds: from 2 to the number of groups.
        seed: of the order.
    """
    names, place, sizes = np.unique(np.array(groups), return_inverse=True, return_counts=True)
    fold_of, filled = np.zeros(len(names), np.int64), np.zeros(num_folds, np.int64)
    for group in np.random.default_rng(seed).permutation(len(names)).tolist():
        fold_of[group] = filled.argmin()
        filled[fold_of[group]] += sizes[group]
    return fold_of[place]


def fit_router(
    features: Float[np.ndarray, "n f"],
    recall: Float[np.ndarray, "n r"],
    groups: Sequence[str],
    ranges: Sequence[LevelRange],
    *,
    names: Sequence[str],
    kind: FeaturesName,
    fingerprint: str = "",
    seed: int = 0,
    method: RouterMethod = "regression",
) -> FittedRouter:
    """Trains a router on the recall of every range for every question.

    Args:
        features: of the questions, of the kind `kind`.
        recall: evidence recall of every range at the budget, in [0, 1].
        method: regression or classifier, as in the module.
    """
    if len(set(groups)) < 2:
        raise InputError(
            f"router: {len(recall)} questions about {len(set(groups))} document; cross-validation needs questions "
            "about at least 2 documents, so add some"
        )
    folds = deal_groups(groups, min(_NUM_FOLDS, len(set(groups))), seed)
    fallback = np.array([recall[folds != fold].mean(axis=0).argmax() for fold in range(folds.max() + 1)])[folds]
    rows, fit = np.arange(len(recall)), ridge if method == "regression" else logistic
    base = recall[rows, fallback]
    best = (_STRENGTHS[-1], np.inf, base)
    for strength in reversed(_STRENGTHS):
        predicted = np.zeros_like(recall)
        for fold in range(folds.max() + 1):
            held = folds == fold
            mean, scale, weights, bias = fit(features[~held], recall[~held], strength)
            predicted[held] = bias + ((features[held] - mean) / scale) @ weights
        for margin in reversed(_MARGINS[method]):
            found = recall[rows, choose_ranges(predicted, fallback, margin)]
            if found.mean() > best[2].mean():
                best = (strength, margin, found)
    strength, margin, found = best
    gain = found - base
    if gain.mean() <= gain.std(ddof=1) / np.sqrt(len(gain)):
        strength, margin, found = strength, np.inf, base
    router = Router(
        kind,
        tuple(names),
        tuple(ranges),
        int(recall.mean(axis=0).argmax()),
        float(margin),
        *fit(features, recall, strength),
        fingerprint,
    )
    return FittedRouter(router, float(strength), float(found.mean()), float(base.mean()), len(recall))


def ridge(
    features: Float[np.ndarray, "n f"], targets: Float[np.ndarray, "n r"], strength: float
) -> tuple[Float[np.ndarray, " f"], Float[np.ndarray, " f"], Float[np.ndarray, "f r"], Float[np.ndarray, " r"]]:
    """(mean, scale, weights, bias) of the regression of the module.

    With fewer questions than numbers, the weights are solved in their smaller dual form.
    """
    (mean, scale), bias = _standard(features), targets.mean(axis=0)
    z, y = ((features - mean) / scale).astype(np.float64), targets - bias
    num, dim = z.shape
    if num < dim:
        weights = z.T @ np.linalg.solve(z @ z.T + strength * num * np.eye(num), y)
    else:
        weights = np.linalg.solve(z.T @ z + strength * num * np.eye(dim), z.T @ y)
    return mean, scale, weights, bias


def _standard(features: Float[np.ndarray, "n f"]) -> tuple[Float[np.ndarray, " f"], Float[np.ndarray, " f"]]:
    """(mean, scale); a number that is the same for all questions has scale 1."""
    mean, scale = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)
    return mean, np.where(scale > _MIN_SCALE, scale, 1.0)


def logistic(
    features: Float[np.ndarray, "n f"], recall: Float[np.ndarray, "n r"], strength: float
) -> tuple[Float[np.ndarray, " f"], Float[np.ndarray, " f"], Float[np.ndarray, "f r"], Float[np.ndarray, " r"]]:
    """(mean, scale, weights, bias) of the classifier of the module, by L-BFGS; without any target it has no weights.

    Ranges that are best for no question are never chosen.
    """
    from scipy import optimize, special  # here: a search loads no SciPy

    mean, scale = _standard(features)
    told = np.ptp(recall, axis=1) > 0
    best = recall[told] == recall[told].max(axis=1, keepdims=True)
    known = best.any(axis=0)
    weights, bias = np.zeros((features.shape[1], recall.shape[1])), np.full(recall.shape[1], _NEVER)
    if not told.any():
        return mean, scale, weights, np.zeros_like(bias)
    z = ((features[told] - mean) / scale).astype(np.float64)
    targets = (best / best.sum(axis=1, keepdims=True))[:, known]
    size = z.shape[1], targets.shape[1]

    def loss(flat: Float[np.ndarray, " _"]) -> tuple[float, Float[np.ndarray, " _"]]:
        own, base = flat[size[1] :].reshape(size), flat[: size[1]]
        logs = special.log_softmax(base + z @ own, axis=1)
        error = (np.exp(logs) - targets) / len(z)
        value = -(targets * logs).sum() / len(z) + strength * (own**2).sum() / 2
        return value, np.concatenate([error.sum(axis=0), (z.T @ error + strength * own).ravel()])

    found = optimize.minimize(loss, np.zeros(size[1] * (size[0] + 1)), jac=True, method="L-BFGS-B").x
    bias[known], weights[:, known] = found[: size[1]], found[size[1] :].reshape(size)
    return mean, scale, weights, bias


def fit_best_router(
    features: Mapping[FeaturesName, Float[np.ndarray, "n _"]],
    recall: Float[np.ndarray, "n r"],
    groups: Sequence[str],
    *,
    names: Sequence[str],
    fingerprint: str,
    seed: int,
    method: RouterMethod = "regression",
) -> FittedRouter:
    """The router on the features with the highest held-out recall, the first of equal ones.

    Args:
        features: of the questions, by their kind.
        recall: of all ranges of the levels of these names.
    """
    how = {"names": names, "fingerprint": fingerprint, "seed": seed, "method": method}
    fitted = [fit_router(own, recall, groups, all_ranges(names), kind=kind, **how) for kind, own in features.items()]
    return max(fitted, key=lambda one: one.held_out)
