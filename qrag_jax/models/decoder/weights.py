"""Decoders with their tokenizers from and to disk: folders of safetensors, one file or sharded, and GGUF files.

No pickle, no torch. Headers, every name, shape and dtype are checked, and all numbers must be finite. A flipped bit
inside the numbers mostly leaves finite ones; it changes the fingerprint.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.files.whole_file import write_json, write_whole
from qrag_jax.models.blocks.matrix import is_compiled
from qrag_jax.models.decoder.causal_lm import is_joined, join_projections
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.gguf_weights import GGUFTensors, gguf_decoder_config
from qrag_jax.models.decoder.hf_config import hf_decoder_config, read_decoder_config
from qrag_jax.models.decoder.memory import check_memory, give_back
from qrag_jax.models.decoder.sources import SMOLLM2, SMOLLM2_SHA256, find_decoder
from qrag_jax.models.decoder.storage import float_dtype, has_blocks, maker
from qrag_jax.models.decoder.table import decoder_params_from_tensors, tensors_from_decoder_params
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.gguf.file import read_gguf
from qrag_jax.models.weights.packages import sha256_of
from qrag_jax.models.weights.tensor_files import MAX_SHARD_BYTES, FolderTensors, save_tensors
from qrag_jax.names import Storage
from qrag_jax.types import InputError, UsageError

Dtype = Literal["float32", "bfloat16"]  # of numbers on file

# What answers depend on besides the weights.
_SMALL_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
)  # fmt: skip


@dataclass(frozen=True)
class LoadedDecoder:
    """A decoder with all that is needed to turn text into text.

    Attributes:
        params: nested dict of arrays on the default device, kernels [in, out]; of the storages "int8" and "file" there
            are block matrices among them, and projections are joined (`network.join_projections`).
        fingerprint: sha256 over every file that was read, weights, config and tokenizer: it names the model wherever
            answers are kept.
        storage: how the matrices are kept; see `storage.maker`.
    """

    config: DecoderConfig
    params: dict[str, Any]
    tokenizer: DecoderTokenizer
    fingerprint: str
    storage: Storage = "float32"


def load_decoder(source: str | Path, *, revision: str | None = None, storage: Storage = "float32") -> LoadedDecoder:
    """Loads a decoder with its tokenizer: Llama, Qwen2 (2.5) or Qwen3, as its config or metadata say.

    Args:
        source: "smollm2" (the embedded package), a local folder, a `.gguf` file, or a hub id.
        revision: commit or tag of a hub id.
        storage: of the matrices: "float32" and "bfloat16" (quantised tensors are dequantised), "int8" in blocks, or
            "file", as a GGUF file has them. Blocks take a fraction of the memory; they are for one device and answers,
            not for gradients. Embeddings and output layer are among the matrices; norms and biases are float32 then.

    Raises:
        UsageError: there is no such source or storage, or the model is beyond the memory that is available; said
            before a tensor is read.
        InputError: a file is missing, broken or inconsistent; the message names every tensor that is missing, left
            over, of a wrong shape or dtype, or not finite.
    """
    path = find_decoder(source, revision)
    try:
        if path.is_dir():
            return _load_folder(path, storage)
        with ThreadPoolExecutor(1) as pool:
            # The embedded file has been hashed by now.
            hashed = None if source == SMOLLM2 else pool.submit(sha256_of, path)
            loaded = _load_gguf(path, storage)
            return replace(loaded, fingerprint=SMOLLM2_SHA256 if hashed is None else hashed.result())
    finally:
        give_back()


def load_decoder_config(source: str | Path, *, revision: str | None = None) -> DecoderConfig:
    """The config of a decoder alone; no tensor is read."""
    path = find_decoder(source, revision)
    return read_decoder_config(path) if path.is_dir() else gguf_decoder_config(read_gguf(path))


def tensor_kinds(source: str | Path, *, revision: str | None = None) -> dict[str, str]:
    """The format of each tensor of a GGUF file, by its name in transformers; empty for a folder."""
    path = find_decoder(source, revision)
    if path.is_dir():
        return {}
    file = read_gguf(path)
    return GGUFTensors(file, gguf_decoder_config(file)).kinds


def best_storage(source: str | Path) -> Storage:
    """How the matrices of a source are kept best on this machine: "file" for GGUF files on a CPU with Numba (extra
    `cpu`), which have the kernels for it; else "float32".
    """
    is_file = source == SMOLLM2 or (Path(source).suffix == ".gguf" and Path(source).is_file())
    return "file" if is_file and jax.default_backend() == "cpu" and is_compiled() else "float32"


def _load_gguf(path: Path, storage: Storage) -> LoadedDecoder:
    """Without its fingerprint."""
    file = read_gguf(path)
    config = gguf_decoder_config(file)
    tokenizer = DecoderTokenizer.from_gguf(file.metadata, str(path))
    _check_vocab(config, tokenizer, path)
    params = _to_params(config, GGUFTensors(file, config), path, storage)
    return LoadedDecoder(config, params, tokenizer, "", storage)


def _load_folder(folder: Path, storage: Storage) -> LoadedDecoder:
    config = read_decoder_config(folder)
    tokenizer = DecoderTokenizer.from_folder(folder)
    _check_vocab(config, tokenizer, folder / "tokenizer.json")
    tensors = FolderTensors(folder)
    params = _to_params(config, tensors, folder, storage)
    read = [folder / name for name in _SMALL_FILES if (folder / name).is_file()]
    return LoadedDecoder(config, params, tokenizer, _fingerprint([*read, *tensors.files]), storage)


def _to_params(
    config: DecoderConfig, tensors: Mapping[str, np.ndarray], path: Path, storage: Storage
) -> dict[str, Any]:
    dtype, make = float_dtype(storage), maker(config, tensors, storage)
    if config.num_layers <= len(tensors):  # else the file is damaged, and told to be
        kinds = tensors.kinds if isinstance(tensors, GGUFTensors) else None
        check_memory(config, path, storage, kinds=kinds)
    params = decoder_params_from_tensors(config, tensors, str(path), dtype, make)
    for name in params:  # one after the other, so that a model is not held twice
        own = {name: params[name]}
        params[name] = jax.device_put(own if make is None else join_projections(own))[name]
    return params


def _check_vocab(config: DecoderConfig, tokenizer: DecoderTokenizer, path: Path) -> None:
    # The other way round is usual: tables are padded to round sizes.
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"{tokenizer.vocab_size} ids, but the model has vocab_size {config.vocab_size}; the tokenizer "
            "belongs to another model",
            file=path,
        )


def _fingerprint(files: list[Path]) -> str:
    """The fingerprint of files in one folder."""
    lines = [f"{path.name} {sha256_of(path)}\n" for path in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def save_decoder(
    folder: str | Path,
    config: DecoderConfig,
    params: Mapping[str, Any],
    tokenizer: DecoderTokenizer,
    *,
    dtype: Dtype = "float32",
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Path:
    """Writes a folder that `load_decoder` reads back bit for bit (in float32), and that transformers loads.

    Args:
        folder: made when it is not there; files of the same names, its weights and its chat template are replaced.
        dtype: of the numbers on file.
        max_shard_bytes: weights that take more are split over several files with an index; a tensor is never split.

    Raises:
        UsageError: max_shard_bytes is below 1, or the parameters are in blocks or joined.
        InputError: parameters do not fit the config, or transformers has no such model.
    """
    folder = Path(folder)
    if max_shard_bytes < 1:
        raise UsageError(f"max_shard_bytes {max_shard_bytes}: at least 1")
    if has_blocks(params) or is_joined(params):
        what = "parameters in blocks" if has_blocks(params) else "joined projections"
        raise UsageError(f"{what} cannot be written: load the decoder with storage float32 or bfloat16")
    tensors = tensors_from_decoder_params(config, params, jnp.dtype(dtype))
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
    save_tensors(folder, tensors, max_shard_bytes)
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
