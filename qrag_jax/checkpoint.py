"""Checkpoint folders that stand alone: arrays, config, tokenizer and versions, with a hash of every file.

    RUN/step_1200/
      arrays/         one Orbax tree of params, target_params, opt_state, step, key, ...
      files/          what the run cannot do without: tokenizer.json, ...
      config.yaml     the whole config, every field
      metadata.json   step, versions, and shape and dtype of every leaf
      manifest.json   size and sha256 of every file above; written last

Orbax has no checksums: of 100 single-bit flips in its data file all 100 restored silently wrong (measured, 0.12.8), so
the manifest is checked before anything is read. A folder is written beside its place and renamed into it, holds no
absolute path, and restores on another number of devices. Leaves are stored flat by their path, so a NamedTuple of optax
comes back as one when a template is given, and as a dict of its fields when not.
"""

import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata as installed
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from qrag_jax import __version__
from qrag_jax.config import flatten
from qrag_jax.manifest import MANIFEST, files_under, path_inside, read_json, verify_manifest, write_json, write_manifest
from qrag_jax.strict_yaml import dump_yaml, parse_yaml
from qrag_jax.types import InputError, UsageError

FORMAT = 1
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "transformers", "tokenizers")
_PREFIX = "step_"
_NUMBERS = (bool, int, float)  # compared by type(): numpy.float64 is a float too, and an array to us


@dataclass(frozen=True)
class Checkpoint:
    """What `load_checkpoint` read; `metadata` is what the caller of `save_checkpoint` gave, `versions` what ran."""

    folder: Path
    step: int
    arrays: Mapping[str, Any]
    config: Mapping[str, Any]
    files: Mapping[str, bytes]
    metadata: Mapping[str, Any]
    versions: Mapping[str, str]


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
    temporary = folder / f".tmp-{_PREFIX}{step}"
    shutil.rmtree(temporary, ignore_errors=True)  # of a save that was killed
    temporary.mkdir(parents=True)
    try:
        leaves = _save_leaves(temporary / "arrays", arrays)
        for name, content in (extra_files or {}).items():
            path = path_inside(temporary / "files", name, f"{folder}: extra file")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        (temporary / "config.yaml").write_text(dump_yaml(config), encoding="utf-8", newline="")
        record = {
            "format": FORMAT,
            "step": step,
            "versions": _versions(),
            "groups": list(arrays),  # one with no leaves is a group all the same
            "leaves": leaves,
            "user": dict(metadata or {}),
        }
        write_json(temporary / "metadata.json", record)
        write_manifest(temporary)
        _replace(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already when all went well
    if keep is not None:
        others = [other for other in checkpoint_steps(folder) if other != step]
        for old in others[: max(0, len(others) + 1 - keep)]:
            shutil.rmtree(folder / f"{_PREFIX}{old}")
    return final


def load_checkpoint(
    folder: str | Path,
    templates: Mapping[str, Any] | None = None,
    step: int | None = None,
    groups: Sequence[str] | None = None,
) -> Checkpoint:
    """Verify every file of a checkpoint, then read it.

    Args:
        folder: a run folder with `step_<n>` folders in it, or one of these.
        templates: for some or all groups the pytree to restore into: arrays or `jax.ShapeDtypeStruct` (of
            `jax.eval_shape`), with shardings or without. JAX leaves come back as JAX arrays on the sharding of the
            template, NumPy leaves as NumPy. A group without template comes back as nested dicts of NumPy arrays.
        step: which step; None takes the newest.
        groups: read only these; None reads all.

    Raises:
        UsageError: the folder or step does not exist.
        InputError: a file is missing, truncated or altered; a group is missing; a leaf does not fit its template.
    """
    path = _find_step(Path(folder).absolute(), step)
    verify_manifest(path)
    record = read_json(path / "metadata.json")
    if record.get("format") != FORMAT:
        raise InputError(
            f"{path}: checkpoint format {record.get('format')}, this qrag_jax {__version__} reads {FORMAT}; "
            f"install the version that wrote it: {record.get('versions', {}).get('qrag_jax', 'unknown')}"
        )
    saved, templates = record["groups"], templates or {}
    wanted = list(saved if groups is None else groups)
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
    return Checkpoint(path, record["step"], arrays, config, files, record["user"], record["versions"])


def checkpoint_steps(folder: str | Path) -> list[int]:
    """Steps that have a folder, in rising order; whether they are whole is for `manifest.verify_manifest`."""
    folder = Path(folder)
    numbers = [_step_number(path.name) for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(number for number in numbers if number is not None)


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


def _save_leaves(folder: Path, tree: Any) -> dict[str, dict[str, Any]]:
    """Write the leaves of a tree flat, by path; returns what is known of each."""
    flat, known = {}, {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(dict(tree))[0]:
        name, facts = _leaf_name(path), {}
        if type(leaf) in _NUMBERS:
            facts["python"] = type(leaf).__name__
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            facts["key_impl"] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        value = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        if value.dtype.kind in "OUSMm":
            raise InputError(f"{name}: a {type(leaf).__name__} cannot be saved as an array; put it into the metadata")
        known[name] = {"shape": list(value.shape), "dtype": str(value.dtype), **facts}
        if value.size:  # Orbax refuses empty arrays; they are made again from their shape
            flat[name] = value
    if flat:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(folder, flat)
        (folder / "commit_success.txt").unlink(missing_ok=True)  # holds the absolute path, and nothing reads it
    return known


def _load_leaves(folder: Path, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Leaves by path: typed keys, Python numbers, and NumPy arrays for all else, whatever the devices were at save."""
    names = [name for name, facts in known.items() if 0 not in facts["shape"]]
    stored: dict[str, Any] = {}
    if names:
        as_numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        wanted = ocp.args.PyTreeRestore(item=dict.fromkeys(names, 0), restore_args=as_numpy, partial_restore=True)
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
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
    if sharding is not None and getattr(leaf, "committed", True):
        return jax.device_put(value, sharding, may_alias=False)
    # copied: a donated buffer must be JAX's own
    return value if isinstance(value, jax.Array) else jnp.array(value, dtype=leaf.dtype)


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
    return int(digits) if name.startswith(_PREFIX) and digits.isascii() and digits.isdigit() else None


def _find_step(folder: Path, step: int | None) -> Path:
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such checkpoint folder; give the folder that `qrag train --out` wrote")
    if (folder / MANIFEST).is_file() or _step_number(folder.name) is not None:
        return folder
    steps = checkpoint_steps(folder)
    if not steps:
        raise UsageError(
            f"{folder}: no checkpoint here (no {_PREFIX}<n> folder); give the folder of a run that saved one"
        )
    if step is not None and step not in steps:
        raise UsageError(f"{folder}: no checkpoint of step {step}; there are {', '.join(map(str, steps))}")
    return folder / f"{_PREFIX}{steps[-1] if step is None else step}"


def _read_config(path: Path) -> dict[str, Any]:
    config = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected a mapping of fields; copy the checkpoint again")
    return config


def _replace(temporary: Path, final: Path) -> None:
    aside = final.with_name(f".old-{final.name}")
    shutil.rmtree(aside, ignore_errors=True)
    if final.exists():
        final.rename(aside)
    temporary.rename(final)
    shutil.rmtree(aside, ignore_errors=True)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = installed.version(package)
        except installed.PackageNotFoundError:  # a source tree on the path, or an extra that is not here
            continue
    return versions | {"qrag_jax": __version__}
