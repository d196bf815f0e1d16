"""The user's cache folder, and in it the programs that XLA has compiled, for the next command. Imports no JAX.

Programs run in this process as they stand there. So the folder belongs to the user alone, and one that others may write
into is not used. Its name tells the releases of JAX and the processor that its programs are for.
"""

import hashlib
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

MAX_BYTES = 256 * 2**20  # of all compiled programs; a search has a few of 60 KB, a training run some of megabytes
_FOLDER, _ENABLED = "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"
_ENTRY = "-cache"  # how JAX ends the name of a program's file
_LOOKED_AT = "looked_at"  # a file: programs that are older than it are whole
_ZLIB = b"\x78"


def cache_folder() -> Path:
    """`qrag_jax` in XDG_CACHE_HOME, or in ~/.cache; it need not be there."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "qrag_jax"


def keep_compiled(max_bytes: int = MAX_BYTES) -> Path | None:
    """Has JAX keep what it compiles in this process, and take what it has compiled before.

    Nothing happens where JAX was imported or told otherwise before, or where no such folder can be had.

    Args:
        max_bytes: where there is more, the programs that were not used for longest go, down to half of it.

    Returns:
        The folder; None where nothing is kept.
    """
    if "jax" in sys.modules or os.environ.get(_FOLDER) or os.environ.get(_ENABLED, "1").lower() in ("0", "false"):
        return None
    try:
        folder = _own_folder(cache_folder() / "xla", _made_for())
        if folder is not None:
            _remove_halves(folder)
            _trim(folder.parent, max_bytes)
    except (OSError, RuntimeError):  # no home, no rights, a full disk: then this command compiles as it always did
        return None
    if folder is not None:
        os.environ[_FOLDER] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # most of a search is many small ones
    return folder


def _own_folder(parent: Path, name: str) -> Path | None:
    """A folder in a folder, both made for the user alone; None where others may write into one of them."""
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
    """Of what hangs whether a program runs here: JAX, Python and processor; compiled for another one it may not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    digest = hashlib.sha256("\0".join((sys.version, processor)).encode()).hexdigest()[:12]
    return f"jax-{version('jax')}-{version('jaxlib')}-{digest}"


def _remove_halves(folder: Path) -> None:
    """Removes programs that were not written to their end by a process that died: JAX would never replace them."""
    mark = folder / _LOOKED_AT
    since = mark.stat().st_mtime_ns if mark.exists() else 0
    mark.touch(mode=0o600)
    for path, status in _entries(folder):
        if status.st_mtime_ns >= since and not _is_whole(path):
            path.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    content = path.read_bytes()
    if content and not content.startswith(_ZLIB):
        return True  # packed by another library, which JAX takes where it is installed
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
    """The files of programs, but for those that another process has removed meanwhile."""
    with os.scandir(folder) as found:
        for entry in found:
            if entry.name.endswith(_ENTRY) and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    yield Path(entry.path), entry.stat(follow_symlinks=False)
