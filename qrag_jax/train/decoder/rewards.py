"""Rewards of a decoder's answers: functions (prompts, completions, records) -> a value each, and weighted sums of them.

    reward = combine({"label_alignment": 1.0, "format": None})
    values = reward(prompts, completions, records)

None in place of a value drops the sample. Rewards of plans, with their default weights (SmartChunk, appendix G), for a
trace of L tokens:

    label_alignment, exact_plan   1         share of the ends of the range that are those of the label; 1 if all are
    evidence_recall               1         of the context of the planned range
    answer_em, answer_f1,         1         of a language model's answer from that context
    answer_judge, answer_gain               (`train/answer_rewards.py`)
    cost                          .2        -(tokens built + tokens sent) / the same for all levels
    length                        1/L_max   -max(0, L - L_max)
    format                        .1        1 if the plan parses and L <= L_max

An answer without a plan gets what the worst plan would: 0, or -1 of `cost` and `answer_gain`. A record has the facts
that its rewards need: `label` ([least, most], or a list of such pairs for several documents); `recalls`, `costs`,
`contexts` (tables {"section:sentence": value, ...}; a context is a list of passages); `question`, `references`; and
`names` of the levels if they are not those of the options. A null drops the sample.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from qrag_jax.chunking.tree.level_ranges import NAMES, LevelRange, format_levels
from qrag_jax.chunking.tree.plan_texts import parse_plans, trace_of
from qrag_jax.names import DECODER_REWARDS
from qrag_jax.train.answer_rewards import Asked, Measure, answer_reward, checked_values
from qrag_jax.types import CountTokens, InputError, Message, TextGenerator, UsageError, check_fields

Prompts = Sequence[Sequence[Message]]
Record = Mapping[str, Any]
Values = Sequence[float | None]
Reward = Callable[[Prompts, Sequence[str], Sequence[Record]], Values]
Plans = tuple[LevelRange, ...]
Maker = Callable[["RewardOptions"], Reward]
_WEIGHTS = {"cost": 0.2, "format": 0.1}  # of others 1
_ASKED = ("contexts", "question", "references")
_FIELDS: Mapping[str, Sequence[str]] = {  # of a record that a reward reads
    "label_alignment": ("label",), "exact_plan": ("label",), "evidence_recall": ("recalls",), "cost": ("costs",),
    **dict.fromkeys(("answer_em", "answer_f1", "answer_judge", "answer_gain"), _ASKED),
}  # fmt: skip


@dataclass(frozen=True)
class RewardOptions:
    """Settings of the rewards of plans.

    Attributes:
        names: of the levels, the coarsest first.
        max_trace: L_max, tokens.
        count: text -> its tokens.
        generator: answers from the context, for rewards of answers; for `answer_gain` it tells log-probabilities
            (`llm/local.LocalLikelihood`).
    """

    names: tuple[str, ...] = NAMES
    max_trace: int = 128
    count: CountTokens = lambda text: len(text.split())  # noqa: E731
    generator: TextGenerator | None = None

    def __post_init__(self) -> None:
        check_fields(self, "reward", positive=("max_trace",))

    def plans(self, text: str, record: Record) -> Plans | None:
        """The plans of an answer; None if it has none."""
        try:
            return parse_plans(text, record.get("names", self.names))
        except InputError:
            return None

    def excess(self, text: str) -> int:
        """Tokens of its trace beyond the limit."""
        return max(0, self.count(trace_of(text)) - self.max_trace)

    def fault(self, text: str, record: Record) -> str:
        """Why its `format` is 0; "" if it is 1."""
        return "no plan" if self.plans(text, record) is None else "long trace" if self.excess(text) else ""


@dataclass(frozen=True)
class Scored:
    """The rewards of a batch.

    Attributes:
        values: weighted sums; None where a part with a weight is None.
        parts: values of each reward, without its weight.
        dropped: number of samples without a value, by reward.
        faults: number of answers whose `format` is 0, by reason.
    """

    values: tuple[float | None, ...]
    parts: Mapping[str, tuple[float | None, ...]]
    dropped: Mapping[str, int]
    faults: Mapping[str, int]


@dataclass(frozen=True)
class WeightedReward:
    """A weighted sum of rewards, which is a `Reward` itself; made by `combine`."""

    rewards: Mapping[str, tuple[float, Reward]]
    options: RewardOptions

    def __call__(self, prompts: Prompts, completions: Sequence[str], records: Sequence[Record]) -> Values:
        """The weighted sums."""
        return self.score(prompts, completions, records).values

    def score(self, prompts: Prompts, completions: Sequence[str], records: Sequence[Record]) -> Scored:
        """The weighted sums with their parts and counts; errors as in `checked_values`."""
        parts = {
            name: checked_values(name, reward(prompts, completions, records), len(completions))
            for name, (_, reward) in self.rewards.items()
        }
        weighted = [
            [None if value is None else weight * value for value in parts[name]]
            for name, (weight, _) in self.rewards.items()
            if weight
        ]
        values = tuple(None if None in row else math.fsum(filter(None, row)) for row in zip(*weighted, strict=True))
        faults = Counter(map(self.options.fault, completions, records)) if "format" in parts else Counter()
        dropped = {name: own.count(None) for name, own in parts.items() if None in own}
        return Scored(values, parts, dropped, {reason: number for reason, number in faults.items() if reason})


def combine(
    weights: Mapping[str, float | None],
    options: RewardOptions | None = None,
    own: Mapping[str, Reward] | None = None,
) -> WeightedReward:
    """The weighted sum of rewards.

    Args:
        weights: by name, of the registry or of `own`; None takes the default of the module. A reward of weight 0 is
            computed and is among the parts.
        options: of the ready-made rewards.
        own: your rewards.
    """
    if not any(weight != 0 for weight in weights.values()):
        raise UsageError("give at least one a weight", field="rewards", remedy=f"such as {DECODER_REWARDS.names[0]}: 1")
    options = options or RewardOptions()
    rewards = {}
    for name, weight in weights.items():
        default = 1 / options.max_trace if name == "length" else _WEIGHTS.get(name, 1.0)
        weight = default if weight is None else float(weight)
        if not math.isfinite(weight):
            raise UsageError("must be a finite number", field=f"rewards.{name}", value=weight)
        rewards[name] = weight, own[name] if own and name in own else DECODER_REWARDS.load(name)(options)
    return WeightedReward(rewards, options)


def check_records(weights: Iterable[str], records: Sequence[Record]) -> None:
    """Refuses records without a field that one of these rewards reads."""
    for name in weights:
        for place, record in enumerate(records):
            _check_known(name, record, record.get("where", f"record {place}"))


def _of_plans(name: str, value: Callable[[Plans, Record, RewardOptions], float], without: float = 0.0) -> Maker:
    """A reward of plans and records with a value in a field; an answer without a plan gets `without`."""

    def make(options: RewardOptions) -> Reward:
        def reward(_: Prompts, completions: Sequence[str], records: Sequence[Record]) -> Values:
            values: list[float | None] = [None] * len(completions)
            for place, plans in _known(name, options, completions, records):
                values[place] = without if plans is None else value(plans, records[place], options)
            return values

        return reward

    return make


def _of_answers(name: str, measure: Measure, options: RewardOptions) -> Reward:
    """A reward of answers to all questions with a plan, asked together; a failed call drops its sample."""
    if options.generator is None:
        raise UsageError(
            "it asks a language model, which no config names: train in Python, by train_decoder(..., generator=...)",
            field=f"rewards.{name}",
        )
    of_answers = answer_reward(measure, options.generator)

    def reward(_: Prompts, completions: Sequence[str], records: Sequence[Record]) -> Values:
        values: list[float | None] = [None] * len(completions)
        asked: dict[int, Asked] = {}
        for place, plans in _known(name, options, completions, records):
            if plans is None:
                values[place] = -1.0 if measure == "gain" else 0.0
            else:
                record = records[place]
                passages = tuple(_entry("contexts", plans, record, options))
                asked[place] = Asked(record["question"], passages, tuple(record["references"]))
        for place, value in zip(asked, of_answers(list(asked.values())), strict=True):
            values[place] = value
        return values

    return reward


def _known(
    name: str, options: RewardOptions, completions: Sequence[str], records: Sequence[Record]
) -> Iterator[tuple[int, Plans | None]]:
    """(place, plans) of the samples whose record has values in the reward's fields; tables are of one plan."""
    fields = _FIELDS[name]
    for place, (text, record) in enumerate(zip(completions, records, strict=True)):
        _check_known(name, record, f"record {place}")
        if all(record[field] is not None for field in fields):
            plans = options.plans(text, record)
            yield place, plans if "label" in fields or plans is None or len(plans) == 1 else None


def _check_known(name: str, record: Record, where: str) -> None:
    if missing := [field for field in _FIELDS.get(name, ()) if field not in record]:
        raise InputError(f"no {', '.join(missing)}, which reward {name} reads; add it, null if unknown", file=where)


def _matches(plans: Plans, record: Record) -> list[bool]:
    """Both ends of every document: are they those of the label."""
    label = record["label"]
    labels = label if isinstance(label[0], Sequence) else [label]
    if len(plans) != len(labels):
        return [False]
    pairs = zip(plans, labels, strict=True)
    return [is_right for plan, (least, most) in pairs for is_right in (plan.least == least, plan.most == most)]


def _entry(field: str, plans: Plans, record: Record, options: RewardOptions) -> Any:
    """The value of the plan's range in a table of a record."""
    levels = format_levels(plans[0], record.get("names", options.names))
    if levels not in record[field]:
        raise InputError(f"{field} of a record: no value for {levels}; add every range of the levels")
    return record[field][levels]


# Rewards of the head of this file, made from options.
label_alignment = _of_plans("label_alignment", lambda plans, record, _: fmean(_matches(plans, record)))
exact_plan = _of_plans("exact_plan", lambda plans, record, _: float(all(_matches(plans, record))))
evidence_recall = _of_plans("evidence_recall", partial(_entry, "recalls"))
cost = _of_plans("cost", lambda *planned: -_entry("costs", *planned), without=-1.0)
answer_em = partial(_of_answers, "answer_em", "em")
answer_f1 = partial(_of_answers, "answer_f1", "f1")
answer_judge = partial(_of_answers, "answer_judge", "judge")
answer_gain = partial(_of_answers, "answer_gain", "gain")


def length(options: RewardOptions) -> Reward:
    """`-max(0, L - L_max)` for a trace of L tokens."""
    return lambda prompts, completions, records: [-float(options.excess(text)) for text in completions]


def format_(options: RewardOptions) -> Reward:
    """1 if the plan parses and its trace is within its limit, else 0."""
    return lambda prompts, completions, records: [float(not one) for one in map(options.fault, completions, records)]
