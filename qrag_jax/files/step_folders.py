"""The step folders of a run: finding, replacing and deleting them by name. Imports no JAX.

`step_<n>` is a step. `.tmp-step_<n>-<process>` is being written or deleted, `.old-step_<n>` is being replaced. If
`step_<n>` is missing next to it, a save was killed in between, and the old folder is still the step. A writer holds the
lock of the run's folder, so any unfinished folders come from processes that have ended.
"""

import shutil
from pathlib import Path

from qrag_jax.files.manifest import sync_folder

PREFIX = "step_"
_TEMPORARY, _ASIDE = ".tmp-", ".old-"  # before the prefix


def checkpoint_steps(folder: str | Path) -> list[int]:
    """Steps that have a folder, in rising order; `checkpoint.newest_valid_step` checks them."""
    folder = Path(folder)
    # If a save was killed while it replaced a step, that step is still aside.
    numbers = {step_of(path) for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
    return sorted(number for number in numbers if number is not None)


def step_number(name: str) -> int | None:
    """The step that a folder's name means; None if it means none."""
    digits = name.removeprefix(PREFIX)
    is_number = digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0")
    return int(digits) if name.startswith(PREFIX) and is_number else None


def step_of(folder: Path) -> int | None:
    """The step of a folder, in its place or moved aside; None if its name means none."""
    return step_number(folder.name.removeprefix(_ASIDE))


def step_folder(folder: Path, step: int) -> Path:
    """The folder to read a step from."""
    final = folder / f"{PREFIX}{step}"
    aside = folder / f"{_ASIDE}{final.name}"
    return aside if aside.exists() and not final.exists() else final


def temporary_folder(folder: Path, step: int, owner: str) -> Path:
    """The folder in which `owner` writes or deletes a step."""
    return folder / f"{_TEMPORARY}{PREFIX}{step}-{owner}"


def clear_leftovers(folder: Path) -> None:
    """Removes what killed saves left, and moves back a step that was set aside and not replaced.

    It also removes unfinished work of other processes, so hold the lock of the folder.
    """
    for path in folder.glob(f"{_ASIDE}{PREFIX}*"):
        final = path.with_name(path.name.removeprefix(_ASIDE))
        if not final.exists():
            path.rename(final)
    for mark in (_ASIDE, _TEMPORARY):
        for path in folder.glob(f"{mark}{PREFIX}*"):
            _remove(path, ignore_errors=True)


def replace_step(temporary: Path, final: Path) -> None:
    """Renames a folder to its final name. If killed between the two renames, the old step is still found aside."""
    aside = final.with_name(f"{_ASIDE}{final.name}")
    if final.exists():
        final.rename(aside)
    temporary.rename(final)
    sync_folder(final.parent)
    _remove(aside, ignore_errors=True)


def delete_old(folder: Path, step: int, keep: int | None, owner: str) -> None:
    """Deletes all but the newest `keep` steps, never `step` itself; None keeps all."""
    others = [other for other in checkpoint_steps(folder) if other != step]
    for old in others[: max(0, len(others) + 1 - keep)] if keep is not None else ():
        # Renamed first, so that a half-deleted step does not look like a damaged one.
        doomed = temporary_folder(folder, old, owner)
        (folder / f"{PREFIX}{old}").rename(doomed)
        _remove(doomed)


def _remove(folder: Path, ignore_errors: bool = False) -> None:
    """Deletes a step; if it is a link to another place, only the link."""
    if folder.is_symlink():
        folder.unlink(missing_ok=ignore_errors)
    else:
        shutil.rmtree(folder, ignore_errors=ignore_errors)
