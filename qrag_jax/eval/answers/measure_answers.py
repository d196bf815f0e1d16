"""All measures of answers by name, for a batch at a time; a missing score differs from a score of 0."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qrag_jax.eval.answers.claims import score_claims
from qrag_jax.eval.answers.records import MEASURES
from qrag_jax.llm.judges import DEFAULT_OPTIONS, Agreement, JudgeOptions, check_judges, judge_answers
from qrag_jax.measures.answer_scores import (
    Convention,
    GivenAnswer,
    babilong_correct,
    check_rouge,
    contains_reference,
    rouge_l,
    score_answer,
)
from qrag_jax.types import Generation, InputError, TextGenerator, UsageError


@dataclass(frozen=True)
class MeasureOptions:
    """Options of the measures of answers.

    Attributes:
        measures: of `records.MEASURES`.
        convention: of F1.
        labels: of BabiLong's rule; the measure `babilong` needs them.
        judging: how judges are asked, for the measures `claims` and `judge`.
    """

    measures: tuple[str, ...] = ("em", "f1")
    convention: Convention = "squad"
    labels: frozenset[str] = frozenset()
    judging: JudgeOptions = DEFAULT_OPTIONS


DEFAULT_MEASURES = MeasureOptions()


@dataclass(frozen=True)
class Measured:
    """Scores of answers, in order.

    Attributes:
        scores: name -> value in [0, 1], of every answer.
        errors: measure -> why there is no score of it, of every answer.
        agreement: measure -> agreement of its judges.
        calls: of the judges.
    """

    scores: tuple[dict[str, float], ...]
    errors: tuple[dict[str, str], ...]
    agreement: dict[str, Agreement]
    calls: tuple[Generation, ...]


def check_measures(options: MeasureOptions, num_judges: int) -> None:
    """Refuses measures that could score nothing, before an answer is paid for."""
    for measure in options.measures:
        if measure not in MEASURES:
            raise UsageError(f"measure {measure!r}: no such measure; choose from {', '.join(MEASURES)}")
    if not options.measures or len(set(options.measures)) != len(options.measures):
        raise UsageError(f"measures {', '.join(options.measures) or '(none)'}: name at least one, and each once")
    if "rouge_l" in options.measures:
        check_rouge()
    if "babilong" in options.measures and not options.labels:
        raise UsageError("measure 'babilong': BabiLong's rule is for bAbI questions; leave it out for others")
    if {"claims", "judge"} & set(options.measures):
        check_judges(num_judges)


def measure_answers(
    given: Sequence[GivenAnswer], judges: Sequence[TextGenerator] = (), options: MeasureOptions = DEFAULT_MEASURES
) -> Measured:
    """Scores every answer by every measure.

    Args:
        given: answers, without failed calls.
        judges: language models, for the measures that need them.
    """
    check_measures(options, len(judges))
    scores: list[dict[str, float]] = [{} for _ in given]
    errors: list[dict[str, str]] = [{} for _ in given]
    for number, one in enumerate(given):
        for measure in options.measures:
            if measure in _BY_TEXT:
                try:
                    scores[number][measure] = _BY_TEXT[measure](one, options)
                except UsageError:
                    raise
                except InputError as error:
                    errors[number][measure] = str(error)
    agreed: dict[str, Agreement] = {}
    calls: tuple[Generation, ...] = ()
    if "claims" in options.measures:
        claims = score_claims(given, judges, options=options.judging)
        agreed["claims"], calls = claims.agreement, calls + claims.calls
        for number, (score, reason) in enumerate(zip(claims.scores, claims.errors, strict=True)):
            if score is None:
                errors[number]["claims"] = str(reason)
            else:
                names = MEASURES["claims"]
                scores[number] |= dict(zip(names, (score.precision, score.recall, score.f1), strict=True))
    if "judge" in options.measures:
        judged = judge_answers(given, judges, options=options.judging)
        agreed["judge"], calls = judged.agreement, calls + judged.calls
        for number, (value, reason) in enumerate(zip(judged.scores, judged.errors, strict=True)):
            if value is None:
                errors[number]["judge"] = str(reason)
            else:
                scores[number]["judge"] = value
    return Measured(tuple(scores), tuple(errors), agreed, calls)


def _em(one: GivenAnswer, options: MeasureOptions) -> float:
    return score_answer(one.answer, one.references, options.convention).em


def _f1(one: GivenAnswer, options: MeasureOptions) -> float:
    return score_answer(one.answer, one.references, options.convention).f1


def _contains(one: GivenAnswer, options: MeasureOptions) -> float:
    del options
    return contains_reference(one.answer, one.references)


def _rouge(one: GivenAnswer, options: MeasureOptions) -> float:
    del options
    return rouge_l(one.answer, one.references)


def _babilong(one: GivenAnswer, options: MeasureOptions) -> float:
    return float(any(babilong_correct(one.answer, right, one.question, options.labels) for right in one.references))


_BY_TEXT: dict[str, Callable[[GivenAnswer, MeasureOptions], float]] = {
    "em": _em,
    "f1": _f1,
    "contains": _contains,
    "rouge_l": _rouge,
    "babilong": _babilong,
}
