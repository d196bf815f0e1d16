"""Encoders from and to folders: `config.json`, `model.safetensors`, `tokenizer.json` and the pooling files.

Only safetensors are read: no pickle, no torch. The header, every name, shape and dtype are checked, and all numbers
must be finite. A flipped bit inside the numbers mostly leaves finite ones, and only a hash finds it: that of the
embedded package is pinned (`sources`), and a folder with our manifest is compared with it; other files have no hash.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from qrag_jax.files.manifest import MANIFEST, verify_manifest
from qrag_jax.files.whole_file import read_json, write_json, write_whole
from qrag_jax.models.encoder.config import Activation, EncoderConfig, Pooling
from qrag_jax.models.encoder.hf_config import (
    POOLING_PATH,
    hf_config,
    modules_config,
    pooling_config,
    read_encoder_config,
    read_max_seq_length,
)
from qrag_jax.models.encoder.sources import find_folder
from qrag_jax.models.encoder.table import POOLER, params_from_tensors, tensors_from_params, without_prefix
from qrag_jax.models.encoder.text_encoder import Params
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.models.weights.tensor_files import check_header, write_tensors
from qrag_jax.types import InputError, UsageError

# What NumPy reads of a safetensors file; an 8-bit float it does not.
_DTYPES = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}


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


def _first_layers(config: EncoderConfig, params: Params, num_layers: int) -> tuple[EncoderConfig, dict[str, Any]]:
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
        pooling: replaces the setting of the folder.
        normalize: replaces the setting of the folder.
        activation: replaces the setting of the folder; "gelu_tanh" for exact-gelu weights changes vectors slightly.
        revision: commit or tag of a hub id.

    Raises:
        UsageError: there is no such source, or it has fewer layers.
        InputError: the folder is incomplete or inconsistent, or not what its manifest says; the message names every
            tensor that is missing, left over, of a wrong shape or dtype, or not finite.
    """
    folder = find_folder(source, revision)
    _verify_own(folder)
    config = read_encoder_config(folder)
    path = folder / "model.safetensors"
    tensors = _read_tensors(path)
    with np.errstate(invalid="ignore"):  # infinities of both signs: refused below
        params = params_from_tensors(config, tensors, str(path))
    tokenizer = TextTokenizer.from_file(folder / "tokenizer.json")
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"{folder / 'tokenizer.json'}: {tokenizer.vocab_size} ids, but config.json has vocab_size "
            f"{config.vocab_size}; the tokenizer belongs to another model"
        )
    overrides: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "activation": activation}
    config = replace(config, **{name: value for name, value in overrides.items() if value is not None})
    if num_layers is not None:
        config, params = _first_layers(config, params, num_layers)
    return LoadedEncoder(
        config=config,
        params=jax.device_put(params),  # all at once: one by one each shape would be a program of its own
        tokenizer=tokenizer,
        pooler=_read_pooler(config, tensors, path),
        max_seq_length=read_max_seq_length(folder),
    )


def _read_tensors(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        others = sorted(file.name for file in path.parent.glob("*.bin")) + sorted(
            file.name for file in path.parent.glob("*.safetensors*")
        )
        found = f" (found {', '.join(others)}; pickle and sharded files are not read)" if others else ""
        raise InputError(f"no such file{found}; save the model with transformers as one safetensors file", file=path)
    check_header(path)
    try:
        with safe_open(path, "numpy") as file:
            dtypes = {name: file.get_slice(name).get_dtype() for name in file.keys()}
        if unknown := {name: dtype for name, dtype in dtypes.items() if dtype not in _DTYPES}:
            shown = ", ".join(f"{name}: {dtype}" for name, dtype in unknown.items())
            raise InputError(f"dtypes that are not read: {shown}; save the model in float32 or bfloat16", file=path)
        tensors = load_file(path)
    except SafetensorError as error:
        raise InputError(f"broken safetensors file ({error}); copy it again", file=path) from error
    largest = np.finfo(np.float32).max
    wide = [name for name, tensor in tensors.items() if tensor.dtype == np.float64 and (abs(tensor) > largest).any()]
    if wide:
        raise InputError(f"numbers that are not finite as float32, in {', '.join(wide)}", file=path)
    return tensors


def _read_pooler(config: EncoderConfig, tensors: Mapping[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """The pooler's tensors, both or none."""
    named = without_prefix(config, tensors, str(path))
    pooler = {name: tensor.astype(np.float32) for name, tensor in named.items() if name in POOLER}
    bad = [name for name, tensor in pooler.items() if not np.isfinite(tensor).all()]
    if bad:
        raise InputError(f"{', '.join(bad)}: contains NaN or infinity", file=path)
    return _pooler_tensors(config, pooler, f"{path}: ") if pooler else {}


def _verify_own(folder: Path) -> None:
    """Compares a folder with its manifest, if it has one and that lists files as ours do."""
    path = folder / MANIFEST
    if path.is_file() and "files" in read_json(path):
        verify_manifest(folder)


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

    The folder is complete: nothing refers to the source of the weights. Float32 safetensors.

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
    write_tensors(tensors, folder / "model.safetensors")
    write_whole(folder / "tokenizer.json", tokenizer.to_json())
    write_json(folder / "config.json", hf_config(config, tokenizer))
    write_json(folder / "tokenizer_config.json", _tokenizer_config(config, tokenizer))
    window = {"max_seq_length": max_seq_length or config.max_positions, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", window)


def _pooler_tensors(
    config: EncoderConfig, pooler: Mapping[str, np.ndarray] | None, source: str = ""
) -> dict[str, np.ndarray]:
    d = config.hidden_size
    shapes = dict(zip(POOLER, ((d, d), (d,)), strict=True))
    if not pooler:
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    wrong = [name for name, shape in shapes.items() if name not in pooler or pooler[name].shape != shape]
    wrong += [name for name in pooler if name not in shapes]
    if wrong:
        raise InputError(
            f"{source}pooler: {', '.join(wrong)}: missing, left over or of a wrong shape; needed: {shapes}"
        )
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
