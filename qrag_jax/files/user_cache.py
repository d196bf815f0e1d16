"""The user's cache folder, with the programs that XLA has compiled, for later commands. Imports no JAX.

JAX runs these programs in this process. So the folder belongs only to the user, and is not used if others can write to
it. Its name depends on the versions of JAX and Python and on the processor.
"""

import hashlib
import os
import platform
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

MAX_BYTES = 256 * 2**20  # of all compiled programs; a search has a few of 60 KB, a training run some of megabytes
_FOLDER, _ENABLED = "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"
_ENTRY = "-cache"  # JAX's suffix for the file of a program
_LOOKED_AT = "looked_at"  # a file: older programs are complete
_ZLIB = b"\x78"


def cache_folder() -> Path:
    """`qrag_jax` in XDG_CACHE_HOME, or in ~/.cache; it may not exist."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "qrag_jax"


def keep_compiled(max_bytes: int = MAX_BYTES) -> Path | None:
    """Makes JAX store the programs that it compiles in this process, and use those stored before.

    Does nothing if JAX is already imported or configured otherwise, or if the folder cannot be made.

    Args:
        max_bytes: if there is more, the least recently used programs are removed, down to half of it.

    Returns:
        The folder; None if nothing is stored.
    """
    if "jax" in sys.modules or os.environ.get(_FOLDER) or os.environ.get(_ENABLED, "1").lower() in ("0", "false"):
        return None
    try:
        folder = _own_folder(cache_folder() / "xla", _made_for())
        if folder is not None:
            _remove_halves(folder)
            _trim(folder.parent, max_bytes)
    except (OSError, RuntimeError):  # no home, no permission, a full disk: compile without the cache
        return None
    if folder is not None:
        os.environ[_FOLDER] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # most of a search is many small ones
    return folder


def _own_folder(parent: Path, name: str) -> Path | None:
    """A folder in a folder, both made only for the user; None if others may write to one of them."""
    folder = parent / name
    folder.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if not is_own or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _made_for() -> str:
    """A digest of JAX, Python and processor: programs compiled for other ones may not run."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    digest = hashlib.sha256("\0".join((sys.version, platform.machine(), processor)).encode()).hexdigest()[:12]
    return f"jax-{version('jax')}-{version('jaxlib')}-{digest}"


def _remove_halves(folder: Path) -> None:
    """Removes programs that a killed process has not finished, because JAX would never replace them."""
    mark = folder / _LOOKED_AT
    since = mark.stat().st_mtime_ns if mark.exists() else 0
    mark.touch(mode=0o600)
    for path, status in _entries(folder):
        if status.st_mtime_ns >= since and not _is_whole(path):
            path.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    content = path.read_bytes()
    if content and not content.startswith(_ZLIB):
        return True  # packed by another library, which JAX uses if it is installed
    try:
        unpacker = zlib.decompressobj()
        unpacker.decompress(content)
        return unpacker.eof
    except zlib.error:
        return False


def _trim(parent: Path, max_bytes: int) -> None:
    """Keeps the programs of all folders within a size."""
    entries = [entry for folder in parent.iterdir() if folder.is_dir() for entry in _entries(folder)]
    size = sum(status.st_size for _, status in entries)
    if size <= max_bytes:
        return
    for path, status in sorted(entries, key=lambda entry: max(entry[1].st_atime_ns, entry[1].st_mtime_ns)):
        if size <= max_bytes // 2:
            return
        path.unlink(missing_ok=True)
        size -= status.st_size


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files of programs, except those that another process has removed."""
    with os.scandir(folder) as found:
        for entry in found:
            if entry.name.endswith(_ENTRY) and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    yield Path(entry.path), entry.stat(follow_symlinks=False)
