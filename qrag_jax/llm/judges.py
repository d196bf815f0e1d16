"""Judge-correctness: whether an answer means the same as a right one, by language models as judges.

Every judge says yes (1) or no (0); a question has the mean over the judges. It counts only where all of them gave a
verdict: what failed is no 0.

Agreement of several judges is the share of agreeing pairs, and Krippendorff's alpha. Each thing is asked once, and the
calls are counted.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, TypeVar

from qrag_jax.llm.json_answers import Boolean, Record, Schema, parse_json, schema_grammar
from qrag_jax.llm.prompts import fence, load_prompt
from qrag_jax.llm.structured import Structured, ask_structured
from qrag_jax.measures.answer_scores import GivenAnswer
from qrag_jax.types import Generation, Message, Sampling, TextGenerator, UsageError


@dataclass(frozen=True)
class Agreement:
    """Agreement of judges on labels without an order.

    Attributes:
        raw: share of pairs of verdicts on one and the same thing that are equal, in [0, 1]; None where no thing has
            two verdicts. It is high by chance where one label is frequent.
        alpha: Krippendorff's alpha for nominal data: 1 is full agreement, 0 what chance gives, below 0 less than that;
            None where no thing has two verdicts, or all verdicts are the same label, which leaves chance nothing to
            differ in.
        num_items: things with at least two verdicts.
    """

    raw: float | None
    alpha: float | None
    num_items: int


def agreement(verdicts: Sequence[Sequence[str | None]]) -> Agreement:
    """Agreement over things that are judged, of which a judge may have left some out.

    With the m_u >= 2 verdicts of thing u, each of its ordered pairs (c, k) adds 1 / (m_u - 1) to o_ck; n_c is the sum
    of o_ck over k, n the sum of all:

        alpha = 1 - (n - 1) * sum_{c != k} o_ck / sum_{c != k} n_c n_k      (Krippendorff 2004, nominal)

    Args:
        verdicts: for every thing the label that each judge gave, None where a judge gave none.
    """
    items = [[label for label in row if label is not None] for row in verdicts]
    items = [labels for labels in items if len(labels) > 1]
    if not items:
        return Agreement(None, None, 0)
    num_pairs = num_equal = 0
    coincidences: dict[tuple[str, str], float] = {}
    for labels in items:
        together = Counter(permutations(labels, 2))
        num_pairs += together.total()
        num_equal += sum(count for (one, other), count in together.items() if one == other)
        for pair, count in together.items():
            coincidences[pair] = coincidences.get(pair, 0.0) + count / (len(labels) - 1)
    return Agreement(num_equal / num_pairs, _alpha(coincidences), len(items))


def _alpha(coincidences: dict[tuple[str, str], float]) -> float | None:
    """Krippendorff's alpha from the matrix o_ck."""
    sums: dict[str, float] = {}
    for (label, _), value in coincidences.items():
        sums[label] = sums.get(label, 0.0) + value
    total = sum(sums.values())
    observed = sum(value for (one, other), value in coincidences.items() if one != other)
    expected = total**2 - sum(value**2 for value in sums.values())
    if len(sums) < 2:
        return None
    return 1 - (total - 1) * observed / expected


Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class JudgeOptions:
    """How language models are asked to judge.

    Attributes:
        sampling: of every call.
        max_asks: calls for one verdict, at most: an answer that cannot be read is asked for again with the reason.
        prompts: folder of the user's templates; None takes ours.
    """

    sampling: Sampling = Sampling(max_tokens=800)
    max_asks: int = 2
    prompts: Path | None = None


DEFAULT_OPTIONS = JudgeOptions()
# What marks are drawn from: one for all answers that do not hold it, so that prompts begin alike up to the question.
MARK = "answer"


def check_judges(num_judges: int) -> None:
    """Refuses an empty panel."""
    if num_judges < 1:
        raise UsageError("this measure asks language models as judges: name at least one")


def ask_each(
    generator: TextGenerator, prompts: Mapping[Key, Sequence[Message]], schema: Schema, options: JudgeOptions
) -> dict[Key, Structured[Any]]:
    """Asks every prompt for a JSON value of a schema, all in one batch; the outcomes by key."""
    outcomes = ask_structured(
        generator,
        list(prompts.values()),
        partial(parse_json, schema=schema),
        sampling=options.sampling,
        max_asks=options.max_asks,
        again=load_prompt("again", options.prompts),
        grammar=schema_grammar(schema),
    )
    return dict(zip(prompts, outcomes, strict=True))


def calls_of(outcomes: Iterable[Structured[Any]]) -> tuple[Generation, ...]:
    """All calls behind these outcomes, those that failed too: what judging took."""
    return tuple(generation for outcome in outcomes for generation in outcome.generations)


def judge_name(judges: Sequence[TextGenerator], number: int) -> str:
    """The judge in messages: its model, and its number where there are several."""
    return judges[number].model if len(judges) == 1 else f"judge {number + 1} ({judges[number].model})"


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
