"""Files that are written whole or not at all."""

import os
import tempfile
from pathlib import Path

from qrag_jax.types import UsageError


def write_whole(path: str | os.PathLike, content: str | bytes) -> None:
    """Writes a file beside its place and moves it there: readers see the old file or the new one, never a part.

    Missing folders are made; text becomes UTF-8, its line ends stay. What is no file (`/dev/stdout`) is written to.

    Raises:
        UsageError: a folder, or a place where no file can be made.
        OSError: the disk is full, or fails.
    """
    path = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; give the path of a file to write")
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error}); give another path") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, 0o644)  # mkstemp makes files that only their owner can read
        os.replace(beside, path)
    except BaseException:  # whatever ends the writing, no half file stays
        os.unlink(beside)
        raise
