import io
from types import SimpleNamespace

import pytest

from qrag_jax.data.questions.asked import Asked, read_asked
from qrag_jax.types import InputError, UsageError


@pytest.fixture
def piped(monkeypatch):
    """Bytes -> they are standard input."""

    def pipe(content):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    return pipe


TEXT = 'Where is the key? \r\n\n{"question": "Who has it?", "id": 7, "answer": "Mary"}\n{"question": "Why?"}\n'
FOUND = [Asked("Where is the key?"), Asked("Who has it?", "7"), Asked("Why?")]


def test_a_question_a_line_plain_or_as_json(tmp_path, piped):
    path = tmp_path / "questions.txt"
    path.write_text(TEXT)
    assert list(read_asked(str(path))) == FOUND
    piped(b"\xef\xbb\xbf" + TEXT.encode())
    assert list(read_asked("-")) == FOUND


def test_standard_input_is_answered_as_it_comes(piped):
    """The second line is looked at when the first has been answered."""
    piped(b'Who?\n{"question": 1}\n')
    asked = read_asked("-")
    assert next(asked) == Asked("Who?")
    with pytest.raises(InputError, match="-:2: question must be a text that is not empty, got 1"):
        next(asked)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "a"', ":2: not JSON .*expected a question a line"),
        ('{"query": "a"}', ":2: question must be a text that is not empty, got None"),
        ('{"question": "a", "id": true}', ":2: id must be a text or an integer, got True"),
    ],
)
def test_a_bad_line_is_named_before_any_is_answered(tmp_path, line, message):
    path = tmp_path / "questions.txt"
    path.write_text(f"Where?\n{line}\n")
    with pytest.raises(InputError, match=message):
        read_asked(str(path))


def test_refusals(tmp_path, piped, monkeypatch):
    with pytest.raises(UsageError, match="nowhere.txt: no such file; expected a question a line"):
        read_asked("nowhere.txt")
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(InputError, match="blank.txt: no question in it"):
        read_asked(str(tmp_path / "blank.txt"))
    piped(b"caf\xe9\n")
    with pytest.raises(InputError, match="-:1: not UTF-8 text"):
        next(read_asked("-"))
    piped(b"a" * ((1 << 20) + 1))
    with pytest.raises(InputError, match="-:1: a line of more than 1,048,576 bytes"):
        next(read_asked("-"))
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        next(read_asked("-"))
