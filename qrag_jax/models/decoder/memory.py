"""Memory: the need of a decoder, the free memory of this machine, and an error before a model that does not fit is
loaded."""

import contextlib
import ctypes
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
from numpy.typing import DTypeLike

from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.table import decoder_table
from qrag_jax.types import UsageError

_ROOT = Path("/")
# Files of a control group: its limit, what it holds, and by which name its part that can be dropped is told.
_GROUPS = {
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),  # version 1
    "": ("memory.max", "memory.current", ""),  # version 2
}


def num_parameters(config: DecoderConfig) -> int:
    """Numbers of all tensors; an output layer that is the embedding table counts once."""
    rows = decoder_table(replace(config, num_layers=1))  # layers are alike, so one is looked at
    return sum(math.prod(row.shape) * (config.num_layers if row.place else 1) for row in rows)


def check_memory(config: DecoderConfig, source: str | Path, dtype: DTypeLike) -> None:
    """Raises an error for a model whose parameters alone do not fit into this machine's memory.

    Never on accelerators, or if the memory is unknown.

    Args:
        source: names it in the error.
        dtype: of the parameters.
    """
    available = available_bytes() if jax.default_backend() == "cpu" else None
    number, size = num_parameters(config), jnp.dtype(dtype).itemsize
    if available is None or number * size <= available:
        return
    raise UsageError(
        f"language model {str(source)!r}: its {number / 1e6:,.0f} million parameters take at least "
        f"{number * size / 1e9:,.2f} GB as {jnp.dtype(dtype).name}, and {available / 1e9:,.2f} GB of memory are "
        f"available: a model that fits has at most {available // size / 1e6:,.0f} million parameters"
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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
