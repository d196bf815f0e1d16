"""Rewards of passages by the answer that a language model gives from them: no gold passage is needed.

    em, f1   of the answer (`measures/answer_scores.py`)
    judge    1 if a language model calls the answer correct, else 0 (`llm/judges.py`)
    gain     the share of its surprise at the right answer a that the passages C take away:

                 S(C) = -1/|a| sum_i log p(a_i | C, q, a_<i)
                 gain = max(-1, (S(nothing) - S(C)) / max(S(nothing), 0.1))

`gain` writes nothing: the model reads the passages, the question and the right answer once. It is 1 where the passages
make the answer certain, 0 where they say nothing, and below 0 where they lead away from it. The floor of 0.1 nats keeps
it below 1 where the model knows the answer by itself.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from qrag_jax.llm.calls import SHORT_ANSWER_TOKENS, ask_all
from qrag_jax.llm.config import LlmConfig, make_generator, make_likelihood
from qrag_jax.llm.judges import judge_answers
from qrag_jax.llm.prompts import load_prompt, passages_prompt
from qrag_jax.llm.thinking import empty_answer
from qrag_jax.measures.answer_scores import GivenAnswer, score_answer
from qrag_jax.types import Generation, InputError, Message, Sampling, TextGenerator

Measure = Literal["gain", "f1", "em", "judge"]
_LEAST_SURPRISE = 0.1
_READ = Sampling(max_tokens=1)  # of a model that writes nothing


class Asked(NamedTuple):
    """A question to a language model.

    Attributes:
        question: its text.
        passages: that the model answers from, in the order of the documents; may be empty.
        references: right answers, at least one. `gain` reads the first.
    """

    question: str
    passages: tuple[str, ...]
    references: tuple[str, ...]


# A value for each, or None where a call failed, which drops it. Equal questions get equal values.
AnswerReward = Callable[[Sequence[Asked]], Sequence[float | None]]


@dataclass(frozen=True)
class AnswerRewardConfig:
    """How a language model pays for passages.

    Attributes:
        measure: `gain` needs a model in this process, and one call without and one with the passages, in which it only
            reads. `f1` and `em` need an answer, `judge` a second call that judges it.
        llm: local or openai.
        llm_model: local: smollm2 (for empty), a folder, a .gguf file or a hub id; openai: its name on the server.
        base_url: openai: address of the server.
        journal: file that keeps finished calls; empty is the user's own file.
        max_llm_tokens: budget of tokens; null is no limit.
    """

    measure: Measure = "gain"
    llm: str = "local"
    llm_model: str = ""
    base_url: str = ""
    journal: str = ""
    max_llm_tokens: int | None = None

    def load(self) -> TextGenerator:
        """The model, with the journal and the budget."""
        journal = Path(self.journal) if self.journal else None
        config = LlmConfig(
            self.llm, self.llm_model or None, base_url=self.base_url or None, journal=journal,
            max_llm_tokens=self.max_llm_tokens,
        )  # fmt: skip
        return (make_likelihood if self.measure == "gain" else make_generator)(config)


def answer_reward(measure: Measure, generator: TextGenerator) -> AnswerReward:
    """The reward of a measure.

    Args:
        generator: for `gain` one that tells the log-probabilities of the last message (`llm/local.LocalLikelihood`).
    """
    template = load_prompt("short_answer")

    def prompts(asked: Sequence[Asked]) -> list[tuple[Message, ...]]:
        return [passages_prompt(template, one.question, one.passages, "reward") for one in asked]

    def answers(asked: Sequence[Asked]) -> list[Generation]:
        sampling = Sampling(max_tokens=SHORT_ANSWER_TOKENS)
        return [empty_answer(said) for said in ask_all(generator, prompts(asked), sampling=sampling)]

    def scored(asked: Sequence[Asked]) -> list[float | None]:
        return [
            None if said.error is not None else getattr(score_answer(said.text, one.references), measure)
            for one, said in zip(asked, answers(asked), strict=True)
        ]

    def judged(asked: Sequence[Asked]) -> list[float | None]:
        said = answers(asked)
        known = [i for i, one in enumerate(said) if one.error is None]
        given = [GivenAnswer(str(i), asked[i].question, said[i].text, asked[i].references) for i in known]
        verdicts = dict(zip(known, judge_answers(given, [generator]).scores, strict=True)) if given else {}
        return [verdicts.get(i) for i in range(len(asked))]

    def gained(asked: Sequence[Asked]) -> list[float | None]:
        alone = [one._replace(passages=()) for one in asked]
        wanted = list(dict.fromkeys([*alone, *asked]))
        read = [
            (*prompt, Message("assistant", one.references[0]))
            for one, prompt in zip(wanted, prompts(wanted), strict=True)
        ]
        surprise = dict(zip(wanted, map(_surprise, ask_all(generator, read, sampling=_READ)), strict=True))
        return [gain(surprise[before], surprise[after]) for before, after in zip(alone, asked, strict=True)]

    rewards: dict[Measure, AnswerReward] = {"gain": gained, "judge": judged, "f1": scored, "em": scored}
    return rewards[measure]


def gain(before: float | None, after: float | None) -> float | None:
    """The formula of the head of this file, of S(nothing) and S(C); None where one of them is."""
    if before is None or after is None:
        return None
    return max(-1.0, (before - after) / max(before, _LEAST_SURPRISE))


def _surprise(read: Generation) -> float | None:
    if read.error is not None:
        return None
    if not read.logprobs:
        raise InputError("the model told no log-probabilities of an answer; gain needs a model in this process")
    return -fmean(read.logprobs)


def checked_values(
    name: str, values: Any, number: int, of: str = "completions", named: Sequence[str] | None = None
) -> tuple[float | None, ...]:
    """The values of a reward; an InputError if there are not as many as asked, or one is not a finite number.

    Args:
        of, named: what they are of, and a name of each, for messages; None: numbers.
    """
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise InputError(f"reward {name}: it returned {values!r:.60}; return a list with a number or None for each")
    values = list(values)
    found = [None if value is None else _number(value) for value in values]
    if len(found) != number:
        raise InputError(f"reward {name}: {len(found)} values for {number} {of}; return one for each")
    for place, (value, given) in enumerate(zip(found, values, strict=False)):
        if value is not None and not math.isfinite(value):
            what = f"{of.removesuffix('s')} {place if named is None else repr(named[place])}"
            raise InputError(
                f"reward {name}: value {given!r:.60} of {what} is not a finite number; return one, or None to drop it"
            )
    return tuple(found)


def _number(value: Any) -> float:
    """NaN for what is no number."""
    try:
        return math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return math.nan
