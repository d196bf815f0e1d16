"""Small GGUF files: a byte-level vocabulary, and decoders by the names and in the order of llama.cpp's converter."""

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THINK = "<think>"
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "1 2", "12 3", "Ġ a", "' s"]
TOKENS = [*CONTROL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES), THINK]
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
NAMES = {
    "query": "attn_q", "key": "attn_k", "value": "attn_v", "output": "attn_output", "gate": "ffn_gate", "up": "ffn_up",
    "down": "ffn_down", "attention_norm": "attn_norm", "mlp_norm": "ffn_norm", "query_norm": "attn_q_norm",
    "key_norm": "attn_k_norm",
}  # fmt: skip

# Bytes at which a block holds float16 numbers.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q4_K": (0, 2),
    "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip


def tokenizer_fields(pre="smollm", **changes):
    """Metadata of the tokenizer; a change to None leaves a field out."""
    kinds = [3] * len(CONTROL) + [1] * (len(TOKENS) - len(CONTROL) - 1) + [4]
    fields = {
        "model": "gpt2", "pre": pre, "tokens": TOKENS, "token_type": kinds, "merges": MERGES, "bos_token_id": 1,
        "eos_token_id": 2,
    } | changes  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items() if value is not None}


def decoder_fields(config):
    """Metadata of a decoder."""
    fields = {
        "block_count": config.num_layers, "context_length": config.max_positions,
        "embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads, "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim, "attention.value_length": config.head_dim,
        "rope.dimension_count": config.head_dim, "rope.freq_base": config.rope_theta,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
    }  # fmt: skip
    named = {f"{config.family}.{name}": value for name, value in fields.items()}
    return {"general.architecture": config.family, **named, **tokenizer_fields(), "tokenizer.chat_template": CHAT}


def random_blocks(kind, shape, size=0.05, seed=0):
    """Blocks [*shape, bytes]: every bit of codes and small scales is random, float16 scales are normal of `size`."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (*shape, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]), np.uint8)
    for place in HALVES[kind]:
        numbers = rng.normal(0, size, (*shape, 1)).astype(np.float16)
        blocks[..., place : place + 2] = numbers.view(np.uint8)
    return blocks


def interleaved(rows, num_heads):
    """Rows of queries or keys as the converter writes them for architecture llama."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def decoder_tensors(config, params):
    """Tensors of a decoder, float32."""
    flat = {"token_embd.weight": params["embed"]["embedding"], "output_norm.weight": params["norm"]["scale"]}
    if "head" in params:
        flat["output.weight"] = params["head"]["kernel"].T
    for index in range(config.num_layers):
        for name, leaves in params["layers"].items():
            for kind, leaf in leaves.items():
                rows = np.asarray(leaf[index]).T
                if config.family == "llama" and name in ("query", "key"):
                    rows = interleaved(rows, config.num_heads if name == "query" else config.num_kv_heads)
                flat[f"blk.{index}.{NAMES[name]}.{'bias' if kind == 'bias' else 'weight'}"] = rows
    return {name: np.ascontiguousarray(array, np.float32) for name, array in flat.items()}


def write_gguf(path, fields, tensors, kinds=None):
    """Writes a file; `kinds` gives tensors another block format than float32. Arrays of bytes are blocks already."""
    writer = gguf.GGUFWriter(path, fields.get("general.architecture", "llama"))
    for name, value in fields.items():
        if name != "general.architecture":
            _add(writer, name, value)
    for name, array in tensors.items():
        kind = gguf.GGMLQuantizationType[(kinds or {}).get(name, "F32")]
        if kind.name == "F32":
            writer.add_tensor(name, array)
        else:
            raw = array if array.dtype == np.uint8 else gguf.quantize(array, kind)
            writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer, name, value):
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)
