"""The memory of this machine, and what its processor does."""

import contextlib
import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

from qrag_jax.types import UsageError

_ROOT = Path("/")
# Files of a control group: its limit, what it holds, and by which name its part that can be dropped is told.
_GROUPS = {
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),  # version 1
    "": ("memory.max", "memory.current", ""),  # version 2
}


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


def refuse_beyond(available: int | None, what: str, num_parameters: int, dtype: str) -> None:
    """Refuses a model whose parameters alone do not fit into memory.

    Args:
        available: bytes; None is unknown, and everything fits.
        what: the model, for the message.
        dtype: of the parameters.

    Raises:
        UsageError: they do not fit.
    """
    size = 2 if dtype == "bfloat16" else 4
    if available is None or num_parameters * size <= available:
        return
    raise UsageError(
        f"{what}: its {num_parameters / 1e6:,.0f} million parameters take at least "
        f"{num_parameters * size / 1e9:,.2f} GB as {dtype}, and {available / 1e9:,.2f} GB of memory are "
        f"available: a model that fits has at most {available // size / 1e6:,.0f} million parameters"
    )


def multiplies_bfloat16(root: Path = _ROOT) -> bool:
    """True if the processor has instructions for products of bfloat16 matrices (x86-64: AMX or AVX-512; ARM: bf16)."""
    flags = re.search(r"^(?:flags|Features)\s*:(.*)", _text(root / "proc/cpuinfo"), re.M)
    return flags is not None and not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(flags[1].split())


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
