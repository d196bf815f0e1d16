"""Encoders from and to folders: `config.json`, `model.safetensors`, `tokenizer.json` and the pooling files.

Only safetensors are read: no pickle, no torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from qrag_jax.models.encoder import Params
from qrag_jax.models.encoder_config import Activation, EncoderConfig, Pooling
from qrag_jax.models.hf_config import (
    POOLING_PATH,
    hf_config,
    modules_config,
    pooling_config,
    read_encoder_config,
    read_max_seq_length,
)
from qrag_jax.models.sources import find_folder
from qrag_jax.models.tokenizer import TextTokenizer
from qrag_jax.models.weight_table import POOLER, params_from_tensors, tensors_from_params, without_prefix
from qrag_jax.types import InputError, UsageError


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder with everything that is needed to turn text into its vectors.

    Attributes:
        params: nested dict of float32 arrays on the default device.
        pooler: the pooler's tensors by their Hugging Face names, empty when the file has none. Unused by our
            vectors; kept so that a saved folder is complete for transformers.
        max_seq_length: the window that a sentence-transformers folder asks for; None without one.
    """

    config: EncoderConfig
    params: dict[str, Any]
    tokenizer: TextTokenizer
    pooler: Mapping[str, np.ndarray] = field(default_factory=dict)
    max_seq_length: int | None = None


def first_layers(config: EncoderConfig, params: Params, num_layers: int) -> tuple[EncoderConfig, dict[str, Any]]:
    """The encoder that stops after its first `num_layers` layers; more than it has raise UsageError."""
    if not 1 <= num_layers <= config.num_layers:
        raise UsageError(
            f"num_layers {num_layers}: the encoder has {config.num_layers}; choose 1 to {config.num_layers}"
        )
    dropped = {f"layer_{index}" for index in range(num_layers, config.num_layers)}
    kept = {name: value for name, value in params.items() if name not in dropped}
    return replace(config, num_layers=num_layers), kept


def load_encoder(
    source: str | Path,
    *,
    num_layers: int | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    activation: Activation | None = None,
    revision: str | None = None,
) -> LoadedEncoder:
    """Loads an encoder with its tokenizer: BERT, RoBERTa, XLM-RoBERTa or MPNet, as `config.json` says.

    Texts are read as they are: no "query: " or "passage: " is put before them, also for e5, whose authors do. Q-RAG's
    towers are trained without (so were its authors'); for a frozen e5 put the prefix into the texts yourself.

    Args:
        source: "minilm" (the embedded package), a local folder, or a hub id.
        num_layers: keep the first layers only; None keeps all.
        pooling: in place of what the folder says.
        normalize: in place of what the folder says.
        activation: in place of what the folder says; "gelu_tanh" for exact-gelu weights changes vectors slightly.
        revision: commit or tag of a hub id.

    Raises:
        UsageError: there is no such source, or it has fewer layers.
        InputError: the folder is incomplete or inconsistent; the message names every wrong tensor.
    """
    folder = find_folder(source, revision)
    config = read_encoder_config(folder)
    path = folder / "model.safetensors"
    tensors = _read_tensors(path)
    params = params_from_tensors(config, tensors, str(path))
    tokenizer = TextTokenizer.from_file(folder / "tokenizer.json")
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"{folder / 'tokenizer.json'}: {tokenizer.vocab_size} ids, but config.json has vocab_size "
            f"{config.vocab_size}; the tokenizer belongs to another model"
        )
    overrides = {"pooling": pooling, "normalize": normalize, "activation": activation}
    config = replace(config, **{name: value for name, value in overrides.items() if value is not None})  # type: ignore[arg-type]
    if num_layers is not None:
        config, params = first_layers(config, params, num_layers)
    named = without_prefix(config, tensors, str(path))
    return LoadedEncoder(
        config=config,
        params=jax.tree.map(jnp.asarray, params),
        tokenizer=tokenizer,
        pooler={name: named[name].astype(np.float32) for name in POOLER if name in named},
        max_seq_length=read_max_seq_length(folder),
    )


def _read_tensors(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        others = sorted(file.name for file in path.parent.glob("*.bin")) + sorted(
            file.name for file in path.parent.glob("*.safetensors*")
        )
        found = f" (found {', '.join(others)}; pickle and sharded files are not read)" if others else ""
        raise InputError(f"{path}: no such file{found}; save the model with transformers as one safetensors file")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path}: broken safetensors file ({error}); copy it again") from error


def save_encoder(
    folder: str | Path,
    config: EncoderConfig,
    params: Params,
    tokenizer: TextTokenizer,
    *,
    pooler: Mapping[str, np.ndarray] | None = None,
    max_seq_length: int | None = None,
) -> Path:
    """Writes a folder that `load_encoder` reads back bit for bit, and that sentence-transformers loads.

    The folder stands alone: nothing refers to where the weights came from. Float32 safetensors.

    Args:
        folder: made when it is not there; files of the same names are replaced.
        pooler: the pooler's tensors to keep (`LoadedEncoder.pooler`); None or empty writes zeros. No vector of ours
            depends on them, but transformers reports a model without them as incomplete.
        max_seq_length: window for sentence-transformers; None is all positions of the encoder.
    """
    folder = Path(folder)
    save_transformer(folder, config, params, tokenizer, pooler=pooler, max_seq_length=max_seq_length)
    write_json(folder / "modules.json", modules_config(config))
    write_json(folder / POOLING_PATH / "config.json", pooling_config(config))
    return folder


def save_transformer(
    folder: Path,
    config: EncoderConfig,
    params: Params,
    tokenizer: TextTokenizer,
    *,
    pooler: Mapping[str, np.ndarray] | None = None,
    max_seq_length: int | None = None,
) -> None:
    """The part of `save_encoder` that is the Transformer module of sentence-transformers: all but the pooling."""
    tensors = tensors_from_params(config, params)
    tensors |= _pooler_tensors(config, pooler)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    write_json(folder / "config.json", hf_config(config, tokenizer))
    write_json(folder / "tokenizer_config.json", _tokenizer_config(config, tokenizer))
    window = {"max_seq_length": max_seq_length or config.max_positions, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", window)


def write_json(path: Path, content: Any) -> None:
    """Writes one JSON file, and the folder that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _pooler_tensors(config: EncoderConfig, pooler: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    d = config.hidden_size
    shapes = dict(zip(POOLER, ((d, d), (d,)), strict=True))
    if not pooler:
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    wrong = [name for name, shape in shapes.items() if name not in pooler or pooler[name].shape != shape]
    if wrong or len(pooler) != len(shapes):
        raise InputError(f"pooler: {', '.join(wrong) or 'more tensors than'} {', '.join(POOLER)} of shapes {shapes}")
    return {name: np.ascontiguousarray(pooler[name], dtype=np.float32) for name in POOLER}


def _tokenizer_config(config: EncoderConfig, tokenizer: TextTokenizer) -> dict[str, Any]:
    # The generic class reads tokenizer.json as it is; those of a family build another one from its vocabulary.
    types = ["token_type_ids"] if config.family == "bert" else []
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_positions,
        "model_input_names": ["input_ids", *types, "attention_mask"],
        **tokenizer.special_tokens,
    }
