import errno
import hashlib
import json
import os
import shutil

import pytest

from qrag_jax.files.manifest import (
    find_damage,
    json_text,
    path_inside,
    sync_folder,
    verify_manifest,
    write_manifest,
)
from qrag_jax.files.whole_file import read_json, write_json
from qrag_jax.types import InputError

FILES = {"a.txt": b"abc", "deep/er/b.bin": bytes(range(256)), "empty": b""}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    write_manifest(folder)
    return folder


def rewrite(folder, change):
    """The manifest with another content, in the form that it is written in."""
    value = json.loads((folder / "manifest.json").read_text())
    write_json(folder / "manifest.json", change(value), indent=1)


def test_what_is_in_a_manifest(folder):
    value = read_json(folder / "manifest.json")
    assert value["files"]["a.txt"] == {
        "bytes": 3,
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",  # FIPS 180-2, B.1
    }
    assert list(value["files"]) == sorted(FILES) and set(value) == {"files", "sha256"}
    text = json.dumps(value["files"], indent=1) + "\n"
    assert value["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert find_damage(folder) is None
    verify_manifest(folder)


def test_every_single_bit_of_the_manifest_counts(folder):
    """A flip in every byte, and cuts: each is found, and the manifest is named, never a file that it lists."""
    path = folder / "manifest.json"
    content = path.read_bytes()
    harmed = [content[:size] for size in [*range(0, len(content), 9), len(content) - 1]]
    for place, byte in enumerate(content):
        harmed.append(content[:place] + bytes([byte ^ 1 << place % 8]) + content[place + 1 :])
    for other in harmed:
        path.write_bytes(other)
        fault = find_damage(folder)
        assert fault is not None and fault.startswith(f"{path}: "), other
    path.write_bytes(content)
    assert find_damage(folder) is None


def test_every_single_bit_of_a_file_counts(folder):
    for name, content in FILES.items():
        path = folder / name
        for place in range(0, len(content), 3):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
            assert find_damage(folder) == f"{path}: changed since it was written (sha256 differs)"
        path.write_bytes(content + b"x")
        assert find_damage(folder).startswith(f"{path}: {len(content) + 1} bytes, the manifest says")
        path.unlink()
        assert find_damage(folder) == f"{path}: missing"
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.txt: missing; delete this step's folder .* copy it again"):
        (folder / "a.txt").unlink()
        verify_manifest(folder)


def test_no_manifest(tmp_path):
    assert find_damage(tmp_path) == f"{tmp_path}: no manifest.json, so the checkpoint is incomplete"
    assert find_damage(tmp_path / "absent").endswith("absent: no manifest.json, so the checkpoint is incomplete")
    for content in (b"", b"[]", b"{}", b'{"files": []}', b"\xff", b"[" * 10_000, b'{"files": ' + b"9" * 5000 + b"}"):
        (tmp_path / "manifest.json").write_bytes(content)
        assert find_damage(tmp_path).startswith(f"{tmp_path / 'manifest.json'}: ")


@pytest.mark.parametrize(
    "change",
    [
        lambda value: {"sha256": value["sha256"], "files": value["files"]},
        lambda value: value | {"more": 1},
        lambda value: value | {"sha256": "0" * 64},
        lambda value: value | {"files": {**value["files"], "b": {"bytes": 1, "sha256": ""}}},
    ],
)
def test_a_manifest_that_somebody_edited(folder, change):
    rewrite(folder, change)
    assert find_damage(folder) == f"{folder / 'manifest.json'}: changed since it was written"


@pytest.mark.parametrize("known", [1, None, [], {}, {"bytes": 3}, {"bytes": 3, "sha256": None}])
def test_an_entry_that_is_none(folder, known):
    """Of a manifest without a hash of its own, as they were before: nothing in it is taken on trust."""
    rewrite(folder, lambda value: {"files": {"a.txt": known}})
    assert find_damage(folder).startswith(f"{folder / 'a.txt'}: ")


def test_a_manifest_without_a_hash_of_its_own_is_read(folder):
    rewrite(folder, lambda value: {"files": value["files"]})
    assert find_damage(folder) is None


def test_what_is_not_listed_is_nobodys_business(folder):
    (folder / "notes.md").write_text("mine")
    assert find_damage(folder) is None


def test_a_folder_can_be_moved(folder, tmp_path):
    shutil.move(folder, tmp_path / "elsewhere")
    verify_manifest(tmp_path / "elsewhere")


@pytest.mark.parametrize("name", ["../a.txt", "/etc/passwd", "a\\b", "C:x", "", "a\0b", "x" * 5000, "\ud800"])
def test_names_that_lead_nowhere(folder, name):
    rewrite(folder, lambda value: {"files": {name: {"bytes": 1, "sha256": ""}}})
    assert find_damage(folder) is not None


def test_a_bad_block_is_damage(folder, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(hashlib, "file_digest", broken)
    assert find_damage(folder) == f"{folder / 'a.txt'}: cannot be read (Input/output error)"


def test_a_file_system_that_cannot_sync_folders(tmp_path, monkeypatch):
    def refuse(number):
        def fsync(descriptor):
            raise OSError(number, "no")

        return fsync

    monkeypatch.setattr(os, "fsync", refuse(errno.EINVAL))
    sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", refuse(errno.EIO))
    with pytest.raises(OSError, match="no"):
        sync_folder(tmp_path)


def test_path_inside(tmp_path):
    assert path_inside(tmp_path, "a/b", "here") == tmp_path / "a" / "b"
    with pytest.raises(InputError, match=r"here: '\.\./b' is not a file name under the checkpoint"):
        path_inside(tmp_path, "../b", "here")


def test_strict_json(tmp_path):
    (tmp_path / "x.json").write_bytes(json_text({"é": [1, 0.1, None]}))
    assert read_json(tmp_path / "x.json") == {"é": [1, 0.1, None]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        (tmp_path / "x.json").write_bytes(json_text({"a": float("nan")}))
