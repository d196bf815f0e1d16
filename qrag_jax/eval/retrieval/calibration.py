"""Thresholds on scores: fitted on held-out questions, kept with a run, never used on the questions they were fitted on.

A run that held questions out keeps its threshold in the metadata of its checkpoint (`fit_on_dev`, `stored_threshold`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrag_jax.eval.retrieval.harness import Threshold, draw_contexts, num_kept_by, pick_all
from qrag_jax.eval.retrieval.pickers import Picker, beam_picker, multi_step_picker
from qrag_jax.eval.retrieval.protocols import Calibration, calibrate_threshold, keep
from qrag_jax.measures.facts import score_facts
from qrag_jax.qrag.multi_step_search import make_action_bank
from qrag_jax.qrag.pool_search import make_pool_bank
from qrag_jax.qrag.retriever import QRagRetriever, read_threshold
from qrag_jax.qrag.tasks import Task
from qrag_jax.search.pool_texts import PoolTexts


def calibrate(
    task: Task, picker: Picker, num_steps: int, num_questions: int | None = None, seed: int = 0
) -> tuple[Threshold, Calibration]:
    """The threshold of a method with the best mean F1 on held-out queries, and that F1.

    Args:
        task: held-out queries.
        picker: of the method, over the texts of the task.
        num_steps: T.
        num_questions: a random subset of this size; None takes all.
        seed: of the subset and of the contexts.
    """
    queries, contexts = draw_contexts(task, num_questions, seed)
    picked, gold = pick_all(picker, contexts, num_steps)
    fitted = calibrate_threshold(picked.chosen, picked.scores, gold)
    return Threshold(fitted.threshold, frozenset(task.fingerprint(int(query)) for query in queries)), fitted


def fit_on_dev(retriever: QRagRetriever, dev: Task, beam_widths: Sequence[int] = ()) -> dict[str, Any]:
    """Fits the values that a run keeps from its held-out questions, as JSON; pass it to `train.loop.train` as
    `calibrate`.

    Args:
        beam_widths: compare the F1 of beams of these widths (1 is the greedy search) under the threshold, or under the
            learned STOP of a run that has one; the narrowest of the best is the chosen one.
    """
    if dev.pool is not None:
        return _fit_on_pool(retriever, dev, dev.pool)
    index, steps = make_action_bank(retriever, dev.texts), retriever.env.num_steps
    threshold, fitted = calibrate(dev, multi_step_picker(index, dev.questions), steps)
    protocol = "stop" if retriever.env.stop else "threshold"
    beams = {}
    for width in sorted(set(beam_widths)):
        searcher = beam_picker(index, dev.questions, width, threshold.value)
        beams[width] = _kept_f1(dev, searcher, steps, protocol, threshold, width)
    chosen = {}
    if beams:
        best = max(beams, key=lambda width: beams[width])
        chosen = {"beam_f1": {str(width): f1 for width, f1 in beams.items()}, "beam_width": best}
    return {
        "threshold": threshold.value,
        "fact_em": fitted.fact_em,
        "fact_f1": fitted.fact_f1,
        "num_questions": fitted.n,
        "num_chunks": int(dev.sizes.max()),
        "fitted_on": sorted(threshold.fitted_on),
        **chosen,
    }


def _fit_on_pool(retriever: QRagRetriever, dev: Task, pool: PoolTexts) -> dict[str, Any]:
    """`fit_on_dev` of questions to a pool; there are no beams."""
    queries, contexts = draw_contexts(dev)
    played = make_pool_bank(retriever, pool).play(
        [str(dev.questions[i]) for i in contexts.questions], retriever.env.num_steps
    )
    gold = np.zeros((len(queries), len(pool.texts)), bool)
    rows, places = np.nonzero(contexts.gold)
    gold[rows, contexts.chunks[rows, places]] = True
    fitted = calibrate_threshold(np.asarray(played.actions), np.asarray(played.q_values).sum(-1), gold)
    return {
        "threshold": fitted.threshold,
        "fact_em": fitted.fact_em,
        "fact_f1": fitted.fact_f1,
        "num_questions": fitted.n,
        "num_chunks": len(pool.texts),
        "fitted_on": sorted({dev.fingerprint(int(query)) for query in queries}),
    }


def _kept_f1(dev: Task, picker: Picker, num_steps: int, protocol: str, threshold: Threshold, beam_width: int) -> float:
    """Mean F1 of a search on all queries of a task, under one protocol."""
    _, contexts = draw_contexts(dev)
    picked, gold = pick_all(picker, contexts, num_steps, beam_width)
    num_kept = num_kept_by(protocol, picked, gold, threshold)
    assert num_kept is not None
    sizes = (contexts.chunks >= 0).sum(axis=1)
    return float(score_facts(keep(picked.chosen, np.minimum(num_kept, sizes)), gold).f1.mean())


def stored_threshold(metadata: Mapping[str, Any]) -> Threshold | None:
    """The threshold in the metadata of a checkpoint; None if the run held nothing out, or is not finished."""
    found = read_threshold(metadata)
    return None if found is None else Threshold(*found)
