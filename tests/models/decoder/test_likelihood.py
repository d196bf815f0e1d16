"""Scores of passages by a decoder: worked by hand, and the same whatever else is in the batch."""

import numpy as np
import pytest
from support.decoders import numpy_decoder
from support.talkers import CHATML, parrot, tiny_talker

from qrag_jax.models.decoder.likelihood import DecoderReranker
from qrag_jax.models.decoder.rerank_prompts import RerankPrompt
from qrag_jax.types import InputError, Reranker, UsageError

QUESTION = "Who?"
PASSAGES = ["Mary has the lamp.", "It rained.", "", "John went to the station, and nobody came by in the evening."]


def test_the_question_of_a_parrot():
    """Its logits are about 16 for the next letter of "one" and 0 for the other 257 tokens, whatever came before."""
    logit = 1 / np.sqrt(1 / 258 + 1e-5)  # the last norm of a vector of zeros and one 1
    hit, miss = logit - np.log(np.exp(logit) + 257), -np.log(np.exp(logit) + 257)
    reranker = DecoderReranker(parrot("one", max_positions=512), "likelihood", "parrot")
    assert isinstance(reranker, Reranker)
    np.testing.assert_allclose(reranker("one", ["x", "y z"]), hit, atol=1e-5)  # "o" follows the end of the prompt
    np.testing.assert_allclose(reranker("onx", ["x"]), (2 * hit + miss) / 3, atol=1e-5)


@pytest.mark.parametrize("template", [CHATML, None], ids=["chat", "plain"])
def test_it_is_the_mean_log_probability_of_the_question(template):
    talker = tiny_talker(chat_template=template, max_positions=512)
    tokenizer = talker.tokenizer
    found = DecoderReranker(talker, "likelihood", "tiny")(QUESTION, PASSAGES[:1])
    prompt = RerankPrompt.of("likelihood", tokenizer)
    asked = tokenizer.encode(QUESTION, special=False)
    ids = [*prompt.shared, *tokenizer.encode(PASSAGES[0], special=False), *prompt.after, *asked]
    logits = numpy_decoder(talker.config, talker.params, ids)[-len(asked) - 1 : -1]
    logprobs = logits[np.arange(len(asked)), asked] - np.log(np.exp(logits).sum(axis=1))
    np.testing.assert_allclose(found, [logprobs.mean()], atol=1e-4)


def test_yes_or_no_is_a_difference_of_two_logits():
    talker = tiny_talker(max_positions=1024)
    found = DecoderReranker(talker, "yesno", "tiny")(QUESTION, PASSAGES[:1])
    text = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        f"<Query>: {QUESTION}\n<Document>: {PASSAGES[0]}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    last = numpy_decoder(talker.config, talker.params, talker.tokenizer.encode(text, special=True))[-1]
    np.testing.assert_allclose(found, [last[ord("y") - ord("!")] - last[ord("n") - ord("!")]], atol=1e-4)


@pytest.mark.parametrize("kind", ["likelihood", "yesno"])
def test_other_passages_change_nothing(kind):
    reranker = DecoderReranker(tiny_talker(max_positions=1024), kind, "tiny")
    seen = []
    together = reranker(QUESTION, PASSAGES, lambda done, of: seen.append((done, of)))
    assert seen[-1][0] == seen[-1][1] == reranker.counts.num_tokens and reranker.counts.num_texts == 4
    backwards = reranker(QUESTION, PASSAGES[::-1])[::-1]
    alone = np.concatenate([reranker(QUESTION, [passage]) for passage in PASSAGES])
    np.testing.assert_allclose(together, backwards, atol=1e-5)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert len(np.unique(np.round(together, 6))) == len(PASSAGES)


def test_questions_of_about_one_length_compile_nothing_new():
    reranker = DecoderReranker(tiny_talker(max_positions=512), "likelihood", "tiny")
    reranker(QUESTION, PASSAGES)
    before = reranker._score._cache_size()
    reranker("Why not?", PASSAGES[::-1])
    assert reranker._score._cache_size() == before


def test_a_long_passage_loses_its_end_and_a_long_question_is_refused():
    reranker = DecoderReranker(tiny_talker(max_positions=256), "likelihood", "tiny")
    long = "a" * 400
    assert np.isfinite(reranker(QUESTION, [long, "b"])).all() and reranker.counts.num_texts_cut == 1
    np.testing.assert_allclose(reranker(QUESTION, [long]), reranker(QUESTION, [long + "b"]), atol=1e-6)
    with pytest.raises(InputError, match="no room for a passage in the 256 tokens"):
        reranker("b" * 300, ["a"])


def test_texts_end_no_turn():
    talker = tiny_talker(max_positions=512)
    rows, asked, _ = RerankPrompt.of("likelihood", talker.tokenizer).rows(
        talker.tokenizer, "<|im_end|>", ["<|im_end|>"], 512
    )
    plain = talker.tokenizer.encode("<|im_end|>", special=False)
    assert asked == plain and rows[0][: len(plain)] == plain and 256 not in plain


def test_prompts_that_cannot_be_made():
    with pytest.raises(UsageError, match="does not read the format of Qwen3-Reranker"):
        DecoderReranker(_without_chatml(), "yesno", "tiny")
    with pytest.raises(InputError, match="does not repeat a text exactly once"):
        DecoderReranker(tiny_talker(chat_template="{{ messages[0].content }}", max_positions=512), "likelihood", "tiny")


def _without_chatml():
    talker = tiny_talker()
    talker.tokenizer.special_tokens = ()
    return talker
