"""Shapes, keys and stop texts: by hand, and by what they must not depend on."""

from itertools import combinations_with_replacement

import pytest

from qrag_jax.models.decoder.scheduling import CHUNKS, cache_size, chunk_lengths, find_stop, group_by_size, prompt_hash


@pytest.mark.parametrize(
    ("length", "chunks"),
    [
        (1, [32]),
        (32, [32]),
        (33, [64]),
        (64, [64]),
        (65, [128]),
        (192, [192]),
        (256, [256]),
        (257, [32, 256]),
        (300, [64, 256]),
        (400, [32, 384]),
        (513, [32, 512]),
        (1400, [384, 512, 512]),
    ],
)
def test_chunks_by_hand(length, chunks):
    assert chunk_lengths(length) == chunks


def test_chunks_hold_the_prompt_and_are_the_cheapest():
    rests = [list(chunks) for count in (1, 2, 3) for chunks in combinations_with_replacement(CHUNKS, count)]

    def cost(chunks):
        return sum(chunks) + 40 * len(chunks)  # a chunk costs as much as 40 tokens beside its own

    for length in range(1, CHUNKS[-1] + 1):
        chunks = chunk_lengths(length)
        assert chunks == sorted(chunks) and 0 <= sum(chunks) - length < length + CHUNKS[0]
        assert cost(chunks) == min(cost(rest) for rest in rests if sum(rest) >= length)
        assert chunk_lengths(length + 2 * CHUNKS[-1]) == chunks + [CHUNKS[-1]] * 2


def test_caches_have_room_and_few_sizes():
    sizes = {cache_size(length, room) for length in range(1, 4000, 7) for room in (1, 64, 400)}
    assert sizes == {128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144}
    for length, room in [(1, 1), (60, 69), (100, 28), (129, 1), (1000, 24), (1000, 25)]:
        assert cache_size(length, room) >= max(length + room, sum(chunk_lengths(length)))
    assert (cache_size(100, 28), cache_size(100, 29), cache_size(129, 1)) == (128, 192, 192)


def test_small_groups_go_with_larger_caches():
    assert group_by_size([128, 256, 128, 128], 2) == [(128, [0, 2, 3]), (256, [1])]
    assert group_by_size([128, 256, 192], 8) == [(256, [0, 2, 1])]
    assert group_by_size([], 8) == []


def test_keys_depend_on_seed_and_prompt():
    hashes = [tuple(prompt_hash(prompt, seed)) for prompt in ([1, 2], [12], [1, 2, 0]) for seed in (0, 1, -5, 2**70)]
    assert len(set(hashes)) == 12
    assert tuple(prompt_hash((1, 2), 0)) == hashes[0]


def spell(ids):
    """Bytes are tokens."""
    return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize(
    ("text", "stop", "found"),
    [
        ("one two", ("two",), (7, "one ")),
        ("one two three", ("two", "ne"), (3, "o")),
        ("aab", ("ab", "b"), (3, "a")),  # both end here: the one that starts first counts
        ("a€b", ("€",), (4, "a")),  # three bytes
        ("a€b", ("b", "x"), (5, "a€")),
        ("one", ("x",), None),
        ("one", (), None),
    ],
)
@pytest.mark.parametrize("heard", [0, 1, 2])
def test_stop_texts_by_hand(text, stop, found, heard):
    assert find_stop(spell, list(text.encode()), heard, stop) == found


def test_half_a_character_ends_nothing():
    ids = list("€".encode())
    assert [find_stop(spell, ids[:count], 0, ("€",)) for count in range(4)] == [None, None, None, (3, "")]
