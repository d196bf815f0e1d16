"""`config.json`, pooling and window files of a Hugging Face or sentence-transformers folder, read and written."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from qrag_jax.models.encoder import Activation, EncoderConfig, Pooling
from qrag_jax.types import InputError

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "type_vocab_size",
}
_ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_POOLING_FLAGS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_DEFAULT_POOLING_PATH = "1_Pooling"


def read_json(path: Path) -> Any:
    """The content of a JSON file; a missing or broken one raises InputError that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; an encoder folder needs it") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not valid JSON ({error}); copy the folder again") from error


def read_encoder_config(folder: Path) -> EncoderConfig:
    """The encoder that a folder holds: `config.json`, and pooling from `modules.json` where there is one.

    Without `modules.json` the pooling is the masked mean without normalisation (Contriever).

    Raises:
        InputError: a file is missing or broken, a field is missing or of a model that is not supported; all wrong
            fields are named together.
    """
    path = folder / "config.json"
    values = read_json(path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: a JSON object is needed, not {type(values).__name__}")
    problems = _problems(values)
    if problems:
        raise InputError(f"{path}: " + "; ".join(problems))
    try:
        values = _bert_config(values).to_dict()
    except StrictDataclassError as error:
        raise InputError(f"{path}: transformers refuses it: {' '.join(str(error).split())}") from error
    pooling, normalize = read_pooling(folder)
    return EncoderConfig(
        **{ours: values[theirs] for theirs, ours in _SIZES.items()},
        layer_norm_eps=float(values["layer_norm_eps"]),
        activation=_ACTIVATIONS[values["hidden_act"]],
        pooling=pooling,
        normalize=normalize,
    )


def _bert_config(values: Mapping[str, Any]) -> Any:
    """A `transformers.BertConfig`: it knows the defaults of every field that a file leaves out."""

    def keep(record: logging.LogRecord) -> bool:
        return "PyTorch was not found" not in record.getMessage()

    # Imported here: it costs half a second. It says on import that torch is absent, which is as it should be.
    logger = logging.getLogger("transformers")
    logger.addFilter(keep)
    from transformers import BertConfig

    logger.removeFilter(keep)
    return BertConfig.from_dict(dict(values))


def _problems(values: Mapping[str, Any]) -> list[str]:
    problems = []
    if values.get("model_type") != "bert":
        problems.append(f"model_type is {values.get('model_type')!r}, only 'bert' is read")
    for name in _SIZES:
        value = values.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            problems.append(f"{name} is {value!r}, a positive integer is needed")
    if values.get("hidden_act", "gelu") not in _ACTIVATIONS:
        problems.append(f"hidden_act is {values['hidden_act']!r}, choose one of {', '.join(_ACTIVATIONS)}")
    if values.get("position_embedding_type", "absolute") != "absolute":
        problems.append(f"position_embedding_type is {values['position_embedding_type']!r}, only 'absolute' is read")
    if values.get("is_decoder"):
        problems.append("is_decoder is true, an encoder is needed")
    return problems


def read_pooling(folder: Path) -> tuple[Pooling, bool]:
    """Pooling and L2 normalisation as `modules.json` and the pooling module's `config.json` state them.

    Raises:
        InputError: another pooling than mean or CLS, or a module that would change the vectors (Dense, ...).
    """
    modules_path = folder / "modules.json"
    if not modules_path.is_file():
        return _read_pooling_mode(folder, _DEFAULT_POOLING_PATH), False
    modules = read_json(modules_path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise InputError(f"{modules_path}: a list of modules is needed")
    pooling: Pooling = "mean"
    normalize = False
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _read_pooling_mode(folder, str(module.get("path", "")))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise InputError(
                f"{modules_path}: module {module.get('type')!r} is not supported; only Transformer, Pooling and "
                "Normalize are"
            )
    return pooling, normalize


def _read_pooling_mode(folder: Path, relative: str) -> Pooling:
    windows = PureWindowsPath(relative)
    if ".." in PurePosixPath(relative).parts + windows.parts or windows.anchor or relative.startswith("/"):
        raise InputError(f"{folder / 'modules.json'}: module path {relative!r} leaves the folder")
    path = folder / relative / "config.json"
    if not path.is_file():
        return "mean"
    values = read_json(path)
    if "pooling_mode" in values:
        modes = values["pooling_mode"]
        modes = [modes] if isinstance(modes, str) else list(modes)
    else:
        modes = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
        modes = [_POOLING_FLAGS.get(name, name) for name in modes]
    if modes not in (["mean"], ["cls"]):
        raise InputError(f"{path}: pooling {' + '.join(map(str, modes)) or 'none'}; only mean or cls alone is read")
    return "mean" if modes == ["mean"] else "cls"


def read_max_seq_length(folder: Path) -> int | None:
    """The window that `sentence_bert_config.json` asks for, if it asks for one."""
    path = folder / "sentence_bert_config.json"
    value = read_json(path).get("max_seq_length") if path.is_file() else None
    return value if isinstance(value, int) else None


def hf_config(config: EncoderConfig, pad_id: int) -> dict[str, Any]:
    """The `config.json` of an encoder, as transformers writes it; dropout is 0."""
    values = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        **{theirs: getattr(config, ours) for theirs, ours in _SIZES.items()},
        "layer_norm_eps": config.layer_norm_eps,
        "hidden_act": "gelu" if config.activation == "gelu" else "gelu_pytorch_tanh",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": pad_id,
        "dtype": "float32",
    }
    return json.loads(_bert_config(values).to_json_string())


def pooling_config(config: EncoderConfig) -> dict[str, Any]:
    """The `1_Pooling/config.json` of sentence-transformers, in the names that every version reads."""
    return {
        "word_embedding_dimension": config.hidden_size,
        "pooling_mode_cls_token": config.pooling == "cls",
        "pooling_mode_mean_tokens": config.pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }


def modules_config(config: EncoderConfig) -> list[dict[str, Any]]:
    """The `modules.json` of sentence-transformers."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if config.normalize:
        modules.append(("2_Normalize", "Normalize"))
    return [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(modules)
    ]
