"""Answers under grammars: always in them, the same where they would be anyway, in batches."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoders import all_logits
from support.talkers import END, byte_tokenizer, parrot, tiny_talker
from support.tiers import slow_but
from tokenizers import Tokenizer, decoders, models

from qrag_jax.models.decoder import constraint
from qrag_jax.models.decoder.generation import make_decoder
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.grammar.compile import compile_grammar
from qrag_jax.types import Choice, JsonSchema, Regex, Sampling, UsageError

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, 256, length).tolist() for length in (7, 40, 1, 30, 12, 45, 3, 44, 20, 9)]
PLAN = {
    "type": "object",
    "properties": {"q": {"type": "string", "minLength": 1, "maxLength": 5}, "n": {"type": "integer"}},
    "required": ["q", "n"],
}
GRAMMARS = [
    Choice(("yes", "no", "né€")),
    Regex("([1-9], [a-c]\n){1,3}"),
    JsonSchema.of(PLAN),
    Regex("[^a]*"),
]
DRAWN = Sampling(max_tokens=24, temperature=1.5, seed=5)


@pytest.fixture(scope="module")
def talker():
    return tiny_talker()


@pytest.fixture(scope="module")
def decoder(talker):
    return make_decoder(talker, batch_size=4)


def is_in(grammar, text):
    return compile_grammar(grammar).fault(text) is None


@pytest.mark.parametrize(
    ("said", "grammar"),
    [
        pytest.param("aé€z", Choice(("aé", "aé€z", "b")), marks=pytest.mark.slow),
        pytest.param("aé€z", Regex("[a-z]é.+"), marks=pytest.mark.slow),
        ("[12, -3]", JsonSchema.of({"type": "array", "items": {"type": "integer"}})),
    ],
)
def test_who_obeys_anyway_answers_the_same(said, grammar):
    loaded = parrot(said)
    opening = loaded.tokenizer.encode("x\n", special=False)
    decoder = make_decoder(loaded)
    free, held = (decoder.generate_ids([opening], Sampling(max_tokens=20, grammar=one))[0] for one in (None, grammar))
    assert free.ids == held.ids and (free.text, free.finish_reason) == (held.text, held.finish_reason) == (said, "stop")
    np.testing.assert_allclose(free.logprobs, held.logprobs, atol=1e-6)


def test_who_does_not_obey_is_made_to():
    """The parrot wants to say "no!"; the end is allowed in accepting states alone, and nothing else there."""
    loaded = parrot("no!")
    opening = loaded.tokenizer.encode("x\n", special=False)
    for grammar, text in ((Choice(("yes", "now")), "now"), (Choice(("n", "nub")), "nub"), (Regex("no{2}|x"), "noo")):
        (answer,) = make_decoder(loaded).generate_ids([opening], Sampling(max_tokens=9, grammar=grammar))
        assert (answer.text, answer.finish_reason) == (text, "stop")


@pytest.mark.parametrize(
    "sampling", slow_but([DRAWN], [DRAWN, Sampling(max_tokens=24), Sampling(24, 3.0, 40, 0.9, seed=2)]), ids=str
)
def test_all_rows_of_a_batch_are_held(decoder, sampling):
    reasons = set()
    for grammar in GRAMMARS:
        held = replace(sampling, grammar=grammar)
        answers = decoder.generate_ids(PROMPTS, held)
        for answer in answers:
            assert is_in(grammar, answer.text), (grammar, answer)
            assert END not in answer.text and not {256, 257} & set(answer.ids)
        reasons |= {answer.finish_reason for answer in answers}
        alone = [decoder.generate_ids([PROMPTS[n]], held)[0].ids for n in (0, 2, 8)]
        assert alone == [answers[n].ids for n in (0, 2, 8)]
    assert reasons == {"stop", "length"}


def test_log_probabilities_are_those_of_the_model(talker, decoder):
    """Of the token that was chosen, among all tokens: a grammar takes nothing from them."""
    (held,) = decoder.generate_ids([PROMPTS[0]], Sampling(max_tokens=3, grammar=Choice(("abc",))))
    forced = held.ids
    whole = [*PROMPTS[0], *forced]
    logits = all_logits(talker.config, talker.params, jnp.asarray([whole]), jnp.zeros(1, jnp.int32))
    expected = jax.nn.log_softmax(logits[0])[np.arange(len(PROMPTS[0]) - 1, len(whole) - 1), list(forced)]
    np.testing.assert_allclose(held.logprobs, expected, atol=1e-4)
    assert held.text == "abc"


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_the_budget_closes_what_it_can(decoder, max_tokens):
    """(ab)*c needs 1 token, 2 or 3 more from wherever it is; only ways that still fit are gone."""
    for seed in range(4):
        sampling = Sampling(max_tokens=max_tokens, temperature=3.0, seed=seed, grammar=Regex("(a[b-y])*z"))
        (answer,) = decoder.generate_ids([PROMPTS[4]], sampling)
        assert re.fullmatch("(a[b-y])*z", answer.text)
        assert (answer.finish_reason == "length") == (len(answer.ids) == max_tokens)


def test_a_text_that_would_never_end_ends(decoder):
    grammar = JsonSchema.of({"type": "array", "items": {"type": "string", "maxLength": 1000}, "minItems": 1})
    (answer,) = decoder.generate_ids([PROMPTS[2]], Sampling(max_tokens=60, grammar=grammar))
    assert is_in(grammar, answer.text) and answer.text.endswith('"]')


@pytest.mark.parametrize(("window", "max_tokens"), [(9, 5), (20, 2)])
def test_room_for_less_than_the_shortest_answer_is_said(talker, window, max_tokens):
    """Room for two tokens, by the window or the budget: what there is of the answer is its beginning."""
    narrow = make_decoder(talker, window=window)
    (answer,) = narrow.generate_ids([PROMPTS[0]], Sampling(max_tokens=max_tokens, grammar=Choice(("yes",))))
    assert (answer.text, answer.finish_reason) == ("ye", "length")


def test_the_empty_answer_is_one():
    loaded = parrot("a")
    opening = loaded.tokenizer.encode("x\n", special=False)
    (answer,) = make_decoder(loaded).generate_ids([opening], Sampling(grammar=Choice(("",))))
    assert (answer.text, answer.ids, answer.finish_reason) == ("", (), "stop")


def test_another_grammar_compiles_nothing_and_builds_once(talker, monkeypatch):
    built = []
    original = constraint.token_automaton
    monkeypatch.setattr(constraint, "token_automaton", lambda *args: built.append(1) or original(*args))
    decoder = make_decoder(talker, batch_size=2)
    sampling = Sampling(max_tokens=8)
    decoder.generate_ids(PROMPTS[:2], replace(sampling, grammar=Choice(("a",))))
    compiled = decoder._write._cache_size()
    for grammar in (Choice(("b",)), Regex("[ab]{3}"), Choice(("a",)), Choice(("b",))):
        decoder.generate_ids(PROMPTS[:2], replace(sampling, grammar=grammar))
    assert decoder._write._cache_size() == compiled
    assert len(built) == 3


@pytest.mark.parametrize("grammar", [Choice(()), Regex("("), JsonSchema('{"type": "x"}'), Regex(r"[^\s\S]")], ids=str)
def test_a_bad_grammar_is_refused_before_any_token(decoder, grammar):
    told = {}
    with pytest.raises(UsageError, match="^grammar: "):
        decoder.generate_ids(PROMPTS[:3], replace(DRAWN, grammar=grammar), told.__setitem__)
    assert told == {}


def test_marks_have_no_spelling():
    spellings = byte_tokenizer(others=("<think>",)).spellings()
    assert spellings[256:] == [None] * 3 and sorted(spellings[:256]) == [bytes([byte]) for byte in range(256)]
    assert [spellings[number] for number in byte_tokenizer().encode("é ", special=False)] == [b"\xc3", b"\xa9", b" "]


def test_a_vocabulary_that_is_not_of_bytes_is_refused():
    tokenizer = Tokenizer(models.BPE(vocab={"▁a": 0, "</s>": 1}, merges=[]))
    tokenizer.decoder = decoders.Metaspace()
    ours = DecoderTokenizer(tokenizer, eos_token="</s>", source="model.gguf")
    assert not ours.is_of_bytes
    with pytest.raises(UsageError, match="grammar: model.gguf: only byte-level vocabularies"):
        ours.spellings()


def test_stop_texts_do_not_go_with_a_grammar():
    with pytest.raises(UsageError, match="stop: could cut an answer that must match a grammar"):
        Sampling(stop=("a",), grammar=Choice(("ab",)))
    for texts in ("yes", ["yes"], (1,)):  # a text is a sequence of texts, but of its letters
        with pytest.raises(UsageError, match="grammar: Choice takes a tuple of strings, got"):
            Choice(texts)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="grammar: the JSON schema is not JSON"):
        JsonSchema("{")
    with pytest.raises(UsageError, match="grammar: the JSON schema is not JSON"):
        JsonSchema.of({"maxLength": float("nan")})
