"""Checkpoint folders that stand alone: arrays, config, tokenizer and versions, with a hash of every file.

    RUN/step_1200/
      arrays/         one Orbax tree of params, target_params, opt_state, step, key, ...
      files/          what the run cannot do without: tokenizer.json, ...
      config.yaml     the whole config, every field
      metadata.json   step, versions, and shape and dtype of every leaf
      manifest.json   size and sha256 of every file above; written last

Orbax has no checksums: of 100 single-bit flips in its data file all 100 restored silently wrong (measured, 0.12.8), so
the manifest is checked before anything is read, and a damaged newest step gives way to the newest whole one, loudly. A
folder is written beside its place, brought to the disk and renamed into it, holds no absolute path, and restores on
another number of devices and processes. Leaves are stored flat by their path, so a NamedTuple of optax comes back as
one when a template is given, and as a dict of its fields when not.
"""

import logging
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata as installed
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from qrag_jax import __version__
from qrag_jax.config import flatten
from qrag_jax.manifest import (
    MANIFEST,
    files_under,
    find_damage,
    path_inside,
    sync_folder,
    verify_manifest,
    write_manifest,
)
from qrag_jax.strict_yaml import dump_yaml, parse_yaml
from qrag_jax.types import InputError, UsageError
from qrag_jax.whole_file import read_json, write_json

FORMAT = 1
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "transformers", "tokenizers")
_PREFIX = "step_"
_TEMPORARY, _ASIDE = ".tmp-", ".old-"  # before the prefix: being written or deleted; being replaced
_NUMBERS = (bool, int, float)  # compared by type(): numpy.float64 is a float too, and an array to us
# Without any set-up of logging, Python writes warnings to standard error: nobody has to ask in order to be told.
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """What `load_checkpoint` read.

    Attributes:
        folder: of the step; `load_checkpoint(folder)` reads this very step again.
        metadata: what the caller of `save_checkpoint` gave.
        versions: of what ran.
        skipped: `FILE: what is wrong with it` for every newer step that was passed over, newest first.
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
    """Write `folder/step_<step>`, all of it or nothing, then delete all but the newest steps.

    When it returns, the step is on the disk. Killed at any point, it leaves the steps that were there before.

    Under `jax.distributed` every process calls it with the same values and one file system that all see. All write
    their shards of global arrays; all else is written by process 0, which it is taken from, and the step appears under
    its name when every process has finished.

    Args:
        arrays: pytrees by group name. Leaves are arrays (sharded ones too), typed keys, or Python numbers.
        config: plain nested values (`config.to_dict`).
        extra_files: content by relative file name, such as `tokenizer.json`.
        metadata: JSON values of the caller's own (no NaN).
        keep: how many steps stay, the one just written among them; None keeps all.

    Returns:
        The folder of the step. One that was there for the same step is replaced.

    Raises:
        InputError: a leaf that is no array or number, or a path that could not be read back.
        ValueError: `step` below 0 or `keep` below 1.
    """
    if step < 0 or (keep is not None and keep < 1):
        raise ValueError(f"step = {step} must be >= 0 and keep = {keep} must be >= 1 or None")
    folder = Path(folder).absolute()
    final = folder / f"{_PREFIX}{step}"
    temporary = folder / f"{_TEMPORARY}{_PREFIX}{step}"
    # What may be refused is made before the processes first wait for each other: all raise, or none.
    flat, leaves = _flat_leaves(arrays)
    config_text, record = dump_yaml(config), _record(step, arrays, leaves, metadata)
    contents = {
        path_inside(temporary / "files", name, f"{folder}: extra file"): content
        for name, content in (extra_files or {}).items()
    }
    first = jax.process_index() == 0
    if first:
        folder.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(folder)
        temporary.mkdir()
    _barrier(f"qrag_jax: folder of step {step} is made")
    try:
        if flat:
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
                checkpointer.save(temporary / "arrays", flat)  # returns when every process has written its shards
        if first:
            for path, content in contents.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.encode() if isinstance(content, str) else content)
            (temporary / "config.yaml").write_text(config_text, encoding="utf-8", newline="")
            write_json(temporary / "metadata.json", record)
            # Where there is one, it holds the absolute path, and nothing reads it.
            (temporary / "arrays" / "commit_success.txt").unlink(missing_ok=True)
            write_manifest(temporary)
            _replace(temporary, final)
            _delete_old(folder, step, keep)
    finally:
        if first:
            shutil.rmtree(temporary, ignore_errors=True)  # gone already when all went well
    _barrier(f"qrag_jax: step {step} is saved")
    return final


def load_checkpoint(
    folder: str | Path,
    templates: Mapping[str, Any] | None = None,
    step: int | None = None,
    groups: Sequence[str] | Callable[[Mapping[str, Any]], Sequence[str]] | None = None,
) -> Checkpoint:
    """Verify every file of a checkpoint, then read it.

    Where the newest step is damaged, the newest one that is whole is read: `Checkpoint.skipped` and a warning of this
    module's logger (on standard error unless logging is set up otherwise) name the bad files. A step that was asked
    for, by `step` or by its folder, is read or refused. Processes do not wait for each other here.

    Args:
        folder: a run folder with `step_<n>` folders in it, or one of these.
        templates: for some or all groups the pytree to restore into: arrays or `jax.ShapeDtypeStruct` (of
            `jax.eval_shape`), with shardings or without. JAX leaves come back as JAX arrays on the sharding of the
            template, NumPy leaves as NumPy. A group without template comes back as nested dicts of NumPy arrays.
        step: which step; None takes the newest that is whole.
        groups: read only these, or a function that chooses them by the metadata; None reads all.

    Raises:
        UsageError: the folder or step does not exist.
        InputError: a file of the step that was asked for, or of every step, is missing, truncated or altered; a group
            is missing; a leaf does not fit its template.
    """
    path, skipped = _find_step(Path(folder).absolute(), step)
    if skipped and jax.process_index() == 0:
        _LOGGER.warning("damaged and passed over: %s. %s is read in its place", "; ".join(skipped), path)
    record = read_json(path / "metadata.json")
    if record.get("format") != FORMAT:
        raise InputError(
            f"{path}: checkpoint format {record.get('format')}, this qrag_jax {__version__} reads {FORMAT}; "
            f"install the version that wrote it: {record.get('versions', {}).get('qrag_jax', 'unknown')}"
        )
    saved, templates = record["groups"], templates or {}
    wanted = list(saved if groups is None else groups(record["user"]) if callable(groups) else groups)
    absent = sorted({*wanted, *templates} - set(saved))
    if absent:
        raise InputError(f"{path}: no group {', '.join(absent)} in this checkpoint; it has {', '.join(saved)}")
    flat = _load_leaves(path / "arrays", {n: k for n, k in record["leaves"].items() if n.partition("/")[0] in wanted})
    arrays = {group: {} for group in wanted} | _nest(flat)
    for group in set(wanted) & set(templates):
        own = {name: value for name, value in flat.items() if name.partition("/")[0] == group}
        arrays[group] = _fit(group, templates[group], own, path)
    config = _read_config(path / "config.yaml")
    files = {p.relative_to(path / "files").as_posix(): p.read_bytes() for p in files_under(path / "files")}
    return Checkpoint(path, record["step"], arrays, config, files, record["user"], record["versions"], skipped)


def checkpoint_steps(folder: str | Path) -> list[int]:
    """Steps that have a folder, in rising order; whether they are whole is for `newest_valid_step`."""
    folder = Path(folder)
    # A save that was killed while it replaced a step has left that step aside.
    names = {path.name.removeprefix(_ASIDE) for path in folder.iterdir()} if folder.is_dir() else ()
    return sorted(number for number in map(_step_number, names) if number is not None)


def newest_valid_step(folder: str | Path) -> tuple[int | None, tuple[str, ...]]:
    """The step to go on from, and what is wrong with every newer one: `FILE: what`, newest first.

    Under `jax.distributed` every process calls it, process 0 looks, and all get its answer; only process 0 gets the
    names of the bad files.

    Returns:
        (step, skipped); (None, ()) where no step was ever saved, also when there is no such folder.

    Raises:
        InputError: there are steps and all are damaged; the message names a bad file of each.
    """
    folder = Path(folder).absolute()
    if jax.process_count() == 1:
        return _newest_valid(folder) if checkpoint_steps(folder) else (None, ())
    answer, skipped, refusal = -1, (), None  # -1: no step, -2: all are damaged
    if jax.process_index() == 0 and checkpoint_steps(folder):
        try:
            answer, skipped = _newest_valid(folder)
        except InputError as error:  # the others wait for the answer
            answer, refusal = -2, error
    answer = int(multihost_utils.broadcast_one_to_all(np.int32(answer)))
    if answer == -2:
        raise refusal or InputError(f"{folder}: every checkpoint is damaged; process 0 names the files")
    return (None if answer == -1 else answer), skipped


def require_same_config(
    saved: Mapping[str, Any], wanted: Mapping[str, Any], fields: Sequence[str] | None = None, source: str = "checkpoint"
) -> None:
    """Refuse to go on with a checkpoint of another config.

    Args:
        saved: config of the checkpoint, plain nested values.
        wanted: config of this run, likewise.
        fields: dotted names to compare, `learner` standing for all below it; None compares all.
        source: where `saved` comes from, for the message.

    Raises:
        InputError: naming every field that differs, with both values.
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
            f"{source}: made with another config: {'; '.join(differing)}. Give the config it was made with "
            "(its config.yaml), or another run folder"
        )


def _flat_leaves(tree: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The leaves of a tree by path, as Orbax is to write them, and what is known of each."""
    flat, known = {}, {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(dict(tree))[0]:
        name, facts = _leaf_name(path), {}
        if type(leaf) in _NUMBERS:
            facts["python"] = type(leaf).__name__
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            facts["key_impl"] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        # Of several processes, an array that is on this one's devices alone is a value that all have.
        is_global = isinstance(leaf, jax.Array) and (jax.process_count() == 1 or not leaf.is_fully_addressable)
        value = leaf if is_global else np.asarray(leaf)
        if value.dtype.kind in "OUSMm":
            raise InputError(f"{name}: a {type(leaf).__name__} cannot be saved as an array; put it into the metadata")
        known[name] = {"shape": list(value.shape), "dtype": str(value.dtype), **facts}
        if value.size:  # Orbax refuses empty arrays; they are made again from their shape
            flat[name] = value
    return flat, known


def _load_leaves(folder: Path, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Leaves by path: typed keys, Python numbers, and NumPy arrays for all else, whatever the devices were at save."""
    names = [name for name, facts in known.items() if 0 not in facts["shape"]]
    stored: dict[str, Any] = {}
    if names:
        as_numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        wanted = ocp.args.PyTreeRestore(item=dict.fromkeys(names, 0), restore_args=as_numpy, partial_restore=True)
        # By itself: a process may read what the others do not.
        own = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(), multiprocessing_options=alone) as checkpointer:
            stored = checkpointer.restore(folder, args=wanted)
    flat = {}
    for name, facts in known.items():
        value = np.asarray(stored[name]) if name in stored else np.zeros(facts["shape"], facts["dtype"])
        if "key_impl" in facts:
            flat[name] = jax.random.wrap_key_data(jnp.asarray(value), impl=facts["key_impl"])
        else:
            flat[name] = value.item() if "python" in facts else value
    return flat


def _fit(group: str, template: Any, flat: Mapping[str, Any], source: Path) -> Any:
    """Put saved leaves into the structure of a template; all that does not fit is raised together."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = [_leaf_name((jax.tree_util.DictKey(group), *path)) for path, _ in leaves]
    faults = [f"{name} is not in the checkpoint" for name in names if name not in flat]
    faults += [f"{name} is not in the model" for name in flat if name not in set(names)]
    fitted = []
    for name, (_, leaf) in zip(names, leaves, strict=True):
        if name not in flat:
            continue
        value = flat[name]
        if _fits(leaf, value):
            fitted.append(_like(leaf, value))
        else:
            faults.append(f"{name} is {_show(value)} in the checkpoint and {_show(leaf)} in the model")
    if faults:
        shown = "; ".join(faults[:8]) + (f"; and {len(faults) - 8} more" if len(faults) > 8 else "")
        raise InputError(f"{source} does not fit: {shown}. Build the model from the config.yaml beside it")
    return jax.tree_util.tree_unflatten(structure, fitted)


def _spec(leaf: Any) -> tuple[tuple[int, ...], Any]:
    return (tuple(leaf.shape), leaf.dtype) if hasattr(leaf, "dtype") else ((), np.asarray(leaf).dtype)


def _show(leaf: Any) -> str:
    shape, dtype = _spec(leaf)
    return f"{dtype}{list(shape)}"


def _fits(leaf: Any, value: Any) -> bool:
    (wanted_shape, wanted_dtype), (shape, dtype) = _spec(leaf), _spec(value)
    if type(leaf) in _NUMBERS or type(value) in _NUMBERS:
        return wanted_shape == shape and wanted_dtype.kind == dtype.kind  # a Python number has no width of its own
    return wanted_shape == shape and wanted_dtype == dtype


def _like(leaf: Any, value: Any) -> Any:
    """`value` as the kind of thing that the template leaf is, and where it is."""
    if type(leaf) in _NUMBERS:
        return type(leaf)(value)
    if isinstance(leaf, np.ndarray | np.generic):
        return np.asarray(value, dtype=leaf.dtype)
    sharding = getattr(leaf, "sharding", None)
    if sharding is not None and not sharding.is_fully_addressable:
        return _spread(value, sharding, leaf.dtype)
    if sharding is not None and getattr(leaf, "committed", True):
        return jax.device_put(value, sharding, may_alias=False)
    # copied: a donated buffer must be JAX's own
    return value if isinstance(value, jax.Array) else jnp.array(value, dtype=leaf.dtype)


def _spread(value: Any, sharding: jax.sharding.Sharding, dtype: Any) -> jax.Array:
    """A value that all processes have as one array over the devices of all."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(value))
        return jax.random.wrap_key_data(_spread(data, sharding, data.dtype), impl=jax.random.key_impl(value))
    value = np.asarray(value, dtype=dtype)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: np.array(value[index]))


def _leaf_name(path: tuple) -> str:
    parts = [jax.tree_util.keystr((entry,), simple=True) for entry in path]
    if any("/" in part or not part for part in parts):
        raise InputError(f"a leaf under {parts} cannot be saved: its key is empty or has '/' in it; rename the key")
    return "/".join(parts)


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def _step_number(name: str) -> int | None:
    digits = name.removeprefix(_PREFIX)
    is_number = digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0")
    return int(digits) if name.startswith(_PREFIX) and is_number else None


def _step_folder(folder: Path, step: int) -> Path:
    final = folder / f"{_PREFIX}{step}"
    aside = folder / f"{_ASIDE}{final.name}"
    return aside if aside.exists() and not final.exists() else final


def _find_step(folder: Path, step: int | None) -> tuple[Path, tuple[str, ...]]:
    """The folder of the step to read, verified, and what is wrong with the newer ones that were passed over."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such checkpoint folder; give the folder that `qrag train --out` wrote")
    if (folder / MANIFEST).is_file() or _step_number(folder.name) is not None:
        verify_manifest(folder)
        return folder, ()
    steps = checkpoint_steps(folder)
    if not steps:
        raise UsageError(
            f"{folder}: no checkpoint here (no {_PREFIX}<n> folder); give the folder of a run that saved one"
        )
    if step is None:
        step, skipped = _newest_valid(folder)
        return _step_folder(folder, step), skipped
    if step not in steps:
        raise UsageError(f"{folder}: no checkpoint of step {step}; there are {', '.join(map(str, steps))}")
    verify_manifest(_step_folder(folder, step))
    return _step_folder(folder, step), ()


def _newest_valid(folder: Path) -> tuple[int, tuple[str, ...]]:
    """The newest step whose files are as they were written, of a folder that has steps."""
    skipped = []
    for step in reversed(checkpoint_steps(folder)):
        fault = find_damage(_step_folder(folder, step))
        if fault is None:
            return step, tuple(skipped)
        skipped.append(fault)
    raise InputError(
        f"{folder}: every checkpoint here is damaged: {'; '.join(skipped)}. Copy the folder again from where it came; "
        "to train from the beginning give another --out"
    )


def _read_config(path: Path) -> dict[str, Any]:
    config = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected a mapping of fields; copy the checkpoint again")
    return config


def _clear_leftovers(folder: Path) -> None:
    """Tidy up after saves that were killed; a step that one of them had moved aside and not replaced goes back."""
    for path in folder.glob(f"{_ASIDE}{_PREFIX}*"):
        final = path.with_name(path.name.removeprefix(_ASIDE))
        if not final.exists():
            path.rename(final)
    for mark in (_ASIDE, _TEMPORARY):
        for path in folder.glob(f"{mark}{_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)


def _replace(temporary: Path, final: Path) -> None:
    """Give a folder its name; killed between the renames, it leaves the old one aside, where it is still found."""
    aside = final.with_name(f"{_ASIDE}{final.name}")
    if final.exists():
        final.rename(aside)
    temporary.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _delete_old(folder: Path, step: int, keep: int | None) -> None:
    """Delete all but the newest `keep` steps, `step` among those that stay."""
    others = [other for other in checkpoint_steps(folder) if other != step]
    for old in others[: max(0, len(others) + 1 - keep)] if keep is not None else ():
        # Renamed first: a step that is half deleted must not be taken for a damaged one.
        doomed = folder / f"{_TEMPORARY}{_PREFIX}{old}"
        (folder / f"{_PREFIX}{old}").rename(doomed)
        shutil.rmtree(doomed)


def _barrier(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def _record(
    step: int, groups: Sequence[str] | Mapping[str, Any], leaves: Mapping[str, Any], metadata: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "step": step,
        "versions": _versions(),
        "groups": list(groups),  # one with no leaves is a group all the same
        "leaves": leaves,
        "user": dict(metadata or {}),
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = installed.version(package)
        except installed.PackageNotFoundError:  # a source tree on the path, or an extra that is not here
            continue
    return versions | {"qrag_jax": __version__}
