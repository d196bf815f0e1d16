"""A tower as a folder that `sentence_transformers.SentenceTransformer` loads with the same vectors."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from qrag_jax.models.encoder import EncoderConfig, Params
from qrag_jax.models.tokenizer import TextTokenizer
from qrag_jax.models.weights import save_encoder
from qrag_jax.types import UsageError

_ROLES = {
    "state": "the question tower of a multi-step retriever: `encode(question)` is the state before the first step",
    "action": "the chunk tower of a multi-step retriever: `encode(chunk)` is the vector that a state is scored against",
    "encoder": "a text encoder",
}
_LIMITS = {
    "state": "Only the first step can be expressed. The state of a later step joins the question and the chunks taken "
    "so far in a way that this folder does not carry: use qrag_jax for multi-step retrieval.",
    "action": "Vectors are as before any rotation. A retriever that was trained with positions (rotary, relative or "
    "absolute) rotates them by their position in the document first: dot products of these vectors are then the "
    "scores at position 0 only.",
    "encoder": "Nothing but the encoder is in this folder.",
}


def fold_scale(config: EncoderConfig, params: Params, scale: float) -> dict:
    """Parameters whose pooled vectors are `scale` times those of `params`, up to rounding.

    The last LayerNorm ends in `gamma * x + beta` and pooling is linear, so both are multiplied by `scale`.

    Raises:
        UsageError: the encoder normalises its vectors, which removes every scale, or `scale` is not a positive number.
    """
    if not (np.isfinite(scale) and scale > 0):
        raise UsageError(f"scale {scale}: a positive number is needed")
    if scale == 1.0:
        return dict(params)
    if config.normalize:
        raise UsageError(f"scale {scale}: the encoder normalises its vectors, so that no scale can be kept")
    last = f"layer_{config.num_layers - 1}"
    norm = {name: np.asarray(value) * np.float32(scale) for name, value in params[last]["output_norm"].items()}
    return {**params, last: {**params[last], "output_norm": norm}}


def export_sentence_transformer(
    folder: str | Path,
    config: EncoderConfig,
    params: Params,
    tokenizer: TextTokenizer,
    *,
    role: str = "encoder",
    scale: float = 1.0,
    window: int | None = None,
    pooler: Mapping[str, np.ndarray] | None = None,
    base: str | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Writes one tower as a sentence-transformers folder; `load_encoder` reads it too.

    The folder asks for the dot product as its similarity. No torch is needed to write it.

    Args:
        folder: made when it is not there; files of the same names are replaced.
        role: "state", "action" or "encoder": what the model card says of use and limits.
        scale: constant that the tower multiplies its pooled vectors with (0.1 where it divides by 10); it is folded
            into the last LayerNorm.
        window: longest text in tokens, special tokens counted; None is all positions. sentence-transformers cuts
            longer texts without counting.
        pooler: tensors of the base model's pooler (`LoadedEncoder.pooler`); None writes zeros and the card says so.
        base: name of the model that the tower was trained from, for the card.
        notes: further paragraphs for the card.

    Raises:
        UsageError: an unknown role, or a scale that cannot be folded.
    """
    if role not in _ROLES:
        raise UsageError(f"role {role!r}: choose one of {', '.join(_ROLES)}")
    scaled = fold_scale(config, params, scale)
    folder = save_encoder(folder, config, scaled, tokenizer, pooler=pooler, max_seq_length=window)
    settings = {
        "model_type": "SentenceTransformer",
        "similarity_fn_name": "dot",
        "prompts": {},
        "default_prompt_name": None,
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    card = _card(config, role, scale, window or config.max_positions, bool(pooler), base, notes)
    (folder / "README.md").write_text(card, encoding="utf-8")
    return folder


def _card(
    config: EncoderConfig,
    role: str,
    scale: float,
    window: int,
    has_pooler: bool,
    base: str | None,
    notes: Sequence[str],
) -> str:
    header = ["---", "library_name: sentence-transformers", "pipeline_tag: sentence-similarity", "tags:"]
    header += [f"- {tag}" for tag in ("sentence-transformers", "feature-extraction", "retrieval", "qrag_jax")] + ["---"]
    kind = "L2-normalised " if config.normalize else ""
    facts = [
        f"- BERT, {config.num_layers} layers of {config.hidden_size}, {config.pooling} pooling, {kind}vectors, dot "
        "product",
        f"- texts beyond {window} tokens ([CLS] and [SEP] counted) are cut by sentence-transformers without notice",
    ]
    if base:
        facts.append(f"- trained from {base}")
    if scale != 1.0:
        facts.append(f"- the tower's constant scale {scale:g} is folded into the last LayerNorm")
    if not has_pooler:
        facts.append("- the BERT pooler is zeros: it has no part in these vectors, do not use `pooler_output`")
    usage = [
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        'model = SentenceTransformer("THIS_FOLDER")',
        'vectors = model.encode(["Where is the milk?"])',
        "```",
    ]
    paragraphs = [
        "\n".join(header),
        f"# {role} tower" if role != "encoder" else "# Text encoder",
        f"Exported by qrag_jax: {_ROLES[role]}.",
        "\n".join(facts),
        "\n".join(usage),
        "## Limits",
        _LIMITS[role],
        *notes,
    ]
    return "\n\n".join(paragraphs) + "\n"
