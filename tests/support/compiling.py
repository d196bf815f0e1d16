"""How a test run compiles: quickly, and nothing twice. Imported before jax, by conftest.py.

Most of a test run is the compilation of tiny programs that hardly run. So XLA optimises little, by the flags below. An
unknown flag ends the process, so another process tries them once for each jaxlib and names those that are unknown.
What was compiled is kept in .pytest_cache, for the other worker and for the next run. `QRAG_FAST_COMPILE=0` compiles as
users do, as `make oracle` does, whose tolerances are the tight ones.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".pytest_cache"
FAST = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",  # half of the time that was left
    "--xla_cpu_parallel_codegen_split_count=1",
)
MAX_BYTES = 1 << 30  # of compiled programs; a whole run leaves a fraction of it
KEPT = 3  # folders of compiled programs: of as many environments that take turns


def fast_flags() -> list[str]:
    """The flags that the installed XLA knows; the answer is kept for a jaxlib."""
    if os.environ.get("QRAG_FAST_COMPILE", "1") == "0":
        return []
    answer = FOLDER / f"xla-flags-{version('jaxlib')}"
    if not answer.is_file():
        flags, said = list(FAST), _refusal(FAST)
        if said is not None:  # it names the flags that are unknown
            flags = [flag for flag in FAST if flag.partition("=")[0] not in said]
            flags = [] if _refusal(flags) is not None else flags
        FOLDER.mkdir(parents=True, exist_ok=True)
        answer.write_text(" ".join(flags))
    return answer.read_text().split()


def _refusal(flags: Sequence[str]) -> str | None:
    """The error of a process that compiles with these flags; None where it succeeds."""
    env = os.environ | {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, "-c", "import jax; jax.jit(lambda x: x + 1)(1.0)"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr


def compiled_folder() -> Path:
    """Where compiled programs are kept: a folder for each jaxlib, set of flags and processor."""
    made_of = (version("jax"), version("jaxlib"), sys.version, os.environ.get("XLA_FLAGS", ""), _processor())
    digest = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:12]
    folder = FOLDER / f"xla-{version('jaxlib')}-{digest}"
    size = sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
    if size > MAX_BYTES:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    others = [path for path in FOLDER.glob("xla-*") if path.is_dir()]
    for path in sorted(others, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)
    return folder


def _processor() -> str:
    """What programs are compiled for: those of another machine on the same disk may not run here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


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
