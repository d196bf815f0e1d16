"""Decoding in batches: against a slow reading, against each prompt alone, and where answers end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from scipy import stats
from support.decoders import all_logits
from support.talkers import parrot, slow_greedy, tiny_talker
from support.tiers import slow_but

from qrag_jax.models.decoder import rollout
from qrag_jax.models.decoder import steps as decode_steps
from qrag_jax.models.decoder.generation import make_decoder
from qrag_jax.models.decoder.sharding import decoder_shardings
from qrag_jax.types import InputError, Regex, Sampling, UsageError

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, 256, length).tolist() for length in (7, 70, 1, 30, 12, 65, 3, 44, 20, 9)]
SAMPLINGS = {
    "greedy": Sampling(max_tokens=20),
    "drawn": Sampling(max_tokens=20, temperature=1.0, seed=3),
    "filtered": Sampling(max_tokens=20, temperature=2.0, top_k=50, top_p=0.9, seed=3),
}


@pytest.fixture(scope="module")
def talker():
    return tiny_talker()


def ids_of(answers):
    return [answer.ids for answer in answers]


def test_greedy_is_what_the_slow_reading_says(talker):
    decoder = make_decoder(talker, batch_size=4)
    answers = decoder.generate_ids(PROMPTS[:4], Sampling(max_tokens=12))
    for prompt, answer in zip(PROMPTS[:4], answers, strict=True):
        ids, logprobs = slow_greedy(talker, prompt, 12)
        assert list(answer.ids) == ids
        np.testing.assert_allclose(answer.logprobs, logprobs, atol=1e-4)
        text = talker.tokenizer.decode(ids)
        # A cut may leave half a character, an end token ends what it ends.
        assert answer.finish_reason == ("length" if len(ids) == 12 else "stop")
        assert answer.text == (text.rstrip("\ufffd") if len(ids) == 12 else text)


@pytest.mark.parametrize("name", slow_but(["filtered"], SAMPLINGS, ["greedy"]))
def test_an_answer_does_not_depend_on_its_batch(talker, name):
    alone = make_decoder(talker, batch_size=1)
    expected = [alone.generate_ids([prompt], SAMPLINGS[name])[0] for prompt in PROMPTS]
    for batch_size in (3, 8):
        decoder = make_decoder(talker, batch_size=batch_size)
        found = decoder.generate_ids(PROMPTS, SAMPLINGS[name])
        assert ids_of(found) == ids_of(expected)
        assert [answer.finish_reason for answer in found] == [answer.finish_reason for answer in expected]
        back = decoder.generate_ids(PROMPTS[::-1], SAMPLINGS[name])
        assert ids_of(back) == ids_of(expected)[::-1]


def test_log_probabilities_are_those_of_all_logits(talker):
    (answer,) = make_decoder(talker).generate_ids([PROMPTS[4]], Sampling(max_tokens=8, temperature=3.0, seed=1))
    whole = [*PROMPTS[4], *answer.ids]
    logits = all_logits(talker.config, talker.params, jnp.asarray([whole]), jnp.zeros(1, jnp.int32))
    expected = jax.nn.log_softmax(logits[0])[np.arange(len(PROMPTS[4]) - 1, len(whole) - 1), answer.ids]
    np.testing.assert_allclose(answer.logprobs, expected, atol=1e-4)


@pytest.mark.slow
def test_first_tokens_come_as_often_as_their_probabilities(talker):
    """Over seeds; the second token would need a table for each first one."""
    prompt = PROMPTS[0]
    decoder = make_decoder(talker, batch_size=1)
    firsts = []
    for seed in range(400):
        (answer,) = decoder.generate_ids([prompt], Sampling(max_tokens=1, temperature=1.0, seed=seed))
        firsts.append(answer.ids[0] if answer.ids else 256)
    logits = all_logits(talker.config, talker.params, jnp.asarray([prompt]), jnp.zeros(1, jnp.int32))[0, -1]
    probabilities = np.asarray(jax.nn.softmax(logits), np.float64)
    order = np.argsort(-probabilities)
    kinds = [[token] for token in order[:4]] + [list(order[4:])]
    expected = [400 * probabilities[kind].sum() for kind in kinds]
    counts = [sum(first in kind for first in firsts) for kind in kinds]
    assert stats.chisquare(counts, np.array(expected) * 400 / sum(expected)).pvalue > 1e-3


def test_seeds_give_other_answers_and_the_same_again(talker):
    decoder = make_decoder(talker)
    one, two, again = (
        ids_of(decoder.generate_ids(PROMPTS[:3], Sampling(max_tokens=9, temperature=1.5, seed=seed)))
        for seed in (0, 1, 0)
    )
    assert one == again != two


def test_equal_prompts_get_equal_answers(talker):
    answers = make_decoder(talker).generate_ids([PROMPTS[0]] * 3, SAMPLINGS["drawn"])
    assert answers[0] == answers[1] == answers[2]


def test_an_answer_ends_at_its_end_token():
    loaded = parrot("aé€z")
    opening = loaded.tokenizer.encode("x\n", special=False)
    (answer,) = make_decoder(loaded).generate_ids([opening], Sampling())
    assert (answer.text, answer.finish_reason, len(answer.ids)) == ("aé€z", "stop", 7)
    assert len(answer.logprobs) == 7


@pytest.mark.parametrize(
    ("stop", "text", "num_tokens"),
    [
        (("€",), "aé", 6),
        (("éb", "é€"), "a", 6),
        (("z", "y"), "aé€", 7),
        (("a",), "", 1),
        (("Z",), "aé€zyxwvutsrqpon", 19),
        (("nm", "o"), "aé€zyxwvutsrqp", 18),
    ],
)
def test_stop_texts_span_tokens_and_blocks(stop, text, num_tokens):
    loaded = parrot("aé€zyxwvutsrqpon")
    opening = loaded.tokenizer.encode("x\n", special=False)
    (answer,) = make_decoder(loaded).generate_ids([opening], Sampling(stop=stop))
    assert (answer.text, answer.finish_reason) == (text, "stop")
    assert len(answer.ids) == len(answer.logprobs) == num_tokens


@pytest.mark.parametrize(
    ("max_tokens", "text"), [(1, "a"), (2, "a"), (3, "aé"), (4, "aé"), (5, "aé"), (6, "aé€"), (7, "aé€z")]
)
def test_a_cut_answer_holds_no_half_characters(max_tokens, text):
    loaded = parrot("aé€z")
    opening = loaded.tokenizer.encode("x\n", special=False)
    (answer,) = make_decoder(loaded).generate_ids([opening], Sampling(max_tokens=max_tokens))
    assert (answer.text, answer.finish_reason, len(answer.ids)) == (text, "length", max_tokens)


def test_an_answer_ends_where_the_window_does(talker):
    decoder = make_decoder(talker, window=40)
    (answer,) = decoder.generate_ids([PROMPTS[3]], Sampling(max_tokens=100))
    expected, _ = slow_greedy(talker, PROMPTS[3], 10)
    assert list(answer.ids) == expected
    assert answer.finish_reason == ("length" if len(expected) == 10 else "stop")


def test_each_answer_is_told_as_soon_as_it_is_over(talker):
    told = []
    decoder = make_decoder(talker, batch_size=2)
    answers = decoder.generate_ids(PROMPTS, SAMPLINGS["greedy"], lambda place, answer: told.append((place, answer)))
    assert sorted(place for place, _ in told) == list(range(len(PROMPTS)))
    assert all(answers[place] == answer for place, answer in told)
    assert decoder.generate_ids([], Sampling(), told.append) == []


def test_what_was_told_before_a_failure_stays_told(talker):
    told = []

    def tell(place, answer):
        told.append(place)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_decoder(talker, batch_size=2).generate_ids(PROMPTS, Sampling(max_tokens=3), tell)
    assert len(told) == 1


@pytest.mark.slow
def test_nothing_is_compiled_for_one_prompt(monkeypatch):
    """Traces of the network: reading for each length and number of rows, writing for each kind of sampling too."""
    traces = []
    original = rollout.hidden_states

    def counted(*args, **options):
        traces.append(args[1].shape)
        return original(*args, **options)

    monkeypatch.setattr(rollout, "hidden_states", counted)
    monkeypatch.setattr(decode_steps, "hidden_states", counted)
    decode_steps.compiled_steps.cache_clear()
    decoder = make_decoder(tiny_talker(max_positions=400), batch_size=4)
    rng = np.random.default_rng(1)
    for seed in range(6):
        prompts = [rng.integers(0, 256, rng.integers(1, 100)).tolist() for _ in range(5)]
        for settings in ({}, {"temperature": 0.5 + seed}, {"temperature": 1.0, "top_k": 3 + seed}, {"max_tokens": 4}):
            decoder.generate_ids(prompts, Sampling(**{"max_tokens": 11, "seed": seed} | settings))
    # Prompts of 64, 96 and 128 in caches of 96, 128 and 192; 1 or 4 rows; three kinds of sampling.
    assert len(traces) <= 2 * (3 * 2 + 3 * 3)
    before = len(traces)
    decoder.generate_ids(prompts, Sampling(max_tokens=5, temperature=0.1))
    make_decoder(tiny_talker(1, max_positions=400), batch_size=4).generate_ids(prompts, Sampling(max_tokens=5))
    assert len(traces) == before
    decode_steps.compiled_steps.cache_clear()


@pytest.mark.full
@pytest.mark.slow
def test_eight_devices_answer_like_one():
    """Query heads, the inner layer and the embedding are split; the four heads of keys are not."""
    talker = tiny_talker(
        vocab_size=264, hidden_size=32, intermediate_size=40, num_heads=8, num_kv_heads=4, num_layers=1
    )
    mesh = Mesh(np.array(jax.devices()[:8]), ("model",))
    placed = decoder_shardings(mesh, talker.config, talker.params)
    specs = {jax.tree_util.keystr(path): leaf.spec for path, leaf in jax.tree_util.tree_leaves_with_path(placed)}
    names = {name for name, spec in specs.items() if "model" in spec}
    for name, is_split in (("query", True), ("key", False), ("down", True), ("embedding", True)):
        assert any(name in path and "norm" not in path for path in names) == is_split
    split = make_decoder(talker, batch_size=4, mesh=mesh)
    held = Sampling(max_tokens=20, grammar=Regex("[a-z]{3,9}"))
    for sampling in (SAMPLINGS["filtered"], held):
        one = make_decoder(talker, batch_size=4).generate_ids(PROMPTS, sampling)
        eight = split.generate_ids(PROMPTS, sampling)
        assert ids_of(one) == ids_of(eight)
        for left, right in zip(one, eight, strict=True):
            np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-4)


def test_small_memory_gives_fewer_rows_and_the_same_answers(talker):
    few = make_decoder(talker, batch_size=8, cache_bytes=1).generate_ids(PROMPTS[:3], SAMPLINGS["greedy"])
    assert ids_of(few) == ids_of(make_decoder(talker).generate_ids(PROMPTS[:3], SAMPLINGS["greedy"]))


@pytest.mark.slow
def test_bfloat16_answers(talker):
    """What it says may differ; how likely it thinks that is, float32 nearly agrees with."""
    (answer,) = make_decoder(talker, compute_dtype="bfloat16").generate_ids([PROMPTS[0]], Sampling(max_tokens=4))
    whole = [*PROMPTS[0], *answer.ids]
    logits = all_logits(talker.config, talker.params, jnp.asarray([whole]), jnp.zeros(1, jnp.int32))
    expected = jax.nn.log_softmax(logits[0])[np.arange(len(PROMPTS[0]) - 1, len(whole) - 1), answer.ids]
    assert answer.ids
    np.testing.assert_allclose(answer.logprobs, expected, atol=0.1)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt 1: no tokens"),
        ([1] * 96, "prompt 1: 96 tokens leave no room for an answer in the model's window of 96: shorten it"),
        ([1, 258], r"prompt 1: ids must lie in \[0, 258\)"),
        ([-1], r"prompt 1: ids must lie in \[0, 258\)"),
    ],
)
def test_bad_prompts_are_refused_before_any_is_read(talker, prompt, message):
    told = []
    with pytest.raises(InputError, match=message):
        make_decoder(talker).generate_ids([[1], prompt], Sampling(), lambda place, answer: told.append(place))
    assert not told


def test_nan_is_no_answer(talker):
    broken = tiny_talker()
    broken.params["norm"]["scale"] = broken.params["norm"]["scale"].at[0].set(jnp.nan)
    with pytest.raises(InputError, match="gives NaN"):
        make_decoder(broken).generate_ids([[1]], Sampling(max_tokens=2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size 0"),
        ({"window": 1}, "window 1: choose 2 to 96"),
        ({"window": 97}, "window 97: choose 2 to 96"),
    ],
)
def test_settings_that_cannot_be_are_refused(talker, settings, message):
    with pytest.raises(UsageError, match=message):
        make_decoder(talker, **settings)
