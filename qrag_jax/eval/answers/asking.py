"""What measures by language models share: how judges are asked, each thing once, and what that took."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from qrag_jax.llm.json_answers import Schema, parse_json, schema_grammar
from qrag_jax.llm.prompts import load_prompt
from qrag_jax.llm.structured import Structured, ask_structured
from qrag_jax.types import Generation, Message, Sampling, TextGenerator, UsageError

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
