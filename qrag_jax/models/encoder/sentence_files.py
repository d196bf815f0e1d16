"""Files of a sentence-transformers folder beside weights and tokenizer: modules, pooling, prompts, window."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from qrag_jax.files.whole_file import read_json, read_json_value, write_json
from qrag_jax.models.encoder.config import NO_PROMPTS, EncoderConfig, Pooling, Prompts
from qrag_jax.types import InputError

_POOLING_FLAGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last",
}  # fmt: skip
_MODES: dict[Any, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last", "last": "last"}
POOLING_PATH = "1_Pooling"
ROUTER_PATH = "0_Router"
SETTINGS = "config_sentence_transformers.json"
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # as sentence-transformers looks for them
# Prompts of models whose folders have none, by the end of their names, as their makers' cards give them.
_KNOWN_PROMPTS = (
    (re.compile(r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?", re.I), Prompts("query: ", "passage: ")),
    (re.compile(r"nomic-embed-text-v1(\.5)?", re.I), Prompts("search_query: ", "search_document: ")),
    (
        re.compile(r"bge-(small|base|large)-en(-v1\.5)?", re.I),
        Prompts("Represent this sentence for searching relevant passages: ", ""),
    ),
)


def known_prompts(name: str) -> Prompts:
    """The prompts of a model whose files state none, by the last part of its name; empty for most models."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    return next((prompts for pattern, prompts in _KNOWN_PROMPTS if pattern.fullmatch(last)), Prompts())


def read_prompts(folder: Path, name: str) -> Prompts:
    """The texts that a model's makers put before questions and documents.

    `config_sentence_transformers.json` states them: `query`, and the first of `document`, `passage` and `corpus`; else
    the one that `default_prompt_name` names, for both. Where it states none, those known for the model's name count.

    Args:
        folder: of the model.
        name: as the user gave it: a hub id or a folder.
    """
    path = folder / SETTINGS
    values = read_json(path) if path.is_file() else {}
    prompts = values.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise InputError("prompts: an object of texts by name is needed", file=path)
    default = prompts.get(str(values.get("default_prompt_name")), "")
    of_documents = next((prompts[key] for key in _DOCUMENT_PROMPTS if key in prompts), default)
    found = Prompts(prompts.get("query", default), of_documents)
    return found if any(prompts.values()) else known_prompts(name)


def read_pooling(folder: Path, default: Pooling = "mean") -> tuple[Pooling, bool]:
    """Pooling and L2 normalisation as `modules.json` and the pooling module's `config.json` state them.

    One tower of a Router has them next to its folder.

    Args:
        default: pooling of a folder that states none.
    """
    route = folder.name.removesuffix("_0_Transformer")
    router_path, modules_path = folder.parent / "router_config.json", folder / "modules.json"
    if route != folder.name and router_path.is_file():
        router = read_json(router_path)
        types = router.get("types")
        if not isinstance(types, dict):
            raise InputError(f"{router_path}: an object with types of modules is needed")
        modules = [{"path": name, "type": kind} for name, kind in types.items() if name.startswith(f"{route}_")]
        return _pooling_of_modules(router_path, modules, default)
    if not modules_path.is_file():
        return _read_pooling_mode(folder, POOLING_PATH, default), False
    modules = read_json_value(modules_path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise InputError(f"{modules_path}: a list of modules is needed")
    if is_colbert(modules):
        return "mean", True
    return _pooling_of_modules(modules_path, modules, default)


def is_colbert(modules: Sequence[Mapping[str, Any]]) -> bool:
    """True if the modules are Transformer and Dense, without pooling between them."""
    return [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules] == ["Transformer", "Dense"]


def _pooling_of_modules(path: Path, modules: Sequence[Mapping[str, Any]], default: Pooling) -> tuple[Pooling, bool]:
    """The pooling by the modules that the file lists; their folders are next to it."""
    pooling = default
    normalize = False
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _read_pooling_mode(path.parent, str(module.get("path", "")), default)
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise InputError(
                f"module {module.get('type')!r} is not supported; only Transformer, Pooling and Normalize are, and "
                "Transformer and Dense of a ColBERT",
                file=path,
            )
    return pooling, normalize


def _read_pooling_mode(folder: Path, relative: str, default: Pooling) -> Pooling:
    path = inside(folder, relative) / "config.json"
    if not os.path.isfile(path):  # also of names that no file can have
        return default
    values = read_json(path)
    if "pooling_mode" in values:
        modes = values["pooling_mode"]
        modes = modes if isinstance(modes, list) else [modes]
    else:
        modes = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
        modes = [_POOLING_FLAGS.get(name, name) for name in modes]
    if len(modes) != 1 or str(modes[0]) not in _MODES:
        shown = " + ".join(map(str, modes)) or "none"
        raise InputError(f"pooling {shown}; only mean, cls or lasttoken alone is read", file=path)
    if values.get("include_prompt", True) is not True:
        raise InputError("include_prompt is false; only pooling that includes the prompt is read", file=path)
    return _MODES[modes[0]]


def inside(folder: Path, relative: str) -> Path:
    """The folder of a module, by its path in `modules.json`."""
    windows = PureWindowsPath(relative)
    if ".." in PurePosixPath(relative).parts + windows.parts or windows.anchor or relative.startswith("/"):
        raise InputError(f"module path {relative!r} leaves the folder", file=folder)
    return folder / relative


def read_max_seq_length(folder: Path) -> int | None:
    """The window that `sentence_bert_config.json` asks for, if it asks for one.

    Raises:
        InputError: it is not a number above 2, or null.
    """
    path = folder / "sentence_bert_config.json"
    value = read_json(path).get("max_seq_length") if path.is_file() else None
    if value is not None and (type(value) is not int or value < 3):
        raise InputError(f"max_seq_length {value!r}: an integer of 3 or more, or null, is needed", file=path)
    return value


def pooling_config(config: EncoderConfig) -> dict[str, Any]:
    """The `1_Pooling/config.json` of sentence-transformers, in the names that every version reads."""
    return {
        "word_embedding_dimension": config.hidden_size,
        "pooling_mode_cls_token": config.pooling == "cls",
        "pooling_mode_mean_tokens": config.pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        # Files of other poolings stay as they were: a run that is resumed compares them.
        **({"pooling_mode_lasttoken": True} if config.pooling == "last" else {}),
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


def write_settings(folder: Path, prompts: Prompts = NO_PROMPTS) -> None:
    """Writes `config_sentence_transformers.json`: prompts, and the dot product as similarity."""
    values = {"model_type": "SentenceTransformer", "similarity_fn_name": "dot"}
    named = asdict(prompts) if prompts != NO_PROMPTS else {}
    write_json(folder / SETTINGS, {**values, "prompts": named, "default_prompt_name": None})
