"""Speeds of tiny decoders, by a clock that says what the test wants."""

import pytest
from support.talkers import parrot, tiny_talker

from qrag_jax.models.decoder.bench import Round, Speed, Work, measure_speeds
from qrag_jax.models.decoder.generation import make_decoder
from qrag_jax.types import Sampling, UsageError


class Ticks:
    """A clock that goes on by a second whenever it is looked at."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 1
        return self.seconds


def test_speeds_by_hand():
    speed = Speed(Work(4, 100, 11), Round(30.0, 9.0), (Round(4.0, 2.0), Round(2.0, 1.0), Round(8.0, 4.0)))
    assert speed.read == (100, 200, 50) and speed.write == (20, 40, 10)  # the first token comes with the prompt
    assert speed.seconds == 6 and speed.compile_seconds == 33 and speed.seconds_of(1000) == 6 * 250
    assert Speed(Work(1, 9, 2), Round(1.0, 1.0), (Round(2.0, 2.0),)).compile_seconds == 0


def test_every_kind_is_measured_in_turns():
    """A round looks at the clock twice, and twice around each block of writing, of up to 16 tokens."""
    decoding = make_decoder(tiny_talker(), batch_size=2)
    works, told = [Work(1, 20, 4), Work(2, 10, 20)], []
    speeds = measure_speeds(
        decoding, works, num_rounds=2, progress=lambda *progress: told.append(progress), now=Ticks()
    )
    assert [speed.work for speed in speeds] == works and told == [(done, 6) for done in range(7)]
    one, two = speeds
    assert one.first == Round(2, 1) and one.rounds == (Round(2, 1),) * 2
    assert two.rounds == (Round(3, 2),) * 2  # 19 tokens are two blocks
    assert one.read == (10, 10) and one.write == (3, 3) and two.write == (19, 19)


@pytest.mark.slow
def test_no_token_ends_an_answer():
    """One that says two letters and ends has said all of an answer here; the decoder itself stays what it was."""
    talker = parrot("hi")
    decoding = make_decoder(talker)
    prompt = talker.tokenizer.encode("so\n", special=False)
    before = decoding.generate_ids([prompt], Sampling(max_tokens=40))
    assert len(before[0].ids) == 2
    (speed,) = measure_speeds(decoding, [Work(1, 3, 40)], num_rounds=1, now=Ticks())
    assert speed.rounds == (Round(4, 3),)  # 39 tokens are three blocks
    assert decoding.generate_ids([prompt], Sampling(max_tokens=40)) == before


def test_no_prompt_comes_twice(monkeypatch):
    decoding = make_decoder(tiny_talker(), batch_size=2)
    seen = []
    monkeypatch.setattr(type(decoding), "generate_ids", lambda self, prompts, sampling: seen.extend(prompts))
    monkeypatch.setattr("qrag_jax.models.decoder.bench.compiled_steps", lambda *what: decoding._steps)
    measure_speeds(decoding, [Work(1, 20, 4), Work(2, 20, 4)], num_rounds=2, now=Ticks())
    assert len(seen) == len({tuple(prompt) for prompt in seen}) == 9 and {len(prompt) for prompt in seen} == {20}


@pytest.mark.parametrize(
    ("work", "rounds", "message"),
    [
        ((1, 90, 7), 1, "prompt_tokens 90 and answer_tokens 7: together 97, and the model's window is 96"),
        ((3, 9, 7), 1, "rows 3: .* at most 2 rows"),
        ((1, 9, 7), 0, "num_rounds 0: at least 1"),
        ((1, 9, 1), 1, "answer_tokens 1: at least 2"),
    ],
)
def test_what_cannot_be_measured_is_refused(work, rounds, message):
    decoding = make_decoder(tiny_talker(), batch_size=2)
    with pytest.raises(UsageError, match=message):
        measure_speeds(decoding, [Work(*work)], num_rounds=rounds)


def test_rows_beyond_the_cache_are_refused():
    decoding = make_decoder(tiny_talker(), batch_size=2, cache_bytes=20_000)
    with pytest.raises(UsageError, match="rows 2: prompts of 9 tokens run in smaller batches"):
        measure_speeds(decoding, [Work(2, 9, 7)], num_rounds=1)
