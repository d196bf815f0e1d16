"""Encoders from and to folders: `config.json`, `model.safetensors`, `tokenizer.json` and the pooling files.

Only safetensors are read: no pickle, no torch. The header, every name, shape and dtype are checked, and all numbers
must be finite. A flipped bit inside the numbers mostly leaves finite ones, and only a hash finds it: that of the
embedded package is pinned (`sources`), and a folder with our manifest is compared with it; other files have no hash.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.files.manifest import MANIFEST, verify_manifest
from qrag_jax.files.whole_file import read_json, write_json, write_whole
from qrag_jax.models.encoder.colbert import read_kernel, read_marks
from qrag_jax.models.encoder.config import NO_PROMPTS, Activation, EncoderConfig, Pooling, Prompts
from qrag_jax.models.encoder.hf_config import hf_config, read_encoder_config
from qrag_jax.models.encoder.sentence_files import (
    POOLING_PATH,
    known_prompts,
    modules_config,
    pooling_config,
    read_max_seq_length,
    read_prompts,
    write_settings,
)
from qrag_jax.models.encoder.sources import find_encoder
from qrag_jax.models.encoder.table import (
    POOLER,
    params_from_tensors,
    tensor_problem,
    tensors_from_params,
    weight_table,
    without_prefix,
)
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.models.weights.machine import available_bytes, refuse_beyond
from qrag_jax.models.weights.param_tree import Params
from qrag_jax.models.weights.tensor_files import FolderTensors, save_tensors
from qrag_jax.models.weights.tokenizer_faults import check_vocab
from qrag_jax.types import InputError, UsageError


@dataclass(frozen=True)
class LoadedEncoder:
    """An encoder with everything that is needed to turn text into its vectors.

    Attributes:
        params: nested dict of float32 arrays: JAX arrays on the default device (`load_encoder`), or NumPy arrays
            (`read_encoder`).
        pooler: the pooler's tensors by their Hugging Face names, empty when the file has none. Unused by our
            vectors; kept so that a saved folder is complete for transformers.
        max_seq_length: the window that a sentence-transformers folder asks for; None without one.
        prompts: put before questions and documents, as the model's makers do.
    """

    config: EncoderConfig
    params: dict[str, Any]
    tokenizer: TextTokenizer
    pooler: Mapping[str, np.ndarray] = field(default_factory=dict)
    max_seq_length: int | None = None
    prompts: Prompts = NO_PROMPTS


def load_encoder(source: str | Path, **given: Any) -> LoadedEncoder:
    """As `read_encoder`, with parameters on the default device."""
    import jax

    loaded = read_encoder(source, **given)
    # All at once: one by one each shape would be a program of its own.
    return replace(loaded, params=jax.device_put(loaded.params))


def read_encoder(
    source: str | Path,
    *,
    num_layers: int | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    activation: Activation | None = None,
    revision: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    dim: int | None = None,
) -> LoadedEncoder:
    """Reads an encoder with its tokenizer: one of `config.FAMILIES`, as `config.json` or a GGUF file says.

    Args:
        source: "minilm" (the embedded package), "multilingual" (`MULTILINGUAL` of the hub), a local folder, a hub id,
            or a `.gguf` file.
        num_layers: keep the first layers only; None keeps all.
        pooling: replaces the setting of the folder.
        normalize: replaces the setting of the folder.
        activation: replaces the setting of the folder; "gelu_tanh" for exact-gelu weights changes vectors slightly.
        revision: commit or tag of a hub id.
        query_prompt, document_prompt: replace the prompts of the folder (`sentence_files.read_prompts`).
        dim: keep the first components of a vector, for models trained that way (Matryoshka); None keeps all.

    Raises:
        UsageError: there is no such source, or it has fewer layers.
        InputError: the folder is incomplete or inconsistent, or not what its manifest says; the message names every
            tensor that is missing, left over, of a wrong shape or dtype, or not finite.
    """
    path = find_encoder(source, revision)
    loaded = _load_folder(path, str(source)) if path.is_dir() else _load_gguf(path)
    config, params = loaded.config, loaded.params
    overrides: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "activation": activation, "dim": dim}
    config = replace(config, **{name: value for name, value in overrides.items() if value is not None})
    if num_layers is not None:
        if not 1 <= num_layers <= config.num_layers:
            raise UsageError(
                f"num_layers {num_layers}: the encoder has {config.num_layers}; choose 1 to {config.num_layers}"
            )
        for index in range(num_layers, config.num_layers):
            del params[f"layer_{index}"]
        config = replace(config, num_layers=num_layers)
    asked = {"query": query_prompt, "document": document_prompt}
    marks = asdict(loaded.prompts if config.projection else NO_PROMPTS)  # a ColBERT keeps its own before them
    given = {name: marks[name] + text for name, text in asked.items() if text is not None}
    prompts = replace(loaded.prompts, **given)
    return replace(loaded, config=config, params=params, prompts=prompts)


def _load_folder(folder: Path, name: str) -> LoadedEncoder:
    """The encoder of a folder, with parameters on the host."""
    if (folder / MANIFEST).is_file() and "files" in read_json(folder / MANIFEST):  # a list of files, as ours are
        verify_manifest(folder)
    config = read_encoder_config(folder)
    held = FolderTensors(folder)
    _check_memory(config, len(held), name)
    where = str(held.files[0] if len(held.files) == 1 else folder)
    mapping, marks = (read_kernel(folder), read_marks(folder)) if config.projection else ({}, NO_PROMPTS)
    tensors = without_prefix(config, dict(held) | mapping, where)
    params = params_from_tensors(config, tensors, where)
    pooler = {name: tensors[name] for name in POOLER if name in tensors}
    tokenizer = TextTokenizer.from_file(folder / "tokenizer.json", [mark for mark in astuple(marks) if mark])
    check_vocab(tokenizer.vocab_size, config.vocab_size, folder / "tokenizer.json")
    return LoadedEncoder(
        config=config,
        params=params,
        tokenizer=tokenizer,
        pooler=_pooler_tensors(config, pooler, f"{where}: ") if pooler and config.has_pooler else {},
        max_seq_length=read_max_seq_length(folder),
        prompts=marks if config.projection else read_prompts(folder, name),
    )


def _check_memory(config: EncoderConfig, num_tensors: int, name: str) -> None:
    """Refuses an encoder that is larger than this machine's memory, before a tensor is read."""
    if config.num_layers > num_tensors:  # refused as damaged
        return
    number = sum(math.prod(row.shape) for row in weight_table(config))
    refuse_beyond(available_bytes(), f"encoder {name!r}", number, "float32")


def _load_gguf(path: Path) -> LoadedEncoder:
    """The encoder of a GGUF file, with parameters on the host."""
    from qrag_jax.models.encoder.gguf_encoder import gguf_encoder_config, gguf_tensors, gguf_text_tokenizer
    from qrag_jax.models.gguf.file import read_gguf

    file = read_gguf(path)
    config = gguf_encoder_config(file)
    _check_memory(config, len(file.tensors), str(path))
    tensors = without_prefix(config, gguf_tensors(file, config), str(path))
    tokenizer = gguf_text_tokenizer(file)
    check_vocab(tokenizer.vocab_size, config.vocab_size, path)
    prompts = known_prompts(str(file.metadata.get("general.name", "")))
    return LoadedEncoder(config, params_from_tensors(config, tensors, str(path)), tokenizer, prompts=prompts)


def refuse_projection(config: EncoderConfig, source: object, what: str) -> None:
    """Refuses a ColBERT for what does not compare token vectors.

    Args:
        source: of the encoder, for the message.
        what: needs another encoder.
    """
    if config.projection:
        raise UsageError(f"encoder {source}: is a ColBERT, made to compare tokens; {what} needs another encoder")


def save_encoder(
    folder: str | Path,
    config: EncoderConfig,
    params: Params,
    tokenizer: TextTokenizer,
    *,
    pooler: Mapping[str, np.ndarray] | None = None,
    max_seq_length: int | None = None,
    prompts: Prompts = NO_PROMPTS,
) -> Path:
    """Writes a folder that `load_encoder` reads back bit for bit, and that sentence-transformers loads.

    The folder is complete: nothing refers to the source of the weights. Float32 safetensors.

    Args:
        folder: made when it is not there; files of the same names are replaced.
        pooler: the pooler's tensors to keep (`LoadedEncoder.pooler`); None or empty writes zeros. No vector of ours
            depends on them, but transformers reports a model without them as incomplete.
        max_seq_length: window for sentence-transformers; None is all positions of the encoder.
        prompts: kept for those who read the folder.
    """
    folder = Path(folder)
    save_transformer(folder, config, params, tokenizer, pooler=pooler, max_seq_length=max_seq_length)
    write_json(folder / "modules.json", modules_config(config))
    write_json(folder / POOLING_PATH / "config.json", pooling_config(config))
    if prompts != NO_PROMPTS:
        write_settings(folder, prompts)
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
    refuse_projection(config, folder, "a folder of sentence-transformers")
    tensors = tensors_from_params(config, params)
    if config.has_pooler:
        tensors |= _pooler_tensors(config, pooler)
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder, tensors)
    write_whole(folder / "tokenizer.json", tokenizer.to_json())
    write_json(folder / "config.json", hf_config(config, tokenizer))
    write_json(folder / "tokenizer_config.json", tokenizer_config(config, tokenizer))
    window = {"max_seq_length": max_seq_length or config.max_positions, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", window)


def _pooler_tensors(
    config: EncoderConfig, pooler: Mapping[str, np.ndarray] | None, source: str = ""
) -> dict[str, np.ndarray]:
    d = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = dict(zip(POOLER, ((d, d), (d,)), strict=True))
    if not pooler:
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    problems = [f"{name}: missing or left over" for name in sorted(pooler.keys() ^ shapes.keys())]
    problems += filter(None, (tensor_problem(name, pooler[name], shapes[name]) for name in pooler.keys() & shapes))
    if problems:
        raise InputError(f"{source}pooler: {'; '.join(problems)}")
    return {name: np.ascontiguousarray(pooler[name], dtype=np.float32) for name in POOLER}


def tokenizer_config(config: EncoderConfig, tokenizer: TextTokenizer) -> dict[str, Any]:
    """The `tokenizer_config.json` of an encoder."""
    # The generic class reads tokenizer.json as it is; those of a family build another one from its vocabulary.
    types = ["token_type_ids"] if config.family == "bert" else []
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_positions,
        "model_input_names": ["input_ids", *types, "attention_mask"],
        **tokenizer.special_tokens,
    }
