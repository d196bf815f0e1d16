"""Shapes, keys and stop texts: by hand, and by what they must not depend on."""

import pytest

from qrag_jax.models.decoder.generation import find_stop, padded_size, prompt_hash


def test_few_sizes_hold_every_length():
    sizes = [padded_size(length) for length in range(1, 1025)]
    assert sorted(set(sizes)) == [64, 96, 128, 192, 256, 384, 512, 768, 1024]
    assert all(length <= size <= max(64, 1.5 * length) for length, size in enumerate(sizes, 1))


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
