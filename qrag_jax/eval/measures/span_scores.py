"""How much of the evidence, to the token, the chunks that were found hold: recall, precision and IoU of spans.

The measures of Chroma's chunking evaluation (Smith and Troynikov 2024), with tokens of one tokenizer as weights of the
characters (`text_measure.measure_tokens`), the same for all chunkers. With E the evidence and C_i the i-th chunk, as
sets of tokens of the corpus, and |.| their number:

    found            = | E and (C_1 or ... or C_k) |             evidence that was found, once
    read             = |C_1| + ... + |C_k|                       what overlaps is read as often as it is there
    token_recall     = found / |E|
    token_precision  = found / read
    iou              = found / (read + |E| - found)              evidence that was missed joins the denominator

Overlapping evidence counts once. All three lie in [0, 1]; chunks that repeat text lose precision and IoU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.eval.measures.text_measure import TextMeasure
from qrag_jax.types import InputError, Span

Place = tuple[str, Sequence[Span]]  # document id, spans of it


@dataclass(frozen=True)
class SpanScore:
    """Token-level measures of one question, each in [0, 1]."""

    recall: float
    precision: float
    iou: float


def merge_spans(spans: Sequence[Span]) -> list[Span]:
    """The union of spans: ordered, those that overlap or touch as one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def shared_spans(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """What two lists of ordered, disjoint spans share; ordered and disjoint."""
    shared, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            shared.append((start, end))
        i, j = (i + 1, j) if first[i][1] <= second[j][1] else (i, j + 1)
    return shared


def total(measure: TextMeasure, spans: Sequence[Span]) -> float:
    """Weight of disjoint spans together."""
    bounds = np.array(spans, np.float64).reshape(-1, 2)
    return float(measure.between(bounds[:, 0], bounds[:, 1]).sum())


def span_scores(
    retrieved: Sequence[Place], evidence: Sequence[Place], ks: Sequence[int], measure_of: Callable[[str], TextMeasure]
) -> list[SpanScore]:
    """The measures of the module for the first k chunks, for every k of `ks`.

    Args:
        retrieved: chunks that were found, best first; spans of each ordered and disjoint.
        evidence: places of the evidence; spans and places may overlap.
        ks: each at least 1; fewer chunks than k are taken as they are.
        measure_of: document id -> its tokens (`text_measure.measure_tokens`); asked again and again, so it should
            remember.
    """
    if min(ks, default=1) < 1:
        raise InputError(f"ks {list(ks)}: give at least 1")
    gold: dict[str, list[Span]] = {}
    for document, spans in evidence:
        gold[document] = merge_spans([*gold.get(document, ()), *spans])
    wanted = sum((total(measure_of(document), spans) for document, spans in gold.items()), 0.0)
    if not wanted:
        raise InputError("evidence is empty or blank: there is nothing to find; leave the question out")
    read, found, covered = [0.0], [0.0], dict[str, list[Span]]()
    for document, spans in retrieved[: max(ks, default=0)]:
        read.append(read[-1] + total(measure_of(document), spans))
        if new := shared_spans(spans, gold.get(document, ())):
            covered[document] = merge_spans([*covered.get(document, ()), *new])
            found.append(sum(total(measure_of(name), parts) for name, parts in covered.items()))
        else:
            found.append(found[-1])
    return [_score(found[min(k, len(retrieved))], read[min(k, len(retrieved))], wanted) for k in ks]


def _score(found: float, read: float, wanted: float) -> SpanScore:
    # Sums of parts of words are off by rounding: a perfect score stays at 1.
    precision = min(1.0, found / read) if read else 0.0
    return SpanScore(min(1.0, found / wanted), precision, min(1.0, found / (read + wanted - found)))
