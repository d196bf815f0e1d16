"""How much of dev's contexts stands in train: texts that a run may know again. For the benchmarks that report it."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from scipy import stats

from benchmarks.common import grid, tested
from qrag_jax.measures.aggregate import paired_difference
from qrag_jax.types import Example


class Seen(TypedDict):
    """One number a dev question: how many chunks it has of a kind, how many of them train has, and has as gold."""

    gold: list[int]
    gold_in_train: list[int]
    gold_as_gold: list[int]
    wrong: list[int]
    wrong_in_train: list[int]
    wrong_as_gold: list[int]


def seen_in_train(dev: Sequence[Example], train: Sequence[Example]) -> Seen:
    """Counts chunks of dev whose text stands, letter for letter, in a context of train."""
    texts = {text for example in train for text in example.chunks}
    as_gold = {example.chunks[i] for example in train for i in example.gold}
    found = Seen(gold=[], gold_in_train=[], gold_as_gold=[], wrong=[], wrong_in_train=[], wrong_as_gold=[])
    for example in dev:
        gold = [example.chunks[i] for i in example.gold]
        wrong = [text for i, text in enumerate(example.chunks) if i not in example.gold]
        found["gold"].append(len(gold))
        found["gold_in_train"].append(sum(text in texts for text in gold))
        found["gold_as_gold"].append(sum(text in as_gold for text in gold))
        found["wrong"].append(len(wrong))
        found["wrong_in_train"].append(sum(text in texts for text in wrong))
        found["wrong_as_gold"].append(sum(text in as_gold for text in wrong))
    return found


def gain_by_seen(seen: Seen, own: np.ndarray, other: np.ndarray) -> str:
    """Markdown: what a measure of one row gains over another's, by whether a dev question has gold of train."""
    gold, wrong = sum(seen["gold_as_gold"]) / sum(seen["gold"]), sum(seen["wrong_as_gold"]) / sum(seen["wrong"])
    share_seen = np.array(seen["gold_as_gold"]) / np.array(seen["gold"])
    is_seen, gain = share_seen > 0, own - other
    table = []
    for name, rows in (("some of their gold was gold in train", is_seen), ("none of it", ~is_seen)):
        d = paired_difference(own[rows], other[rows])
        table.append([name, *tested(d.mean, d.low, d.high, d.p_value, d.n)])
    table.append(["the first minus the second", *_unpaired(gain[is_seen], gain[~is_seen])])
    lines = grid(["dev questions", "difference", "95% interval", "p", "n"], table)
    rank, p_value = stats.spearmanr(gain, share_seen)
    about = f"{gold:.0%} of dev's gold sentences were gold in train, and {wrong:.0%} of its wrong ones.\n"
    about += f"Gain and share of gold that was gold in train: Spearman {rank:.2f}, p = {p_value:.3f}."
    return "\n".join([*lines, "", about])


def _unpaired(first: np.ndarray, second: np.ndarray) -> list[str]:
    """Cells for other questions on either side."""

    def difference(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return a.mean(axis=axis) - b.mean(axis=axis)

    rng = np.random.default_rng(0)
    low, high = stats.bootstrap((first, second), difference, method="BCa", rng=rng).confidence_interval
    p_value = stats.permutation_test((first, second), difference, vectorized=True, rng=rng).pvalue
    return tested(float(difference(first, second)), low, high, float(p_value), len(first) + len(second))
