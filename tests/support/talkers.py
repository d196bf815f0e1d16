"""Small decoders with a tokenizer and a chat template, as they come out of `load_decoder`; and how to decode slowly."""

import jax.numpy as jnp
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.decoder.weights import LoadedDecoder
from support.decoders import all_logits, decoder_config, random_decoder_params

START, END = "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_tokenizer(chat_template=CHATML, normalizer=None, others=(), specials=()) -> DecoderTokenizer:
    """A token a byte, so that every character beyond ASCII is split; 256 ends an answer, 257 opens a turn."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=ord)
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    is_normalized = normalizer is not None
    tokenizer.add_special_tokens([AddedToken(token, normalized=is_normalized) for token in (END, START)])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in others])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in specials])
    return DecoderTokenizer(tokenizer, bos_token=START, eos_token=END, chat_template=chat_template)


def tiny_talker(seed=0, chat_template=CHATML, normalizer=None, others=(), specials=(), **changes) -> LoadedDecoder:
    """Random weights over the byte vocabulary; what it says is noise, ends come by chance."""
    vocab_size = 258 + len(others) + len(specials)
    config = decoder_config(**{"vocab_size": vocab_size, "max_positions": 96} | changes)
    tokenizer = byte_tokenizer(chat_template, normalizer, others, specials)
    return LoadedDecoder(config, random_decoder_params(config, seed), tokenizer, f"fingerprint {seed}")


def parrot(answer: str, **changes) -> LoadedDecoder:
    """A decoder that says `answer`, token by token, after any prompt that ends with a new line, then ends.

    Layers add nothing: the last token alone decides the next one. So the bytes of an answer must differ.
    """
    tokenizer = byte_tokenizer()
    said = [*tokenizer.encode("\n" + answer, special=False), *tokenizer.eos_ids]
    assert len(set(said)) == len(said)
    sizes = {"vocab_size": 258, "hidden_size": 258, "max_positions": 96, "tie_embeddings": False, "num_layers": 1}
    config = decoder_config(**sizes | changes)
    params = random_decoder_params(config)
    for name in ("output", "down"):
        params["layers"][name] = {"kernel": jnp.zeros_like(params["layers"][name]["kernel"])}
    head = np.zeros((258, 258), np.float32)
    head[said[:-1], said[1:]] = 1
    params |= {"embed": {"embedding": jnp.eye(258)}, "head": {"kernel": jnp.asarray(head)}}
    params["norm"] = {"scale": jnp.ones(258)}
    return LoadedDecoder(config, params, tokenizer, f"parrot {answer!r}")


def slow_greedy(loaded: LoadedDecoder, prompt, room):
    """Ids and log-probabilities of greedy decoding, from the logits of the whole text at every step."""
    ids, logprobs = list(prompt), []
    while len(logprobs) < room:
        # One length for all steps: what stands behind a token does not change its logits.
        tokens = np.zeros((1, len(prompt) + room), np.int32)
        tokens[0, : len(ids)] = ids
        every = all_logits(loaded.config, loaded.params, jnp.asarray(tokens), jnp.zeros(1, jnp.int32))
        logits = np.asarray(every[0, len(ids) - 1], np.float64)
        best = int(logits.argmax())
        if best in loaded.tokenizer.eos_ids:
            break
        ids.append(best)
        logprobs.append(logits[best] - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
    return ids[len(prompt) :], logprobs
