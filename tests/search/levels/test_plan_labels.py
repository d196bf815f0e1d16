"""Labels of plans: the cheapest range that holds the evidence, and widening until an answer is right."""

import numpy as np
from support.level_documents import NAMES, count, embed, tiny_index

from qrag_jax.chunking.tree.level_ranges import LevelRange, all_ranges
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.search.context.pack import Budget
from qrag_jax.search.levels.plan_labels import (
    CALL_FAILED,
    NOT_ANSWERED,
    NOT_HELD,
    Tried,
    answered_ranges,
    cheapest_ranges,
    make_trial,
)

RANGES = (LevelRange(0, 2), LevelRange(1, 1), LevelRange(1, 2), LevelRange(2, 2))


def labels(recall, cost):
    cost = np.broadcast_to(np.array(cost, float), np.shape(recall))
    return cheapest_ranges(np.array(recall, float), np.array(cost), RANGES)


def test_the_cheapest_range_that_holds_all_evidence():
    found = labels([[1, 0.9, 1, 0], [1, 1, 1, 1], [0.5, 0.9, 0, 0]], [1.0, 0.2, 0.6, 0.4])
    assert found.ranges == (LevelRange(1, 2), LevelRange(1, 1), None)
    assert found.dropped == {NOT_HELD: 1}


def test_of_equally_cheap_ranges_the_narrower():
    assert labels([[1, 1, 1, 1]], [0.5, 0.5, 0.5, 0.5]).ranges == (LevelRange(1, 1),)
    assert labels([[1, 0, 1, 0]], [0.5, 0.1, 0.5, 0.1]).ranges == (LevelRange(1, 2),)


def test_labels_against_a_loop():
    rng = np.random.default_rng(0)
    ranges = all_ranges(("a", "b", "c", "d"))
    recall, cost = rng.choice([0.0, 0.5, 1.0], (50, len(ranges))), rng.random((50, len(ranges)))
    found = cheapest_ranges(recall, cost, ranges)
    for row, label in enumerate(found.ranges):
        held = [place for place in range(len(ranges)) if recall[row, place] == 1]
        assert label == (ranges[min(held, key=lambda place: cost[row, place])] if held else None)
    assert found.dropped.get(NOT_HELD, 0) == found.ranges.count(None)


def test_a_range_grows_at_both_ends_until_the_answer_is_right():
    asked = []

    def trial(places, ranges):
        asked.append((list(places), ranges[0]))
        return [
            Tried(one.least <= 1 if place == 0 else False, LevelRange(2, 2))
            for place, one in zip(places, ranges, strict=True)
        ]

    found = answered_ranges(2, 5, LevelRange(2, 3), trial)
    assert asked == [([0, 1], LevelRange(2, 3)), ([0, 1], LevelRange(1, 4)), ([1], LevelRange(0, 4))]
    assert found.ranges == (LevelRange(2, 2), None) and found.dropped == {NOT_ANSWERED: 1}


def test_a_failed_call_is_no_wrong_answer():
    found = answered_ranges(1, 3, LevelRange(1, 1), lambda places, ranges: [Tried(None, LevelRange(1, 1))])
    assert found.ranges == (None,) and found.dropped == {CALL_FAILED: 1}


def test_a_trial_retrieves_answers_and_checks():
    index = tiny_index()
    questions = ["What do whales sing?", "Where do bees fly?"]
    generator = ScriptedGenerator(["opera", failed("down")])
    trial = make_trial(
        index,
        questions,
        embed(questions),
        generator,
        lambda place, text: text == "opera",
        Budget(8, count, cut_last=True),
    )
    first, second = trial([0, 1], [LevelRange(3, 3)] * 2)
    assert first == Tried(True, LevelRange(3, 3)) and second.is_right is None
    shown = generator.asked[0][-1].content
    assert "Whales sing opera." in shown and "What do whales sing?" in shown


def test_labels_of_a_trial_are_the_levels_that_were_found():
    index, question = tiny_index(), ["What do whales sing?"]
    trial = make_trial(
        index,
        question,
        embed(question),
        ScriptedGenerator(["no", "opera"]),
        lambda _, text: text == "opera",
        Budget(40, count, cut_last=True),
    )
    found = answered_ranges(1, len(NAMES), LevelRange(2, 2), trial)
    (label,) = found.ranges
    assert label is not None and 1 <= label.least <= label.most <= 3
