"""Judge-correctness: whether an answer means the same as a right one, by language models as judges.

Every judge says yes (1) or no (0); a question has the mean over the judges. It counts only where all of them gave a
verdict: what failed is no 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qrag_jax.eval.answers.agreement import Agreement, agreement
from qrag_jax.eval.answers.asking import (
    DEFAULT_OPTIONS,
    MARK,
    JudgeOptions,
    ask_each,
    calls_of,
    check_judges,
    judge_name,
)
from qrag_jax.eval.measures.answer_scores import GivenAnswer
from qrag_jax.llm.json_answers import Boolean, Record
from qrag_jax.llm.prompts import fence, load_prompt
from qrag_jax.llm.structured import Structured
from qrag_jax.types import Generation, Message, TextGenerator

_VERDICT = Record({"correct": Boolean()})


@dataclass(frozen=True)
class JudgeResult:
    """Verdicts on all answers, in order.

    Attributes:
        scores: share of the judges who call the answer correct, in [0, 1]; None where one of them failed.
        errors: why; None where there is a score.
        agreement: of the judges.
        num_failed: for every judge the answers that it gave no verdict on.
        calls: all of them.
        prompt_sha256: of the template.
    """

    scores: tuple[float | None, ...]
    errors: tuple[str | None, ...]
    agreement: Agreement
    num_failed: tuple[int, ...]
    calls: tuple[Generation, ...]
    prompt_sha256: str


def judge_answers(
    given: Sequence[GivenAnswer], judges: Sequence[TextGenerator], *, options: JudgeOptions = DEFAULT_OPTIONS
) -> JudgeResult:
    """Asks every judge about every answer; the same answer to the same question once.

    Args:
        given: answers with their references, all of which a judge sees. A blank answer is not correct; nobody is asked.
        options: sampling, how often to ask again, templates.
    """
    check_judges(len(judges))
    template = load_prompt("judge", options.prompts)
    prompts: dict[GivenAnswer, tuple[Message, ...]] = {}
    for one in given:
        if one.answer.strip() and one not in prompts:
            right = "\n".join(" ".join(reference.split()) for reference in one.references)
            mark, blocks = fence([right, one.answer], MARK, beside=[one.question])
            prompts[one] = template.fill(mark=mark, question=one.question, blocks=blocks)
    verdicts = [ask_each(judge, prompts, _VERDICT, options) for judge in judges]
    errors = [_error(one, verdicts, judges) for one in given]
    return JudgeResult(
        scores=tuple(
            _score(one, verdicts) if error is None else None for one, error in zip(given, errors, strict=True)
        ),
        errors=tuple(errors),
        agreement=agreement([[_word(outcomes[one]) for outcomes in verdicts] for one in prompts]),
        num_failed=tuple(sum(x.error is not None for x in outcomes.values()) for outcomes in verdicts),
        calls=calls_of(outcome for outcomes in verdicts for outcome in outcomes.values()),
        prompt_sha256=template.sha256,
    )


def _error(
    one: GivenAnswer, verdicts: Sequence[Mapping[GivenAnswer, Structured]], judges: Sequence[TextGenerator]
) -> str | None:
    for number, outcomes in enumerate(verdicts):
        if one in outcomes and outcomes[one].error is not None:
            return f"{judge_name(judges, number)}: {outcomes[one].error}"
    return None


def _score(one: GivenAnswer, verdicts: Sequence[Mapping[GivenAnswer, Structured]]) -> float:
    if not one.answer.strip():
        return 0.0
    return sum(_word(outcomes[one]) == "correct" for outcomes in verdicts) / len(verdicts)


def _word(outcome: Structured) -> str | None:
    if outcome.value is None:
        return None
    return "correct" if outcome.value["correct"] else "wrong"
