"""Claim precision, recall and F1 of answers, by language models as judges (the overall measures of RAGChecker).

An extractor splits the answer and the reference answers into claims. Every judge then decides for each claim of the
answer whether the reference entails it, and for each claim of the reference whether the answer does:

    P = entailed claims of the answer / claims of the answer
    R = entailed claims of the reference / claims of the reference
    F1 = 2 P R / (P + R), 0 where both are 0

for each judge by itself; a question has the mean over the judges, and of several references the one with the best mean
F1. All judges see the same claims, so their verdicts can be compared (`llm/judges.py`).

A failure is not a 0. A question counts only if every judge gave all its verdicts, because a mean over another panel
is another measure. An answer without claims has P = 0, as in RAGChecker. A reference without claims cannot be
recalled and is left out; if all are without claims, the question fails.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qrag_jax.llm.json_answers import Boolean, ListOf, Record, Text
from qrag_jax.llm.judges import (
    DEFAULT_OPTIONS,
    MARK,
    Agreement,
    JudgeOptions,
    agreement,
    ask_each,
    calls_of,
    check_judges,
    judge_name,
)
from qrag_jax.llm.prompts import PromptTemplate, fence, load_prompt, prompts_sha256
from qrag_jax.llm.structured import Structured
from qrag_jax.measures.answer_scores import GivenAnswer
from qrag_jax.measures.evidence_scores import harmonic_mean
from qrag_jax.types import Generation, Message, TextGenerator

_MAX_CLAIMS = 60  # of one text
_CLAIMS = Record({"claims": ListOf(Text(1, 1_000), 0, _MAX_CLAIMS)})


@dataclass(frozen=True)
class ClaimScore:
    """Measures of one answer, means over the judges, in [0, 1]."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class ClaimResult:
    """Measures of all answers, in order.

    Attributes:
        scores: None where a call failed or nothing could be measured.
        errors: why; None where there is a score.
        f1_by_judge: of each answer with a score the F1 of every judge, whose mean `scores` has; else None.
        agreement: of the judges over all verdicts.
        num_failed: for every judge the checks (all claims of one text against another) that it gave no verdicts on.
        calls: all of them, the extractor's among them.
        prompt_sha256: of the templates.
    """

    scores: tuple[ClaimScore | None, ...]
    errors: tuple[str | None, ...]
    f1_by_judge: tuple[tuple[float, ...] | None, ...]
    agreement: Agreement
    num_failed: tuple[int, ...]
    calls: tuple[Generation, ...]
    prompt_sha256: str


@dataclass(frozen=True)
class _Text:
    """A text with claims, an answer or a reference, and its question."""

    question: str
    text: str


@dataclass(frozen=True)
class _Check:
    """Claims that are held against a text."""

    against: _Text
    claims: tuple[str, ...]


class _Unscored(Exception):
    """Why a question has no score."""


def score_claims(
    given: Sequence[GivenAnswer],
    judges: Sequence[TextGenerator],
    *,
    extractor: TextGenerator | None = None,
    options: JudgeOptions = DEFAULT_OPTIONS,
) -> ClaimResult:
    """Claim measures of all answers. The same text to the same question is taken apart once, checked once a judge.

    Args:
        given: answers with their references. A blank answer has no claims and entails none: 0, without asking.
        extractor: takes texts apart; the first judge by default.
        options: sampling, how often to ask again, templates.
    """
    check_judges(len(judges))
    splitting, checking = (load_prompt(name, options.prompts) for name in ("claims", "entailment"))
    taken_apart = _take_apart(given, extractor or judges[0], splitting, options)
    claims = {text: _claims(outcome) for text, outcome in taken_apart.items()}
    checks = _checks(given, claims, checking)
    verdicts = [_ask_verdicts(judge, checks, options) for judge in judges]
    scores: list[ClaimScore | None] = []
    by_judge: list[tuple[float, ...] | None] = []
    errors: list[str | None] = []
    for one in given:
        score, own, error = None, None, None
        try:
            score, own = _score(one, taken_apart, claims, verdicts, judges)
        except _Unscored as reason:
            error = str(reason)
        scores.append(score)
        by_judge.append(own)
        errors.append(error)
    outcomes = [*taken_apart.values(), *(outcome for by_check in verdicts for outcome in by_check.values())]
    return ClaimResult(
        scores=tuple(scores),
        errors=tuple(errors),
        f1_by_judge=tuple(by_judge),
        agreement=_agreement(checks, verdicts),
        num_failed=tuple(sum(x.error is not None for x in by_check.values()) for by_check in verdicts),
        calls=calls_of(outcomes),
        prompt_sha256=prompts_sha256([splitting, checking]),
    )


def _take_apart(
    given: Sequence[GivenAnswer], extractor: TextGenerator, template: PromptTemplate, options: JudgeOptions
) -> dict[_Text, Structured]:
    prompts: dict[_Text, tuple[Message, ...]] = {}
    for one in given:
        for text in (one.answer, *one.references):
            key = _Text(one.question, text)
            if text.strip() and key not in prompts:
                mark, block = fence([text], MARK, beside=[one.question])
                prompts[key] = template.fill(mark=mark, question=one.question, text=block)
    return ask_each(extractor, prompts, _CLAIMS, options)


def _claims(outcome: Structured) -> tuple[str, ...] | None:
    """One line each, without repeats; None where the call failed."""
    if outcome.error is not None or outcome.value is None:
        return None
    return tuple(dict.fromkeys(" ".join(claim.split()) for claim in outcome.value["claims"]))


def _checks(
    given: Sequence[GivenAnswer], claims: Mapping[_Text, tuple[str, ...] | None], template: PromptTemplate
) -> dict[_Check, tuple[Message, ...]]:
    """Prompts of all checks that have something to check and will be read."""
    prompts: dict[_Check, tuple[Message, ...]] = {}
    for one in given:
        if any(claims.get(_Text(one.question, text), ()) is None for text in (one.answer, *one.references)):
            continue  # the question fails: its checks would be paid for nothing
        for reference in one.references:
            for check in _both_ways(one, reference, claims):
                if check.claims and check.against.text.strip() and check not in prompts:
                    listed = "\n".join(f"{number}. {claim}" for number, claim in enumerate(check.claims, 1))
                    mark, blocks = fence([check.against.text, listed], MARK, beside=[one.question])
                    prompts[check] = template.fill(mark=mark, question=one.question, blocks=blocks)
    return prompts


def _both_ways(
    one: GivenAnswer, reference: str, claims: Mapping[_Text, tuple[str, ...] | None]
) -> tuple[_Check, _Check]:
    """Checks of the answer's claims against a reference and the reverse; none for a text that failed."""
    said, right = _Text(one.question, one.answer), _Text(one.question, reference)
    return _Check(right, claims.get(said) or ()), _Check(said, claims.get(right) or ())


def _ask_verdicts(
    judge: TextGenerator, checks: Mapping[_Check, tuple[Message, ...]], options: JudgeOptions
) -> dict[_Check, Structured]:
    """One batch for every number of claims, as that many verdicts are asked for."""
    outcomes: dict[_Check, Structured] = {}
    for size in sorted({len(check.claims) for check in checks}):
        batch = {check: prompt for check, prompt in checks.items() if len(check.claims) == size}
        outcomes |= ask_each(judge, batch, Record({"entailed": ListOf(Boolean(), size, size)}), options)
    return outcomes


def _score(
    one: GivenAnswer,
    taken_apart: Mapping[_Text, Structured],
    claims: Mapping[_Text, tuple[str, ...] | None],
    verdicts: Sequence[Mapping[_Check, Structured]],
    judges: Sequence[TextGenerator],
) -> tuple[ClaimScore, tuple[float, ...]]:
    """The score against the best reference, and the F1 of each judge there."""
    for text, what in ((one.answer, "answer"), *((reference, "reference") for reference in one.references)):
        outcome = taken_apart.get(_Text(one.question, text))
        if outcome is not None and outcome.error is not None:
            raise _Unscored(f"claims of the {what}: {outcome.error}")
    found = []
    for reference in one.references:
        precise, recalled = _both_ways(one, reference, claims)
        if recalled.claims:
            by_judge = [
                _measures(_share(precise, asked, judge_name(judges, n)), _share(recalled, asked, judge_name(judges, n)))
                for n, asked in enumerate(verdicts)
            ]
            score = ClaimScore(*(float(value) for value in np.mean(by_judge, axis=0)))
            found.append((score, tuple(own for _, _, own in by_judge)))
    if not found:
        raise _Unscored("no reference answer states anything that could be recalled")
    return max(found, key=lambda one: one[0].f1)


def _share(check: _Check, asked: Mapping[_Check, Structured], judge: str) -> float:
    """Share of entailed claims; 0 of no claims, and of a blank text."""
    if not check.claims or not check.against.text.strip():
        return 0.0
    outcome = asked[check]
    if outcome.error is not None or outcome.value is None:
        raise _Unscored(f"{judge}: {outcome.error}")
    return sum(outcome.value["entailed"]) / len(check.claims)


def _measures(precision: float, recall: float) -> tuple[float, float, float]:
    return precision, recall, harmonic_mean(precision, recall)


def _agreement(checks: Mapping[_Check, object], verdicts: Sequence[Mapping[_Check, Structured]]) -> Agreement:
    """Agreement of the judges over every claim of every check."""
    rows: list[list[str | None]] = []
    for check in checks:
        outcomes = [by_check[check] for by_check in verdicts]
        given = [None if x.value is None else list(map(str, x.value["entailed"])) for x in outcomes]
        rows += [[None if own is None else own[number] for own in given] for number in range(len(check.claims))]
    return agreement(rows)
