"""`config.json` of an encoder as transformers writes it, read and written."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qrag_jax.files.whole_file import read_json
from qrag_jax.models.encoder.colbert import projection_size
from qrag_jax.models.encoder.config import FAMILIES, NUM_BUCKETS, ROTARY, Activation, EncoderConfig
from qrag_jax.models.encoder.hf_rotary_config import read_rotary_config, rotary_config
from qrag_jax.models.encoder.sentence_files import ROUTER_PATH, read_pooling
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.models.weights.config_limits import size_problem
from qrag_jax.types import InputError

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_size",
}
_POSITIONS, _TYPES, _BUCKETS = "max_position_embeddings", "type_vocab_size", "relative_attention_num_buckets"
_BOUNDED = {**_SIZES, _POSITIONS: "max_positions", _TYPES: "type_vocab_size", "pad_token_id": "padding_id"}
_READ = ("model_type", *_BOUNDED, _BUCKETS, "layer_norm_eps", "hidden_act")
_CLASSES = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "mpnet": "MPNet"}
_ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


def read_encoder_config(folder: Path) -> EncoderConfig:
    """The encoder that a folder holds: `config.json`, and pooling from `modules.json` where there is one.

    Without `modules.json` the vector is the masked mean (Contriever), for `qwen3` that of the last token, and is not
    normalised. That of a ColBERT (`colbert.py`) is the mean of its mapped vectors, normalised.
    """
    config = _read_config(folder)
    size = projection_size(folder)
    return replace(config, pooling="mean", normalize=True, projection=size) if size else config


def _read_config(folder: Path) -> EncoderConfig:
    path = folder / "config.json"
    if not path.is_file() and (folder / ROUTER_PATH).is_dir():
        tower = folder / ROUTER_PATH / "query_0_Transformer"
        raise InputError(
            f"contains two towers, a Router of sentence-transformers: load one, such as {tower}", file=folder
        )
    values = read_json(path)
    if values.get("model_type") in ROTARY:
        default = "last" if values["model_type"] == "qwen3" else "mean"
        pooling, normalize = read_pooling(folder, default)
        return read_rotary_config(values, path, pooling=pooling, normalize=normalize)
    problems = _problems(values)
    if problems:
        raise InputError(f"{path}: " + "; ".join(problems))
    family = values["model_type"]
    # Of the fields that are read alone: others make it fail, or work without end (`num_labels`).
    values = read_fields(values)
    if not _is_complete(values):
        values = _with_defaults(values, path)
    padding_id = values["pad_token_id"] if family in ("roberta", "xlm-roberta") else 1
    # RoBERTa and MPNet leave the rows up to the padding id unused.
    unused = 0 if family == "bert" else padding_id + 1
    if values[_POSITIONS] <= unused:
        raise InputError(
            f"{_POSITIONS} is {values[_POSITIONS]}, but {family} uses none of the first {unused}", file=path
        )
    pooling, normalize = read_pooling(folder)
    return EncoderConfig(
        **{ours: values[theirs] for theirs, ours in _SIZES.items()},
        max_positions=values[_POSITIONS] - unused,
        type_vocab_size=0 if family == "mpnet" else values[_TYPES],
        layer_norm_eps=float(values["layer_norm_eps"]),
        activation=_ACTIVATIONS[values["hidden_act"]],
        pooling=pooling,
        normalize=normalize,
        family=family,
        padding_id=padding_id,
    )


def read_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `config.json` that an encoder is made from; releases of transformers change what else is in it."""
    return {name: values[name] for name in _READ if name in values}


def _is_complete(values: Mapping[str, Any]) -> bool:
    """True if a file sets all values, each of the type that transformers expects."""
    needed = {*_READ} - ({_TYPES} if values["model_type"] == "mpnet" else {_BUCKETS})
    of_types = type(values.get("layer_norm_eps")) is float and type(values.get("hidden_act")) is str
    return needed <= {*values} and of_types and type(values["pad_token_id"]) is int


def _with_defaults(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    from huggingface_hub.errors import StrictDataclassError

    try:
        return _transformers_config(values).to_dict()
    except StrictDataclassError as error:
        raise InputError(f"transformers refuses it: {' '.join(str(error).split())}", file=path) from error


def _transformers_config(values: Mapping[str, Any]) -> Any:
    """The config class of transformers: it knows the defaults of every field that a file leaves out."""

    def keep(record: logging.LogRecord) -> bool:
        return "PyTorch was not found" not in record.getMessage()

    # Imported here, and only where a default is needed: it costs nearly a second, half of what a question to an index
    # takes. It says on import that torch is absent, which is as it should be.
    logger = logging.getLogger("transformers")
    logger.addFilter(keep)
    import transformers

    config = getattr(transformers, f"{_CLASSES[values['model_type']]}Config")
    logger.removeFilter(keep)
    return config.from_dict(dict(values))


def _problems(values: Mapping[str, Any]) -> list[str]:
    problems = []
    family = values.get("model_type")
    if family not in FAMILIES:
        problems.append(f"model_type is {family!r}, only {', '.join(FAMILIES)} are read")
    for name in (*_SIZES, _POSITIONS, *([] if family == "mpnet" else [_TYPES])):
        value = values.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            problems.append(f"{name} is {value!r}, a positive integer is needed")
    problems += [found for name, ours in _BOUNDED.items() if (found := size_problem(ours, values.get(name), name))]
    padding_id = values.get("pad_token_id", 1)
    if family in ("roberta", "xlm-roberta") and (type(padding_id) is not int or padding_id < 0):
        problems.append(f"pad_token_id is {padding_id!r}, an id is needed: positions count from it")
    if family == "mpnet" and values.get(_BUCKETS, NUM_BUCKETS) != NUM_BUCKETS:
        problems.append(f"{_BUCKETS} is {values[_BUCKETS]!r}, only {NUM_BUCKETS} is read")
    if str(values.get("hidden_act", "gelu")) not in _ACTIVATIONS:
        problems.append(f"hidden_act is {values['hidden_act']!r}, choose one of {', '.join(_ACTIVATIONS)}")
    if values.get("position_embedding_type", "absolute") != "absolute":
        problems.append(f"position_embedding_type is {values['position_embedding_type']!r}, only 'absolute' is read")
    if values.get("is_decoder"):
        problems.append("is_decoder is true, an encoder is needed")
    return problems


def hf_config(config: EncoderConfig, tokenizer: TextTokenizer) -> dict[str, Any]:
    """The `config.json` of an encoder, as transformers writes it; dropout is 0."""
    if config.family in ROTARY:
        ids = {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
        return rotary_config(config, {"pad_token_id": tokenizer.pad_id, **ids})
    values = {
        "architectures": [f"{_CLASSES[config.family]}Model"],
        "model_type": config.family,
        **{theirs: getattr(config, ours) for theirs, ours in _SIZES.items()},
        _POSITIONS: config.first_position + config.max_positions,
        "layer_norm_eps": config.layer_norm_eps,
        "hidden_act": "gelu" if config.activation == "gelu" else "gelu_pytorch_tanh",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": tokenizer.pad_id if config.family == "bert" else config.padding_id,
        "dtype": "float32",
    }
    if config.family == "mpnet":
        values[_BUCKETS] = NUM_BUCKETS
    else:
        values[_TYPES] = config.type_vocab_size
    if config.family != "bert":
        values |= {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    return json.loads(_transformers_config(values).to_json_string())
