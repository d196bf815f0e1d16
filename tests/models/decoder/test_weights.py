import json
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from support.decoders import FAMILIES, all_logits, decoder_config, numpy_decoder, random_decoder_params
from support.gguf_files import CHAT, TOKENS, decoder_fields, decoder_tensors, tokenizer_fields, write_gguf
from support.tiers import HAS_SMOLLM2, slow_but

from qrag_jax.models.decoder.sources import SMOLLM2_SHA256
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.decoder.weights import LoadedDecoder, load_decoder, save_decoder
from qrag_jax.types import InputError, UsageError

WIDE = {"vocab_size": len(TOKENS) + 3, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
TOKENIZER = DecoderTokenizer.from_gguf(tokenizer_fields() | {"tokenizer.chat_template": CHAT})
CONFIG = decoder_config("llama", **WIDE)


@pytest.fixture
def folder(tmp_path):
    return save_decoder(tmp_path / "saved", LoadedDecoder(CONFIG, random_decoder_params(CONFIG), TOKENIZER, ""))


def gguf_file(path, config, kinds=None):
    return write_gguf(path, decoder_fields(config), decoder_tensors(config, random_decoder_params(config)), kinds)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_saved_is_loaded_bit_for_bit(tmp_path, family):
    config = decoder_config(family, **WIDE)
    params = random_decoder_params(config)
    save_decoder(tmp_path / "saved", LoadedDecoder(config, params, TOKENIZER, ""))
    (tmp_path / "saved").rename(tmp_path / "moved")
    loaded = load_decoder(tmp_path / "moved")
    assert loaded.config == config
    chex.assert_trees_all_equal(loaded.params, params)
    for name in ("vocab_size", "bos_id", "bos_token", "eos_ids", "eos_token", "special_tokens", "chat_template"):
        assert getattr(loaded.tokenizer, name) == getattr(TOKENIZER, name)
    assert loaded.tokenizer.to_json() == TOKENIZER.to_json()
    with safe_open(tmp_path / "moved/model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    assert not [path.name for path in (tmp_path / "moved").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("family", slow_but(["llama"], FAMILIES))
def test_a_gguf_file_computes_what_the_parameters_do(tmp_path, family):
    config = decoder_config(family, **WIDE)
    loaded = load_decoder(gguf_file(tmp_path / "x.gguf", config))
    assert loaded.config == config and loaded.tokenizer.to_json() == TOKENIZER.to_json()
    chex.assert_trees_all_equal(loaded.params, random_decoder_params(config))
    ids = loaded.tokenizer.encode("the inn", special=False)
    found = all_logits(loaded.config, loaded.params, [ids], [0])
    expected = numpy_decoder(config, random_decoder_params(config), ids)
    np.testing.assert_allclose(found[0], expected, atol=2e-4, rtol=2e-5)


def test_quantised_tensors_are_near(tmp_path):
    exact = gguf_file(tmp_path / "x.gguf", CONFIG)
    kinds = {"token_embd.weight": "Q8_0", "blk.0.attn_q.weight": "Q8_0", "blk.1.ffn_down.weight": "F16"}
    near = gguf_file(tmp_path / "y.gguf", CONFIG, kinds)
    exact, near = load_decoder(exact), load_decoder(near)
    chex.assert_trees_all_close(near.params, exact.params, atol=0.02)
    differs = jax.tree.map(lambda a, b: (np.asarray(a) != b).any(), near.params, exact.params)
    assert sum(jax.tree.leaves(differs)) == 3
    assert exact.fingerprint != near.fingerprint


def shard(folder):
    """Turns the one file of a folder into two with an index."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for part, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / part)
    weight_map = {name: part for part, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


def test_sharded_is_single(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "sharded")
    shard(tmp_path / "sharded")
    single, sharded = load_decoder(folder), load_decoder(str(tmp_path / "sharded"))
    chex.assert_trees_all_equal(single.params, sharded.params)
    save_decoder(tmp_path / "again", sharded)
    assert load_decoder(tmp_path / "again").fingerprint == single.fingerprint


def test_bfloat16(folder, tmp_path):
    exact, half = load_decoder(folder), load_decoder(folder, dtype="bfloat16")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(half.params)} == {"bfloat16"}
    rounded = jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.bfloat16), exact.params)
    chex.assert_trees_all_equal(half.params, rounded)
    save_decoder(tmp_path / "half", half, dtype="bfloat16")
    assert json.loads((tmp_path / "half/config.json").read_text())["dtype"] == "bfloat16"
    chex.assert_trees_all_equal(load_decoder(tmp_path / "half", dtype="bfloat16").params, rounded)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(load_decoder(tmp_path / "half").params)} == {"float32"}


def test_the_fingerprint_is_of_every_file_that_is_read(folder, tmp_path):
    seen = {load_decoder(folder).fingerprint}
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy/README.md").write_text("read by nobody")
    assert {load_decoder(tmp_path / "copy").fingerprint} == seen and len(next(iter(seen))) == 64
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                 "chat_template.jinja"):  # fmt: skip
        path = folder / name
        path.write_text(path.read_text() + "\n")
        seen.add(load_decoder(folder).fingerprint)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    seen.add(load_decoder(folder).fingerprint)
    assert len(seen) == 7


def test_saving_over_another_model_leaves_nothing_of_it(folder):
    config = decoder_config("qwen3", **WIDE)
    plain = DecoderTokenizer.from_gguf(tokenizer_fields())
    save_decoder(folder, LoadedDecoder(config, random_decoder_params(config), plain, ""))
    loaded = load_decoder(folder)
    assert loaded.config == config and loaded.tokenizer.chat_template is None


def change(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(folder, value):
    def edit(tensors):
        tensors["model.layers.1.self_attn.q_proj.weight"][0, 0] = value
        tensors["model.norm.weight"][:2] = (-np.inf, np.inf)

    change(folder, edit)
    with pytest.raises(InputError, match="1.self_attn.q_proj.weight: contains NaN.*model.norm.weight: contains NaN"):
        load_decoder(folder)


def test_missing_and_left_over_tensors_are_named_together(folder):
    def edit(tensors):
        del tensors["model.norm.weight"], tensors["model.layers.0.mlp.up_proj.weight"]
        tensors["odd"] = tensors["model.layers.2.mlp.up_proj.weight"] = np.ones(3, np.float32)

    change(folder, edit)
    with pytest.raises(InputError) as error:
        load_decoder(folder)
    assert "missing: model.layers.0.mlp.up_proj.weight, model.norm.weight" in str(error.value)
    assert "left over: model.layers.2.mlp.up_proj.weight, odd" in str(error.value)


@pytest.mark.parametrize("size", [5, 100, -1])
def test_truncated_weights_are_refused(folder, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match="model.safetensors: broken safetensors file"):
        load_decoder(folder)


def test_a_tokenizer_of_another_model(folder, tmp_path):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"vocab_size": len(TOKENS) - 1}))
    with pytest.raises(InputError, match=f"tokenizer.json: {len(TOKENS)} ids, but the model has vocab_size"):
        load_decoder(folder)
    small = decoder_config("llama", **WIDE | {"vocab_size": 100})
    with pytest.raises(InputError, match="x.gguf: .* ids, but the model has vocab_size 100"):
        load_decoder(gguf_file(tmp_path / "x.gguf", small))


def test_nothing_is_written_of_what_does_not_fit(tmp_path):
    params = random_decoder_params(decoder_config("qwen2", **WIDE))
    with pytest.raises(InputError, match="parameters do not fit the decoder config; .*left over: head/kernel"):
        save_decoder(tmp_path / "x", LoadedDecoder(CONFIG, params, TOKENIZER, ""))
    odd = decoder_config("llama", **WIDE, qkv_bias=True)
    with pytest.raises(InputError, match="transformers has none with output_bias"):
        save_decoder(tmp_path / "x", LoadedDecoder(odd, random_decoder_params(odd), TOKENIZER, ""))
    assert not (tmp_path / "x").exists()


def test_no_such_source():
    with pytest.raises(UsageError, match="no such folder or .gguf file"):
        load_decoder("nowhere")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_SMOLLM2, reason="embedded SmolLM2 is not installed")
def test_smollm2():
    loaded = load_decoder("smollm2")
    assert (loaded.config.family, loaded.config.num_layers, loaded.config.max_positions) == ("llama", 30, 8192)
    assert loaded.fingerprint == SMOLLM2_SHA256 and sum(x.size for x in jax.tree.leaves(loaded.params)) == 134_515_008
    tokenizer = loaded.tokenizer
    assert (tokenizer.vocab_size, tokenizer.eos_token, tokenizer.eos_ids) == (49152, "<|im_end|>", {0, 2})
    assert "<|im_start|>" in tokenizer.chat_template
    digits = tokenizer.encode("2024", special=False)
    assert [tokenizer.decode([number]) for number in digits] == ["2", "0", "2", "4"]
    # What follows is likely for this model, and for none whose rows of queries and keys are in the wrong order.
    ids = tokenizer.encode("The capital of France is", special=False)
    logits = all_logits(loaded.config, loaded.params, [ids], [0])
    assert tokenizer.decode([int(logits[0, -1].argmax())]) == " Paris"
