"""Composed contexts: facts in order, gold right, noise in runs, nothing invented."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiers import examples

from qrag_jax.data.stories.babilong import compose, draw_noise_pool, fits, text_table
from qrag_jax.data.stories.haystack import Haystack
from qrag_jax.data.stories.stories import StoriesBuilder
from qrag_jax.data.stories.worlds import simulate_stories
from qrag_jax.types import InputError, UsageError


def make_haystack(sizes) -> Haystack:
    document = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return Haystack(tuple(f"Noise sentence {i}." for i in range(len(document))), document, "test")


STORIES = simulate_stories(2, 60, seed=0)
HAYSTACK = make_haystack([7, 1, 130, 40, 2, 250, 30])


def runs(noise: np.ndarray, document: np.ndarray) -> list[np.ndarray]:
    """Maximal pieces of consecutive sentences of one document."""
    breaks = np.flatnonzero((np.diff(noise) != 1) | (np.diff(document[noise]) != 0)) + 1
    return np.split(noise, breaks)


def check(composed, stories, haystack, num_chunks):
    num_texts = len(stories.texts)
    assert composed.chunks.dtype == np.int32 and composed.gold.dtype == bool and composed.question_ids.dtype == np.int32
    assert composed.chunks.shape == composed.gold.shape == (len(composed.story), num_chunks)
    assert composed.chunks.min() >= 0 and composed.chunks.max() < num_texts + len(haystack)
    for row, story in enumerate(composed.story):
        is_fact = composed.chunks[row] < num_texts
        np.testing.assert_array_equal(composed.chunks[row][is_fact], stories.facts[story])  # all of them, in order
        np.testing.assert_array_equal(np.flatnonzero(composed.gold[row]), np.flatnonzero(is_fact)[stories.gold[story]])
        assert composed.question_ids[row] == stories.question_ids[story]


@examples(60)
@given(st.integers(0, 2**32), st.integers(70, 300), st.integers(1, 120), st.sampled_from([None, 1, 30, 256]))
def test_relations(seed, num_chunks, run_length, pool_size):
    rng = np.random.default_rng(seed)
    pool = None if pool_size is None else draw_noise_pool(HAYSTACK, pool_size, rng)
    ids = rng.integers(len(STORIES), size=5)
    composed = compose(STORIES, HAYSTACK, ids, num_chunks, rng, run_length, pool)
    np.testing.assert_array_equal(composed.story, ids)
    check(composed, STORIES, HAYSTACK, num_chunks)
    if pool is not None:
        noise = composed.chunks[composed.chunks >= len(STORIES.texts)] - len(STORIES.texts)
        assert set(noise.tolist()) <= set(pool.tolist())


def test_noise_reads_on_in_runs_that_stay_in_their_document():
    haystack = make_haystack([500] * 40)
    composed = compose(STORIES, haystack, np.arange(20), 1_000, np.random.default_rng(0), run_length=100)
    for row in composed.chunks:
        noise = row[row >= len(STORIES.texts)] - len(STORIES.texts)
        found = runs(noise, haystack.document)
        for run, following in zip(found, found[1:], strict=False):
            # A run is cut short only by the end of its document (two runs may join by chance).
            assert len(run) >= 100 or haystack.ends[run[-1]] == run[-1] + 1
            assert len(following) >= 1
        assert 10 <= len(found) <= 30


def test_a_pool_is_made_of_runs():
    pool = draw_noise_pool(HAYSTACK, 300, np.random.default_rng(1), run_length=25)
    assert pool.shape == (300,)
    assert len(runs(pool, HAYSTACK.document)) >= 300 / 130
    with pytest.raises(UsageError, match="at least one sentence, got size 0"):
        draw_noise_pool(HAYSTACK, 0, np.random.default_rng(1))


def test_runs_in_a_pool_do_not_cross_its_breaks():
    pool = np.array([10, 11, 12, 200, 201, 5, 6])
    composed = compose(STORIES, HAYSTACK, np.arange(30), 100, np.random.default_rng(0), run_length=100, noise_pool=pool)
    for row in composed.chunks:
        noise = row[row >= len(STORIES.texts)] - len(STORIES.texts)
        for a, b in zip(noise, noise[1:], strict=False):
            assert b == a + 1 or a in (12, 201, 6)  # 6 -> 7 ends the document and the pool


def test_facts_are_uniform_over_positions_and_noise_over_sentences():
    builder = StoriesBuilder()
    builder.add("q", np.array([builder.intern("A."), builder.intern("B.")], np.int32), "Where?", "a", (1,))
    stories = builder.build()
    composed = compose(stories, HAYSTACK, np.zeros(6_000, int), 5, np.random.default_rng(0), run_length=1)
    places = np.sort(np.argsort(composed.chunks, axis=1)[:, :2], axis=1)
    pairs, counts = np.unique(places, axis=0, return_counts=True)
    assert len(pairs) == 10
    np.testing.assert_allclose(counts / 6_000, 0.1, atol=0.02)  # 5 sigma
    drawn = np.bincount(composed.chunks[composed.chunks >= 2] - 2, minlength=len(HAYSTACK))
    assert drawn.min() > 0 and drawn.max() < 3 * drawn.mean()


def test_same_state_same_batch():
    first, again, other = (
        compose(STORIES, HAYSTACK, np.arange(20), 80, np.random.default_rng(seed)) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first.chunks, again.chunks)
    assert (first.chunks != other.chunks).any()


def test_a_story_may_fill_the_context_or_must_fit():
    size = int(STORIES.num_facts[7])
    full = compose(STORIES, HAYSTACK, [7], size, np.random.default_rng(0))
    np.testing.assert_array_equal(full.chunks[0], STORIES.facts[7])
    longest = int(STORIES.num_facts.max())
    with pytest.raises(
        UsageError, match=rf"of 60 stories have more than num_chunks={longest - 1} facts \(up to {longest}\)"
    ):
        compose(STORIES, HAYSTACK, np.arange(60), longest - 1, np.random.default_rng(0))


def test_stories_that_fit_are_told():
    mask = fits(STORIES, 12)
    np.testing.assert_array_equal(mask, [len(facts) <= 12 for facts in STORIES.facts])
    check(compose(STORIES, HAYSTACK, np.flatnonzero(mask), 12, np.random.default_rng(0)), STORIES, HAYSTACK, 12)


def test_an_empty_batch():
    composed = compose(STORIES, HAYSTACK, [], 10, np.random.default_rng(0))
    assert composed.chunks.shape == composed.gold.shape == (0, 10)


def test_forty_thousand_chunks():
    composed = compose(STORIES, HAYSTACK, np.arange(4), 40_000, np.random.default_rng(0))
    check(composed, STORIES, HAYSTACK, 40_000)


def test_text_table_refuses_noise_that_is_a_fact():
    table = text_table(STORIES, HAYSTACK)
    assert len(table) == len(STORIES.texts) + len(HAYSTACK) and table[len(STORIES.texts)] == "Noise sentence 0."
    mixed = Haystack((STORIES.texts[3], "A b."), np.zeros(2, np.int32), "mixed")
    with pytest.raises(InputError, match="contains 1 sentences that are facts"):
        text_table(STORIES, mixed)
    assert text_table(STORIES, mixed.without(STORIES.texts))[-1] == "A b."


@pytest.mark.parametrize(
    "arguments", [{"run_length": 0}, {"noise_pool": np.array([999])}, {"noise_pool": np.zeros(0, int)}]
)
def test_refuses_bad_runs_and_pools(arguments):
    with pytest.raises(UsageError, match=r"run_length|noise_pool"):
        compose(STORIES, HAYSTACK, [0], 80, np.random.default_rng(0), **arguments)
