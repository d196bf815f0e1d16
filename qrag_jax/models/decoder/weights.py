"""Decoders with their tokenizers from and to disk: folders of safetensors, one file or sharded, and GGUF files.

No pickle, no torch. Headers, every name, shape and dtype are checked, and all numbers must be finite. A flipped bit
inside the numbers mostly leaves finite ones; it changes the fingerprint.
"""

import hashlib
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.files.whole_file import write_json, write_whole
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.gguf_weights import GGUFTensors, gguf_decoder_config
from qrag_jax.models.decoder.hf_config import hf_decoder_config, read_decoder_config
from qrag_jax.models.decoder.sources import SMOLLM2, SMOLLM2_SHA256, find_decoder
from qrag_jax.models.decoder.table import decoder_params_from_tensors, decoder_table, tensors_from_decoder_params
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.gguf.file import read_gguf
from qrag_jax.models.weights.machine import available_bytes, give_back, refuse_beyond
from qrag_jax.models.weights.packages import sha256_of
from qrag_jax.models.weights.tensor_files import FolderTensors, save_tensors
from qrag_jax.models.weights.tokenizer_faults import check_vocab
from qrag_jax.types import UsageError

Dtype = Literal["float32", "bfloat16"]  # of numbers on file

# What answers depend on besides the weights.
_SMALL_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
)  # fmt: skip


@dataclass(frozen=True)
class LoadedDecoder:
    """A decoder with all that is needed to turn text into text.

    Attributes:
        params: `network.Params` on the default device, float32 or bfloat16.
        fingerprint: sha256 over every file that was read, weights, config and tokenizer: it names the model wherever
            answers are kept.
    """

    config: DecoderConfig
    params: dict[str, Any]
    tokenizer: DecoderTokenizer
    fingerprint: str


def load_decoder(source: str | Path, *, revision: str | None = None, dtype: Dtype = "float32") -> LoadedDecoder:
    """Loads a decoder with its tokenizer: Llama, Qwen2 (2.5) or Qwen3, as its config or metadata say.

    Args:
        source: "smollm2" (the embedded package), a local folder, a `.gguf` file, or a hub id.
        revision: commit or tag of a hub id.
        dtype: of the parameters; quantised tensors are dequantised.

    Raises:
        UsageError: there is no such source or dtype, or the model is beyond the memory that is available; said
            before a tensor is read.
        InputError: a file is missing, broken or inconsistent; the message names every tensor that is missing, left
            over, of a wrong shape or dtype, or not finite.
    """
    if dtype not in get_args(Dtype):
        raise UsageError(f"dtype {dtype}: choose one of {', '.join(get_args(Dtype))}")
    path = find_decoder(source, revision)
    try:
        if path.is_dir():
            return _load_folder(path, dtype)
        with ThreadPoolExecutor(1) as pool:
            # The embedded file has been hashed by now.
            hashed = None if source == SMOLLM2 else pool.submit(sha256_of, path)
            loaded = _load_gguf(path, dtype)
            return replace(loaded, fingerprint=SMOLLM2_SHA256 if hashed is None else hashed.result())
    finally:
        give_back()


def _load_gguf(path: Path, dtype: Dtype) -> LoadedDecoder:
    """Without its fingerprint."""
    file = read_gguf(path)
    config = gguf_decoder_config(file)
    tokenizer = DecoderTokenizer.from_gguf(file.metadata, str(path))
    check_vocab(tokenizer.vocab_size, config.vocab_size, path)
    return LoadedDecoder(config, _to_params(config, GGUFTensors(file, config), path, dtype), tokenizer, "")


def _load_folder(folder: Path, dtype: Dtype) -> LoadedDecoder:
    config = read_decoder_config(folder)
    tokenizer = DecoderTokenizer.from_folder(folder)
    check_vocab(tokenizer.vocab_size, config.vocab_size, folder / "tokenizer.json")
    tensors = FolderTensors(folder)
    params = _to_params(config, tensors, folder, dtype)
    read = [folder / name for name in _SMALL_FILES if (folder / name).is_file()]
    lines = [f"{path.name} {sha256_of(path)}\n" for path in (*read, *tensors.files)]
    return LoadedDecoder(config, params, tokenizer, hashlib.sha256("".join(lines).encode()).hexdigest())


def _to_params(config: DecoderConfig, tensors: Mapping[str, np.ndarray], path: Path, dtype: Dtype) -> dict[str, Any]:
    if config.num_layers <= len(tensors):  # else the file is damaged, and told to be
        check_memory(config, path, dtype)
    params = decoder_params_from_tensors(config, tensors, str(path), jnp.dtype(dtype))
    return _on_device(params)


def num_parameters(config: DecoderConfig) -> int:
    """Numbers of all tensors; an output layer that is the embedding table counts once."""
    rows = decoder_table(replace(config, num_layers=1))  # layers are alike, so one is looked at
    return sum(math.prod(row.shape) * (config.num_layers if row.place else 1) for row in rows)


def check_memory(config: DecoderConfig, source: str | Path, dtype: Dtype) -> None:
    """Refuses a model whose parameters alone do not fit into this machine's memory, where that is known and used."""
    available = available_bytes() if jax.default_backend() == "cpu" else None
    refuse_beyond(available, f"language model {str(source)!r}", num_parameters(config), dtype)


def _on_device(params: dict[str, Any]) -> dict[str, Any]:
    """Moves arrays one after the other, so that a model is not held twice."""
    for name in params:
        own = params[name]
        params[name] = _on_device(own) if isinstance(own, dict) else jax.device_put(own)
    return params


def save_decoder(folder: str | Path, loaded: LoadedDecoder, *, dtype: Dtype = "float32") -> Path:
    """Writes a folder that `load_decoder` reads back bit for bit (in float32), and that transformers loads.

    Args:
        folder: made when it is not there; files of the same names, its weights and its chat template are replaced.
        loaded: its fingerprint is not read: that of the folder is the folder's.
        dtype: of the numbers on file.

    Raises:
        InputError: parameters do not fit the config, or transformers has no such model.
    """
    folder = Path(folder)
    config, tokenizer = loaded.config, loaded.tokenizer
    tensors = tensors_from_decoder_params(config, loaded.params, jnp.dtype(dtype))
    ends = sorted(tokenizer.eos_ids)
    ids = {"bos_token_id": tokenizer.bos_id, "eos_token_id": ends[0] if len(ends) == 1 else ends or None}
    write_json(folder / "config.json", hf_decoder_config(config, dtype) | ids)
    write_json(folder / "generation_config.json", ids)
    write_json(folder / "tokenizer_config.json", _tokenizer_config(config, tokenizer))
    write_whole(folder / "tokenizer.json", tokenizer.to_json())
    if tokenizer.chat_template is None:
        (folder / "chat_template.jinja").unlink(missing_ok=True)
    else:
        write_whole(folder / "chat_template.jinja", tokenizer.chat_template)
    save_tensors(folder, tensors)
    return folder


def _tokenizer_config(config: DecoderConfig, tokenizer: DecoderTokenizer) -> dict[str, Any]:
    # The generic class reads tokenizer.json as it is; those of a family build another one from its vocabulary.
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_positions,
        "clean_up_tokenization_spaces": False,
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
    }
    return {name: value for name, value in values.items() if value is not None}
