"""The folder of a run: it is opened here, and a resumed run is compared with its checkpoint."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import jax

from qrag_jax.checkpoint import Checkpoint, load_checkpoint, require_same_config
from qrag_jax.config import flatten
from qrag_jax.files.folder_lock import lock_folder
from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.sharding import PyTree, any_process, is_main_process
from qrag_jax.train.log import RunLog
from qrag_jax.types import Arg, UsageError


@contextmanager
def open_runs(runs: Sequence[tuple[Path | None, Checkpoint | None]]) -> Iterator[None]:
    """The one place where runs take their folders; what they read there, compute and write comes inside.

    Args:
        runs: (folder, the checkpoint in it to resume from, or None); a folder is not made here; None writes nothing.
    """
    with lock_runs([out for out, _ in runs]):
        for out, start in runs:
            if out is not None and start is None:
                check_out(out)
        yield


@contextmanager
def lock_runs(outs: Sequence[Path | None]) -> Iterator[None]:
    """Holds the locks of run folders, None being none; of several processes the main one does, and all learn of it."""
    with ExitStack() as locks:
        refusal = None
        if is_main_process():
            try:
                for out in outs:
                    if out is not None:
                        locks.enter_context(lock_folder(out, "qrag train"))
            except UsageError as error:  # the others wait for the answer
                refusal = error
        if any_process(refusal is not None):
            raise refusal or UsageError("a run folder is in use or cannot be made: process 0 says which")
        yield


@contextmanager
def open_log(out: Path | None, facts: Mapping[str, Any], first: int, tensorboard: bool) -> Iterator[RunLog | None]:
    """The log in a run's folder, and its end; None without a folder, and in all processes but the first."""
    if out is None or not is_main_process():
        yield None
        return
    with closing(RunLog(out, facts, first, tensorboard)) as log:
        yield log


def check_out(out: Path, *, resumes: bool = True) -> None:
    """Refuses a run folder that holds a run already, or is no folder.

    Args:
        resumes: the verb could go on with a run.
    """
    steps = checkpoint_steps(out)
    if steps:
        resume = (Arg("resume", True), " continues it; or ") if resumes else ()
        raise UsageError(
            f"already contains a trained run (step {steps[-1]})",
            file=out,
            remedy=(": ", *resume, "choose another ", Arg("out")),
        )
    if out.exists() and not out.is_dir():
        raise UsageError("is a file", file=out, remedy=(": choose another ", Arg("out")))


def check_room(outs: Sequence[Path | None], step_bytes: int, num_saves: int, keep: int) -> None:
    """Refuses to begin where a disk has no room for the checkpoints of the runs, which the first save would find out.

    While a step is saved, the oldest kept one still exists, so a run needs room for one more step than it keeps.
    Existing steps are not counted again. Of several processes, the main one checks and reports to all.

    Args:
        outs: run folders, which are there; None takes no room.
        step_bytes: of one checkpoint; the arrays in it may be stored in less.
        num_saves: that are still to come.
    """
    refusal = None
    if is_main_process():
        needed: dict[int, int] = {}  # by disk: runs that are trained together may share one
        for out in outs:
            if out is None:
                continue
            there, disk = len(checkpoint_steps(out)), out.stat().st_dev
            steps = max(min(keep + 1, there + num_saves) - there, min(num_saves, 1))
            needed[disk] = needed.get(disk, 0) + steps * step_bytes
            free = shutil.disk_usage(out).free
            if needed[disk] > free:
                refusal = UsageError(
                    f"the checkpoints of this run take up to {_size(needed[disk])} ({_size(step_bytes)} each), "
                    f"and the disk has {_size(free)} left",
                    file=out,
                    remedy=(": make room, choose another ", Arg("out"), f", or a smaller keep ({keep})"),
                )
                break
    if any_process(refusal is not None):
        raise refusal or UsageError("a disk has no room for the checkpoints: process 0 says which")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


def check_same_config(
    saved: Checkpoint, config: Mapping[str, Any], free: Sequence[str] = (), defaults: Mapping[str, Any] | None = None
) -> None:
    """Refuses to go on with another config than the checkpoint's.

    Args:
        config: of this run, plain nested values.
        free: dotted names of fields that change no update and may differ.
        defaults: for fields that are younger than the checkpoint, plain nested values.
    """
    there, here = (
        {name: value for name, value in flatten(tree).items() if not _is_below(name, free)}
        for tree in (saved.config, config)
    )
    for name, value in flatten(defaults or {}).items():
        if not any(_is_below(other, (name,)) for other in there) and not _is_below(name, free):
            there[name] = value
    require_same_config(there, here, source=str(saved.folder))


def restore(saved: Checkpoint, shapes: Mapping[str, PyTree], shardings: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Groups of a checkpoint on the devices of this run, whatever it was saved on.

    Args:
        saved: the checkpoint, of which the metadata were read.
        shapes: of each group that is wanted (`jax.eval_shape`).
    """
    placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
    templates = {name: jax.tree.map(placed, shapes[name], shardings[name]) for name in shapes}
    return dict(load_checkpoint(saved.folder, templates, groups=tuple(templates)).arrays)


def _is_below(name: str, fields: Sequence[str]) -> bool:
    return any(name == field or name.startswith(f"{field}.") for field in fields)
