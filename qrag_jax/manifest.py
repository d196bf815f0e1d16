"""A folder that can prove itself: `manifest.json` with the size and sha256 of every file in it. Imports no JAX."""

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import Any

from qrag_jax.types import InputError

MANIFEST = "manifest.json"


def write_manifest(folder: Path) -> None:
    """Hash every file under `folder` into its manifest; call it last, when nothing more is to be written."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in files_under(folder)
        if path != folder / MANIFEST
    }
    write_json(folder / MANIFEST, {"files": files})


def verify_manifest(folder: Path) -> None:
    """Compare every file of a folder with its manifest; files that it does not list are nobody's business.

    Raises:
        InputError: naming the first file that is missing, truncated or altered.
    """
    advice = "delete this step's folder to fall back to an older one, or copy it again from where it came"
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise InputError(f"{folder}: no manifest.json, so this is not a whole checkpoint; {advice}")
    files = read_json(manifest).get("files")
    if not isinstance(files, dict) or not files:
        raise InputError(f"{manifest}: lists no files; {advice}")
    for name, known in files.items():
        path = path_inside(folder, name, str(manifest))
        if not path.is_file():
            raise InputError(f"{path}: missing; {advice}")
        size = path.stat().st_size
        if not isinstance(known, dict) or size != known.get("bytes"):
            raise InputError(f"{path}: {size} bytes, the manifest says {known}; {advice}")
        if _sha256(path) != known.get("sha256"):
            raise InputError(f"{path}: altered since it was written (sha256 differs); {advice}")


def path_inside(root: Path, name: str, place: str) -> Path:
    """Path of a relative name that stays under `root`, on every system.

    Raises:
        InputError: an absolute name, a drive, a backslash or a step upwards; `place` opens the message.
    """
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/") or "\\" in name or ":" in parts[0] or "\0" in name:
        raise InputError(f"{place}: {name!r} is not a file name under the checkpoint; use a plain relative name")
    return root.joinpath(*parts)


def files_under(folder: Path) -> list[Path]:
    """Every file under a folder, sorted; none when there is no such folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN), indented."""
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8", newline="")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: the file is no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON ({error}): truncated or altered; copy the checkpoint again") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object; copy the checkpoint again")
    return value


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
