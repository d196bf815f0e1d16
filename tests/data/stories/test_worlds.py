"""Simulated worlds: gold checked by an independent reading of the sentences, splits disjoint, as hard as bAbI."""

import numpy as np
import pytest
from support.story_semantics import explain
from support.tiers import slow_but

from qrag_jax.data.stories.story_notes import parse_fact
from qrag_jax.data.stories.vocabulary import BABI_VOCABULARY, WorldVocabulary
from qrag_jax.data.stories.worlds import FACTS_PER_TICK, RECENT_FACTS, simulate_stories, split_of
from qrag_jax.types import UsageError

LARGE_VOCABULARY = WorldVocabulary(
    people=("Alice", "Amir", "Chen", "Elena", "Grace", "Hugo", "Ingrid", "Jamal", "Lucia", "Oscar", "Priya", "Tom"),
    places=(
        "attic", "balcony", "cellar", "chapel", "courtyard", "garage", "harbour", "library",
        "market", "orchard", "school", "stable", "station", "theatre", "workshop",
    ),
    objects=("basket", "book", "candle", "compass", "hammer", "kettle", "lantern", "letter", "umbrella", "violin"),
)  # fmt: skip


def keys(stories) -> set[tuple]:
    return {(tuple(stories.fact_texts(i)), stories.question(i)) for i in range(len(stories))}


@pytest.mark.parametrize("vocabulary", [BABI_VOCABULARY, LARGE_VOCABULARY], ids=["babi", "large"])
@pytest.mark.parametrize("num_facts", [1, 2, 3])
def test_gold_and_answers_follow_from_the_sentences(num_facts, vocabulary):
    stories = simulate_stories(num_facts, 250, seed=5, vocabulary=vocabulary)
    assert len(stories) == 250
    for i in range(len(stories)):
        expected = (stories.answers[i], tuple(stories.gold[i].tolist()))
        assert explain(stories.fact_texts(i), stories.question(i), vocabulary) == expected
        assert len(expected[1]) == num_facts


@pytest.mark.parametrize("num_facts", [2, 3])
def test_worlds_are_possible(num_facts):
    """Replayed, nobody moves to where they are, takes what is held or elsewhere, or drops what they do not hold."""
    stories = simulate_stories(num_facts, 300, seed=1)
    for i in range(len(stories)):
        at, lies, held_by = {}, {}, {}
        for fact in map(parse_fact, stories.fact_texts(i)):
            if fact.kind == "move":
                assert at.get(fact.person) != fact.noun
                at[fact.person] = fact.noun
            elif fact.kind == "get":
                assert fact.noun not in held_by
                if fact.person in at and lies.get(fact.noun) is not None:
                    assert at[fact.person] == lies[fact.noun]
                held_by[fact.noun] = fact.person
            else:
                assert held_by.pop(fact.noun) == fact.person
                lies[fact.noun] = at.get(fact.person)


@pytest.mark.parametrize("num_facts", [1, 2, 3])
def test_questions_are_asked_on_ticks_about_recent_events(num_facts):
    stories = simulate_stories(num_facts, 500, seed=2)
    for facts, gold in zip(stories.facts, stories.gold, strict=True):
        assert len(facts) % FACTS_PER_TICK == 0
        told = [parse_fact(stories.texts[fact]).kind for fact in facts]
        event = gold[0] if num_facts == 1 or told[gold[0]] == "get" else gold[-1]
        assert len(facts) - RECENT_FACTS <= event


def test_same_arguments_same_stories_and_another_seed_others():
    first, again = simulate_stories(2, 200, seed=3), simulate_stories(2, 200, seed=3)
    assert keys(first) == keys(again) and first.query_ids == again.query_ids
    assert [gold.tolist() for gold in first.gold] == [gold.tolist() for gold in again.gold]
    assert len(keys(first) & keys(simulate_stories(2, 200, seed=4))) < 10


def test_fewer_questions_are_the_first_of_more():
    few, many = simulate_stories(3, 33, seed=0), simulate_stories(3, 80, seed=0)
    assert few.query_ids == many.query_ids[:33]
    assert [few.fact_texts(i) for i in range(33)] == [many.fact_texts(i) for i in range(33)]


@pytest.mark.parametrize("num_facts", slow_but([1], [1, 2, 3]))
def test_splits_share_no_story_whatever_the_seeds(num_facts):
    by_split = {
        split: [simulate_stories(num_facts, 250, seed, split) for seed in (0, 1)]
        for split in ("train", "valid", "test")
    }
    found = {split: set().union(*map(keys, parts)) for split, parts in by_split.items()}
    assert (
        not found["train"] & found["valid"]
        and not found["train"] & found["test"]
        and not found["valid"] & found["test"]
    )
    for split, parts in by_split.items():
        for stories in parts:
            assert all(split_of(stories.texts, facts) == split for facts in stories.facts)


def test_all_worlds_of_a_task_share_one_text_table():
    train, valid = simulate_stories(3, 10, 0), simulate_stories(3, 20, 9, "valid")
    assert train.texts == valid.texts
    assert len(train.texts) == 4 * 5 * 6 + 4 * 4 * 3 * 2 + 4 * 4 * 3 * 2
    assert len(simulate_stories(1, 10, 0).texts) == 4 * 5 * 6


@pytest.mark.slow
def test_as_many_facts_and_as_wide_gaps_as_babi():
    """Percentiles of the real train files, with room for chance; the committed table compares everything."""
    real = {1: ((2, 6, 10), (0, 0, 0), 0), 2: ((6, 14, 26), (1, 3, 8), 2), 3: ((14, 42, 96), (2, 5, 12), 12)}
    for num_facts, (facts, spans, room) in real.items():
        stories = simulate_stories(num_facts, 1_500, seed=11)
        span = [gold[-1] - gold[0] for gold in stories.gold]
        np.testing.assert_allclose(np.percentile(stories.num_facts, [10, 50, 90]), facts, rtol=0, atol=room)
        np.testing.assert_allclose(np.percentile(span, [10, 50, 90]), spans, rtol=0, atol=1)


def test_max_facts_leaves_out_and_counts():
    everything = simulate_stories(3, 400, seed=7)
    kept = [query_id for query_id, n in zip(everything.query_ids, everything.num_facts, strict=True) if n <= 30]
    short = simulate_stories(3, len(kept), seed=7, max_facts=30)
    assert list(short.query_ids) == kept and short.num_facts.max() <= 30
    last_story = int(kept[-1].split(":")[1].split(".")[0])
    until_there = [q for q in everything.query_ids if int(q.split(":")[1].split(".")[0]) <= last_story]
    assert short.num_left_out == len(until_there) - len(kept) and everything.num_left_out == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_facts": 4}, "num_facts must be 1, 2 or 3, got 4"),
        ({"split": "dev"}, "split must be one of train, valid, test, got 'dev'"),
        ({"num_questions": 0}, "num_questions must be at least 1"),
        ({"max_facts": 1}, "max_facts must be at least 2"),
        pytest.param({"num_facts": 3, "max_facts": 3}, "raise max_facts", marks=pytest.mark.slow),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(UsageError, match=message):
        simulate_stories(**{"num_facts": 2, "num_questions": 5, "seed": 0} | arguments)


@pytest.mark.slow
def test_vocabulary_refusals():
    with pytest.raises(UsageError, match="places needs two places"):
        WorldVocabulary(("Ann",), ("hall",), ("cup",))
    with pytest.raises(UsageError, match="people needs distinct words"):
        WorldVocabulary(("Ann", "Ann"), ("hall", "attic"), ("cup",))
    tiny = WorldVocabulary(("Ann",), ("hall", "attic"), ("cup",), move_verbs=("went to",), get_verbs=("got",))
    alone = {split_of(t, range(2)) for t in (("Ann went to the hall.", "Ann went to the attic."),
                                              ("Ann went to the attic.", "Ann went to the hall."))}  # fmt: skip
    missing = ({"train", "valid", "test"} - alone).pop()
    with pytest.raises(UsageError, match="more words"):
        simulate_stories(1, 5, 0, missing, tiny)
