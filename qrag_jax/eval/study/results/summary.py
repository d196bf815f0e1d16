"""The report of the cells of a study: rows, paired comparisons, one object per question, and TREC files.

Which config of a strategy is reported: the best on dev questions, which are not those of the report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.config import flatten, to_dict
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.study.cells.costs import with_dollars
from qrag_jax.eval.study.config import StudyConfig
from qrag_jax.eval.study.records import FEWEST_DOCUMENTS, CellResult, FoundChunks, StudyComparison, StudyRow
from qrag_jax.eval.study.results.question_scores import headline_means
from qrag_jax.eval.study.results.study_answers import StudyAnswer, answer_means, answer_objects
from qrag_jax.llm.prices import Prices
from qrag_jax.measures.aggregate import holm_p_values, mean_interval, paired_difference
from qrag_jax.measures.trec import falling_scores, write_qrels, write_run

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
    """The criterion that chooses configs: the mean over ks of the mean F1 per question, as in the paper (Appendix B).

        score = mean_k mean_q F1_q@k

    The authors take F1 of mean recall and mean precision where evidence is searched; here F1 is of each question.

    Args:
        scores: "f1@k" -> float64 [questions] for every k, as `scores.score_questions` gives them.
        ks: numbers of chunks, at least one.
    """
    return float(np.mean([np.mean(scores[f"f1@{k}"]) for k in ks]))


def choose(scores: Sequence[Mapping[str, np.ndarray]] | None, ks: Sequence[int]) -> Choice:
    """The config with the highest `dev_score`, the first of equals; the first config without dev questions.

    Args:
        scores: for each config its scores on dev questions; None where nothing may be chosen.
    """
    if scores is None:
        return Choice(0, False, None)
    means = [dev_score(of_config, ks) for of_config in scores]
    best = next(number for number, mean in enumerate(means) if mean >= max(means) - _SAME)
    return Choice(best, True, means[best])


@dataclass(frozen=True)
class Outcome:
    """A strategy on the test part of a task.

    Attributes:
        task: the test part.
        config: the reported config.
        choice: how it came to be that one.
        cell: its results and cost.
        scores: measure@k -> float64 [questions], as `scores.score_questions`.
        answers: of a language model, None without one or without reference answers.
    """

    task: StudyTask
    config: ChunkConfig
    choice: Choice
    cell: CellResult
    scores: Mapping[str, np.ndarray]
    answers: Sequence[StudyAnswer] | None = None


def make_rows(outcome: Outcome, study: StudyConfig, prices: Prices | None) -> list[StudyRow]:
    """The row of a strategy (`make_row`), with budgets one for each budget and fill that it has.

    All of them have the means of all in `scores` as `erec_FILL@BUDGET`.
    """
    row, recall = make_row(outcome, study, prices), outcome.cell.recall
    summaries = {name: mean_interval(np.array(values), seed=study.seed) for name, values in recall.items()}
    row = replace(row, scores={**row.scores, **{f"erec_{name}": one.mean for name, one in summaries.items()}})
    return [
        replace(row, budget=budget, fill=fill, erec=one.mean, erec_low=one.low, erec_high=one.high)
        for (fill, budget), one in zip(map(_fill_and_budget, summaries), summaries.values(), strict=True)
    ] or [row]


def make_row(outcome: Outcome, study: StudyConfig, prices: Prices | None) -> StudyRow:
    """The row of a strategy: means over questions (`scores.headline_means`), interval of f1@report_k, cost in dollars.

    Where a language model answered, `scores` also has `answer_cosine@k` and `answer_bert_f1@k` (means over the answered
    questions, absent where none was) and `answers_failed@k` (share of the questions), k being `report_k`; its tokens
    are in `cost`.
    """
    cell, k = outcome.cell, study.report_k
    interval = mean_interval(outcome.scores[f"f1@{k}"], seed=study.seed)
    scores, cost = headline_means(outcome.scores, study.ks), cell.cost
    if outcome.answers is not None:
        answers = outcome.answers
        scores |= {f"{name}@{k}": mean for name, mean in answer_means(answers).items()}
        generations = [answer.generation for answer in answers]
        cost = replace(
            cost,
            prompt_tokens=sum(one.prompt_tokens for one in generations),
            completion_tokens=sum(one.completion_tokens for one in generations),
        )
    return StudyRow(
        task=cell.task,
        kind=outcome.task.kind,
        strategy=cell.strategy,
        number=cell.number,
        config=describe_config(outcome.config, cell.strategy),
        was_chosen=outcome.choice.was_chosen,
        dev_score=outcome.choice.dev_score,
        n=interval.n,
        scores=scores,
        low=interval.low,
        high=interval.high,
        context_tokens=scores[f"context_tokens@{k}"],
        num_documents=cell.num_documents,
        num_chunks=cell.num_chunks,
        mean_tokens=cell.mean_tokens,
        most_tokens=cell.most_tokens,
        share_beyond_window=cell.share_beyond_window,
        cost=with_dollars(cost, prices),
    )


def describe_config(config: ChunkConfig, name: str) -> str:
    """The values of a config that differ from the defaults, as `field=value, ...`. Values that its strategy does not
    read are left out, and the strategy too if `name`, that of the row, contains it.
    """
    defaults = flatten(to_dict(ChunkConfig()))
    differing = {name: value for name, value in flatten(to_dict(config)).items() if value != defaults[name]}
    if config.strategy == name:
        differing.pop("strategy", None)
    read = [field for field in differing if "." not in field or field.partition(".")[0] == config.strategy]
    return ", ".join(f"{field}={'null' if differing[field] is None else differing[field]}" for field in read)


def compare_all(outcomes: Sequence[Outcome], study: StudyConfig) -> tuple[StudyComparison, ...]:
    """Every strategy minus the baseline on every task, f1@report_k question by question.

    Holm's correction counts all comparisons of the study together.

    Args:
        outcomes: of all tasks; each task with the baseline.
    """
    measure = f"f1@{study.report_k}"
    bases = {outcome.cell.task: outcome for outcome in outcomes if outcome.cell.strategy == study.baseline}
    return _compare(
        [
            _Pair(outcome, outcome.scores[measure], bases[outcome.cell.task].scores[measure], study.baseline, measure)
            for outcome in outcomes
            if outcome.cell.strategy != study.baseline
        ],
        study.seed,
    )


def compare_fills(outcomes: Sequence[Outcome], study: StudyConfig) -> tuple[StudyComparison, ...]:
    """Every fill minus the plain one, evidence recall of one strategy in one budget, question by question.

    Holm's correction counts all of these comparisons together. None where `plain` is not among the fills.
    """
    pairs = []
    for outcome in outcomes:
        values = {_fill_and_budget(name): np.array(of_each) for name, of_each in outcome.cell.recall.items()}
        pairs += [
            _Pair(outcome, of_each, values["plain", budget], "plain", "erec", budget, fill)
            for (fill, budget), of_each in values.items()
            if fill != "plain" and ("plain", budget) in values
        ]
    return _compare(pairs, study.seed)


@dataclass(frozen=True)
class _Pair:
    """Two methods on the questions of a task, `first` and `second` float64 [questions], and their names in a row."""

    outcome: Outcome
    first: np.ndarray
    second: np.ndarray
    baseline: str
    measure: str
    budget: int | None = None
    fill: str | None = None


def _compare(pairs: Sequence[_Pair], seed: int) -> tuple[StudyComparison, ...]:
    by_question = [paired_difference(pair.first, pair.second, seed=seed) for pair in pairs]
    documents = [_documents(pair.outcome.task) for pair in pairs]
    by_document = [
        None if groups is None else paired_difference(pair.first, pair.second, groups=groups, seed=seed)
        for pair, groups in zip(pairs, documents, strict=True)
    ]
    p_holm = holm_p_values([one.p_value for one in by_question])
    p_holm_by_document = holm_p_values(
        [(own or other).p_value for own, other in zip(by_document, by_question, strict=True)]
    )
    return tuple(
        StudyComparison(
            task=pair.outcome.cell.task,
            strategy=pair.outcome.cell.strategy,
            baseline=pair.baseline,
            measure=pair.measure,
            difference=one.mean,
            low=one.low,
            high=one.high,
            p_value=one.p_value,
            p_holm=p_holm[row],
            n=one.n,
            budget=pair.budget,
            fill=pair.fill,
            low_by_document=None if own is None else own.low,
            high_by_document=None if own is None else own.high,
            p_by_document=None if own is None else own.p_value,
            p_holm_by_document=p_holm_by_document[row],
            num_groups=None if groups is None else len(set(groups)),
        )
        for row, (pair, one, own, groups) in enumerate(zip(pairs, by_question, by_document, documents, strict=True))
    )


def _documents(task: StudyTask) -> list[str] | None:
    """The document of each question; None where a question has several, or all together are few."""
    if any(len(question.relevant) > 1 for question in task.questions):
        return None
    documents = [question.relevant[0] for question in task.questions]
    return documents if len(set(documents)) >= FEWEST_DOCUMENTS else None


def question_objects(outcome: Outcome) -> list[dict[str, object]]:
    """One object for JSON per test question: its results, its evidence, and every measure.

    `gold` are ids of documents, or {document, start, end} of evidence; `scores` measure@k -> value; `answer` is there
    where a language model was asked.
    """
    answers = None if outcome.answers is None else answer_objects(outcome.answers)
    objects: list[dict[str, object]] = []
    for row, (question, found) in enumerate(zip(outcome.task.questions, outcome.cell.found, strict=True)):
        one: dict[str, object] = {
            "task": outcome.cell.task,
            "strategy": outcome.cell.strategy,
            "number": outcome.cell.number,
            "question_id": question.id,
            "question": question.text,
            "gold": _gold(outcome.task, question),
            "hits": [
                {
                    "id": hit.chunk_id,
                    "document": hit.document_id,
                    "spans": [list(span) for span in hit.spans],
                    "tokens": hit.num_tokens,
                    "score": hit.score,
                }
                for hit in found.hits
            ],
            "scores": {name: float(values[row]) for name, values in outcome.scores.items()}
            | {f"erec_{name}": values[row] for name, values in outcome.cell.recall.items()},
        }
        objects.append(one if answers is None else {**one, "answer": answers[row]})
    return objects


def document_run(found: Sequence[FoundChunks]) -> dict[str, dict[str, float]]:
    """Question id -> document id -> score: documents in the order of their best chunk, by its cosine."""
    return {one.question_id: falling_scores((hit.document_id, hit.score) for hit in one.hits) for one in found}


def write_trec(outcome: Outcome, folder: Path) -> None:
    """Writes `TASK.qrels`, relevant documents, and `TASK.STRATEGY.run`, documents by their best chunk."""
    task, strategy = outcome.cell.task, outcome.cell.strategy
    relevant = {question.id: dict.fromkeys(question.relevant, 1) for question in outcome.task.questions}
    write_qrels(folder / f"{task}.qrels", relevant)
    write_run(folder / f"{task}.{strategy}.run", document_run(outcome.cell.found), strategy)


def _fill_and_budget(name: str) -> tuple[str, int]:
    fill, _, budget = name.partition("@")
    return fill, int(budget)


def _gold(task: StudyTask, question: StudyQuestion) -> list[object]:
    if task.kind == "documents":
        return list(question.relevant)
    return [{"document": part.document_id, "start": part.start, "end": part.end} for part in question.evidence]
