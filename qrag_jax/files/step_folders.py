"""The step folders of a run by their names: found, put in their place, deleted. Imports no JAX.

`step_<n>` counts. `.tmp-step_<n>-<process>` is being written or deleted, `.old-step_<n>` being replaced: where the step
itself is not there, a save was killed in between, and the old one is still the step. Who writes holds the lock of the
run's folder, so that what others began was left by the dead.
"""

import shutil
from pathlib import Path

from qrag_jax.files.manifest import sync_folder

PREFIX = "step_"
_TEMPORARY, _ASIDE = ".tmp-", ".old-"  # before the prefix


def checkpoint_steps(folder: str | Path) -> list[int]:
    """Steps that have a folder, in rising order; whether they are whole is for `checkpoint.newest_valid_step`."""
    folder = Path(folder)
    # A save that was killed while it replaced a step has left that step aside.
    numbers = {step_of(path) for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
    return sorted(number for number in numbers if number is not None)


def step_number(name: str) -> int | None:
    """The step that a folder of this name holds; None where it is no step's."""
    digits = name.removeprefix(PREFIX)
    is_number = digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0")
    return int(digits) if name.startswith(PREFIX) and is_number else None


def step_of(folder: Path) -> int | None:
    """The step that a folder holds, in its place or moved aside; None where its name tells none."""
    return step_number(folder.name.removeprefix(_ASIDE))


def step_folder(folder: Path, step: int) -> Path:
    """Where a step is read from."""
    final = folder / f"{PREFIX}{step}"
    aside = folder / f"{_ASIDE}{final.name}"
    return aside if aside.exists() and not final.exists() else final


def temporary_folder(folder: Path, step: int, owner: str) -> Path:
    """Where `owner` writes or deletes a step."""
    return folder / f"{_TEMPORARY}{PREFIX}{step}-{owner}"


def clear_leftovers(folder: Path) -> None:
    """Tidy up after saves that were killed; a step that one of them had moved aside and not replaced goes back.

    What other processes have begun goes too: hold the lock of the folder.
    """
    for path in folder.glob(f"{_ASIDE}{PREFIX}*"):
        final = path.with_name(path.name.removeprefix(_ASIDE))
        if not final.exists():
            path.rename(final)
    for mark in (_ASIDE, _TEMPORARY):
        for path in folder.glob(f"{mark}{PREFIX}*"):
            _remove(path, ignore_errors=True)


def replace_step(temporary: Path, final: Path) -> None:
    """Give a folder its name; killed between the renames, it leaves the old one aside, where it is still found."""
    aside = final.with_name(f"{_ASIDE}{final.name}")
    if final.exists():
        final.rename(aside)
    temporary.rename(final)
    sync_folder(final.parent)
    _remove(aside, ignore_errors=True)


def delete_old(folder: Path, step: int, keep: int | None, owner: str) -> None:
    """Delete all but the newest `keep` steps, `step` among those that stay; None keeps all."""
    others = [other for other in checkpoint_steps(folder) if other != step]
    for old in others[: max(0, len(others) + 1 - keep)] if keep is not None else ():
        # Renamed first: a step that is half deleted must not be taken for a damaged one.
        doomed = temporary_folder(folder, old, owner)
        (folder / f"{PREFIX}{old}").rename(doomed)
        _remove(doomed)


def _remove(folder: Path, ignore_errors: bool = False) -> None:
    """Deletes a step; of one that was put elsewhere, and linked from here, the link."""
    if folder.is_symlink():
        folder.unlink(missing_ok=ignore_errors)
    else:
        shutil.rmtree(folder, ignore_errors=ignore_errors)
