"""Which read prompts are kept and found, and that answers are the same with and without them."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.talkers import tiny_talker
from support.tiers import slow_but

from qrag_jax.models.decoder import generation
from qrag_jax.models.decoder.generation import make_decoder
from qrag_jax.models.decoder.scheduling import CHUNKS, Prefixes, ReadPrompt, chunk_lengths, reading_cost, shared_start
from qrag_jax.types import Regex, Sampling, UsageError

RNG = np.random.default_rng(0)
PASSAGE = RNG.integers(0, 256, 200).tolist()
TAILS = [RNG.integers(0, 256, length).tolist() for length in (9, 30, 1, 70, 12)]
ASKED = [PASSAGE + tail for tail in TAILS]


@pytest.fixture(scope="module")
def talker():
    return tiny_talker(max_positions=640)


def read(*tokens, num_bytes=1):
    return ReadPrompt(np.array(tokens, np.int32), None, None, num_bytes)


def test_the_longest_common_beginning_is_found_by_hand():
    prefixes = Prefixes(9)
    assert prefixes.find([1, 2]) == (None, 0)
    short, long = read(1, 2), read(1, 2, 3, 4)
    for each in (short, long):
        prefixes.keep(each)
    assert prefixes.find([1, 2, 3, 9]) == (long, 3)
    assert prefixes.find([1, 9]) == (long, 1)  # as many of both: the latest
    prefixes.keep(short)
    assert prefixes.find([1, 9]) == (short, 1)
    assert prefixes.find([2, 1]) == (None, 0)


def test_what_was_of_no_use_longest_goes_first():
    prefixes = Prefixes(5)
    first, second, third = (read(number, num_bytes=2) for number in range(3))
    prefixes.keep(first)
    prefixes.keep(second)
    prefixes.keep(first)
    prefixes.keep(third)
    assert [prefixes.find([number])[1] for number in range(3)] == [1, 0, 1]
    assert prefixes.num_bytes == 4
    prefixes.keep(read(3, num_bytes=6))  # alone too much: the others stay
    assert prefixes.num_bytes == 4


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=6), st.lists(st.integers(0, 2), max_size=6)
)
def test_found_against_the_slow_reading(kept, prompt):
    prefixes = Prefixes(100)
    for tokens in kept:
        prefixes.keep(read(*tokens))
    most = max(
        (sum(prompt[:k] == tokens[:k] for k in range(1, 1 + min(len(prompt), len(tokens)))) for tokens in kept),
        default=0,
    )
    found, count = prefixes.find(prompt)
    assert count == most
    assert (found is None) == (most == 0)
    if found is not None:
        assert found.tokens[:count].tolist() == prompt[:count]


@given(st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 300))
def test_where_reading_starts(length, shared, spare):
    shared, size = min(shared, length), sum(chunk_lengths(length)) + spare
    start = shared_start(length, shared, size)
    assert 0 <= start <= max(0, min(shared, length - 1))
    rest = chunk_lengths(length - start)
    assert start + sum(rest) <= size
    assert sum(rest) - rest[-1] < length - start  # padding lies in the last chunk, so the last token is in it too
    assert not start or reading_cost(rest) < reading_cost(chunk_lengths(length))


def test_where_reading_starts_by_hand():
    assert shared_start(229, 200, 384) == 200  # 32 in place of 256
    assert shared_start(30, 20, 128) == 0  # one chunk either way
    assert shared_start(256, 255, 256) == 224  # a chunk from 255 on would end beyond the cache


def counted(decoder, lengths):
    """The decoder, which notes how many tokens it reads at a time."""
    original = decoder._steps.read

    def noted(params, tokens, *rest):
        lengths.append(tokens.shape[1])
        return original(params, tokens, *rest)

    decoder._steps = decoder._steps._replace(read=noted)
    return decoder


SAMPLINGS = {
    "greedy": Sampling(max_tokens=9),
    "drawn": Sampling(max_tokens=9, temperature=1.0),
    "grammar": Sampling(max_tokens=9, grammar=Regex("[a-z]{3,9}")),
}


@pytest.mark.parametrize("name", slow_but(["drawn"], SAMPLINGS))
def test_answers_are_those_without_and_what_is_known_is_not_read(talker, name):
    lengths, alone, sampling = [], make_decoder(talker, prefix_bytes=0), SAMPLINGS[name]
    expected = alone.generate_ids(ASKED, sampling)
    decoder = counted(make_decoder(talker, batch_size=2), lengths)
    for prompts, answers in ((ASKED, expected), (ASKED[::-1], expected[::-1])):  # the second time from before
        found = decoder.generate_ids(prompts, sampling)
        assert [answer.ids for answer in found] == [answer.ids for answer in answers]
        for one, other in zip(found, answers, strict=True):
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
    # Once 256 with the passage, 128 for the longest tail, and 32 for any other, also the second time.
    assert sum(lengths) <= 256 + 128 + 3 * CHUNKS[0] + 5 * CHUNKS[0]
    assert sum(sum(chunk_lengths(len(prompt))) for prompt in ASKED) == 4 * 256 + 288


def test_equal_prompts_are_read_once(talker):
    lengths = []
    decoder = counted(make_decoder(talker, batch_size=4), lengths)
    sampling = Sampling(max_tokens=5, temperature=1.0)
    answers = decoder.generate_ids([ASKED[0]] * 3, sampling)
    assert lengths == chunk_lengths(len(ASKED[0]))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0].ids == make_decoder(talker, prefix_bytes=0).generate_ids(ASKED[:1], sampling)[0].ids


@pytest.mark.slow
def test_where_shapes_agree_not_a_bit_differs(talker):
    prompt = RNG.integers(0, 256, 576).tolist()
    assert chunk_lengths(len(prompt)) == [64, 512]
    decoder = make_decoder(talker)
    (expected,) = decoder.generate_ids([prompt], Sampling(max_tokens=6))
    lengths, other = [], make_decoder(talker)
    other.generate_ids([prompt[:64] + [prompt[64] ^ 1] * 70], Sampling(max_tokens=1))
    (found,) = counted(other, lengths).generate_ids([prompt], Sampling(max_tokens=6))
    assert lengths == [512]
    assert found == expected


def test_a_longer_prompt_that_joins_moves_the_others_right(talker, monkeypatch):
    moves, original = [], generation._Batch._move
    monkeypatch.setattr(generation._Batch, "_move", lambda self, by: moves.append(by) or original(self, by))
    # In the order of their tokens: the longest comes second.
    prompts = [[1] * 40] + [[number, 7] for number in range(8)]
    sampling = Sampling(max_tokens=60, temperature=1.0)
    found = make_decoder(talker, batch_size=2).generate_ids(prompts, sampling)
    assert min(moves) < 0 < max(moves)
    alone = make_decoder(talker, batch_size=1)
    assert [each.ids for each in found] == [alone.generate_ids([prompt], sampling)[0].ids for prompt in prompts]


def test_a_budget_holds(talker):
    config = talker.config
    numbers = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 384 + config.vocab_size
    decoder = make_decoder(talker, prefix_bytes=2 * 4 * numbers)
    others = [RNG.integers(0, 256, 200).tolist() for _ in range(4)]
    decoder.generate_ids([*others, ASKED[3]], Sampling(max_tokens=2))
    held = [leaf.nbytes for each in decoder._prefixes._kept for leaf in jax.tree.leaves((each.cache, each.logits))]
    assert 0 < sum(held) == decoder._prefixes.num_bytes <= 2 * 4 * numbers
    none = make_decoder(talker, prefix_bytes=0)
    none.generate_ids(ASKED, Sampling(max_tokens=2))
    assert none._prefixes.num_bytes == 0


def test_budgets_that_cannot_be_are_refused(talker):
    with pytest.raises(UsageError, match="prefix_bytes -1: at least 0, which keeps no prompt"):
        make_decoder(talker, prefix_bytes=-1)
    with pytest.raises(
        UsageError, match="prefix_bytes 900: a prompt with its answer in 256 slots takes .*: give as much"
    ):
        make_decoder(talker, prefix_bytes=900).generate_ids([ASKED[2]], Sampling(max_tokens=2))
