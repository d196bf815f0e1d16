"""The state of STITCH: hints, buffers, rehearsal."""

import math

import numpy as np
import pytest

from qrag_jax.config import config_from_dict, to_dict
from qrag_jax.train.decoder.stitch import (
    Example,
    Progress,
    begin_imitation,
    hint_length,
    hint_of,
    rehearsed,
)
from qrag_jax.types import InputError

PLAN = '{"largest_chunk_size": "section", "smallest_chunk_size": "sentence"}'
TRACE = "It asks for one fact. The fact is short. So read sentences."


@pytest.mark.parametrize(
    ("sentences", "rate", "length"),
    [(3, 0.0, 2), (3, 0.5, 1), (3, 0.4, 2), (3, 1.0, 0), (1, 0.0, 0), (0, 0.0, 0), (5, 0.9, 1), (5, 0.25, 3)],
)
def test_hints_shrink_as_the_policy_succeeds(sentences, rate, length):
    assert hint_length(sentences, rate) == length


def test_hints_by_a_slow_reading():
    for n in range(1, 9):
        for s in np.linspace(0, 1, 21):
            assert hint_length(n, s) == min(n - 1, math.ceil((1 - s) * (n - 1))) < n


def test_a_hint_is_the_first_sentences():
    answer = f"{TRACE} {PLAN}"
    assert hint_of(answer, 0.0) == "It asks for one fact. The fact is short."
    assert hint_of(answer, 0.5) == "It asks for one fact."
    assert hint_of(answer, 1.0) == ""
    assert hint_of(PLAN, 0.0) == ""


def test_a_hint_that_holds_the_json_is_refused():
    with pytest.raises(InputError, match="a hint that holds JSON: '.*keep the JSON of an answer at its end only"):
        hint_of(f"The plan is {PLAN[:-1]} }}. So read sentences. Yes. {PLAN}", 0.0)


def test_a_trace_without_json_is_refused():
    with pytest.raises(InputError, match="a trace that does not end with JSON: '.*So read sentences.'"):
        hint_of(TRACE, 0.0)


def test_an_imitation_phase_needs_examples():
    with pytest.raises(InputError, match="an imitation phase has no examples: no record has an answer"):
        begin_imitation(Progress(), ())
    begun = begin_imitation(Progress(position=7, imitations=2), [Example(4)])
    assert (begun.queue, begun.position, begun.imitations) == ((Example(4),), 0, 3)


def test_rehearsal():
    progress = Progress(
        buffer=(Example(7), Example(8)), taught=(3, 7, 5, 8), solved=(Example(1, (2, 3)), Example(2, (4,)))
    )
    draw = lambda how, ratio: rehearsed(progress, how, ratio, np.random.default_rng(0))  # noqa: E731
    assert draw("none", 1.0) == progress.buffer
    assert set(draw("solved", 1.0)) == {*progress.buffer, *progress.solved}
    assert draw("solved", 0.5)[:2] == progress.buffer and len(draw("solved", 0.5)) == 3
    assert set(draw("traces", 9.0)) == {Example(7), Example(8), Example(3), Example(5)}


def test_progress_is_plain_values():
    progress = Progress(queue=(Example(1, (2, 3)),), taught=(4, 5), vanilla=8, correct=2)
    assert config_from_dict(Progress, to_dict(progress), "test") == progress
    assert progress.success_rate == 0.25 and Progress().success_rate == 0
    later = progress.next_phase()
    assert (later.phase, later.steps, later.taught) == (1, 0, (4, 5))
