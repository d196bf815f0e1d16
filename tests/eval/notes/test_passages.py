import gzip
import json

import pytest

from qrag_jax.eval.notes.note_sets import read_passages
from qrag_jax.types import InputError, UsageError

ROWS = [{"title": "A", "text": "one\n two"}, {"title": "", "text": " "}, {"paragraph_text": "three"}]


@pytest.mark.parametrize("name", ["p.json", "p.json.gz", "p.jsonl"])
def test_rows_are_read(tmp_path, name):
    text = "\n".join(map(json.dumps, ROWS)) if name.endswith("jsonl") else json.dumps(ROWS)
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert read_passages(path) == [("A", "one two"), ("", "three")]


def test_an_object_of_titles_is_read(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"A": ["one.", " two."], "B": "three"}))
    assert read_passages(path) == [("A", "one. two."), ("B", "three")]


@pytest.mark.parametrize(
    "content, message",
    [
        ('[{"title": "A", "text": 3}]', r"p.json: row 0: text must be a text or sentences, got 3; expected passages"),
        ('[{"title": 3, "text": "a"}]', "row 0: title must be a text"),
        ('[{"title": "A"}]', "row 0: text must be a text or sentences, got None"),
        ('{"A": {"b": 1}}', "p.json: 'A': text must be a text"),
        ('{"A": ["a"', "p.json: not JSON"),
        ('{"A": " "}', "p.json: no passage with a text"),
    ],
)
def test_bad_passages_are_refused(tmp_path, content, message):
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_passages(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read_passages(tmp_path / "p.json")
