"""Memory of a test process: what it compiled, and what the allocator keeps, is given back where it has grown."""

import ctypes
import os
from pathlib import Path

LARGE = 5 << 28  # bytes: what is forgotten is read from the disk again, program by program


def give_back(above: int = LARGE) -> None:
    """A process that holds more forgets what it compiled, which the disk keeps."""
    if resident_bytes() < above:
        return
    import jax

    jax.clear_caches()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """What this process holds now; where no /proc tells, as much as counts as large."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else LARGE
