"""Encoders as folders that `sentence_transformers.SentenceTransformer` loads with the same vectors.

One encoder alone, or both towers of a multi-step retriever as one Router. No torch is needed to write them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.files.whole_file import write_json, write_whole
from qrag_jax.models.encoder.config import NO_PROMPTS, EncoderConfig, Prompts
from qrag_jax.models.encoder.sentence_files import (
    ROUTER_PATH,
    module_kinds,
    module_type,
    pooling_config,
    write_settings,
)
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.models.encoder.weights import save_encoder, save_transformer
from qrag_jax.models.weights.param_tree import Params
from qrag_jax.types import UsageError

# Route of sentence-transformers -> tower. `encode_query` takes the first, `encode_document` and `encode` the second.
_ROUTES = {"query": "state", "document": "action"}
_DEFAULT_ROUTE = "document"
_NAMES = {
    "bert": "BERT", "roberta": "RoBERTa", "xlm-roberta": "XLM-RoBERTa", "mpnet": "MPNet", "nomic_bert": "NomicBERT",
    "modernbert": "ModernBERT", "qwen3": "Qwen3",
}  # fmt: skip
_FIRST_STEP = (
    "Only the first step can be expressed: a query is the state before anything was taken. The state of a later step "
    "joins the question and the chunks taken so far in document order, which no route carries: use qrag_jax for "
    "multi-step retrieval."
)
_UNROTATED = (
    "Document vectors are as before any rotation. A retriever that was trained with positions (rotary, relative or "
    "absolute) rotates them by their position in the document first: dot products of these vectors are then the "
    "scores at position 0 only."
)


def fold_scale(config: EncoderConfig, params: Params, scale: float) -> dict:
    """Parameters whose pooled vectors are `scale` times those of `params`, up to rounding.

    The last norm ends in `gamma * x + beta` and pooling is linear, so both are multiplied by `scale`.
    """
    if not (np.isfinite(scale) and scale > 0):
        raise UsageError(f"scale {scale}: a positive number is needed")
    if scale == 1.0:
        return dict(params)
    if config.normalize:
        raise UsageError(f"scale {scale}: the encoder normalises its vectors, so a scale has no effect")
    if config.norms_first:
        final = {name: np.asarray(value) * np.float32(scale) for name, value in params["final_norm"].items()}
        return {**params, "final_norm": final}
    last = f"layer_{config.num_layers - 1}"
    norm = {name: np.asarray(value) * np.float32(scale) for name, value in params[last]["output_norm"].items()}
    return {**params, last: {**params[last], "output_norm": norm}}


def export_sentence_transformer(
    folder: str | Path,
    config: EncoderConfig,
    params: Params,
    tokenizer: TextTokenizer,
    *,
    window: int | None = None,
    pooler: Mapping[str, np.ndarray] | None = None,
    base: str | None = None,
    notes: Sequence[str] = (),
    prompts: Prompts = NO_PROMPTS,
) -> Path:
    """Writes one encoder as a sentence-transformers folder; `load_encoder` reads it too.

    The folder asks for the dot product as its similarity.

    Args:
        folder: made when it is not there; files of the same names are replaced.
        window: longest text in tokens, special tokens counted; None is all positions. sentence-transformers cuts
            longer texts without counting.
        pooler: tensors of the base model's pooler (`LoadedEncoder.pooler`); None writes zeros, and the card says so.
        base: name of the model that these weights come from, for the card.
        notes: further paragraphs for the card.
        prompts: put before questions (`encode_query`) and documents (`encode_document`).
    """
    folder = save_encoder(folder, config, params, tokenizer, pooler=pooler, max_seq_length=window)
    facts = _facts(config, base, bool(pooler))
    facts.append(_cut_note(f"texts beyond {window or config.max_positions} tokens"))
    usage = ['vectors = model.encode(["Where is the milk?"])']
    limits = ["Nothing but the encoder is in this folder.", *notes]
    write_settings(folder, prompts)
    card = _card("Text encoder", "Exported by qrag_jax: a text encoder.", facts, usage, limits)
    write_whole(folder / "README.md", card)
    return folder


def export_router(
    folder: str | Path,
    config: EncoderConfig,
    params: Mapping[str, Params],
    tokenizer: TextTokenizer,
    *,
    scale: float = 1.0,
    windows: Mapping[str, int] | None = None,
    base: str | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Writes both towers of a text retriever as one sentence-transformers Router, with the dot product as similarity.

    `encode_query(question)` is the state before the first step, `encode_document(chunk)` the unrotated action vector;
    `encode` takes the document route. `load_encoder(DIR/0_Router/query_0_Transformer)` reads a tower back.

    Args:
        folder: made when it is not there; files of the same names are replaced.
        params: parameters of the towers `state` and `action`; other entries are left out.
        scale: constant that both towers multiply their pooled vectors with (0.1 where they divide by 10); it is folded
            into the last LayerNorm of each.
        windows: longest text of `state` and of `action` in tokens, special tokens counted; None is all positions.
        base: name of the model that the towers were trained from, for the card.
        notes: further paragraphs for the card.
    """
    folder = Path(folder)
    scaled = {route: fold_scale(config, params[tower], scale) for route, tower in _ROUTES.items()}
    longest = {route: (windows or {}).get(tower, config.max_positions) for route, tower in _ROUTES.items()}
    root = folder / ROUTER_PATH
    for route in _ROUTES:
        transformer, pooling, *_ = [root / name for name in _module_names(route, config)]
        save_transformer(transformer, config, scaled[route], tokenizer, max_seq_length=longest[route])
        write_json(pooling / "config.json", pooling_config(config))
    write_json(root / "router_config.json", _router_config(config))
    router = {"idx": 0, "name": "0", "path": ROUTER_PATH, "type": module_type("Router")}
    write_json(folder / "modules.json", [router])
    write_settings(folder)
    card = _router_card(config, scale, longest, base, notes)
    write_whole(folder / "README.md", card)
    return folder


def _module_names(route: str, config: EncoderConfig) -> list[str]:
    return [f"{route}_{index}_{kind}" for index, kind in enumerate(module_kinds(config))]


def _router_config(config: EncoderConfig) -> dict[str, Any]:
    structure = {route: _module_names(route, config) for route in _ROUTES}
    types = {name: module_type(name.rsplit("_", 1)[1]) for names in structure.values() for name in names}
    parameters = {"default_route": _DEFAULT_ROUTE, "allow_empty_key": True}
    return {"types": types, "structure": structure, "parameters": parameters}


def _facts(config: EncoderConfig, base: str | None, has_pooler: bool) -> list[str]:
    """Lines of the card about weights and vectors."""
    kind = "L2-normalised " if config.normalize else ""
    shape = f"{_NAMES[config.family]}, {config.num_layers} layers of {config.hidden_size}, {config.pooling} pooling"
    facts = [f"{shape}, {kind}vectors, dot product"]
    if base:
        facts.append(f"trained from {base}")
    if config.has_pooler and not has_pooler:
        facts.append("the pooler is zeros: it has no part in these vectors, do not use `pooler_output`")
    return facts


def _cut_note(texts: str) -> str:
    return f"{texts} (special tokens counted) are cut by sentence-transformers without notice"


def _router_card(
    config: EncoderConfig, scale: float, longest: Mapping[str, int], base: str | None, notes: Sequence[str]
) -> str:
    facts = [*_facts(config, base, has_pooler=False), "`encode` without a task takes the document route"]
    query, document = longest["query"], longest["document"]
    facts.append(_cut_note(f"queries beyond {query} tokens and documents beyond {document}"))
    if scale != 1.0:
        facts.append(f"the towers' constant scale {scale:g} is folded into their last LayerNorm")
    purpose = (
        "Exported by qrag_jax: both towers of a multi-step retriever. `encode_query(question)` is the state before the "
        "first step, `encode_document(chunk)` the vector that a state is scored against, by their dot product."
    )
    usage = [
        'queries = model.encode_query(["Where is the milk?"])',
        'documents = model.encode_document(["Mary took the milk.", "John went to the hall."])',
        "scores = model.similarity(queries, documents)",
    ]
    return _card("State and action towers", purpose, facts, usage, [_FIRST_STEP, _UNROTATED, *notes])


def _card(title: str, purpose: str, facts: Sequence[str], usage: Sequence[str], limits: Sequence[str]) -> str:
    """A model card: description, facts, use, and missing parts."""
    tags = ("sentence-transformers", "feature-extraction", "retrieval", "qrag_jax")
    header = ["---", "library_name: sentence-transformers", "pipeline_tag: sentence-similarity", "tags:"]
    load = ["from sentence_transformers import SentenceTransformer", "", 'model = SentenceTransformer("THIS_FOLDER")']
    paragraphs = [
        "\n".join([*header, *(f"- {tag}" for tag in tags), "---"]),
        f"# {title}",
        purpose,
        "\n".join(f"- {fact}" for fact in facts),
        "\n".join(["```python", *load, *usage, "```"]),
        "## Limits",
        *limits,
    ]
    return "\n\n".join(paragraphs) + "\n"
