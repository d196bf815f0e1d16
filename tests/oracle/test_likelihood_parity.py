"""Scores of passages against transformers on torch: whole prompts, one at a time, without cache and padding."""

import numpy as np
import pytest
from support.talkers import byte_tokenizer
from support.torch_decoders import our_config, our_params, torch_model

from qrag_jax.models.decoder.likelihood import DecoderReranker
from qrag_jax.models.decoder.weights import LoadedDecoder

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("quick_compilation")]

QUESTION = "Who has the lamp?"
PASSAGES = ["Mary has the lamp.", "It rained.", "", "John went to the station, and nobody came by in the evening."]
CHAT = (
    "<|im_start|>system\nYou read a text and write a question that the text answers.<|im_end|>\n<|im_start|>user\n"
    "Text:\n{}\n\nWrite one question that this text answers.<|im_end|>\n<|im_start|>assistant\n" + QUESTION
)
JUDGE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web '
    "search query, retrieve relevant passages that answer the query\n<Query>: " + QUESTION + "\n<Document>: "
    "{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@pytest.fixture(scope="module", params=["llama, tied", "qwen2", "qwen3", "qwen2, yarn"])
def pair(request):
    model = torch_model(request.param, vocab_size=258, max_position_embeddings=1024)
    return model, LoadedDecoder(our_config(model), our_params(model), byte_tokenizer(), "")


def their_logits(model, tokenizer, text):
    import torch

    ids = tokenizer.encode(text, special=True)
    with torch.no_grad():
        return ids, model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def test_likelihood_of_the_question(pair):
    import torch

    model, loaded = pair
    expected = []
    for passage in PASSAGES:
        ids, logits = their_logits(model, loaded.tokenizer, CHAT.format(passage))
        logprobs = torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        expected.append(float(logprobs[-len(QUESTION) :].mean()))
    found = DecoderReranker(loaded, "likelihood", "tiny")(QUESTION, PASSAGES)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_yes_or_no(pair):
    model, loaded = pair
    yes, no = (loaded.tokenizer.encode(word, special=False)[0] for word in ("yes", "no"))
    logits = [their_logits(model, loaded.tokenizer, JUDGE.format(passage))[1][-1] for passage in PASSAGES]
    found = DecoderReranker(loaded, "yesno", "tiny")(QUESTION, PASSAGES)
    np.testing.assert_allclose(found, [float(each[yes] - each[no]) for each in logits], atol=1e-4)
