"""Decoders from and to disk against transformers on torch: folders both ways, GGUF files, SmolLM2 and its tokenizer."""

import importlib.util
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.decoders import SCALINGS, all_logits, decoder_config, random_decoder_params
from support.gguf_files import CHAT, TOKENS, decoder_fields, decoder_tensors, tokenizer_fields, write_gguf
from support.tiers import HAS_SMOLLM2

from qrag_jax.models.decoder.network import token_logprobs
from qrag_jax.models.decoder.rollout import generate_groups
from qrag_jax.models.decoder.sources import find_decoder
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.decoder.weights import LoadedDecoder, load_decoder, save_decoder

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("quick_compilation")]

WIDE = {"vocab_size": len(TOKENS) + 1, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8, "max_positions": 64}
TOKENIZER = DecoderTokenizer.from_gguf(tokenizer_fields() | {"tokenizer.chat_template": CHAT})
ROWS = np.random.default_rng(0).integers(0, len(TOKENS), (3, 40))
THEIRS = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, llama3": ("Llama", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }}),
    "qwen2": ("Qwen2", {}),
    "qwen2, yarn": ("Qwen2", {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
    }}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
}  # fmt: skip
OURS = {
    "llama": decoder_config("llama", **WIDE),
    "llama, biases": decoder_config(
        "llama", **WIDE, tie_embeddings=False, qkv_bias=True, output_bias=True, mlp_bias=True
    ),
    "qwen2": decoder_config("qwen2", **WIDE),
    "qwen3": decoder_config("qwen3", **WIDE | {"head_dim": 16}),
    **{f"llama, {kind}": decoder_config("llama", **WIDE, rope_scaling=scaling) for kind, scaling in SCALINGS.items()},
}
PROMPTS = [
    "The capital of France is",
    "<|im_start|>user\nName three fruits that are red.<|im_end|>\n<|im_start|>assistant\n",
    "In 1969, Apollo 11 landed on the Moon. Two astronauts walked there while the third stayed in orbit. The year was",
]
TEXTS = [
    *PROMPTS, "", " ", "   indented\n\n\n  lines\t\ttabs ", "It's 3.14159, isn't it? I'LL pay $1,234.50!",
    "日本語 und Ärger 🙂", "def f(x):\n    return x**2  # <repo_name>", "a<|im_end|>b <|endoftext|>",
    "x" * 100, "½ ² Ⅷ ٣",
]  # fmt: skip


def assert_same_logits(torch_model, loaded, rows=ROWS):
    import torch

    with torch.no_grad():
        expected = torch_model(torch.tensor(rows)).logits.numpy()
    found = all_logits(loaded.config, loaded.params, rows, [0] * len(rows))
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


# How a folder is cut into files is no business of the family.
@pytest.mark.parametrize(("name", "shard_size"), [*((name, "5GB") for name in THEIRS), ("qwen3", "20KB")])
def test_what_transformers_saves_is_loaded(tmp_path, name, shard_size):
    import torch
    import transformers

    kind, changes = THEIRS[name]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(TOKENS) + 1, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, **changes,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms are trivial at the start
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    (tmp_path / "tokenizer.json").write_text(TOKENIZER.to_json())
    assert (tmp_path / "model.safetensors.index.json").is_file() == (shard_size != "5GB")
    assert_same_logits(model, load_decoder(tmp_path))


@pytest.mark.parametrize("name", OURS)
def test_what_we_save_is_loaded_by_transformers(tmp_path, name):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = OURS[name]
    saved = LoadedDecoder(config, random_decoder_params(config), TOKENIZER, "")
    save_decoder(tmp_path, saved)
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert_same_logits(model.eval(), load_decoder(tmp_path))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert theirs(text, add_special_tokens=False)["input_ids"] == TOKENIZER.encode(text, special=True)
    assert (theirs.bos_token, theirs.eos_token, theirs.chat_template) == ("<|im_start|>", "<|im_end|>", CHAT)
    assert model.generation_config.eos_token_id == [0, 2]


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="transformers reads GGUF with accelerate")
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_gguf_files_mean_what_transformers_reads(tmp_path, name):
    from transformers import AutoModelForCausalLM

    # It takes the number of tokens for the size of the table, and 128 for the size of Qwen3's heads.
    changes = {"vocab_size": len(TOKENS), "head_dim": 128 if name == "qwen3" else 8}
    config = decoder_config(name, **WIDE | changes)
    tensors = decoder_tensors(config, random_decoder_params(config))
    path = write_gguf(tmp_path / "x.gguf", decoder_fields(config), tensors)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype="float32")
    assert_same_logits(model.eval(), load_decoder(path))


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """(transformers' folder, what we load) of the same dequantised weights."""
    if not HAS_SMOLLM2:
        pytest.skip("embedded SmolLM2 is not installed")
    loaded = load_decoder("smollm2")
    return save_decoder(tmp_path_factory.mktemp("smollm2"), loaded), loaded


def test_smollm2_has_the_logprobs_and_the_greedy_text_of_torch(smollm2):
    """Prompts together, padded on the left, against each alone: every token that follows."""
    import torch
    from transformers import LlamaForCausalLM

    folder, loaded = smollm2
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = [loaded.tokenizer.encode(prompt, special=True) for prompt in PROMPTS]
    longest = max(map(len, rows))
    tokens = jnp.asarray([[0] * (longest - len(row)) + row for row in rows], jnp.int32)
    lengths = jnp.asarray([len(row) for row in rows], jnp.int32)
    fixed = {"config": loaded.config, "max_tokens": 16, "end_ids": (), "temperature": 0.0}
    drawn = jax.jit(partial(generate_groups, **fixed))(loaded.params, tokens, lengths, jnp.zeros((3, 1), jnp.uint32))
    for place, (prompt, ids) in enumerate(zip(PROMPTS, rows, strict=True)):
        told = model.generate(
            torch.tensor([ids]), max_new_tokens=16, min_new_tokens=16, do_sample=False, eos_token_id=None,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        answer, mine = told.sequences[0, len(ids) :].tolist(), drawn.tokens[place, 0].tolist()
        theirs = torch.log_softmax(torch.cat(told.logits), -1).numpy()[np.arange(16), answer]
        difference = float(abs(drawn.logprobs[place, 0] - theirs).max())
        print(f"\n{prompt!r}: {len(ids)} tokens, max |logprob difference| {difference:.1e}")
        print(f"  torch: {loaded.tokenizer.decode(answer)!r}\n  ours:  {loaded.tokenizer.decode(mine)!r}")
        assert difference <= 1e-3 and mine == answer
        text = jnp.asarray([[*ids, *mine]], jnp.int32)
        again = token_logprobs(loaded.params, text, jnp.ones_like(text), config=loaded.config)
        np.testing.assert_allclose(again[0, len(ids) :], drawn.logprobs[place, 0], atol=1e-4)


def test_smollm2_tokenizer_is_that_of_transformers(smollm2):
    from transformers import AutoTokenizer

    folder, loaded = smollm2
    theirs = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "Hi <|im_end|>"}]
    for text in [*TEXTS, theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)]:
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ids == loaded.tokenizer.encode(text, special=True)
        assert theirs.decode(ids, skip_special_tokens=True) == loaded.tokenizer.decode(ids)


def test_smollm2_tokenizer_is_what_transformers_reads_of_the_gguf_file_itself(smollm2):
    from transformers import AutoTokenizer

    # It does not know this file's rule for digits, so texts have none.
    path = find_decoder("smollm2")
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        if not any(letter.isnumeric() for letter in text):
            ids = theirs(text, add_special_tokens=False)["input_ids"]
            assert ids == smollm2[1].tokenizer.encode(text, special=True)
