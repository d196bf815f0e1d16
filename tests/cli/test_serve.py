"""`qrag serve` from the command line: what it refuses before it listens, and a server that a signal ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace

import pytest
from support.indices import SETTINGS, update, write_notes
from support.tiers import PATIENCE

from qrag_jax.cli.main import main

QUESTION = "Who has the key?"


@pytest.fixture
def index(tmp_path, monkeypatch):
    monkeypatch.delenv("QRAG_TOKEN", raising=False)
    settings = replace(SETTINGS, model="minilm")  # its tokenizer counts; no vector is compared
    update(tmp_path / "notes.index", write_notes(tmp_path / "notes", key="Mary has the key."), settings=settings)
    return str(tmp_path / "notes.index")


def refused(capsys, *argv):
    assert main(["serve", *argv]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org"])
def test_other_machines_need_a_token(index, host, capsys):
    assert "needs a token" in refused(capsys, index, "--host", host)


@pytest.mark.parametrize("token", ["secret ", "secret\n"])
def test_a_token_that_no_client_can_send(index, token, capsys):
    assert "no client can send" in refused(capsys, index, "--token", token)


@pytest.mark.parametrize("name", ["a.example:443", "http://a.example/", "*"])
def test_a_name_with_more_than_a_name(index, name, capsys):
    assert "bare name" in refused(capsys, index, "--allowed_host", name)


def test_two_servers_on_one_port_and_places_that_are_not_there(index, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"127.0.0.1:{port}: cannot listen there" in refused(capsys, index, "--port", port)
    assert "at most 65535" in refused(capsys, index, "--port", "99999")
    assert "nowhere" in refused(capsys, "nowhere.index")
    assert "no such folder" in refused(capsys, index, "--retriever", "nothing", "--port", "0")


def test_a_missing_package_is_named_with_its_pip_line(index, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    for name in [name for name in sys.modules if name.startswith("qrag_jax.serve")]:
        monkeypatch.delitem(sys.modules, name)
    assert "pip install 'qrag_jax[serve]'" in refused(capsys, index, "--port", "0")


@pytest.mark.slow
def test_it_serves_until_a_signal_ends_it(index):
    in_background = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]  # as `&` in a script: the signal is ignored at first
    argv = [
        *in_background,
        sys.executable,
        "-m",
        "qrag_jax.cli.main",
        "serve",
        index,
        "--retriever",
        "bm25",
        "--port",
        "0",
    ]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=os.environ | {"QRAG_TOKEN": "t"}) as server:
        said = server.stderr.readline()
        url = said.split()[0]
        asked = urllib.request.Request(f"{url}/v1/search", json.dumps({"question": QUESTION}).encode())
        asked.add_header("Authorization", "Bearer t")
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            assert json.load(answer)["hits"][0]["text"] == "Mary has the key."
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE) == 130 and "stopped" in server.stderr.read()
