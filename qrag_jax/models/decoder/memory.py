"""Memory: the need of a decoder, the free memory of this machine, and an error before a model that does not fit is
loaded."""

import contextlib
import ctypes
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import jax

from qrag_jax.models.decoder.causal_lm import GATE_UP, QUERY_KEY_VALUE, ComputeDtype, init_cache
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.storage import stored_bytes
from qrag_jax.models.decoder.table import decoder_table
from qrag_jax.models.encoder.table import TensorRow
from qrag_jax.names import Storage
from qrag_jax.types import UsageError

_ROOT = Path("/")
# Files of a control group: its limit, what it holds, and by which name its part that can be dropped is told.
_GROUPS = {
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),  # version 1
    "": ("memory.max", "memory.current", ""),  # version 2
}


def num_parameters(config: DecoderConfig) -> int:
    """Numbers of all tensors; an output layer that is the embedding table counts once."""
    return _sum(config, lambda row: math.prod(row.shape))


def loading_bytes(config: DecoderConfig, storage: Storage, kinds: Mapping[str, str] | None = None) -> int:
    """The least that loading takes: all parameters; plain numbers that are joined (`join_projections`) once more.

    Args:
        kinds: the format of each tensor in a GGUF file, by its name in transformers; what "file" hangs on.
    """
    if storage == "file":
        found = kinds or {}
        return sum(stored_bytes(config, row, storage, found.get(row.name)) for row in decoder_table(config))
    is_joined = {*QUERY_KEY_VALUE, *GATE_UP}.intersection if storage != "int8" else lambda path: ()
    return _sum(config, lambda row: stored_bytes(config, row, storage) * (2 if is_joined(row.path) else 1))


def cache_bytes(config: DecoderConfig, rows: int, size: int, dtype: ComputeDtype) -> int:
    """Bytes of the keys and values of `rows` rows of `size` slots."""
    shapes = jax.eval_shape(lambda: init_cache(config, rows, size, dtype))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def check_memory(
    config: DecoderConfig,
    source: str | Path,
    storage: Storage,
    cache: int = 0,
    kinds: Mapping[str, str] | None = None,
) -> None:
    """Raises an error for a model that does not fit into this machine's memory; never on accelerators or if the
    memory is unknown.

    Args:
        source: names it in the error.
        cache: bytes of keys and values that are wanted beside them.
        kinds: see `loading_bytes`.
    """
    available = available_bytes() if jax.default_backend() == "cpu" else None
    number, loading = num_parameters(config), loading_bytes(config, storage, kinds)
    if available is None or loading + cache <= available:
        return
    fits = max(0, available - cache) * number // loading
    beside = f" and {cache / 1e9:,.2f} GB of cache" if cache else ""
    smaller = loading_bytes(config, "int8")
    advice = f"; this one does as storage int8, which takes {smaller / 1e9:,.2f} GB"
    raise UsageError(
        f"language model {str(source)!r}: its {number / 1e6:,.0f} million parameters take at least "
        f"{loading / 1e9:,.2f} GB while they are loaded as {storage}{beside}, and {available / 1e9:,.2f} GB of memory "
        f"are available: a model that fits{' with that cache' if cache else ''} has at most {fits / 1e6:,.0f} million "
        f"parameters{advice if smaller < loading and smaller + cache <= available else ''}"
    )


def available_bytes(root: Path = _ROOT) -> int | None:
    """Memory that can be had now without swapping: of the machine, and within the limits of all control groups around.

    Files that are cached count as free. None where there is no /proc/meminfo.

    Args:
        root: folder of `proc` and `sys`.
    """
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.M)
    if found is None:
        return None
    return max(0, min([int(found[1]) * 1024, *_left_in_groups(root)]))


def resident_bytes(root: Path = _ROOT) -> tuple[int, int] | None:
    """The resident bytes of this process now and at most; None without /proc."""
    status = _text(root / "proc/self/status")
    found = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", status, re.M))
    return (int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024) if len(found) == 2 else None


def give_back() -> None:
    """Has glibc give memory that was freed back to the system: it keeps what the threads that load a model free."""
    with contextlib.suppress(OSError, AttributeError):  # another C library keeps what it keeps
        ctypes.CDLL(None).malloc_trim(0)


def _left_in_groups(root: Path) -> Iterator[int]:
    """The memory that each control group with a limit has left, from that of this process outwards."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in set(controllers.split(",")) & set(_GROUPS):
            top = root / "sys/fs/cgroup" / name
            limit_file, used_file, prefix = _GROUPS[name]
            inner = top / path.lstrip("/")
            for group in (inner, *inner.parents):
                if not group.is_relative_to(top):
                    break
                limit, used = _text(group / limit_file).strip(), _text(group / used_file).strip()
                if limit.isdigit() and used.isdigit():  # "max" is none
                    stat = _text(group / "memory.stat")
                    cached = re.findall(rf"^{prefix}(?:in)?active_file (\d+)", stat, re.M)
                    yield int(limit) - int(used) + sum(map(int, cached))


def _sum(config: DecoderConfig, of_row: Callable[[TensorRow], int]) -> int:
    """Sum over the tensors; layers are alike, so one is looked at."""
    rows = decoder_table(replace(config, num_layers=1))
    return sum(of_row(row) * (config.num_layers if row.path[0] == "layer_0" else 1) for row in rows)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
