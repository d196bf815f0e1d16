"""A manifest for a folder: `manifest.json` with the size and sha256 of every file. Imports no JAX.

The manifest also contains the sha256 of its own list, and is compared byte for byte. So one changed bit anywhere, in
the manifest or in a listed file, is found, and the message names that file. Other files are ignored, so you may put a
note into the folder. A manifest is not a signature: whoever can write to the folder can write a matching manifest.
"""

import errno
import hashlib
import json
import os
from pathlib import Path, PurePosixPath
from typing import Any

from qrag_jax.files.whole_file import json_object, read_json
from qrag_jax.types import InputError

MANIFEST = "manifest.json"
ADVICE = "delete this step's folder to fall back to an older one, or copy it again from the source"
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)


def write_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Hashes every file under `folder` into its manifest. Call it last, after everything else is written.

    When it returns, every file and folder entry is on the disk, not only in its cache. So the folder may be renamed to
    its final place, and after a power cut it is complete or absent.

    Returns:
        The listed files: `bytes` and `sha256` by name.
    """
    files = {}
    for path in files_under(folder):
        if path != folder / MANIFEST:
            size, digest = _hash(path, sync=True)
            files[path.relative_to(folder).as_posix()] = {"bytes": size, "sha256": digest}
    path = folder / MANIFEST
    path.write_bytes(json_text({"files": files, "sha256": _own_hash(files)}))
    _hash(path, sync=True)
    for inner in sorted(path for path in folder.rglob("*") if path.is_dir()):
        sync_folder(inner)
    sync_folder(folder)
    return files


def find_damage(folder: Path) -> str | None:
    """The first damage of a folder by its manifest, `FILE: what`; None if there is none."""
    path = folder / MANIFEST
    if not path.is_file():
        return f"{folder}: no {MANIFEST}, so the checkpoint is incomplete"
    try:
        content = path.read_bytes()
        files = _listed_files(content, path)
        for name, known in files.items():
            path = path_inside(folder, name, str(folder / MANIFEST))
            if fault := _file_fault(path, known):
                return f"{path}: {fault}"
    except OSError as error:  # a bad block of the disk is damage too
        return f"{path}: cannot be read ({error.strerror or error})"
    except InputError as error:
        return str(error)
    return None


def verify_manifest(folder: Path) -> None:
    """Compares every file of a folder with its manifest."""
    if fault := find_damage(folder):
        raise InputError(f"{fault}; {ADVICE}")


def path_inside(root: Path, name: str, place: str) -> Path:
    """The path of a relative name under `root`; refuses names that leave it on any system."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/") or "\\" in name or ":" in parts[0] or "\0" in name:
        raise InputError(f"{place}: {name!r} is not a file name under the checkpoint; use a plain relative name")
    return root.joinpath(*parts)


def files_under(folder: Path) -> list[Path]:
    """Every file under a folder, sorted; empty if the folder does not exist."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def listed_files(folder: Path) -> list[str]:
    """Names of the files that a folder's manifest lists; each is plain and relative."""
    path = folder / MANIFEST
    files = read_json(path).get("files")
    if not isinstance(files, dict) or not files:
        raise InputError("lists no files; copy the checkpoint again", file=path)
    for name in files:
        path_inside(folder, name, str(path))
    return list(files)


def check_inside(root: Path, path: Path) -> Path:
    """The path, if none of its links leads out of `root`."""
    real = os.path.realpath(path)
    if not Path(real).is_relative_to(os.path.realpath(root)):
        raise InputError(
            f"is a link out of {root}, to {real}, and such links are not followed; replace it by a copy, or remove it",
            file=path,
        )
    return path


def sync_folder(folder: Path) -> None:
    """Writes the entries of a folder (files made, renamed or removed in it) to the disk, if its system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:  # some network file systems sync files only
            raise
    finally:
        os.close(descriptor)


def json_text(value: Any, allow_nan: bool = False) -> bytes:
    """Strict JSON (no NaN, unless allowed), indented."""
    return (json.dumps(value, indent=1, allow_nan=allow_nan) + "\n").encode()


def _listed_files(content: bytes, path: Path) -> dict[str, Any]:
    """The files of a manifest, if it is byte for byte what was written."""
    value = json_object(content, path)
    files = value.get("files")
    if not isinstance(files, dict) or not files:
        raise InputError("lists no files", file=path)
    # Writing it again gives the same bytes, so no blank, line end or key may differ. The first manifests had no hash of
    # their own, and no key except "files".
    whole = {"files": files, "sha256": _own_hash(files)} if "sha256" in value else {"files": files}
    if content != json_text(whole, allow_nan=True):
        raise InputError("changed since it was written", file=path)
    return files


def _own_hash(files: dict[str, Any]) -> str:
    return hashlib.sha256(json_text(files, allow_nan=True)).hexdigest()


def _file_fault(path: Path, known: Any) -> str | None:
    if not path.is_file():
        return "missing"
    size = path.stat().st_size
    if not isinstance(known, dict) or size != known.get("bytes"):
        return f"{size} bytes, the manifest says {known}"
    if _hash(path)[1] != known.get("sha256"):
        return "changed since it was written (sha256 differs)"
    return None


def _hash(path: Path, sync: bool = False) -> tuple[int, str]:
    """Size and sha256; with `sync` the content is on the disk afterwards."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if sync:
            os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size, digest
