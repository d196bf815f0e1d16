"""Stories: validation, selection, joining."""

import numpy as np
import pytest

from qrag_jax.data.stories.stories import Stories, StoriesBuilder, concatenate, hold_out, select
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


# --- holding stories out


def growing_stories(num_stories: int = 10, questions: int = 3) -> Stories:
    """As bAbI files have them: a story is asked about again and again, while its facts grow."""
    builder = StoriesBuilder()
    for story in range(num_stories):
        facts = np.asarray([builder.intern(f"fact {i} of story {story}") for i in range(2 * questions)], np.int32)
        for number in range(questions):
            builder.add(f"{story}:{number}", facts[: 2 + 2 * number], "Where is A?", "-", [number])
    return builder.build(num_left_out=2)


def story_of(stories: Stories) -> list[str]:
    return [query_id.partition(":")[0] for query_id in stories.query_ids]


@pytest.mark.parametrize(("share", "num_held"), [(0.3, 3), (0.01, 1), (0.99, 9), (0.5, 5)])
def test_hold_out_splits_by_story(share, num_held):
    """All questions of a story stay together, in their order; nothing is lost and nothing is on both sides."""
    stories = growing_stories()
    kept, held = hold_out(stories, share, 0)
    assert set(story_of(kept)).isdisjoint(story_of(held))
    assert len(set(story_of(held))) == num_held and len(held) == 3 * num_held
    assert sorted([*kept.query_ids, *held.query_ids]) == sorted(stories.query_ids)
    everything = contents(stories)
    for part in (kept, held):
        rows = contents(part)
        assert rows == [row for row in everything if row in rows]
        assert part.texts == stories.texts and part.num_left_out == 2


def test_hold_out_follows_its_seed():
    held = [hold_out(growing_stories(), 0.3, seed)[1].query_ids for seed in (0, 0, 1, 2)]
    assert held[0] == held[1] and len({*held}) > 1


def test_a_question_that_stands_on_both_sides_is_not_held_out():
    """Stories that are told twice: whichever copy is held out, training has seen the other one."""
    twice = growing_stories(5)
    copies = Stories(
        twice.texts, (*twice.questions, "Who?"), twice.facts * 2, np.repeat([0, 1], 15).astype(np.int32),
        twice.gold * 2, twice.answers * 2, tuple(f"{query_id}{end}" for end in "ab" for query_id in twice.query_ids),
    )  # fmt: skip
    same = Stories(**{**vars(copies), "question_ids": np.zeros(30, np.int32)})
    for seed in range(4):
        kept, held = hold_out(same, 0.6, seed)
        assert len(kept) == 12  # 4 of 10 stories; a copy of a kept story is on neither side
        shown = {tuple(kept.fact_texts(i)) for i in range(len(kept))}
        assert shown.isdisjoint(tuple(held.fact_texts(i)) for i in range(len(held)))
        # Another question over the same facts is another question.
        assert len(hold_out(copies, 0.6, seed)[1]) == 18


def test_neighbours_are_one_story_only_if_the_facts_of_the_first_begin_the_second():
    builder = StoriesBuilder()
    ids = lambda *names: np.asarray([builder.intern(name) for name in names], np.int32)  # noqa: E731
    rows = [ids("a"), ids("a", "b"), ids("a", "b"), ids("b", "a", "c"), ids("b"), ids("b", "d"), ids("b", "c", "d")]
    for number, facts in enumerate(rows):
        builder.add(f"q{number}", facts, f"Question {number}?", "-", [0])
    stories = builder.build()
    together = [{0, 1, 2}, {3}, {4, 5}, {6}]
    for seed in range(8):
        held = {int(query_id[1:]) for query_id in hold_out(stories, 0.5, seed)[1].query_ids}
        assert sum(story <= held for story in together) == 2
        assert sum(len(story) for story in together if story <= held) == len(held)


@pytest.mark.parametrize(("num_stories", "message"), [(1, "1 story cannot be split"), (0, "0 story cannot be split")])
def test_too_few_stories_to_hold_one_out(num_stories, message):
    with pytest.raises(InputError, match=message):
        hold_out(growing_stories(num_stories), 0.5, 0)


def test_nothing_new_to_hold_out():
    """One story told over and over: every copy that is held out is known."""
    builder = StoriesBuilder()
    for number in range(4):
        facts = np.asarray([builder.intern("a"), builder.intern("b")][:: 1 if number % 2 else -1], np.int32)
        builder.add(f"q{number}", facts, "Who?", "-", [0])
    with pytest.raises(InputError, match="all 1 questions that would be held out are in the training part too"):
        hold_out(builder.build(), 0.25, 0)
