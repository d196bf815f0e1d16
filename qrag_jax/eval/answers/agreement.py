"""How far several judges agree on the same things: the share of agreeing pairs, and Krippendorff's alpha."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations


@dataclass(frozen=True)
class Agreement:
    """Agreement of judges on labels without an order.

    Attributes:
        raw: share of pairs of verdicts on one and the same thing that are equal, in [0, 1]; None where no thing has
            two verdicts. It is high by chance where one label is frequent.
        alpha: Krippendorff's alpha for nominal data: 1 is full agreement, 0 what chance gives, below 0 less than that;
            None where no thing has two verdicts, or all verdicts are the same label, which leaves chance nothing to
            differ in.
        num_items: things with at least two verdicts.
    """

    raw: float | None
    alpha: float | None
    num_items: int


def agreement(verdicts: Sequence[Sequence[str | None]]) -> Agreement:
    """Agreement over things that are judged, of which a judge may have left some out.

    With the m_u >= 2 verdicts of thing u, each of its ordered pairs (c, k) adds 1 / (m_u - 1) to o_ck; n_c is the sum
    of o_ck over k, n the sum of all:

        alpha = 1 - (n - 1) * sum_{c != k} o_ck / sum_{c != k} n_c n_k      (Krippendorff 2004, nominal)

    Args:
        verdicts: for every thing the label that each judge gave, None where a judge gave none.
    """
    items = [[label for label in row if label is not None] for row in verdicts]
    items = [labels for labels in items if len(labels) > 1]
    if not items:
        return Agreement(None, None, 0)
    num_pairs = num_equal = 0
    coincidences: dict[tuple[str, str], float] = {}
    for labels in items:
        together = Counter(permutations(labels, 2))
        num_pairs += together.total()
        num_equal += sum(count for (one, other), count in together.items() if one == other)
        for pair, count in together.items():
            coincidences[pair] = coincidences.get(pair, 0.0) + count / (len(labels) - 1)
    return Agreement(num_equal / num_pairs, _alpha(coincidences), len(items))


def _alpha(coincidences: dict[tuple[str, str], float]) -> float | None:
    """Krippendorff's alpha from the matrix o_ck."""
    sums: dict[str, float] = {}
    for (label, _), value in coincidences.items():
        sums[label] = sums.get(label, 0.0) + value
    total = sum(sums.values())
    observed = sum(value for (one, other), value in coincidences.items() if one != other)
    expected = total**2 - sum(value**2 for value in sums.values())
    if len(sums) < 2:
        return None
    return 1 - (total - 1) * observed / expected
