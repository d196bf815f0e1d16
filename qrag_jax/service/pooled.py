"""Scores a run that searches many documents: `qrag eval --pooled` and `--corpus`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from qrag_jax.errors import Arg
from qrag_jax.eval.notes.note_sets import read_passages
from qrag_jax.eval.retrieval.protocols import kept_by_threshold
from qrag_jax.eval.retrieval.score import Run, open_run
from qrag_jax.index.load import load_index
from qrag_jax.measures.aggregate import mean_interval
from qrag_jax.names import POOL_METHODS
from qrag_jax.qrag.beam import check_beams
from qrag_jax.qrag.multi_step_search import check_questions
from qrag_jax.qrag.pool_search import PoolBank, check_pools, make_pool_bank
from qrag_jax.qrag.pool_sets import corpus_pool, multihop_pool
from qrag_jax.qrag.retriever import with_fresh_params
from qrag_jax.qrag.tasks import Task, subset
from qrag_jax.search.dense import search_vectors, top_in_order
from qrag_jax.types import NOBODY, InputError, UsageError, Watch
from qrag_jax.unit_rows import unit_rows


@dataclass(frozen=True)
class PooledRequest:
    """Questions to one pool of many documents, and the run that searches it.

    Attributes:
        run: folder of the run.
        kind: a set of `multihop.READERS`, or jsonl for questions to an index.
        path: of the questions.
        corpus: for jsonl, folder of the index.
        distractors: file of further passages in the pool (`note_sets.read_passages`); not with an index.
        methods: of `POOL_METHODS`; None is all.
        ks: numbers of picks to look at.
        beam_widths: of the trained method; 1 is the greedy search, which is scored in any case.
        num_questions: a random subset; None asks all.
        seed: draws it, and the intervals.
    """

    run: str
    kind: str
    path: str
    corpus: str | None = None
    distractors: str | None = None
    methods: tuple[str, ...] | None = None
    ks: tuple[int, ...] = (2, 4, 10)
    beam_widths: tuple[int, ...] = (1,)
    num_questions: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.ks or min(self.ks) < 1 or len(set(self.ks)) < len(self.ks):
            raise UsageError((Arg("k", self.ks), ": give numbers from 1 on, none twice"), field="k")
        for method in self.methods or ():
            if method not in POOL_METHODS:
                raise UsageError(f"over a pool choose from {', '.join(POOL_METHODS)}", field="methods", value=method)
        if not self.beam_widths or min(self.beam_widths) < 1 or len(set(self.beam_widths)) < len(self.beam_widths):
            reason = (Arg("beam_widths", self.beam_widths), ": give widths of at least 1, none twice")
            raise UsageError(reason, field="beam_widths")
        if max(self.beam_widths, default=1) > 1 and "trained" not in (self.methods or POOL_METHODS):
            raise UsageError((Arg("beam_widths"), " works only with the method 'trained'"), field="beam_widths")
        if (self.kind == "jsonl") != (self.corpus is not None):
            reason = (Arg("corpus"), " needs questions to its documents (", Arg("jsonl"), "), and they need it")
            raise UsageError(reason, field="corpus")
        if self.distractors is not None and self.corpus is not None:
            raise UsageError(
                (Arg("distractors"), " are added to pooled questions, not to an index"), field="distractors"
            )


@dataclass(frozen=True)
class Pooled:
    """The result.

    Attributes:
        rows: one for each method and k: the share of questions with all gold among the first k picks, its 95%
            interval, and the mean share of the gold.
        questions: one for each method and question: its id, gold, picks and scores; of beams one for each k, with as
            many picks.
    """

    rows: Sequence[Mapping[str, Any]]
    questions: Sequence[Mapping[str, Any]]


def evaluate_pool(request: PooledRequest, watch: Watch = NOBODY) -> Pooled:
    """Scores the picks of each method on the questions of a request."""
    trained = open_run(request.run)
    check_pools(trained.retriever)
    if max(request.beam_widths) > 1:
        check_beams(trained.retriever.env)
    task = _task(request)
    for note in task.notes:
        watch.note(note)
    if request.num_questions is not None and request.num_questions < len(task):
        drawn = np.random.default_rng([request.seed, 3, len(task)]).permutation(len(task))[: request.num_questions]
        task = subset(task, np.sort(drawn))
    return score_pool(
        trained, task, request.methods or POOL_METHODS, request.ks, request.seed, watch, widths=request.beam_widths
    )


def score_pool(
    trained: Run,
    task: Task,
    methods: Sequence[str],
    ks: Sequence[int],
    seed: int,
    watch: Watch = NOBODY,
    bank: PoolBank | None = None,
    widths: Sequence[int] = (1,),
) -> Pooled:
    """Scores the picks of each method. A question with more gold than k can never be complete; it counts as not.

    Args:
        trained: a run over many documents.
        task: with a pool, perhaps with its vectors.
        methods, ks, seed: as of `PooledRequest`.
        bank: of the task, by any run of the same encoder; None makes it.
        widths: as `PooledRequest.beam_widths`.
    """
    assert task.pool is not None
    most, contexts = max(ks), task.contexts(np.arange(len(task)), np.random.default_rng(0))
    if most > len(task.texts):
        raise InputError(f"{task.name}: {len(task.texts)} chunks cannot give {most} picks: lower k")
    asked = [str(task.questions[i]) for i in contexts.questions]
    check_questions(trained.retriever, asked)
    if bank is None:
        bank = make_pool_bank(trained.retriever, task.pool, lambda done, of: watch.report("embed", done, of, {}))
    bank = replace(bank, retriever=trained.retriever)
    gold = [row[row >= 0] for row in contexts.chunks]
    threshold = trained.threshold and trained.threshold.value
    rows, questions = [], []

    def add(method: str, width: int, own_ks: Sequence[int], chosen: tuple[np.ndarray, np.ndarray, Any]) -> None:
        picks, scores, kept = chosen
        for k in own_ks:
            found = np.array([np.isin(own, row[:k]).mean() for own, row in zip(gold, picks, strict=True)])
            share = mean_interval((found == 1).astype(float), seed=seed)
            rows.append(
                {"task": task.name, "method": method, "beam_width": width, "k": k, "all_gold": share.mean,
                 "low": share.low, "high": share.high, "recall": float(found.mean()), "n": share.n,
                 "num_chunks": len(task.texts), "num_left_out": task.num_left_out, "seed": int(trained.labels.seed)}
            )  # fmt: skip
        for i, name in enumerate(task.query_ids):
            questions.append(
                {"method": method, "beam_width": width, "id": name, "gold": gold[i].tolist(),
                 "picks": picks[i].tolist(), "scores": np.round(scores[i].astype(float), 6).tolist(),
                 "kept": None if kept is None else int(kept[i])}
            )  # fmt: skip

    for method in methods:
        add(method, 1, ks, pick_from_pool(method, bank, asked, most, threshold))
        for width in [width for width in widths if width > 1 and method == "trained"]:
            for k in ks:  # a beam plans for as many picks as it has
                plan = bank.plan(asked, k, width)
                add(method, width, [k], (np.asarray(plan.actions), np.asarray(plan.q_values), None))
    return Pooled(rows, questions)


def _task(request: PooledRequest) -> Task:
    if request.corpus is not None:
        return corpus_pool(load_index(request.corpus), request.corpus, [request.path])
    more = [] if request.distractors is None else read_passages(request.distractors)
    return multihop_pool([(request.kind, request.path)], more)


def pick_from_pool(
    method: str, bank: PoolBank, asked: Sequence[str], most: int, threshold: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Picks [n, most], the values that they were picked by, and how many the run keeps where it stops."""
    if method in ("trained", "untrained"):
        if method == "untrained":  # links have no weight yet, so these are searches by the prior
            key, threshold = jax.random.key(0), None
            bank = replace(bank, retriever=with_fresh_params(bank.retriever, key))
        played = bank.play(asked, most)
        q, stop_q = np.asarray(played.q_values).sum(-1), np.asarray(played.stop_q_values).sum(-1)
        stop = stop_q > q
        kept = None if threshold is None else kept_by_threshold(q, threshold)
        if bank.retriever.env.stop:
            kept = np.where(stop.any(1), stop.argmax(1), most)
        return np.asarray(played.actions), q, kept
    if method == "bm25":
        best = [bank.reader.words.top_k(question, most) for question in asked]
    else:
        of_questions, of_chunks = bank.question_vectors(asked), np.asarray(bank.table.rows.vectors)[: len(bank.texts)]
        if method == "single_step":
            best = search_vectors(unit_rows(of_questions), unit_rows(of_chunks), most)
        else:
            each = zip(asked, of_questions, strict=True)
            plain = (bank.reader.plain([question], own[None], of_chunks)[0] for question, own in each)
            best = [(places := top_in_order(scores, most), scores[places]) for scores in plain]
    return np.stack([ids for ids, _ in best]), np.stack([scores for _, scores in best]), None
