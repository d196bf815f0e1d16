"""Named losses that add up."""

import math
from collections.abc import Mapping

import jax

from qrag_jax.types import UsageError


def add_losses(terms: Mapping[str, tuple[jax.Array, float]]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss that a learner descends, and its parts for the log.

        total = sum over terms of  weight * loss

    Args:
        terms: by name (loss, scalar; weight, at least 0). A weight of 0 logs a loss and trains nothing on it.

    Returns:
        The total, and it as the metric `loss`, with each term before its weight as `loss/NAME` where there are several.

    Raises:
        UsageError: no term, or a weight that is negative or not finite.
    """
    for name, (_, weight) in terms.items():
        if not 0 <= weight < math.inf:
            raise UsageError(f"loss {name}: weight={weight} must be at least 0 and finite")
    weighted = [loss if weight == 1 else weight * loss for loss, weight in terms.values() if weight]
    if not weighted:
        raise UsageError(f"no loss is left to train on: of {', '.join(terms) or 'none'} give one a weight above 0")
    total = sum(weighted[1:], start=weighted[0])
    parts = {f"loss/{name}": loss for name, (loss, _) in terms.items()} if len(terms) > 1 else {}
    return total, {"loss": total, **parts}
