"""Files that are written completely or not at all, and JSON in them."""

import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from qrag_jax.files.reading import MAX_JSON_BYTES, check_json, read_limited
from qrag_jax.types import InputError, UsageError

_RIGHTS = 0o777
_NEW, _PRIVATE = 0o666, 0o600


def write_whole(path: str | os.PathLike, content: str | bytes) -> None:
    """Writes a temporary file and renames it, so readers see the old file or the new one, never a part.

    Missing folders are made. Text is encoded as UTF-8 with its line ends. An existing file keeps its permissions; a new
    one gets the default ones of the process (umask). If the path is not a file (`/dev/stdout`), it is written directly.
    """
    path = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if path.is_dir():
        raise UsageError("is a folder; give the path of a file to write", file=path)
    if _is_open_elsewhere(path) or (path.exists() and not path.is_file()):
        path.write_bytes(data)
        return
    with whole_file(path) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which replaces `path` when the context ends; an exception leaves the old file, if any."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) & _RIGHTS if path.exists() else None
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        # The system applies the umask. A file that replaces another one stays private until it has that one's mode.
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _NEW if mode is None else _PRIVATE)
    except OSError as error:
        raise UsageError(f"cannot be written ({error.strerror or error}); give another path", file=path) from error
    try:
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException as error:  # always remove the incomplete file
        os.unlink(beside)
        if (
            isinstance(error, OSError) and error.errno and error.filename is None
        ):  # the error of a full disk names the file
            error.filename = str(path)
        raise


def _is_open_elsewhere(path: Path) -> bool:
    """True if a path means an open file (`/dev/stdout`, also redirected), which a rename would not reach."""
    return os.path.abspath(path).startswith(("/dev/std", "/dev/fd/", "/proc/"))


def write_json(path: str | os.PathLike, value: Any, *, indent: int | None = 2) -> None:
    """Writes strict JSON (no NaN) in ASCII, as `write_whole`."""
    write_whole(path, json.dumps(value, indent=indent, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object."""
    return json_object(_content(path), path)


def read_json_value(path: Path) -> Any:
    """Reads JSON of any kind."""
    return _parse(_content(path), path)


def json_object(content: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in the content of a file."""
    value = _parse(content, path)
    if not isinstance(value, dict):
        raise InputError("expected a JSON object; copy the folder again", file=path)
    return value


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise InputError("no such file; copy the folder again, or give a complete one", file=path)
    return read_limited(path, MAX_JSON_BYTES)


def _parse(content: bytes, path: Path) -> Any:
    check_json(content, path)
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"not valid JSON ({error}), so it is truncated or changed; copy the folder again", file=path
        ) from error
