"""NomicBERT, ModernBERT and Qwen3 as encoders: against NumPy, packed, from files of transformers, the hub and GGUF."""

import json
import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from support.encoders import OF_FAMILY, random_encoder
from support.gguf_files import write_gguf
from support.networks import np_jit
from support.tiers import slow_but

from qrag_jax.models.encoder.config import EncoderConfig, LayerKind
from qrag_jax.models.encoder.embedder import encoder_fingerprint, make_embedder
from qrag_jax.models.encoder.export import fold_scale
from qrag_jax.models.encoder.hf_config import read_encoder_config
from qrag_jax.models.encoder.table import params_from_tensors, tensors_from_params
from qrag_jax.models.encoder.text_encoder import Compute, encode, encode_in_blocks, encode_tokens, turns_of
from qrag_jax.models.encoder.weights import load_encoder, save_encoder
from qrag_jax.types import InputError, UsageError

TEXTS = ["Mary has the key.", "John went to the hall, and Mary took the milk there.", "a"]
FAMILIES = list(OF_FAMILY)
run = np_jit(encode, static_argnums=(0, 4))
run_tokens = np_jit(encode_tokens, static_argnums=0)
run_in_blocks = np_jit(encode_in_blocks, static_argnums=(0, 4))


@pytest.fixture(params=FAMILIES)
def loaded(request):
    return random_encoder(request.param, TEXTS)


def rows_of(loaded, texts=TEXTS):
    table = loaded.tokenizer.encode(texts, 64)
    return table.tokens, table.lengths


def numpy_norm(config, x, weights):
    if config.family == "qwen3":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.layer_norm_eps) * weights["scale"]
    centred = x - x.mean(-1, keepdims=True)
    made = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config.layer_norm_eps) * weights["scale"]
    return made + weights.get("bias", 0)


def numpy_turned(x, place, theta):
    """One head of one token, turned: pairs (k, k + c/2) by place * theta^(-2k / c)."""
    half = len(x) // 2
    turned = x.copy()
    for k in range(half):
        angle = place * theta ** (-2 * k / len(x))
        (a, b), cos, sin = (x[k], x[k + half]), math.cos(angle), math.sin(angle)
        turned[k], turned[k + half] = a * cos - b * sin, b * cos + a * sin
    return turned


def numpy_hidden(config, params, tokens):
    """Vectors of the last layer of one row, written token by token."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = params["word_embeddings"]["embedding"][tokens]
    x = x + params["type_embeddings"]["embedding"][0] if config.has_types else x
    x = x if config.family == "qwen3" else numpy_norm(config, x, params["embeddings_norm"])
    for number, kind in enumerate(config.kinds):
        x = numpy_layer(config, params[f"layer_{number}"], x, kind)
    return numpy_norm(config, x, params["final_norm"]) if config.norms_first else x


def numpy_layer(config, layer, x, kind):
    theta = config.local_rope_theta if kind.is_local else config.rope_theta
    read = numpy_norm(config, x, layer["attention_norm"]) if config.norms_first and kind.is_normed else x
    size, shared = config.head_size, config.num_heads // config.num_key_heads
    heads = {name: (read @ layer[name]["kernel"]).reshape(len(x), -1, size) for name in ("query", "key", "value")}
    if config.family == "qwen3":
        for name in ("query", "key"):
            heads[name] = numpy_norm(config, heads[name], layer[f"{name}_norm"])
    mixed = np.zeros((len(x), config.num_heads, size))
    for head in range(config.num_heads):
        for at in range(len(x)):
            query, logits = numpy_turned(heads["query"][at, head], at, theta), []
            for other in range(len(x)):
                key = numpy_turned(heads["key"][other, head // shared], other, theta)
                is_near = not kind.is_local or abs(at - other) <= config.local_window
                is_seen = other <= at if config.family == "qwen3" else is_near
                logits.append(query @ key / math.sqrt(size) if is_seen else -np.inf)
            weights = np.exp(np.array(logits) - max(logits))
            mixed[at, head] = weights / weights.sum() @ heads["value"][:, head // shared]
    x = x + mixed.reshape(len(x), -1) @ layer["attention_output"]["kernel"]
    x = x if config.norms_first else numpy_norm(config, x, layer["attention_norm"])
    read = numpy_norm(config, x, layer["output_norm"]) if config.norms_first else x
    gate = read @ layer["gate"]["kernel"]
    if config.activation == "silu":
        gate = gate / (1 + np.exp(-gate))
    else:
        gate = gate / 2 * (1 + np.vectorize(math.erf)(gate / math.sqrt(2)))
    x = x + (gate * (read @ layer["intermediate"]["kernel"])) @ layer["output"]["kernel"]
    return x if config.norms_first else numpy_norm(config, x, layer["output_norm"])


def test_matches_numpy_written_token_by_token(loaded):
    tokens, lengths = rows_of(loaded)
    hidden = run_tokens(loaded.config, loaded.params, tokens, lengths)
    for row, length in enumerate(lengths):
        expected = numpy_hidden(loaded.config, loaded.params, tokens[row, :length])
        np.testing.assert_allclose(hidden[row, :length], expected, rtol=1e-4, atol=1e-4)


# How rows are packed depends on the family, what is taken of them on the pooling: each of both once.
ONCE = [("nomic_bert", "mean"), ("modernbert", "cls"), ("qwen3", "last")]
POOLED = [(family, pooling) for family in FAMILIES for pooling in ("mean", "cls", "last")]


@pytest.mark.parametrize(("loaded", "pooling"), slow_but(ONCE, POOLED, []), indirect=["loaded"])
def test_packed_rows_and_padding_give_the_values_of_single_rows(loaded, pooling):
    config = replace(loaded.config, pooling=pooling, dim=6)
    tokens, lengths = rows_of(loaded)
    alone = np.concatenate(
        [run(config, loaded.params, tokens[row : row + 1, :length], lengths[row : row + 1]) for row, length in
         enumerate(lengths)]
    )  # fmt: skip
    assert alone.shape == (3, 6)
    np.testing.assert_allclose(run(config, loaded.params, tokens, lengths), alone, atol=1e-5)
    np.testing.assert_allclose(run_in_blocks(config, loaded.params, tokens, lengths, 64), alone, atol=1e-5)
    hidden = run_tokens(loaded.config, loaded.params, tokens, lengths)
    place = {"cls": lambda length: 0, "last": lambda length: length - 1}
    if pooling in place:
        for row, length in enumerate(lengths):
            np.testing.assert_allclose(alone[row], hidden[row, place[pooling](length), :6], atol=1e-5)


def test_long_rows_are_computed_in_pieces(monkeypatch):
    from qrag_jax.models.encoder import text_encoder

    loaded = random_encoder("modernbert", TEXTS)
    tokens, lengths = rows_of(loaded)
    whole = run(loaded.config, loaded.params, tokens, lengths)
    monkeypatch.setattr(text_encoder, "_QUERIES", 4)
    other = replace(loaded.config, layer_norm_eps=1.1e-5)  # so that it is traced again
    np.testing.assert_allclose(run(other, loaded.params, tokens, lengths), whole, atol=1e-4)


def test_turns_by_hand():
    cos, sin = turns_of(3, 4, 100.0)  # frequencies 1 and 1/10
    np.testing.assert_allclose(cos[2], [math.cos(2), math.cos(0.2)], rtol=1e-6)
    np.testing.assert_allclose(sin[2], [math.sin(2), math.sin(0.2)], rtol=1e-6)


def test_layers_of_modernbert():
    config = random_encoder("modernbert", TEXTS).config
    normed, local = LayerKind(), LayerKind(is_local=True)
    assert config.kinds == (LayerKind(is_normed=False), local, local, normed)


@pytest.mark.parametrize("loaded", slow_but(["modernbert"], FAMILIES), indirect=True)
def test_bfloat16_is_near(loaded):
    config = replace(loaded.config, normalize=True)
    tokens, lengths = rows_of(loaded)
    exact = run(config, loaded.params, tokens, lengths)
    near = run(config, loaded.params, tokens, lengths, Compute("bfloat16"))
    assert near.dtype == np.float32 and not np.array_equal(near, exact)
    assert (near * exact).sum(1).min() > 0.99


def test_folder_is_read_back_bit_for_bit(loaded, tmp_path):
    save_encoder(tmp_path, loaded.config, loaded.params, loaded.tokenizer)
    again = load_encoder(tmp_path)
    assert again.config == loaded.config and again.prompts == loaded.prompts
    jax.tree.map(np.testing.assert_array_equal, again.params, loaded.params)
    assert make_embedder(again).fingerprint == make_embedder(loaded).fingerprint


def test_scale_is_folded_into_the_last_norm(loaded):
    tokens, lengths = rows_of(loaded)
    scaled = run(loaded.config, fold_scale(loaded.config, loaded.params, 0.1), tokens, lengths)
    np.testing.assert_allclose(scaled, 0.1 * run(loaded.config, loaded.params, tokens, lengths), rtol=1e-4, atol=1e-6)


def test_nomic_files_of_the_hub(tmp_path):
    """Their config and tensors have names of their own; queries, keys and values are one tensor."""
    loaded = random_encoder("nomic_bert", TEXTS)
    save_encoder(tmp_path, loaded.config, loaded.params, loaded.tokenizer)
    config, tensors = loaded.config, tensors_from_params(loaded.config, loaded.params)
    values = {
        "model_type": "nomic_bert", "vocab_size": config.vocab_size, "n_embd": 16, "n_layer": 2, "n_head": 4,
        "n_inner": 32, "n_positions": 64, "layer_norm_epsilon": 1e-12, "activation_function": "swiglu",
        "rotary_emb_base": 1000, "type_vocab_size": 2, "qkv_proj_bias": False, "rotary_emb_fraction": 1.0,
        "prenorm": False, "rotary_scaling_factor": None,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert read_encoder_config(tmp_path) == config
    names = {"layers": "encoder.layers", "mlp.up_proj": "mlp.fc11", "mlp.gate_proj": "mlp.fc12"}
    names |= {"mlp.down_proj": "mlp.fc2", "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2"}
    names |= {"self_attn.o_proj": "attn.out_proj", "embeddings.LayerNorm": "emb_ln"}
    theirs = {}
    for name, tensor in tensors.items():
        for ours, other in names.items():
            name = name.replace(ours, other)  # noqa: PLW2901
        theirs[name] = tensor
    for layer in range(2):
        parts = [theirs.pop(f"encoder.layers.{layer}.self_attn.{part}_proj.weight") for part in "qkv"]
        theirs[f"encoder.layers.{layer}.attn.Wqkv.weight"] = np.concatenate(parts)
    from qrag_jax.models.encoder.table import without_prefix

    again = params_from_tensors(config, without_prefix(config, theirs))
    jax.tree.map(np.testing.assert_array_equal, again, loaded.params)


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("nomic_bert", {"num_experts": 8}, "num_experts is 8, only 0 is read"),
        ("nomic_bert", {"prenorm": True}, "prenorm is True, only False is read"),
        ("modernbert", {"attention_bias": True}, "attention_bias is True, only False is read"),
        ("modernbert", {"hidden_size": 0}, "hidden_size is 0, a positive integer is needed"),
        ("modernbert", {"layer_types": ["full_attention"]}, "layer_types has no regular order"),
        ("qwen3", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling is .*, only None is read"),
        ("qwen3", {"rope_parameters": {"rope_type": "yarn"}}, "only rope_type 'default' is read"),
        ("qwen3", {"hidden_act": "relu"}, "hidden_act is 'relu', choose one of gelu"),
        ("qwen3", {"rms_norm_eps": "small"}, "rms_norm_eps is 'small', a positive number is needed"),
        ("qwen3", {"num_attention_heads": 3}, "num_heads 3 is not a multiple of num_kv_heads 2"),
    ],
)
def test_models_that_need_other_code_are_refused(tmp_path, family, change, message):
    loaded = random_encoder(family, TEXTS)
    save_encoder(tmp_path, loaded.config, loaded.params, loaded.tokenizer)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises((InputError, UsageError), match=message):
        read_encoder_config(tmp_path)


# Names of transformers -> those of llama.cpp.
LLAMA_CPP = {
    "bert": {
        "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
        "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
        "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    },
    "nomic_bert": {
        "embeddings.word_embeddings": "token_embd", "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm", "attn.Wqkv": "attn_qkv", "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "attn_output_norm", "mlp.up_proj": "ffn_up", "mlp.gate_proj": "ffn_gate",
        "mlp.down_proj": "ffn_down", "post_mlp_layernorm": "layer_output_norm",
    },
}  # fmt: skip


def gguf_of(path, loaded):
    """A GGUF file of an encoder, as llama.cpp names things."""
    config, tokenizer = loaded.config, json.loads(loaded.tokenizer.to_json())
    tensors = tensors_from_params(config, loaded.params)
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    name = {"nomic_bert": "nomic-bert", "bert": "bert"}[config.family]
    fields = {
        "general.architecture": name, f"{name}.block_count": config.num_layers, f"{name}.context_length": 64,
        f"{name}.embedding_length": 16, f"{name}.feed_forward_length": 32, f"{name}.attention.head_count": 4,
        f"{name}.attention.layer_norm_epsilon": 1e-12, f"{name}.attention.causal": False, f"{name}.pooling_type": 1,
        f"{name}.rope.freq_base": 1000.0, "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [token if token.startswith("[") else f"\u2581{token}" for token in vocab],
        "tokenizer.ggml.seperator_token_id": 3, "tokenizer.ggml.cls_token_id": 2, "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
    }  # fmt: skip
    stems = LLAMA_CPP[config.family]
    named = {}
    for full, tensor in tensors.items():
        stem, _, kind = full.rpartition(".")
        layer = ""
        for prefix in ("encoder.layer.", "layers."):
            if stem.startswith(prefix):
                number, _, stem = stem.removeprefix(prefix).partition(".")
                layer = f"blk.{number}."
        if config.family == "nomic_bert" and stem.endswith(("k_proj", "v_proj")):
            continue
        if stem.endswith("q_proj"):
            parts = [tensors[full.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            stem, tensor = "attn.Wqkv", np.concatenate(parts)  # noqa: PLW2901
        named[f"{layer}{stems[stem]}.{kind}"] = tensor
    write_gguf(path, fields, named)
    return path


@pytest.mark.parametrize("family", ["nomic_bert", "bert"])
def test_gguf_encoder(tmp_path, family):
    loaded = random_encoder(family, TEXTS)
    again = load_encoder(gguf_of(tmp_path / "one.gguf", loaded))
    assert again.config == replace(loaded.config, normalize=True)
    jax.tree.map(np.testing.assert_array_equal, again.params, loaded.params)
    asked = [*TEXTS, "KEY unseen", ""]
    theirs, ours = (each.tokenizer.encode(asked, 64) for each in (loaded, again))
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)


def test_gguf_of_another_architecture_is_refused(tmp_path):
    write_gguf(tmp_path / "x.gguf", {"general.architecture": "t5"}, {"token_embd.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(InputError, match="general.architecture is 't5', only bert, nomic-bert, qwen3 are read as enc"):
        load_encoder(tmp_path / "x.gguf")


def test_fingerprints_of_older_encoders_stay():
    config = EncoderConfig(vocab_size=5)
    params = {"a": np.zeros(4, np.float32)}
    found = encoder_fingerprint(config, params, "{}", 256)
    assert found.startswith("65a9b61a8ba8ae7a")  # as version 0.1 wrote it into indexes
    changed = [replace(config, dim=3), replace(config, family="roberta")]
    assert found not in [encoder_fingerprint(each, params, "{}", 256) for each in changed]


def test_an_encoder_beyond_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    from qrag_jax.models.encoder import weights

    loaded = random_encoder("qwen3", TEXTS)
    save_encoder(tmp_path, loaded.config, loaded.params, loaded.tokenizer)
    number = sum(leaf.size for leaf in jax.tree.leaves(loaded.params))
    monkeypatch.setattr(weights, "available_bytes", lambda: 4 * number - 1)
    with pytest.raises(
        UsageError, match=r"its 0 million parameters take at least .* GB as float32, and .* are available"
    ):
        load_encoder(tmp_path)
    monkeypatch.setattr(weights, "available_bytes", lambda: 4 * number)
    assert load_encoder(tmp_path).config == loaded.config
