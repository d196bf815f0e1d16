"""Loads rerankers by their names."""

from qrag_jax.models.decoder.sources import find_decoder
from qrag_jax.models.gguf.file import read_gguf
from qrag_jax.types import Reranker

_KINDS = ("likelihood", "yesno")
_JUDGES = "qwen3-reranker"  # models of this name were trained to answer yes or no


def load_reranker(source: str) -> Reranker:
    """Loads a reranker: any decoder that `load_decoder` reads.

    Args:
        source: a folder, a hub id, a `.gguf` file or smollm2. `likelihood:` or `yesno:` before it chooses what is
            scored: how likely the question is after the passage, or whether the answer is yes. Without it,
            Qwen3-Reranker is asked for yes or no, and all others for likelihood.

    Raises:
        UsageError: there is no such model, it is beyond the memory that is available, or it cannot be asked so.
        InputError: a file is missing or damaged.
    """
    from qrag_jax.models.decoder.likelihood import DecoderReranker, fast_dtype
    from qrag_jax.models.decoder.weights import load_decoder

    kind, _, model = source.partition(":")
    if kind not in _KINDS:
        kind, model = "", source
    kind = kind or ("yesno" if _JUDGES in _title(model).lower() else "likelihood")
    return DecoderReranker(load_decoder(model, dtype=fast_dtype()), kind, f"{kind}:{model}")


def _title(model: str) -> str:
    """What a decoder is called: its source, where that is, and the name in a GGUF file."""
    path = find_decoder(model)
    inside = "" if path.is_dir() else read_gguf(path).metadata.get("general.name", "")
    return f"{model} {path} {inside}"
