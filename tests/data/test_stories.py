"""Stories: validation, selection, joining."""

import numpy as np
import pytest

from qrag_jax.data.stories import Stories, StoriesBuilder, concatenate, select
from qrag_jax.types import InputError


def make_stories(facts=("A went.", "B went.", "A slept."), gold=(2,), query_id="q0") -> Stories:
    builder = StoriesBuilder()
    ids = np.asarray([builder.intern(fact) for fact in facts], np.int32)
    builder.add(query_id, ids, "Where is A?", "bed", gold)
    return builder.build()


def contents(stories: Stories) -> list[tuple]:
    return [
        (stories.query_ids[i], stories.fact_texts(i), stories.question(i), stories.answers[i], stories.gold[i].tolist())
        for i in range(len(stories))
    ]


def test_builder_interns_repeated_sentences():
    stories = make_stories(facts=("A went.", "B went.", "A went."), gold=(2, 0, 2))
    assert stories.texts == ("A went.", "B went.")
    assert stories.facts[0].tolist() == [0, 1, 0] and stories.facts[0].dtype == np.int32
    assert stories.gold[0].tolist() == [0, 2]
    assert stories.num_facts.tolist() == [3]


@pytest.mark.parametrize(
    ("gold", "message"),
    [
        ((3,), "question q0: support fact 3 does not exist; the story has 3 facts"),
        ((-1, 1), "support fact -1 does not exist"),
        ((), "gold must be sorted distinct positions, at least one"),
    ],
)
def test_support_that_does_not_exist(gold, message):
    with pytest.raises(InputError, match=message):
        make_stories(gold=gold)


def test_refuses_ids_outside_of_the_table():
    good = make_stories()
    with pytest.raises(InputError, match=r"facts must be ids in \[0, 3\), got \[0, 7\]"):
        Stories(
            good.texts, good.questions, (np.array([0, 7]),), good.question_ids, good.gold, good.answers, good.query_ids
        )
    with pytest.raises(InputError, match=r"question_ids must lie in \[0, 1\)"):
        Stories(good.texts, good.questions, good.facts, np.array([1]), good.gold, good.answers, good.query_ids)


def test_refuses_unequal_lengths_and_repeated_texts():
    good = make_stories()
    with pytest.raises(InputError, match="one entry per question in every field"):
        Stories(good.texts, good.questions, good.facts, good.question_ids, good.gold, (), good.query_ids)
    with pytest.raises(InputError, match="must be distinct"):
        Stories(("A", "A", "B"), good.questions, good.facts, good.question_ids, good.gold, good.answers, good.query_ids)


def test_concatenate_gives_every_sentence_one_id():
    first = make_stories(query_id="q0")
    second = make_stories(facts=("B went.", "C went."), gold=(0, 1), query_id="q1")
    joined = concatenate([first, second])
    assert joined.texts == ("A went.", "B went.", "A slept.", "C went.")
    assert joined.questions == ("Where is A?",)
    assert contents(joined) == contents(first) + contents(second)


def test_concatenate_refuses_repeated_query_ids_and_nothing():
    with pytest.raises(InputError, match="query id 'q0' is used twice"):
        concatenate([make_stories(), make_stories()])
    with pytest.raises(InputError, match="at least one"):
        concatenate([])


def test_select_by_ids_and_by_mask():
    joined = concatenate([make_stories(query_id=f"q{i}") for i in range(4)])
    assert contents(select(joined, [2, 0])) == [contents(joined)[2], contents(joined)[0]]
    assert contents(select(joined, np.array([False, True, False, True]))) == [contents(joined)[i] for i in (1, 3)]
    assert len(select(joined, [])) == 0
    with pytest.raises(InputError, match=r"must lie in \[0, 4\)"):
        select(joined, [4])
    with pytest.raises(InputError, match="mask over 4 questions"):
        select(joined, np.array([True]))
