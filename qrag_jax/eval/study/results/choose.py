"""Which config of a strategy is reported: the best on dev questions, which are not those of the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.types import InputError

_SAME = 1e-12  # scores nearer than this are equal: the same F1 reached by other sums


@dataclass(frozen=True)
class Choice:
    """The config of a strategy that is reported.

    Attributes:
        number: which one, from 0.
        was_chosen: by dev questions; False where there are too few of these and the first is taken.
        dev_score: its `dev_score`; None where it was not chosen.
    """

    number: int
    was_chosen: bool
    dev_score: float | None


def dev_score(scores: Mapping[str, np.ndarray], ks: Sequence[int]) -> float:
    """What configs are chosen by: mean over ks of the mean F1 per question, the paper's criterion (Appendix B).

        score = mean_k mean_q F1_q@k

    The authors take F1 of mean recall and mean precision where evidence is searched; here F1 is of each question.

    Args:
        scores: "f1@k" -> float64 [questions] for every k, as `scores.score_questions` gives them.
        ks: numbers of chunks, at least one.
    """
    missing = [k for k in ks if f"f1@{k}" not in scores]
    if missing or not ks:
        raise InputError(f"f1@k for k = {list(ks)}: not scored for {missing}; score every k")
    found = float(np.mean([np.mean(scores[f"f1@{k}"]) for k in ks]))
    if not np.isfinite(found):
        raise InputError(f"mean F1 over k = {list(ks)} is {found}: a choice needs at least one question, and numbers")
    return found


def choose(scores: Sequence[Mapping[str, np.ndarray]] | None, ks: Sequence[int]) -> Choice:
    """The config with the highest `dev_score`, the first of equals; the first config without dev questions.

    Args:
        scores: for each config its scores on dev questions; None where nothing may be chosen.
    """
    if scores is None:
        return Choice(0, False, None)
    if not scores:
        raise InputError("no configs to choose from: give at least one")
    means = [dev_score(of_config, ks) for of_config in scores]
    best = next(number for number, mean in enumerate(means) if mean >= max(means) - _SAME)
    return Choice(best, True, means[best])
