"""Decoders whose matrices are kept in blocks, beside the same ones with plain numbers."""

import chex
import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from support.decoders import decoder_config, random_decoder_params
from support.gguf_files import (
    CHAT,
    TOKENS,
    decoder_fields,
    decoder_tensors,
    random_blocks,
    tokenizer_fields,
    write_gguf,
)
from support.networks import np_jit
from support.tiers import slow_but

from qrag_jax.llm.local import LocalGenerator
from qrag_jax.models.blocks.matrix import BlockMatrix, columns, dequantised
from qrag_jax.models.decoder.causal_lm import extend, init_cache, join_projections
from qrag_jax.models.decoder.generation import make_decoder
from qrag_jax.models.decoder.memory import check_memory, loading_bytes
from qrag_jax.models.decoder.storage import has_blocks
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.decoder.weights import best_storage, load_decoder, save_decoder, tensor_kinds
from qrag_jax.models.gguf.unpack import FileRows
from qrag_jax.types import InputError, Sampling, UsageError

TOKENIZER = DecoderTokenizer.from_gguf(tokenizer_fields() | {"tokenizer.chat_template": CHAT})
# Whole tiles of outputs, so that projections are joined; the vocabulary fills none.
SIZES = {
    "vocab_size": len(TOKENS) + 3, "hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_kv_heads": 4,
}  # fmt: skip
IDS = TOKENIZER.encode("the inn 123", special=False)
in_numbers = np_jit(dequantised)


def config_of(family="llama", **changes):
    return decoder_config(family, **SIZES | changes)


def written(path, config, kinds=None, blocks=None):
    """A file of random parameters, small enough that logits are; `blocks` replaces tensors by bytes."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf) / 2, random_decoder_params(config))
    return write_gguf(path, decoder_fields(config), decoder_tensors(config, params) | (blocks or {}), kinds)


def logits_of(loaded):
    """Of a text, and of one more token behind it: several rows and one."""
    (*texts, last), pads = IDS, jnp.asarray(np.zeros(1, np.int32))

    @np_jit
    def run(params):
        cache = init_cache(loaded.config, 1, len(IDS))
        first, cache = extend(loaded.config, params, jnp.asarray([texts]), pads, cache, jnp.int32(0))
        return first, extend(loaded.config, params, jnp.asarray([[last]]), pads, cache, jnp.int32(len(IDS) - 1))[0]

    return run(loaded.params)


def assert_same_answers(found, expected, tolerance=2e-5):
    for ours, theirs in zip(logits_of(found), logits_of(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance * np.abs(theirs).max())


LAYER = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up",
         "down": "ffn_down"}  # fmt: skip


def kinds_of(layer=0, **kinds):
    return {f"blk.{layer}.{LAYER[name]}.weight": kind for name, kind in kinds.items()}


# Of layer 0 and the tables, and which names its projections have when it is loaded.
MIXED = {
    # Q5_0 and Q8_0 have one form here, so they are joined.
    "llama": (
        kinds_of(q="Q4_1", k="Q4_1", v="Q8_0", o="F16", gate="Q5_0", up="Q8_0", down="BF16")
        | {"token_embd.weight": "Q8_0"},
        {"query", "key", "value", "gate_up"},
    ),
    "qwen2": (
        kinds_of(q="Q4_0", k="Q4_0", v="Q4_1", o="Q5_1", gate="Q4_0", up="F32", down="Q5_0")
        | {"token_embd.weight": "Q4_0", "output.weight": "Q5_1"},
        {"query_key_value", "gate", "up"},
    ),
    "qwen3": (
        kinds_of(q="F16", k="BF16", v="F32", gate="F16", up="F16", down="Q8_0")
        | {"token_embd.weight": "F16", "output.weight": "Q4_1"},
        {"query", "key", "value", "gate_up"},
    ),
}


@pytest.mark.parametrize("family", slow_but(["qwen2"], MIXED))
def test_a_file_as_it_is_computes_what_its_numbers_do(tmp_path, family):
    """Tied and not, rows of llama in the order of the file, biases, several formats in a layer."""
    kinds, names = MIXED[family]
    config = config_of(family, num_layers=1, head_dim=16, tie_embeddings=family == "llama")
    path = written(tmp_path / "x.gguf", config, kinds)
    found, expected = load_decoder(path, storage="file"), load_decoder(path)
    assert (found.storage, expected.storage) == ("file", "float32") and has_blocks(found.params)
    assert names == {name for name in found.params["layer_0"] if any(map(name.startswith, ("q", "k", "v", "g", "u")))
                     and not name.endswith("norm")}  # fmt: skip
    table = found.params["embed"]["embedding"]
    assert isinstance(table, {"llama": BlockMatrix, "qwen2": FileRows, "qwen3": jax.Array}[family])
    assert found.fingerprint == expected.fingerprint
    assert_same_answers(found, expected)
    # Projections that are joined already stay so.
    again = join_projections(found.params)
    chex.assert_trees_all_equal(jax.tree.leaves(again), jax.tree.leaves(found.params))


@pytest.mark.slow
def test_formats_of_256_numbers(tmp_path):
    """Q2_K has no kernels and is rounded to 8 bits; float16 rounds the scales of the others."""
    config = config_of(hidden_size=256, intermediate_size=256, num_layers=1, tie_embeddings=False)
    shapes = {name: (64, 1) if name in "qkv" else (256, 1) for name in LAYER} | {"o": (256,)}
    kinds = kinds_of(q="Q4_K", k="Q4_K", v="Q6_K", gate="Q5_K", up="Q2_K", down="Q6_K")
    kinds |= {"token_embd.weight": "Q6_K"}
    blocks = {f"blk.0.{LAYER[name]}.weight": shapes[name] for name in LAYER if name != "o"}
    blocks["token_embd.weight"] = (config.vocab_size, 1)
    sizes = {"Q2_K": 0.02, "Q4_K": 2e-4, "Q5_K": 1e-4, "Q6_K": 5e-5}
    blocks = {name: random_blocks(kinds[name], shape, sizes[kinds[name]]).reshape(shape[0], -1)
              for name, shape in blocks.items()}  # fmt: skip
    path = written(tmp_path / "x.gguf", config, kinds, blocks)
    found, expected = load_decoder(path, storage="file"), load_decoder(path)
    for name in ("value", "gate", "down"):
        ours, theirs = (each.params["layer_0"][name]["kernel"] for each in (found, expected))
        np.testing.assert_allclose(in_numbers(ours), theirs, atol=1e-3 * np.abs(np.asarray(theirs)).max())
    up = found.params["layer_0"]["up"]["kernel"]
    assert (up.group, up.is_packed, up.mins) == (32, False, None)
    assert found.params["embed"]["embedding"].kind == "Q6_K"
    assert_same_answers(found, expected, 0.02)


def test_a_folder_in_blocks_of_8_bits(tmp_path):
    """Numbers that blocks hold are those of the file again; others are near."""
    config = config_of("qwen2", num_layers=1, tie_embeddings=True)
    near = load_decoder(save_decoder(tmp_path / "a", config, random_decoder_params(config), TOKENIZER), storage="int8")
    plain = random_decoder_params(config)
    for joined, names in {
        "query_key_value": ("query", "key", "value"), "gate_up": ("gate", "up"), "output": ["output"], "down": ["down"]
    }.items():  # fmt: skip
        rounded = np.split(in_numbers(near.params["layer_0"][joined]["kernel"]), len(names), axis=1)
        for name, kernel in zip(names, rounded, strict=True):
            np.testing.assert_allclose(kernel, plain["layer_0"][name]["kernel"], atol=0.01)
            plain["layer_0"][name]["kernel"] = kernel
    plain["embed"]["embedding"] = np_jit(columns)(
        near.params["embed"]["embedding"], np.arange(config.vocab_size, dtype=np.int32)
    )
    folder = save_decoder(tmp_path / "b", config, plain, TOKENIZER)
    again, exact = load_decoder(folder, storage="int8"), load_decoder(folder)
    assert has_blocks(again.params) and not has_blocks(exact.params)
    assert_same_answers(again, exact)


def test_matrices_whose_inputs_fill_no_group_stay_numbers(tmp_path):
    config = config_of(hidden_size=48, intermediate_size=64)
    loaded = load_decoder(save_decoder(tmp_path, config, random_decoder_params(config), TOKENIZER), storage="int8")
    layer = loaded.params["layer_0"]
    assert isinstance(layer["gate_up"]["kernel"], jax.Array) and isinstance(layer["down"]["kernel"], BlockMatrix)


def bytes_of(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("family", MIXED)
def test_what_loading_takes_is_what_is_held(tmp_path, family):
    config = config_of(family, head_dim=16, tie_embeddings=family == "llama")
    path = written(tmp_path / "x.gguf", config, MIXED[family][0] | kinds_of(1, down="Q4_1"))
    kinds = tensor_kinds(path)
    assert kinds["model.layers.1.mlp.down_proj.weight"] == "Q4_1"
    for storage in ("file", "int8"):
        assert loading_bytes(config, storage, kinds) == bytes_of(load_decoder(path, storage=storage).params)


@pytest.mark.slow
def test_greedy_answers_are_those_of_the_numbers(tmp_path):
    config = config_of("qwen2", num_layers=1, max_positions=48)
    path = written(tmp_path / "x.gguf", config, MIXED["qwen2"][0])
    prompts, sampling = [IDS, IDS[:3]], Sampling(max_tokens=6)
    found, expected = (
        make_decoder(load_decoder(path, storage=storage), batch_size=2).generate_ids(prompts, sampling)
        for storage in ("file", "float32")
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.ids == theirs.ids and len(ours.ids) > 0
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-3)


def test_names_of_models_tell_how_they_are_kept(tmp_path):
    config = config_of()
    path = written(tmp_path / "x.gguf", config, kinds_of(q="Q8_0"))
    names = {
        storage: LocalGenerator(path, storage=storage).model.split(":")[2]
        for storage in ("float32", "bfloat16", "int8", "file")
    }
    assert names == {"float32": "float32", "bfloat16": "bfloat16-float32", "int8": "int8-float32",
                     "file": "file-float32"}  # fmt: skip
    assert LocalGenerator(path, dtype="bfloat16").model.split(":")[2] == "bfloat16"
    assert LocalGenerator(path).model.split(":")[2] == ("file-float32" if best_storage(path) == "file" else "float32")
    with pytest.raises(UsageError, match="storage int8: this decoder is already loaded as float32; leave storage out"):
        LocalGenerator(load_decoder(path), storage="int8")


def test_the_best_storage_of_a_folder_is_numbers(tmp_path):
    """Also of one with the name of a file."""
    folder = save_decoder(tmp_path / "x.gguf", config_of(), random_decoder_params(config_of()), TOKENIZER)
    assert best_storage(folder) == "float32" and tensor_kinds(folder) == {}
    with pytest.raises(
        UsageError, match=r"storage 'file' works only with \.gguf files: choose float32, bfloat16 or int8"
    ):
        load_decoder(folder, storage="file")


def test_what_blocks_are_not_for(tmp_path):
    loaded = load_decoder(written(tmp_path / "x.gguf", config_of(), kinds_of(q="Q8_0")), storage="file")
    with pytest.raises(UsageError, match="a mesh: parameters in blocks are for one device"):
        make_decoder(loaded, mesh=Mesh(np.array(jax.devices()[:2]), ("model",)))
    with pytest.raises(UsageError, match="parameters in blocks cannot be written: load .* float32 or bfloat16"):
        save_decoder(tmp_path / "y", loaded.config, loaded.params, loaded.tokenizer)
    numbers = load_decoder(written(tmp_path / "z.gguf", config_of()), storage="file")  # a file without blocks
    assert not has_blocks(numbers.params)
    with pytest.raises(UsageError, match="joined projections cannot be written: load .* float32 or bfloat16"):
        save_decoder(tmp_path / "y", numbers.config, numbers.params, numbers.tokenizer)
    assert not (tmp_path / "y").exists()


def test_damaged_blocks_are_named(tmp_path):
    """Infinity in a scale of a matrix and of the table, and a tensor of another shape."""
    config = config_of(tie_embeddings=False)
    tensors = decoder_tensors(config, random_decoder_params(config))
    names = ("blk.0.attn_v.weight", "blk.1.ffn_up.weight", "token_embd.weight", "blk.0.ffn_down.weight")
    blocks = {name: gguf.quantize(tensors[name], gguf.GGMLQuantizationType.Q8_0) for name in names}
    for name, scale in zip(names[:3], (np.inf, np.nan, -np.inf), strict=True):
        blocks[name][-1, -34:-32] = np.array([scale], np.float16).view(np.uint8)
    blocks[names[3]] = blocks[names[3]][:5]
    path = written(tmp_path / "x.gguf", config, dict.fromkeys(names, "Q8_0"), blocks)
    for storage in ("file", "int8"):
        with pytest.raises(InputError) as error:
            load_decoder(path, storage=storage)
        for part in (
            "model.layers.0.self_attn.v_proj.weight: contains NaN or infinity",
            "model.layers.1.mlp.up_proj.weight: contains NaN or infinity",
            "model.embed_tokens.weight: contains NaN or infinity",
            "model.layers.0.mlp.down_proj.weight: shape (5, 128), needed (64, 128)",
        ):
            assert part in str(error.value)


def test_a_file_in_blocks_of_8_bits_is_that_of_its_numbers(tmp_path):
    """As the folder with the numbers of the file would be kept, of every format of a layer."""
    config = config_of("qwen2", num_layers=1)
    path = written(tmp_path / "x.gguf", config, MIXED["qwen2"][0] | kinds_of(v="F16", up="Q4_1"))
    exact = load_decoder(path)
    folder = save_decoder(tmp_path / "y", config, exact.params, exact.tokenizer)
    found, expected = (load_decoder(source, storage="int8").params for source in (path, folder))
    chex.assert_trees_all_equal(found, expected)


def test_what_does_not_fit_as_numbers_may_in_blocks(monkeypatch):
    config = decoder_config(vocab_size=10**6, hidden_size=1024, num_layers=1, intermediate_size=32, head_dim=2)
    has = loading_bytes(config, "int8") + 10
    monkeypatch.setattr("qrag_jax.models.decoder.memory.available_bytes", lambda: has)
    check_memory(config, "big", "int8", 10)
    advice = r"; this one does as storage int8, which takes 1\.09 GB$"
    with pytest.raises(UsageError, match=r"loaded as float32 and 0.00 GB of cache.*" + advice):
        check_memory(config, "big", "float32", 10)
    with pytest.raises(UsageError, match=r"loaded as float32 and 0.00 GB of cache.*million parameters$"):
        check_memory(config, "big", "float32", 11)
    with pytest.raises(UsageError, match=r"loaded as int8 .*million parameters$"):
        check_memory(config, "big", "int8", 11)
