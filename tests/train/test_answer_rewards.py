"""Rewards of answers: the formula of gain by hand, EM and F1, a judge, failed calls; likelihoods by a decoder."""

import numpy as np
import pytest
from support.decoders import all_logits
from support.scripted_models import make_judge
from support.talkers import parrot, tiny_talker

from qrag_jax.llm.config import LlmConfig, make_likelihood
from qrag_jax.llm.journal.journal import JournaledGenerator
from qrag_jax.llm.journal.journal_file import Journal
from qrag_jax.llm.local import LocalGenerator, LocalLikelihood
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.train.answer_rewards import AnswerRewardConfig, Asked, answer_reward, gain
from qrag_jax.types import Generation, InputError, Message, Sampling, UsageError

ROME = Asked("Where is it?", ("It is in Rome.",), ("Rome", "Roma"))
OSLO = Asked("Where is it?", ("It is in Oslo.",), ("Rome", "Roma"))


def reader(prompt):
    """Answers with the last word of the passages."""
    return prompt[-1].content.split("It is in ")[1].split(".")[0] if "It is in " in prompt[-1].content else "unknown"


def test_gain_by_hand():
    assert gain(2.0, 0.5) == 0.75  # three quarters of the surprise are gone
    assert gain(2.0, 2.0) == 0.0 and gain(2.0, 3.0) == -0.5 and gain(2.0, 9.0) == -1.0
    assert gain(0.05, 0.0) == pytest.approx(0.5)  # the floor: the model knew it
    assert gain(None, 1.0) is None and gain(1.0, None) is None


def test_gain_reads_the_right_answer_after_the_question_with_and_without_passages():
    told = {"It is in Rome.": (-0.1, -0.3), "It is in Oslo.": (-4.0, -2.0)}

    def likelihood(prompt):
        assert (prompt[-1].role, prompt[-1].content) == ("assistant", "Rome")
        found = [values for passage, values in told.items() if passage in prompt[-2].content]
        return Generation("Rome", "stop", logprobs=found[0] if found else (-2.0, -2.0))

    model = ScriptedGenerator(likelihood)
    assert answer_reward("gain", model)([ROME, OSLO, ROME]) == pytest.approx([0.9, -0.5, 0.9])
    assert len(model.asked) == 3  # nothing, Rome, Oslo: each once


def test_a_failed_call_gives_no_value():
    def likelihood(prompt):
        return failed("no") if "Oslo" in prompt[-2].content else Generation("Rome", "stop", logprobs=(-1.0,))

    assert answer_reward("gain", ScriptedGenerator(likelihood))([ROME, OSLO]) == [0.0, None]
    down = ScriptedGenerator(lambda prompt: failed("down"))
    assert [answer_reward(name, down)([ROME]) for name in ("gain", "em", "f1", "judge")] == [[None]] * 4


def test_em_and_f1_take_the_best_reference():
    asked = [ROME, OSLO, ROME._replace(references=("old Rome",))]
    assert answer_reward("em", ScriptedGenerator(reader))(asked) == [1.0, 0.0, 0.0]
    assert answer_reward("f1", ScriptedGenerator(reader))(asked) == [1.0, 0.0, pytest.approx(2 / 3)]


def test_a_judge_decides():
    judge = make_judge()

    def both(prompt):
        is_question = "Where is it?" in prompt[-1].content and "It is in " in prompt[-1].content
        return reader(prompt) if is_question else judge.generate([prompt], sampling=Sampling())[0]

    assert answer_reward("judge", ScriptedGenerator(both))([ROME, OSLO]) == [1.0, 0.0]


def test_gain_needs_log_probabilities():
    with pytest.raises(InputError, match="gain needs a model in this process"):
        answer_reward("gain", ScriptedGenerator(lambda prompt: "Rome"))([ROME])
    with pytest.raises(UsageError, match="come from a model in this process"):
        make_likelihood(LlmConfig("openai", "m", base_url="http://127.0.0.1:1/v1"))


TALK = (Message("user", "Hi"),)


def read(model, prompts):
    return model.generate(prompts, sampling=Sampling(max_tokens=1))


def said(text):
    return (*TALK, Message("assistant", text))


def test_the_likelihood_of_an_answer_is_that_of_its_tokens():
    loaded = parrot("one")
    model = LocalLikelihood(loaded, dtype="float32")
    prompt = LocalGenerator(loaded).prompt_ids(TALK)
    for text in ("one", "on", "two", "o" * 20):
        (told,) = read(model, [said(text)])
        answer = loaded.tokenizer.encode(text, special=False)
        tokens = np.array([[*prompt, *answer]])
        logits = np.asarray(all_logits(loaded.config, loaded.params, tokens, np.zeros(1, int)))[0]
        logprobs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        logprobs -= logits.max(-1, keepdims=True)
        wanted = logprobs[np.arange(len(prompt) - 1, tokens.size - 1), answer]
        np.testing.assert_allclose(told.logprobs or (), wanted, rtol=1e-4, atol=1e-5)
        assert (told.text, told.prompt_tokens, told.completion_tokens) == (text, tokens.size, 0)


def test_other_prompts_change_nothing_and_a_bad_one_fails_alone(tmp_path):
    model = LocalLikelihood(tiny_talker(), dtype="float32")
    long = (Message("user", "Hi there, " * 2), Message("assistant", "one"))
    prompts = [said("one"), said(""), long, TALK, said("two"), (*TALK, Message("assistant", "a" * 5000))]
    together = read(model, prompts)
    assert [one.error is None for one in together] == [True, False, True, False, True, False]
    assert "must be an answer of the assistant" in str(together[1].error)
    assert "the model reads" in str(together[5].error)
    for prompt, one in zip(prompts, together, strict=True):
        if one.error is None:
            alone = read(model, [prompt])[0].logprobs or ()
            np.testing.assert_allclose(alone, one.logprobs or (), rtol=1e-4, atol=1e-5)
    journaled = JournaledGenerator(model, Journal(tmp_path / "j.sqlite"))
    first, again = (read(journaled, [said("one")])[0] for _ in range(2))
    assert first.logprobs == again.logprobs and again.from_journal


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="none"):
        AnswerRewardConfig(llm_model=str(tmp_path / "none"), journal=str(tmp_path / "j.sqlite")).load()
