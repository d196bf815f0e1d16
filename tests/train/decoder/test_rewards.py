"""Rewards of plans: by hand, against a slow reading, and what is refused, dropped and counted."""

import itertools
import math

import pytest

from qrag_jax.chunking.tree.level_ranges import NAMES, LevelRange, all_ranges, format_levels
from qrag_jax.chunking.tree.plan_texts import plan_json
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.names import DECODER_REWARDS
from qrag_jax.train.answer_rewards import checked_values
from qrag_jax.train.decoder.rewards import RewardOptions, combine
from qrag_jax.types import Generation, InputError, UsageError

_TRACE = "It asks for one fact."  # five words
_TABLE = {format_levels(one, NAMES): (one.least + 1) / 8 for one in all_ranges(NAMES)}


def _answer(*pairs: tuple[int, int], trace: str = _TRACE) -> str:
    plans = [plan_json(LevelRange(*pair), NAMES) for pair in pairs]
    return f"{trace} {plans[0] if len(plans) == 1 else '[' + ', '.join(plans) + ']'}"


def _values(name: str, completions: list[str], records: list[dict], **options: object) -> list[float | None]:
    reward = DECODER_REWARDS.load(name)(RewardOptions(**options))  # pyright: ignore[reportArgumentType]
    return list(reward([()] * len(completions), completions, records))


def test_alignment_and_exactness_by_hand():
    records = [{"label": [1, 3]}] * 4
    answers = [_answer((1, 3)), _answer((1, 4)), _answer((2, 2)), "No plan."]
    assert _values("label_alignment", answers, records) == [1.0, 0.5, 0.0, 0.0]
    assert _values("exact_plan", answers, records) == [1.0, 0.0, 0.0, 0.0]


def test_gain_and_judge_of_a_plan_and_of_none():
    def read(prompt):
        return Generation("Rome", "stop", logprobs=(-4.0 if "Oslo" in prompt[-2].content else -2.0,))

    contexts = {"section:section": ["Oslo"], "sentence:sentence": ["Lima"]}
    records = [{"contexts": contexts, "question": "Where?", "references": ["Rome"]}] * 3
    last = len(NAMES) - 1
    answers = [_answer((1, 1)), _answer((last, last)), "No plan."]
    assert _values("answer_gain", answers, records, generator=ScriptedGenerator(read)) == [-1.0, 0.0, -1.0]
    judge = ScriptedGenerator(lambda prompt: '{"correct": true}')
    assert _values("answer_judge", answers, records, generator=judge) == [1.0, 1.0, 0.0]


def test_several_documents_by_hand():
    label = [[0, 1], [2, 3], [4, 4]]
    answers = [
        _answer((0, 1), (2, 3), (4, 4)),
        _answer((0, 1), (2, 4), (4, 4)),
        _answer((0, 1), (2, 3)),
        _answer((0, 1)),
    ]
    records = [{"label": label}] * 4
    assert _values("label_alignment", answers, records) == [1.0, pytest.approx(5 / 6), 0.0, 0.0]
    assert _values("exact_plan", answers, records) == [1.0, 0.0, 0.0, 0.0]


def test_alignment_against_a_slow_reading():
    pairs = [(one.least, one.most) for one in all_ranges(NAMES)]
    both = list(itertools.product(pairs, pairs))
    answers, records = [_answer(said) for said, _ in both], [{"label": list(right)} for _, right in both]
    slow = [sum(a == b for a, b in zip(said, right, strict=True)) / 2 for said, right in both]
    aligned, exact = _values("label_alignment", answers, records), _values("exact_plan", answers, records)
    assert aligned == slow
    assert exact == [float(value == 1) for value in slow]
    assert exact.count(1.0) == len(pairs)  # each label has one exact plan


def test_tables_are_read_at_the_range():
    record = {"recalls": _TABLE, "costs": _TABLE}
    answers = [_answer((1, 1)), _answer((3, 4)), "No plan."]
    assert _values("evidence_recall", answers, [record] * 3) == [0.25, 0.5, 0.0]
    assert _values("cost", answers, [record] * 3) == [-0.25, -0.5, -1.0]
    with pytest.raises(InputError, match="costs of a record: no value for section:section"):
        _values("cost", answers[:1], [{"costs": {"sentence:sentence": 1.0}}])
    assert _values("cost", [_answer((1, 1), (1, 1))], [record]) == [-1.0]  # two plans for one document are none


def test_a_record_may_name_its_own_levels():
    record = {"names": ["512", "64"], "label": [0, 1], "recalls": {"512:64": 0.5}}
    answers = [f"{_TRACE} {plan_json(LevelRange(0, 1), ['512', '64'])}", _answer((0, 1))]
    assert _values("exact_plan", answers, [record] * 2) == [1.0, 0.0]
    assert _values("evidence_recall", answers, [record] * 2) == [0.5, 0.0]
    assert _values("format", answers, [record] * 2) == [1.0, 0.0]


def test_length_and_format_by_hand():
    long = " ".join(["word"] * 130) + "."
    answers = [_answer((0, 0)), _answer((0, 0), trace=long), "No plan.", _answer((0, 0)) + " More."]
    assert _values("length", answers, [{}] * 4) == [0.0, -2.0, 0.0, 0.0]
    assert _values("format", answers, [{}] * 4) == [1.0, 0.0, 0.0, 0.0]
    assert _values("length", answers[:1], [{}], count=len, max_trace=20) == [-2.0]  # 21 letters and a blank


def test_the_sum_has_the_weights_of_the_paper():
    record = {"label": [1, 1], "costs": _TABLE}
    long = " ".join(["word"] * 192)
    reward = combine(dict.fromkeys(("label_alignment", "cost", "length", "format")))
    scored = reward.score([()] * 3, [_answer((1, 2)), _answer((1, 1), trace=long), "?"], [record] * 3)
    by_hand = [0.5 - 0.2 * 0.25 + 0.1, 1 - 0.2 * 0.25 - 64 / 128, -0.2]
    assert scored.values == pytest.approx(by_hand)
    assert scored.parts["length"] == (0.0, -64.0, 0.0)
    assert scored.faults == {"long trace": 1, "no plan": 1} and scored.dropped == {}


def test_a_sample_without_a_value_is_dropped_and_counted():
    records = [{"label": None}, {"label": [0, 0]}, {"label": None}]
    scored = combine({"label_alignment": 1.0, "format": 0.5}).score([()] * 3, [_answer((0, 0))] * 3, records)
    assert scored.values == (None, 1.5, None)
    assert scored.dropped == {"label_alignment": 2}
    unweighted = combine({"label_alignment": 0.0, "format": 0.5}).score([()] * 3, [_answer((0, 0))] * 3, records)
    assert unweighted.values == (0.5, 0.5, 0.5)
    assert unweighted.parts["label_alignment"] == (None, 1.0, None)


def test_own_rewards_are_functions():
    def second(prompts, completions, records):
        return [len(text) * record["x"] for text, record in zip(completions, records, strict=True)]

    reward = combine({"second": 2.0}, own={"second": second})
    assert reward([()] * 2, ["ab", "c"], [{"x": 3.0}, {"x": 0.5}]) == (12.0, 1.0)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0], "reward mine: 1 values for 2 completions"),
        ([1.0, None, 2.0], "reward mine: 3 values for 2 completions"),
        ([1.0, math.nan], "reward mine: value nan of completion 1 is not a finite number"),
        ([-math.inf, None], "reward mine: value -inf of completion 0 is not a finite number"),
        (["1.0", 2.0], "reward mine: value '1.0' of completion 0 is not a finite number"),
        ([[1.0], 2.0], r"reward mine: value \[1.0\] of completion 0 is not a finite number"),
        (None, "reward mine: it returned None; return a list"),
    ],
)
def test_wrong_values_are_refused(values, reason):
    if isinstance(values, list):  # an iterator that is read once is judged as its values are
        with pytest.raises(InputError, match=reason):
            checked_values("mine", iter(values), 2)
    with pytest.raises(InputError, match=reason):
        combine({"mine": 1.0}, own={"mine": lambda *_: values}).score([()] * 2, ["a", "b"], [{}] * 2)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({}, "rewards: give at least one a weight"),
        ({"format": 0.0}, "rewards: give at least one a weight"),
        ({"label_align": 1.0}, "did you mean label_alignment"),
        ({"format": math.nan}, "rewards.format nan: must be a finite number"),
        ({"answer_f1": 1.0}, "rewards.answer_f1: it asks a language model, which no config names"),
    ],
)
def test_wrong_weights_are_refused(weights, reason):
    with pytest.raises(UsageError, match=reason):
        combine(weights)


def test_a_record_without_what_is_needed_is_named():
    with pytest.raises(InputError, match="record 1: no label, which reward label_alignment reads"):
        _values("label_alignment", [_answer((0, 0))] * 2, [{"label": None}, {}])
    with pytest.raises(InputError, match="record 0: no question, references, which reward answer_em reads"):
        _values("answer_em", ["?"], [{"contexts": {}}], generator=ScriptedGenerator([]))


def test_answers_are_asked_from_the_planned_context():
    record = {
        "question": "Who has the key?",
        "references": ["Mary"],
        "contexts": {"section:section": ["Mary has the key."], "sentence:sentence": ["Ada has it."]},
    }
    asked = []

    def said(messages):
        asked.append(messages[-1].content)
        return "Mary Smith" if "Mary" in asked[-1] else "Ada"

    answers = [_answer((1, 1)), _answer((4, 4)), "No plan.", _answer((1, 1))]
    records = [record, record, record, {**record, "contexts": None}]
    generator = ScriptedGenerator(said)
    assert _values("answer_f1", answers, records, generator=generator) == [pytest.approx(2 / 3), 0.0, 0.0, None]
    assert len(asked) == 2 and all("Who has the key?" in text for text in asked)
    assert _values("answer_em", answers, records, generator=generator) == [0.0, 0.0, 0.0, None]
    failing = ScriptedGenerator(lambda _: Generation("", "error", error="no server"))
    assert _values("answer_em", answers, records, generator=failing) == [None, None, 0.0, None]
