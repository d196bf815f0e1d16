"""Self-contained checkpoint folders: arrays, config, tokenizer and versions, with a hash of every file.

    RUN/step_1200/
      arrays/         one Orbax tree of params, target_params, opt_state, step, key, ...
      files/          other files that the run needs: tokenizer.json, ...
      config.yaml     the whole config, every field
      metadata.json   step, versions, and shape and dtype of every leaf
      manifest.json   size and sha256 of every file above; written last

Orbax has no checksums: after each of 100 single-bit flips in its data file it restored wrong values silently (measured,
0.12.8). So the manifest is checked before anything is read. If the newest step is damaged, the newest undamaged one is
read with a warning. One process at a time (`folder_lock`) writes a temporary folder, brings it to the disk and renames
it. A step has no absolute path, and restores on any number of devices and processes. Leaves are stored flat by their
path: with a template, a NamedTuple of optax comes back as one; without, as a dict of its fields.
"""

import hashlib
import logging
import os
import platform
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import metadata as installed
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from qrag_jax import __version__
from qrag_jax.checkpoint_leaves import DamagedError, fit_leaves, flat_leaves, leaf_fault, load_leaves, nest_leaves
from qrag_jax.config import flatten
from qrag_jax.files.folder_lock import lock_folder
from qrag_jax.files.manifest import (
    ADVICE,
    MANIFEST,
    files_under,
    find_damage,
    json_text,
    listed_files,
    path_inside,
    write_manifest,
)
from qrag_jax.files.reading import MAX_CONFIG_BYTES, read_text_limited
from qrag_jax.files.step_folders import (
    PREFIX,
    checkpoint_steps,
    clear_leftovers,
    delete_old,
    replace_step,
    step_folder,
    step_number,
    step_of,
    temporary_folder,
)
from qrag_jax.files.strict_yaml import dump_yaml, parse_yaml
from qrag_jax.files.whole_file import read_json
from qrag_jax.types import Arg, InputError, UsageError

_FORMAT = 1
_RECORD = {"step": int, "versions": dict, "groups": list, "leaves": dict, "user": dict}  # types in metadata.json
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "transformers", "tokenizers")
# If logging is not set up, Python writes warnings to standard error.
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """The result of `load_checkpoint`.

    Attributes:
        folder: of the step; `load_checkpoint(folder)` reads the same step again.
        metadata: as given to `save_checkpoint`.
        versions: of the packages that ran.
        skipped: `FILE: what is wrong with it` for every newer step that was skipped, newest first.
    """

    folder: Path
    step: int
    arrays: Mapping[str, Any]
    config: Mapping[str, Any]
    files: Mapping[str, bytes]
    metadata: Mapping[str, Any]
    versions: Mapping[str, str]
    skipped: tuple[str, ...] = ()


def save_checkpoint(
    folder: str | Path,
    step: int,
    arrays: Mapping[str, Any],
    config: Mapping[str, Any],
    extra_files: Mapping[str, bytes | str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    keep: int | None = 3,
) -> Path:
    """Writes `folder/step_<step>`, completely or not at all, then deletes all but the newest steps.

    When it returns, the step is on the disk. If it is killed at any point, the earlier steps stay.

    Under `jax.distributed` every process calls it with the same values and a shared file system. Each process writes
    its shards of global arrays; process 0 writes everything else from its own values. The step appears under its name
    when every process has finished.

    Args:
        arrays: pytrees by group name. Leaves are arrays (sharded ones too), typed keys, or Python numbers.
        config: plain nested values (`config.to_dict`).
        extra_files: content by relative file name, such as `tokenizer.json`.
        metadata: any JSON values (no NaN).
        keep: number of steps to keep, including this one; None keeps all.

    Returns:
        The folder of the step. An existing folder of the same step is replaced.

    Raises:
        InputError: a leaf is not an array or number, a path could not be read back, or files changed while they were
            written.
        UsageError: another process works in the folder, or it cannot be made.
        ValueError: `step` is below 0 or `keep` below 1.
    """
    if step < 0 or (keep is not None and keep < 1):
        raise ValueError(f"step = {step} must be >= 0 and keep = {keep} must be >= 1 or None")
    folder = Path(folder).absolute()
    final = folder / f"{PREFIX}{step}"
    # Prepare everything that may be refused before processes first wait for each other: all raise, or none.
    flat, leaves = flat_leaves(arrays)
    contents = {"config.yaml": dump_yaml(config), "metadata.json": json_text(_record(step, arrays, leaves, metadata))}
    for name, content in (extra_files or {}).items():
        path = path_inside(final / "files", name, f"{folder}: extra file")
        contents[path.relative_to(final).as_posix()] = content
    with _only_saver(folder, step) as owner:
        temporary = temporary_folder(folder, step, owner)
        first = jax.process_index() == 0
        if first:
            clear_leftovers(folder)
            temporary.mkdir()
        _barrier(f"qrag_jax: folder of step {step} is made")
        try:
            if flat:
                with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
                    checkpointer.save(temporary / "arrays", flat)  # returns when every process has written its shards
            if first:
                _complete(temporary, contents)
                replace_step(temporary, final)
                delete_old(folder, step, keep, owner)
        finally:
            if first:
                shutil.rmtree(temporary, ignore_errors=True)  # gone already after a success
    _barrier(f"qrag_jax: step {step} is saved")  # after the lock is released, so all processes see the same folder
    return final


def load_checkpoint(
    folder: str | Path,
    templates: Mapping[str, Any] | None = None,
    step: int | None = None,
    groups: Sequence[str] | Callable[[Mapping[str, Any]], Sequence[str]] | None = None,
) -> Checkpoint:
    """Verifies every file of a checkpoint, then reads it.

    If the newest step is damaged, or its arrays cannot be restored, the newest readable step is read instead.
    `Checkpoint.skipped` and a warning of this module's logger (on standard error unless logging is set up) name the bad
    files. A step that you ask for, by `step` or by its folder, is read or refused. Processes do not wait for each other
    here.

    Args:
        folder: a run folder with `step_<n>` folders, or one of these.
        templates: for some or all groups, the pytree to restore into: arrays or `jax.ShapeDtypeStruct` (from
            `jax.eval_shape`), with shardings or without. JAX leaves become JAX arrays with the sharding of the
            template, NumPy leaves become NumPy arrays. A group without a template becomes nested dicts of NumPy arrays.
        step: which step; None takes the newest undamaged one.
        groups: read only these, or a function that chooses them from the metadata; None reads all.

    Raises:
        UsageError: the folder or step does not exist.
        InputError: a file of the step that you ask for, or of every step, is missing, truncated or changed; a group is
            missing; or a leaf does not fit its template.
    """
    skipped: list[str] = []
    folder = Path(folder).absolute()
    steps = _steps_to_try(folder, step)
    for path in steps:
        try:
            _check_whole(path)
            checkpoint = _read(path, templates or {}, groups)
        except DamagedError as error:
            skipped.append(str(error))
            continue
        if skipped and jax.process_index() == 0:
            _LOGGER.warning("damaged and skipped: %s. %s is read instead", "; ".join(skipped), path)
        return replace(checkpoint, skipped=tuple(skipped))
    raise (
        InputError(f"{skipped[0]}; {ADVICE}")
        if steps == [folder] or step is not None
        else _all_damaged(folder, skipped)
    )


def newest_valid_step(folder: str | Path) -> tuple[int | None, tuple[str, ...]]:
    """The step to resume from, and the fault of every newer one: `FILE: what`, newest first.

    Its files are undamaged, and all its arrays can be restored. Under `jax.distributed` every process calls it, process
    0 checks, and all get its answer; only process 0 gets the names of the bad files.

    Returns:
        (step, skipped); (None, ()) if no step was ever saved, or the folder does not exist.
    """
    folder = Path(folder).absolute()
    if jax.process_count() == 1:
        return _newest_valid(folder) if checkpoint_steps(folder) else (None, ())
    answer, skipped, refusal = -1, (), None  # -1: no step, -2: all are damaged
    if jax.process_index() == 0 and checkpoint_steps(folder):
        try:
            answer, skipped = _newest_valid(folder)
        except InputError as error:  # the other processes wait for the answer
            answer, refusal = -2, error
    answer = int(multihost_utils.broadcast_one_to_all(np.int32(answer)))
    if answer == -2:
        raise refusal or InputError("every checkpoint is damaged; process 0 names the files", file=folder)
    return (None if answer == -1 else answer), skipped


def require_same_config(
    saved: Mapping[str, Any], wanted: Mapping[str, Any], fields: Sequence[str] | None = None, source: str = "checkpoint"
) -> None:
    """Refuses to resume from a checkpoint of another config.

    Args:
        saved: config of the checkpoint, plain nested values.
        wanted: config of this run, plain nested values.
        fields: dotted names to compare, `learner` meaning all below it; None compares all.
        source: where `saved` comes from, for the message.
    """
    there, here = flatten(saved), flatten(wanted)
    missing = "absent"
    differing = []
    for name in sorted({*there, *here}):
        compared = fields is None or any(name == field or name.startswith(f"{field}.") for field in fields)
        if compared and there.get(name, missing) != here.get(name, missing):
            differing.append(f"{name} is {there.get(name, missing)!r} there and {here.get(name, missing)!r} here")
    if differing:
        raise InputError(
            f"made with another config: {'; '.join(differing)}. Give the config it was made with "
            "(its config.yaml), or another run folder",
            file=source,
        )


def _steps_to_try(folder: Path, step: int | None) -> list[Path]:
    """The folder of the requested step, or of all steps of a run, newest first."""
    if not folder.is_dir():
        raise UsageError("no such checkpoint folder; give the folder that `qrag train --out` wrote", file=folder)
    if (folder / MANIFEST).is_file() or step_number(folder.name) is not None:
        return [folder]
    steps = checkpoint_steps(folder)
    if not steps:
        raise UsageError(
            f"no checkpoint here (no {PREFIX}<n> folder); give the folder of a run that saved one", file=folder
        )
    if step is None:
        return [step_folder(folder, number) for number in reversed(steps)]
    if step not in steps:
        raise UsageError(f"no checkpoint of step {step}; choose from {', '.join(map(str, steps))}", file=folder)
    return [step_folder(folder, step)]


def find_fault(folder: Path) -> str | None:
    """Why a step cannot be resumed from, `FILE: what`; None if all of it can be read, which this tries."""
    try:
        _check_whole(folder)
        _read(folder, {}, None)
    except DamagedError as error:
        return str(error)
    return None


def _newest_valid(folder: Path) -> tuple[int, tuple[str, ...]]:
    """The newest step that can be read; the folder has steps."""
    skipped = []
    for step in reversed(checkpoint_steps(folder)):
        fault = find_fault(step_folder(folder, step))
        if fault is None:
            return step, tuple(skipped)
        skipped.append(fault)
    raise _all_damaged(folder, skipped)


def _all_damaged(folder: Path, faults: Sequence[str]) -> InputError:
    return InputError(
        f"every checkpoint here is damaged: {'; '.join(faults)}",
        file=folder,
        remedy=(". Copy the folder again from the source; to train from the beginning give another ", Arg("out")),
    )


def _check_whole(folder: Path) -> None:
    if fault := find_damage(folder):
        raise DamagedError(fault)


def _read(
    path: Path,
    templates: Mapping[str, Any],
    groups: Sequence[str] | Callable[[Mapping[str, Any]], Sequence[str]] | None,
) -> Checkpoint:
    """Reads an undamaged step; see `load_checkpoint`."""
    record = _read_record(path)
    saved = record["groups"]
    wanted = list(saved if groups is None else groups(record["user"]) if callable(groups) else groups)
    absent = sorted({*wanted, *templates} - set(saved))
    if absent:
        raise InputError(f"no group {', '.join(absent)} in this checkpoint; it has {', '.join(saved)}", file=path)
    flat = load_leaves(path / "arrays", {n: k for n, k in record["leaves"].items() if n.partition("/")[0] in wanted})
    arrays = {group: {} for group in wanted} | nest_leaves(flat)
    for group in set(wanted) & set(templates):
        own = {name: value for name, value in flat.items() if name.partition("/")[0] == group}
        arrays[group] = fit_leaves(group, templates[group], own, path)
    config = _read_config(path / "config.yaml")
    # Files that the manifest does not list were not checked.
    names = [name.removeprefix("files/") for name in listed_files(path) if name.startswith("files/")]
    files = {name: (path / "files" / name).read_bytes() for name in sorted(names)}
    return Checkpoint(path, record["step"], arrays, config, files, record["user"], record["versions"])


def _read_record(path: Path) -> dict[str, Any]:
    """Reads metadata.json, and checks that it has the form that `_record` writes.

    Raises:
        DamagedError: it has another form.
        InputError: it is of another format version.
    """
    name = path / "metadata.json"
    try:
        record = read_json(name)
    except InputError as error:
        raise DamagedError(str(error)) from error
    if record.get("format") != _FORMAT:
        versions = record.get("versions")
        wrote = versions.get("qrag_jax", "unknown") if isinstance(versions, dict) else "unknown"
        raise InputError(
            f"checkpoint format {record.get('format')}, this qrag_jax {__version__} reads {_FORMAT}; "
            f"install the version that wrote it: {wrote}",
            file=path,
        )
    if fault := _record_fault(record, path):
        raise DamagedError(fault, file=name)
    return record


def _record_fault(record: Mapping[str, Any], path: Path) -> str | None:
    for field, kind in _RECORD.items():
        if type(record.get(field)) is not kind:
            return f"{field}: expected {kind.__name__}"
    if not all(isinstance(group, str) for group in record["groups"]):
        return "groups: expected names"
    if record["step"] < 0:
        return f"step: {record['step']}"
    number = step_of(path)
    if number not in (None, record["step"]):
        return f"is of step {record['step']}"
    if fault := leaf_fault(record["leaves"]):
        return fault
    stray = {name.partition("/")[0] for name in record["leaves"]} - set(record["groups"])
    return f"groups: {min(stray)} is missing" if stray else None


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DamagedError("no such file", file=path)
    try:
        config = parse_yaml(read_text_limited(path, MAX_CONFIG_BYTES), str(path))
    except (InputError, UsageError, UnicodeDecodeError) as error:
        raise DamagedError(f"cannot be read ({error})", file=path) from error
    if not isinstance(config, dict):
        raise DamagedError("expected a mapping of fields", file=path)
    return config


@contextmanager
def _only_saver(folder: Path, step: int) -> Iterator[str]:
    """Holds the folder's lock in process 0; yields a name for temporary folders, the same in all processes."""
    with ExitStack() as stack:
        owner, refusal = np.array([os.getpid(), secrets.randbits(31)], np.int32), None
        if jax.process_index() == 0:
            try:
                stack.enter_context(lock_folder(folder, f"a save of step {step}"))
            except UsageError as error:  # the other processes wait for the answer
                owner, refusal = np.zeros(2, np.int32), error
        if jax.process_count() > 1:
            owner = multihost_utils.broadcast_one_to_all(owner)
        pid, number = map(int, owner)
        if pid == 0:
            raise refusal or UsageError(
                "another process works there, or it cannot be made; see the message of process 0", file=folder
            )
        yield f"{pid}-{number:08x}"


def _complete(folder: Path, contents: Mapping[str, bytes | str]) -> None:
    """Writes everything except the arrays, then the manifest; refuses files that changed in the meantime."""
    # This file has an absolute path, and nothing reads it.
    (folder / "arrays" / "commit_success.txt").unlink(missing_ok=True)
    written: dict[str, object] = {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in files_under(folder / "arrays")
    }
    for name, content in contents.items():
        path, data = folder / name, content.encode() if isinstance(content, str) else content
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        written[name] = hashlib.sha256(data).hexdigest()
    listed = {name: known["sha256" if name in contents else "bytes"] for name, known in write_manifest(folder).items()}
    if differing := sorted(name for name in {*written, *listed} if written.get(name) != listed.get(name)):
        raise InputError(
            f"{folder / differing[0]}: changed while the step was written: another process works in {folder.parent}; "
            "end it, and save again"
        )


def _barrier(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def _record(
    step: int, groups: Sequence[str] | Mapping[str, Any], leaves: Mapping[str, Any], metadata: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "step": step,
        "versions": _versions(),
        "groups": list(groups),  # also groups without leaves
        "leaves": leaves,
        "user": dict(metadata or {}),
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = installed.version(package)
        except installed.PackageNotFoundError:  # a source tree on the path, or an extra that is not installed
            continue
    return versions | {"qrag_jax": __version__}
