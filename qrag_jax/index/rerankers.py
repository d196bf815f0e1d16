"""Loads rerankers by their names."""

import re

from qrag_jax.models.decoder.sources import find_decoder
from qrag_jax.models.encoder.sources import is_encoder
from qrag_jax.types import Reranker, UsageError

_SERVED = re.compile(r"(?:likelihood:)?(.+?)@(https?://.+)")
_KINDS = ("likelihood", "yesno")
_JUDGES = "qwen3-reranker"  # models of this name were trained to answer yes or no


def load_reranker(source: str) -> Reranker:
    """Loads a reranker: a sequence classifier with one output, or any decoder that `load_decoder` reads.

    Args:
        source: a folder, a hub id, a `.gguf` file or smollm2. `likelihood:` or `yesno:` before it chooses what is
            scored: how likely the question is after the passage, or whether the answer is yes. Without it,
            Qwen3-Reranker is asked for yes or no, and all others for likelihood. NAME@http://HOST:PORT/v1 is a model
            on a server, for likelihood (`llm/server/likelihood.py`); passages are sent there.

    Raises:
        UsageError: there is no such model, it is beyond the memory that is available, or it cannot be asked so.
        InputError: a file is missing or damaged.
    """
    if served := _SERVED.fullmatch(source):
        if served[1].startswith("yesno:"):
            raise UsageError(f"{source}: a server tells only likelihood; load the model in this process for yesno")
        from qrag_jax.llm.config import key_name_of
        from qrag_jax.llm.server.likelihood import ServerReranker  # takes a second to import

        return ServerReranker(served[1], served[2], key_name=key_name_of(served[2]))

    from qrag_jax.models.decoder.likelihood import DecoderReranker, fast_dtype
    from qrag_jax.models.decoder.weights import load_decoder

    kind, _, model = source.partition(":")
    if kind in _KINDS and not model:
        raise UsageError(f"{source}: no model; name one after the colon")
    if kind not in _KINDS:
        kind, model = "", source
        if is_encoder(model):
            from qrag_jax.models.encoder.classifier import PairScorer, load_classifier

            return PairScorer(load_classifier(model), model)
    kind = kind or ("yesno" if _JUDGES in _title(model).lower() else "likelihood")
    return DecoderReranker(load_decoder(model, dtype=fast_dtype()), kind, f"{kind}:{model}")


def _title(model: str) -> str:
    """All names of a decoder: its source, its place on disk, and the name in a GGUF file."""
    from qrag_jax.models.gguf.file import read_gguf

    path = find_decoder(model)
    inside = "" if path.is_dir() else read_gguf(path).metadata.get("general.name", "")
    return f"{model} {path} {inside}"
