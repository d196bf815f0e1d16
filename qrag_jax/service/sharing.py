"""Shares runs: exports their encoders for sentence-transformers, pushes whole runs, and pulls them.

An export is two towers as one Router, or one encoder. A pushed run has a card with its kind, training data and scores.
A pulled run is verified before it is moved into place.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.checkpoint import Checkpoint, load_checkpoint
from qrag_jax.eval.card import check_rows, local_paths, make_card
from qrag_jax.eval.retrieval.records import read_rows
from qrag_jax.files.folder_lock import lock_folder
from qrag_jax.files.manifest import MANIFEST, check_inside
from qrag_jax.files.new_folder import new_folder
from qrag_jax.hub import Place, parse_place, pull_run, push_run, run_files
from qrag_jax.models.encoder.export import export_router, export_sentence_transformer
from qrag_jax.models.encoder.sources import MINILM
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.retriever import QRagRetriever, load_retriever, save_for_inference
from qrag_jax.types import UsageError

_FROZEN = (
    "This is the frozen encoder whose vectors a latent retriever reads. The trained part, a small transformer and an "
    "MLP over these vectors, is not a text encoder: it stays in the run folder, and `qrag_jax` searches with it."
)
_STOP = (
    "This run has learned when to stop, by an action vector without a text, which is left out here. Use qrag_jax for "
    "searches that stop by themselves."
)


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        path: folder that sentence-transformers loads.
        is_text: true for both towers of a text run; false for the frozen encoder of a latent run.
    """

    path: Path
    is_text: bool


@dataclass(frozen=True)
class PushRequest:
    """A run to share.

    Attributes:
        run: folder of the run, or of one of its steps.
        where: `owner/name` of the hub, or a folder.
        step: checkpoint to share; None: the newest complete one.
        inference: leave out what only training needs.
        scores: file of rows of `qrag eval --json`, for the card.
        license: for the card.
        private: make a new repository private.
    """

    run: str
    where: str
    step: int | None = None
    inference: bool = False
    scores: str | None = None
    license: str | None = None
    private: bool = False


@dataclass(frozen=True)
class Shared:
    """A pushed or pulled run: its step, and the place that it was pushed to or pulled from."""

    step: int
    where: str


def export_run(run: str, folder: str | Path) -> Exported:
    """Writes the text encoders of a run for sentence-transformers.

    Args:
        run: folder of the run.
        folder: to write; empty or new.

    Raises:
        UsageError: the run was trained on given vectors and has no text encoder.
    """
    folder = Path(folder)
    with new_folder(folder, "export") as new:  # first, to report a folder that cannot be written before the work
        retriever = load_retriever(run)
        if retriever.encoder is None:
            raise UsageError(f"{run}: was trained on given vectors and has no text encoder; there is nothing to export")
        is_text = retriever.model.mode == "text"
        written = (_export_towers if is_text else _export_encoder)(retriever, new)
    return Exported(folder / written.relative_to(new), is_text)


def push(request: PushRequest, note: Callable[[str], None] = lambda text: None) -> Shared:
    """Shares a checkpoint of a run. No other process may be training the run.

    Args:
        note: called before the push with the local paths that the card shows.
    """
    place = parse_place(request.where, is_new=True)
    with lock_folder(_locked_folder(request.run), "qrag push", reads=True):  # training deletes old steps
        return _push(request, place, note)


def pull(where: str, out: str | Path, step: int | None = None) -> Shared:
    """Fetches a shared run.

    Args:
        where: `owner/name[@REVISION]` of the hub, or a folder.
        out: run folder to write.
        step: checkpoint to fetch; None: the newest.
    """
    return Shared(*pull_run(parse_place(where), Path(out), step))


def _push(request: PushRequest, place: Place, note: Callable[[str], None]) -> Shared:
    saved = load_checkpoint(request.run, step=request.step, groups=())  # verified, so no damage is shared
    rows = read_rows(request.scores) if request.scores else []
    if request.scores:
        check_rows(rows, saved.config, request.scores)
    if paths := local_paths(saved.config):
        note(f"config.yaml and the card show paths of this machine: {', '.join(paths)}")
    card = make_card(saved, place, rows, request.license, request.inference)
    with tempfile.TemporaryDirectory() as folder:
        step = save_for_inference(saved, Path(folder)) if request.inference else saved.folder
        run = _run_folder(request.run, saved)
        check_inside(run, saved.folder)
        files = run_files(step, saved.step, card, run)
        address = push_run(place, files, f"Step {saved.step} of a qrag_jax run", request.private)
    return Shared(saved.step, address)


def _locked_folder(given: str) -> Path:
    """The folder of all steps, which a writer of the run locks; also if one step was given."""
    folder = Path(given).absolute()
    return folder.parent if (folder / MANIFEST).is_file() else folder


def _run_folder(given: str, saved: Checkpoint) -> Path:
    """The folder of the whole run, also if one of its steps was given."""
    return saved.folder.parent if Path(given).absolute() == saved.folder else Path(given)


def _export_towers(retriever: QRagRetriever, folder: Path) -> Path:
    """Writes both towers of a text run as one Router, with their constant scale in the weights.

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
        prompts=encoder.prompts,
    )


def positions_note(env: EnvConfig) -> str:
    """A sentence for the card about the run's positions, which the towers do not contain."""
    if env.positions == "none":
        return "This run was trained without positions: the dot products are its Q values at the first step."
    heads = f" in each of {env.num_q_heads} slices" if env.num_q_heads > 1 else ""
    facts = f"theta {env.theta:g}, interleaved pairs{heads}"
    if env.positions == "relative":
        facts += f", delta {env.delta:g}, ell {env.ell:g}"
    return (
        f"This run was trained with {env.positions} positions ({facts}). Its Q values are dot products after rotating "
        "the action vector to the chunk's position; this folder leaves out the rotation."
    )


def base_name(source: str) -> str | None:
    """Name of the model that training started from, for the card, without local paths; None from scratch."""
    if source == "scratch":
        return None
    if source == MINILM:
        return "all-MiniLM-L6-v2"
    return Path(source).name if Path(source).is_absolute() or Path(source).exists() else source
