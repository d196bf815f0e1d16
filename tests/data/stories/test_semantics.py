"""The independent reading of stories, on hand-worked stories."""

import pytest
from support.story_semantics import explain

from qrag_jax.data.stories.story_notes import Told, parse_fact
from qrag_jax.types import InputError

STORY = [
    "Mary moved to the office.",  # 0
    "Mary got the milk there.",  # 1
    "John went back to the garden.",  # 2
    "Mary went to the kitchen.",  # 3
    "Mary travelled to the garden.",  # 4
    "Mary put down the milk.",  # 5
    "Mary journeyed to the hallway.",  # 6
    "John picked up the milk there.",  # 7
]


@pytest.mark.parametrize(
    ("length", "question", "expected"),
    [
        (8, "Where is Mary?", ("hallway", (6,))),
        (4, "Where is Mary?", ("kitchen", (3,))),
        (2, "Where is John?", None),
        (8, "Where is the milk?", ("garden", (2, 7))),
        (7, "Where is the milk?", ("garden", (4, 5))),
        (4, "Where is the milk?", ("kitchen", (1, 3))),
        (2, "Where is the milk?", ("office", (0, 1))),
        (1, "Where is the milk?", None),
        (6, "Where was the milk before the garden?", ("kitchen", (3, 4, 5))),
        (5, "Where was the milk before the garden?", ("kitchen", (1, 3, 4))),
        (5, "Where was the milk before the kitchen?", None),
        (8, "Where was the milk before the garden?", None),
        (1, "Where was the milk before the garden?", None),
    ],
)
def test_hand_worked(length, question, expected):
    assert explain(STORY[:length], question) == expected


def test_the_latest_way_into_a_place_counts():
    facts = ["Ann got the cup.", *(f"Ann went to the {place}." for place in ("hall", "attic", "shed", "attic"))]
    assert explain(facts, "Where was the cup before the attic?") == ("shed", (0, 3, 4))


def test_parse_fact():
    assert parse_fact("Sandra went back to the office.") == Told("move", "Sandra", "office")
    assert parse_fact("Sandra put down the apple there.") == Told("drop", "Sandra", "apple")
    with pytest.raises(InputError, match="not a fact of this world: 'Sandra ate the apple.'"):
        parse_fact("Sandra ate the apple.")
    with pytest.raises(InputError, match="not a question"):
        explain(STORY, "Who is Mary?")
