"""`config.json`, pooling and window files of a Hugging Face or sentence-transformers folder, read and written."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from qrag_jax.files.whole_file import read_json, read_json_value
from qrag_jax.models.encoder.config import FAMILIES, Activation, EncoderConfig, Pooling
from qrag_jax.models.encoder.text_encoder import NUM_BUCKETS
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
_POOLING_FLAGS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
POOLING_PATH = "1_Pooling"
ROUTER_PATH = "0_Router"


def read_encoder_config(folder: Path) -> EncoderConfig:
    """The encoder that a folder holds: `config.json`, and pooling from `modules.json` where there is one.

    Without `modules.json` the pooling is the masked mean without normalisation (Contriever).
    """
    path = folder / "config.json"
    if not path.is_file() and (folder / ROUTER_PATH).is_dir():
        tower = folder / ROUTER_PATH / "query_0_Transformer"
        raise InputError(
            f"contains two towers, a Router of sentence-transformers: load one, such as {tower}", file=folder
        )
    values = read_json(path)
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
    pooling, normalize = _read_pooling(folder)
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


def _read_pooling(folder: Path) -> tuple[Pooling, bool]:
    """Pooling and L2 normalisation as `modules.json` and the pooling module's `config.json` state them.

    One tower of a Router has them next to its folder.
    """
    route = folder.name.removesuffix("_0_Transformer")
    router_path, modules_path = folder.parent / "router_config.json", folder / "modules.json"
    if route != folder.name and router_path.is_file():
        router = read_json(router_path)
        types = router.get("types")
        if not isinstance(types, dict):
            raise InputError(f"{router_path}: an object with types of modules is needed")
        modules = [{"path": name, "type": kind} for name, kind in types.items() if name.startswith(f"{route}_")]
        return _pooling_of_modules(router_path, modules)
    if not modules_path.is_file():
        return _read_pooling_mode(folder, POOLING_PATH), False
    modules = read_json_value(modules_path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise InputError(f"{modules_path}: a list of modules is needed")
    return _pooling_of_modules(modules_path, modules)


def _pooling_of_modules(path: Path, modules: Sequence[Mapping[str, Any]]) -> tuple[Pooling, bool]:
    """The pooling by the modules that the file lists; their folders are next to it."""
    pooling: Pooling = "mean"
    normalize = False
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _read_pooling_mode(path.parent, str(module.get("path", "")))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise InputError(
                f"module {module.get('type')!r} is not supported; only Transformer, Pooling and Normalize are",
                file=path,
            )
    return pooling, normalize


def _read_pooling_mode(folder: Path, relative: str) -> Pooling:
    windows = PureWindowsPath(relative)
    if ".." in PurePosixPath(relative).parts + windows.parts or windows.anchor or relative.startswith("/"):
        raise InputError(f"module path {relative!r} leaves the folder", file=folder)
    path = folder / relative / "config.json"
    if not os.path.isfile(path):  # also of names that no file can have
        return "mean"
    values = read_json(path)
    if "pooling_mode" in values:
        modes = values["pooling_mode"]
        modes = modes if isinstance(modes, list) else [modes]
    else:
        modes = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
        modes = [_POOLING_FLAGS.get(name, name) for name in modes]
    if modes not in (["mean"], ["cls"]):
        raise InputError(f"pooling {' + '.join(map(str, modes)) or 'none'}; only mean or cls alone is read", file=path)
    return "mean" if modes == ["mean"] else "cls"


def read_max_seq_length(folder: Path) -> int | None:
    """The window that `sentence_bert_config.json` asks for, if it asks for one."""
    path = folder / "sentence_bert_config.json"
    value = read_json(path).get("max_seq_length") if path.is_file() else None
    return value if isinstance(value, int) else None


def hf_config(config: EncoderConfig, tokenizer: TextTokenizer) -> dict[str, Any]:
    """The `config.json` of an encoder, as transformers writes it; dropout is 0."""
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


def pooling_config(config: EncoderConfig) -> dict[str, Any]:
    """The `1_Pooling/config.json` of sentence-transformers, in the names that every version reads."""
    return {
        "word_embedding_dimension": config.hidden_size,
        "pooling_mode_cls_token": config.pooling == "cls",
        "pooling_mode_mean_tokens": config.pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }


def module_kinds(config: EncoderConfig) -> list[str]:
    """Modules of sentence-transformers that turn a text into its vector, in order."""
    return ["Transformer", "Pooling", *(["Normalize"] if config.normalize else [])]


def modules_config(config: EncoderConfig) -> list[dict[str, Any]]:
    """The `modules.json` of sentence-transformers for one encoder."""
    return [
        {"idx": index, "name": str(index), "path": f"{index}_{kind}" if index else "", "type": module_type(kind)}
        for index, kind in enumerate(module_kinds(config))
    ]


def module_type(kind: str) -> str:
    """The class of a module, by the name that sentence-transformers 3 to 6 read."""
    return f"sentence_transformers.models.{kind}"
