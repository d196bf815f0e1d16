"""Measures of a ranking against graded judgements, by the conventions of trec_eval 9.

- A document is relevant when its judgement is above 0; unjudged ones and those judged 0 or below are not.
- Documents are ranked by score, best first; equal scores by document id, largest first (by code points, which is the
  order of UTF-8 bytes). Scores are compared as 32-bit floats: what differs beyond their 7 digits is equal.
- A query without a relevant document has 0 in every measure, and counts in a mean.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qrag_jax.types import InputError


def rank_documents(scores: Mapping[str, float]) -> list[str]:
    """Document ids, best first; ties as the module says."""
    for document, score in scores.items():
        if score != score:
            raise InputError(f"document {document!r}: score NaN has no rank; mend what gave it")
    with np.errstate(over="ignore"):  # beyond the largest float32 all are equal
        rounded = np.array(list(scores.values()), np.float64).astype(np.float32).tolist()
    return [document for _, document in sorted(zip(rounded, scores, strict=True), reverse=True)]


def precision_at(ranking: Sequence[str], judged: Mapping[str, int], k: int) -> float:
    """P@k = relevant documents among the first k / k, also where fewer than k are ranked.

    Args:
        ranking: document ids, best first, each once.
        k: at least 1.
    """
    return sum(_hits(ranking, judged, _checked(k))) / k


def recall_at(ranking: Sequence[str], judged: Mapping[str, int], k: int) -> float:
    """R@k = relevant documents among the first k / relevant documents. Arguments and errors as of `precision_at`."""
    return _share(sum(_hits(ranking, judged, _checked(k))), _num_relevant(judged))


def reciprocal_rank(ranking: Sequence[str], judged: Mapping[str, int]) -> float:
    """RR = 1 / rank of the first relevant document, counted from 1; 0 where none is ranked."""
    hits = _hits(ranking, judged)
    return 1 / (1 + hits.index(True)) if any(hits) else 0.0


def average_precision(ranking: Sequence[str], judged: Mapping[str, int]) -> float:
    """AP = sum of P@rank over the ranks of relevant documents / relevant documents, ranked or not."""
    ranks = np.flatnonzero(_hits(ranking, judged)) + 1
    return _share(float(np.sum(np.arange(1, ranks.size + 1) / ranks)), _num_relevant(judged))


def ndcg(ranking: Sequence[str], judged: Mapping[str, int], k: int | None = None) -> float:
    """nDCG@k with the judgement itself as gain (not 2^judgement - 1), of the whole ranking where k is None.

    DCG = sum over ranks i = 1 .. k of gain_i / log2(i + 1);   nDCG = DCG / DCG of the best order of all relevant ones
    """
    hits = _hits(ranking, judged, None if k is None else _checked(k))
    gains = [judged[document] if hit else 0 for document, hit in zip(ranking, hits, strict=False)]
    best = sorted((value for value in judged.values() if value > 0), reverse=True)[:k]
    return _share(_dcg(gains), _dcg(best))


def score_run(
    run: Mapping[str, Mapping[str, float]], qrels: Mapping[str, Mapping[str, int]], ks: Sequence[int]
) -> dict[str, dict[str, float]]:
    """Every measure of every judged query, by trec_eval's names.

    Args:
        run: query id -> document id -> score, as `trec.read_run` gives it; queries without judgements are left out.
        qrels: query id -> document id -> judgement.
        ks: of `P_k`, `recall_k` and `ndcg_cut_k`.

    Returns:
        query id -> {"map", "recip_rank", "ndcg", "P_5", "recall_5", "ndcg_cut_5", ...}, in the order of `qrels`. A
        query that the run leaves out has 0 in all of them (trec_eval's flag -c): skipping it would reward silence.

    Raises:
        InputError: no query of the run is judged, a score is NaN, or a k is below 1.
    """
    if not any(query in qrels for query in run):
        raise InputError(f"run and qrels share no query: {list(run)[:3]} and {list(qrels)[:3]}; are the ids the same?")
    return {query: _score(rank_documents(run.get(query, {})), judged, ks) for query, judged in qrels.items()}


def _score(ranking: Sequence[str], judged: Mapping[str, int], ks: Sequence[int]) -> dict[str, float]:
    found = {
        "map": average_precision(ranking, judged),
        "recip_rank": reciprocal_rank(ranking, judged),
        "ndcg": ndcg(ranking, judged),
    }
    for k in ks:
        found[f"P_{k}"] = precision_at(ranking, judged, k)
        found[f"recall_{k}"] = recall_at(ranking, judged, k)
        found[f"ndcg_cut_{k}"] = ndcg(ranking, judged, k)
    return found


def _hits(ranking: Sequence[str], judged: Mapping[str, int], k: int | None = None) -> list[bool]:
    """Which of the first k are relevant."""
    if len(set(ranking)) != len(ranking):
        twice = next(document for i, document in enumerate(ranking) if document in ranking[:i])
        raise InputError(f"document {twice!r} is ranked twice; rank each once")
    return [judged.get(document, 0) > 0 for document in ranking[:k]]


def _num_relevant(judged: Mapping[str, int]) -> int:
    return sum(value > 0 for value in judged.values())


def _dcg(gains: Sequence[int]) -> float:
    """Rounded once, so that zeros at the end of a ranking do not change the last digit."""
    return math.fsum(np.asarray(gains, np.float64) / np.log2(np.arange(2, len(gains) + 2)))


def _share(part: int | float, whole: int | float) -> float:
    return part / whole if whole else 0.0


def _checked(k: int) -> int:
    if k < 1:
        raise InputError(f"k {k}: give at least 1")
    return k
