import os

import pytest
from support.documents import paragraph, tiny_docx, tiny_epub, tiny_odt, tiny_pdf
from support.tiers import slow_but

from qrag_jax.documents import convert as module
from qrag_jax.documents.convert import convert
from qrag_jax.documents.kinds import is_installed
from qrag_jax.types import InputError

FILES = {
    "pdf": tiny_pdf([["Text."]]),
    "docx": tiny_docx(paragraph("Text.")),
    "odt": tiny_odt("<text:p>Text.</text:p>"),
    "epub": tiny_epub({"a.xhtml": "<p>Text.</p>"}),
    "html": b"<p>Text.</p>",
}
NOT_LINUX = not os.path.exists("/proc/self/statm")

pytestmark = pytest.mark.skipif(NOT_LINUX, reason="limits are measured by Linux")


@pytest.mark.skipif(not is_installed(), reason="the extra `documents` is not installed")
@pytest.mark.parametrize("kind", slow_but(["pdf"], FILES))
def test_every_kind_is_read_within_the_limits_of_its_child(kind):
    found = convert("a", kind, FILES[kind])
    assert (found.text, found.pages, found.left_out) == ("Text.", (0,) if kind == "pdf" else None, {})


@pytest.fixture
def reading(monkeypatch):
    """Puts the body of a function in the place of what reads a file in the child."""

    def put(body, before=""):
        lines = [
            "import os, socket, subprocess, time", "from pathlib import Path",
            "from qrag_jax.documents import child", "from qrag_jax.documents.converted import Converted",
            f"def read(raw): {body}", "child.reader = lambda kind, options: read", before, "child.main()",
        ]  # fmt: skip
        monkeypatch.setattr(module, "_COMMAND", "\n".join(lines))

    return put


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ("open('/etc/passwd')", "a document asked for '/etc/passwd'"),
        ("os.open('/etc/passwd', os.O_RDONLY)", "a document asked for '/etc/passwd'"),
        ("open(os.path.join(os.path.dirname(os.__file__), 'mark'), 'w')", "a document asked for "),
        ("Path('mark').mkdir()", "a document asked for os.mkdir"),
        ("subprocess.run(['true'])", "a document asked for subprocess.Popen"),
        ("os.system('true')", "a document asked for os.system"),
        ("os.fork()", "a document asked for os.fork"),
        ("socket.create_connection(('127.0.0.1', 1))", "a document asked for socket."),
        ("socket.getaddrinfo('localhost', 1)", "a document asked for socket.getaddrinfo"),
    ],
)
def test_a_document_gets_no_file_no_process_and_no_connection(reading, body, asked):
    reading(body)
    with pytest.raises(InputError, match=rf"a.pdf: cannot be read as PDF \(PermissionError: {asked}.*check it"):
        convert("a.pdf", "pdf", b"")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("bytes(600 * 2**20)", "a.pdf: needs more than 512 MB of memory to be read; split it"),
        ("read(raw)", "a.pdf: is nested too deep, so it is damaged or hostile"),
        ("os.abort()", r"a.pdf: its reader crashed \(SIGABRT\), so it is damaged, hostile or needs over 512 MB"),
        ("os._exit(3)", "a.pdf: its reader ended with code 3; .* .pip install"),
        ("{}['x']", r"a.pdf: cannot be read as PDF \(KeyError: 'x'\); check it"),
    ],
)
def test_what_happens_to_a_child_is_told_and_happens_to_nobody_else(reading, body, message):
    reading(body)
    with pytest.raises(InputError, match=message):
        convert("a.pdf", "pdf", b"")


def test_time_is_limited(reading, monkeypatch):
    reading("[x for x in iter(int, 1)]", "child.SECONDS = 0")
    with pytest.raises(InputError, match="a.pdf: takes more than 30 seconds of CPU time to be read; split it"):
        convert("a.pdf", "pdf", b"")
    monkeypatch.setattr(module, "_WALL_SECONDS", 0.2)
    reading("time.sleep(60)")
    with pytest.raises(InputError, match="a.pdf: takes more than 0.2 seconds to be read; split it"):
        convert("a.pdf", "pdf", b"")


def test_a_child_knows_no_secrets(reading, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    reading("return Converted(str(sorted(os.environ)))")
    assert "PYTHONPATH" in (names := convert("a", "pdf", b"").text) and "OPENAI_API_KEY" not in names


def test_a_text_of_any_characters_comes_back(reading):
    reading("return Converted(raw.decode('utf-16'), (0, 3), {'x': 1})")
    found = convert("a", "pdf", 'ö\u2028\U0001f600\n"'.encode("utf-16"))
    assert (found.text, found.pages, found.left_out) == ('ö\u2028\U0001f600\n"', (0, 3), {"x": 1})
