"""`qrag export`: the text encoders of a run for sentence-transformers: two towers as one Router, or one encoder."""

import argparse
from pathlib import Path

from qrag_jax.cli.terminal import say
from qrag_jax.files.new_folder import new_folder
from qrag_jax.models.encoder.export import export_router, export_sentence_transformer
from qrag_jax.models.encoder.sources import MINILM
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.retriever import QRagRetriever, load_retriever
from qrag_jax.types import UsageError

_FROZEN = (
    "This is the frozen encoder whose vectors a latent retriever reads. What was trained, a small transformer and an "
    "MLP over these vectors, is no text encoder: it stays in the run folder, and `qrag_jax` searches with it."
)
_STOP = (
    "This run has learned when to stop: an action vector of its own, which belongs to no text and is left out here. "
    "Use qrag_jax for searches that stop by themselves."
)


def run(args: argparse.Namespace) -> int:
    """Runs `qrag export`; see `qrag export --help`."""
    folder = Path(args.folder)
    with new_folder(folder, "export") as new:  # first of all: a place that cannot be written is told before the work
        retriever = load_retriever(args.run)
        if retriever.encoder is None:
            raise UsageError(
                f"{args.run}: was trained on given vectors and has no text encoder: there is nothing to export"
            )
        is_text = retriever.model.mode == "text"
        written = (_export_towers if is_text else _export_encoder)(retriever, new)
    say(f"wrote {folder / written.relative_to(new)}")
    if not is_text:
        say(f"the latent towers read vectors, not texts: they stay in {args.run}")
    return 0


def _export_towers(retriever: QRagRetriever, folder: Path) -> Path:
    """Writes both towers of a text run as one Router; their constant scale is folded into the weights.

    Returns:
        The folder itself.
    """
    encoder, model = retriever.encoder, retriever.model
    assert encoder is not None
    return export_router(
        folder,
        encoder.config,
        retriever.params,
        encoder.tokenizer,
        scale=1 / model.scale,
        windows={"state": model.encoder.question_window, "action": model.encoder.window},
        base=base_name(model.encoder.source),
        notes=[positions_note(retriever.env), *([_STOP] if "stop" in retriever.params else [])],
    )


def _export_encoder(retriever: QRagRetriever, folder: Path) -> Path:
    """Writes the frozen text encoder of a latent run.

    Returns:
        The folder `encoder`.
    """
    encoder, spec = retriever.encoder, retriever.model.encoder
    assert encoder is not None
    return export_sentence_transformer(
        folder / "encoder",
        encoder.config,
        encoder.params,
        encoder.tokenizer,
        window=spec.window,
        pooler=encoder.pooler if any(tensor.any() for tensor in encoder.pooler.values()) else None,  # zeros: none
        base=base_name(spec.source),
        notes=[_FROZEN],
    )


def positions_note(env: EnvConfig) -> str:
    """What the run's positions mean for someone who has the towers alone."""
    if env.positions == "none":
        return "This run was trained without positions: the dot products are its Q values at the first step."
    heads = f" in each of {env.num_q_heads} slices" if env.num_q_heads > 1 else ""
    facts = f"theta {env.theta:g}, interleaved pairs{heads}"
    if env.positions == "relative":
        facts += f", delta {env.delta:g}, ell {env.ell:g}"
    return (
        f"This run was trained with {env.positions} positions ({facts}): its Q values are the dot products after the "
        "action vector has been rotated to the chunk's position, which this folder leaves out."
    )


def base_name(source: str) -> str | None:
    """Name of the model that training started from, for the card: no path of this machine; None from scratch."""
    if source == "scratch":
        return None
    if source == MINILM:
        return "all-MiniLM-L6-v2"
    return Path(source).name if Path(source).is_absolute() or Path(source).exists() else source
