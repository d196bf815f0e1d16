"""The leaves of a checkpoint: a tree flattened by paths, stored by Orbax, and restored into a template."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from qrag_jax.types import InputError

_ABSENT = ...
_MAX_REASON = 300  # characters of an error of Orbax, which quotes whole trees
_NO_NUMBERS = "OUSMm"  # kinds of NumPy
_DTYPE = re.compile(r"[<>|=]?[a-z]\w{0,30}", re.ASCII)  # a plain name; NumPy would also accept fields or code
_NUMBERS = (bool, int, float)  # compared by type(): numpy.float64 is a float too, but counts as an array


class DamagedError(InputError):
    """A step cannot be read, `FILE: why`; an older one may be used instead."""


def flat_leaves(tree: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The leaves of a tree by path, as Orbax writes them, and a record of each."""
    flat, known = {}, {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(dict(tree))[0]:
        name, facts = _leaf_name(path), {}
        if type(leaf) in _NUMBERS:
            facts["python"] = type(leaf).__name__
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            facts["key_impl"] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        # With several processes, an array on only this one's devices is a value that all have.
        is_global = isinstance(leaf, jax.Array) and (jax.process_count() == 1 or not leaf.is_fully_addressable)
        value = leaf if is_global else _native(np.asarray(leaf))
        if value.dtype.kind in _NO_NUMBERS:
            raise InputError(
                f"a {type(leaf).__name__} cannot be saved as an array; put it into the metadata", file=name
            )
        known[name] = {"shape": list(value.shape), "dtype": str(value.dtype), **facts}
        if value.size:  # Orbax refuses empty arrays; they are restored from their shape
            flat[name] = value
    return flat, known


def load_leaves(folder: Path, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Leaves by path: typed keys, Python numbers, and NumPy arrays for all others, on any devices.

    Args:
        known: records of the leaves to read, from `flat_leaves`.

    Raises:
        DamagedError: a leaf is missing, or differs from its record.
    """
    names = [name for name, facts in known.items() if 0 not in facts["shape"]]
    stored: dict[str, Any] = {}
    if names:
        as_numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        # A leaf missing in the store comes back as the placeholder.
        wanted = ocp.args.PyTreeRestore(item=dict.fromkeys(names, _ABSENT), restore_args=as_numpy, partial_restore=True)
        # Locally: a process may read leaves that others do not.
        own = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(), multiprocessing_options=alone) as checkpointer:
            try:
                stored = checkpointer.restore(folder, args=wanted)
            # Orbax raises these for files that do not fit, or whose JSON has another form.
            except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_REASON]
                raise DamagedError(f"cannot be restored ({reason})", file=folder) from error
    flat = {}
    for name, facts in known.items():
        try:
            flat[name] = _restored(stored.get(name), facts)
        except (ValueError, TypeError, OverflowError) as error:
            reason = " ".join(str(error).split())[:_MAX_REASON]
            known_as = f"{facts['dtype']}{facts['shape']} in metadata.json"
            raise DamagedError(f"{name} {reason}, {known_as}", file=folder) from error
    return flat


def leaf_fault(known: Mapping[str, Any]) -> str | None:
    """The first impossible entry in a record of leaves; None if all are possible."""
    inner = {name[:place] for name in known for place, letter in enumerate(name) if letter == "/"}
    for name, facts in known.items():
        if name in inner or not all(name.split("/")):
            return f"leaves: {name!r} is not a path of a leaf"
        if not isinstance(facts, dict) or not _is_shape(facts.get("shape")):
            return f"leaves: {name}: no shape"
        if not _is_dtype(facts.get("dtype")):
            return f"leaves: {name}: no dtype"
        if not all(isinstance(facts.get(field, ""), str) for field in ("python", "key_impl")):
            return f"leaves: {name}: python or key_impl is not a name"
    return None


def _restored(stored: Any, facts: Mapping[str, Any]) -> Any:
    """Restores a leaf as it was saved.

    Args:
        stored: its value in the store; None for an empty array, which is not stored.

    Raises:
        ValueError, TypeError, OverflowError: the store has something else.
    """
    if stored is _ABSENT:
        raise ValueError("is nothing there")
    value = _native(np.zeros(facts["shape"], facts["dtype"]) if stored is None else np.asarray(stored))
    # Older checkpoints record the byte order before Orbax changed it to that of the machine.
    if list(value.shape) != facts["shape"] or str(value.dtype) not in (facts["dtype"], _native_name(facts["dtype"])):
        raise ValueError(f"is {_show(value)} there")
    if "key_impl" in facts:
        return jax.random.wrap_key_data(jnp.asarray(value), impl=facts["key_impl"])
    if "python" not in facts:
        return value
    number = value.item()
    if type(number).__name__ != facts["python"]:
        raise ValueError(f"is a Python {type(number).__name__}, not {facts['python']}")
    return number


def fit_leaves(group: str, template: Any, flat: Mapping[str, Any], source: Path) -> Any:
    """Puts saved leaves into the structure of a template."""
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
        raise InputError(f"{source} does not fit: {shown}. Build the model from the config.yaml next to it")
    return jax.tree_util.tree_unflatten(structure, fitted)


def _native(value: np.ndarray) -> np.ndarray:
    """The same numbers in this machine's byte order."""
    return value.astype(value.dtype.newbyteorder("="), copy=False)


def _native_name(dtype: str) -> str:
    return str(np.dtype(dtype).newbyteorder("=")) if dtype[:1] in ("<", ">") else dtype


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _is_dtype(name: Any) -> bool:
    """True if our arrays can have a type of this name."""
    try:
        dtype = np.dtype(name) if isinstance(name, str) and _DTYPE.fullmatch(name) else None
    except (TypeError, ValueError):
        return False
    return dtype is not None and dtype.kind not in _NO_NUMBERS and dtype.names is None and dtype.subdtype is None


def _spec(leaf: Any) -> tuple[tuple[int, ...], Any]:
    """(shape, dtype) of a leaf, whatever its byte order."""
    if not hasattr(leaf, "dtype"):
        return (), np.asarray(leaf).dtype
    return tuple(leaf.shape), leaf.dtype.newbyteorder("=") if isinstance(leaf.dtype, np.dtype) else leaf.dtype


def _show(leaf: Any) -> str:
    shape, dtype = _spec(leaf)
    return f"{dtype}{list(shape)}"


def _fits(leaf: Any, value: Any) -> bool:
    (wanted_shape, wanted_dtype), (shape, dtype) = _spec(leaf), _spec(value)
    if type(leaf) in _NUMBERS or type(value) in _NUMBERS:
        return wanted_shape == shape and wanted_dtype.kind == dtype.kind  # a Python number has no width of its own
    return wanted_shape == shape and wanted_dtype == dtype


def _like(leaf: Any, value: Any) -> Any:
    """`value` as the kind of the template leaf, on its devices."""
    if type(leaf) in _NUMBERS:
        return type(leaf)(value)
    if isinstance(leaf, np.ndarray | np.generic):
        return np.asarray(value, dtype=leaf.dtype)
    sharding = getattr(leaf, "sharding", None)
    if sharding is not None and not sharding.is_fully_addressable:
        return _spread(value, sharding, leaf.dtype)
    if sharding is not None and getattr(leaf, "committed", True):
        return jax.device_put(value, sharding, may_alias=False)
    # copied, because a donated buffer must belong to JAX
    return value if isinstance(value, jax.Array) else jnp.array(value, dtype=leaf.dtype)


def _spread(value: Any, sharding: jax.sharding.Sharding, dtype: Any) -> jax.Array:
    """Turns a value that all processes have into one array over all devices."""
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


def nest_leaves(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts of leaves by path."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree
