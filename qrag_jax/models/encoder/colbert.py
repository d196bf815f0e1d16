"""Files of ColBERT checkpoints: an encoder with a linear map of every token's vector, without bias, and two marks.

Read are folders of PyLate or sentence-transformers (modules Transformer and Dense), and those of the authors
(`artifact.metadata`, the map as `linear.weight` beside the other weights). The marks `[Q]` and `[D]` follow [CLS] as
prompts do. The mean of the mapped vectors, of length 1, is the vector of a text.

Other than there, questions are not filled up with [MASK]. Punctuation is compared, special tokens and marks are not.
"""

from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.files.whole_file import read_json, read_json_value
from qrag_jax.models.encoder.config import Prompts
from qrag_jax.models.encoder.sentence_files import SETTINGS, inside, is_colbert
from qrag_jax.models.weights.tensor_files import FolderTensors
from qrag_jax.types import InputError

_ABOUT = "artifact.metadata"
_LINEAR = {"bias": False, "use_residual": False}
_IDENTITY = "torch.nn.modules.linear.Identity"


def projection_size(folder: Path) -> int:
    """Numbers of a token's vector after the linear map; 0 if the folder is of no ColBERT.

    Raises:
        InputError: its map is not linear and without bias.
    """
    dense = _dense_folder(folder)
    if dense is None:
        size = _about(folder).get("dim", 0)
        where = folder / _ABOUT
    else:
        where = dense / "config.json"
        values = read_json(where)
        size = values.get("out_features")
        problems = [f"{name} is {values[name]!r}" for name, needed in _LINEAR.items() if values.get(name, needed)]
        if (act := values.get("activation_function", _IDENTITY)) != _IDENTITY:
            problems.append(f"activation_function is {act!r}")
        if problems:
            raise InputError(f"{', '.join(problems)}; only a linear map without bias is read", file=where)
    if type(size) is not int or size < 0 or (dense is not None and size == 0):
        raise InputError(f"the size of a token's vector is {size!r}, a positive integer is needed", file=where)
    return size


def read_marks(folder: Path) -> Prompts:
    """The marks of questions and documents of a ColBERT."""
    if _dense_folder(folder) is None:
        about = _about(folder)
        marks = about.get("query_token_id", "[unused0]"), about.get("doc_token_id", "[unused1]")
    else:
        values = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
        marks = values.get("query_prefix", "[Q] "), values.get("document_prefix", "[D] ")
    if not all(isinstance(mark, str) for mark in marks):
        raise InputError(f"the marks of questions and documents are {marks}, texts are needed", file=folder)
    return Prompts(*marks)


def read_kernel(folder: Path) -> dict[str, np.ndarray]:
    """The linear map where it has a file of its own; empty where it stands beside the other weights."""
    dense = _dense_folder(folder)
    return {} if dense is None else dict(FolderTensors(dense))


def _dense_folder(folder: Path) -> Path | None:
    """The folder of the linear map, if the modules are Transformer and Dense."""
    path = folder / "modules.json"
    modules: Any = read_json_value(path) if path.is_file() else []  # `read_pooling` has checked it
    return inside(folder, str(modules[1].get("path", ""))) if is_colbert(modules) else None


def _about(folder: Path) -> dict[str, Any]:
    path = folder / _ABOUT
    return read_json(path) if path.is_file() else {}
