"""Fact measures of one question, by sets: what `score_facts` is compared with."""

from collections.abc import Iterable


def fact_em(predicted: Iterable[int], gold: Iterable[int]) -> float:
    return float(set(gold) <= set(predicted))


def fact_f1(predicted: Iterable[int], gold: Iterable[int]) -> float:
    picks, truth = set(predicted), set(gold)
    return 2 * len(picks & truth) / (len(picks) + len(truth))


def fact_precision(predicted: Iterable[int], gold: Iterable[int]) -> float:
    picks = set(predicted)
    return len(picks & set(gold)) / len(picks) if picks else 0.0


def fact_recall(predicted: Iterable[int], gold: Iterable[int]) -> float:
    truth = set(gold)
    return len(set(predicted) & truth) / len(truth)
