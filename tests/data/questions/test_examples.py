"""Users' own examples from JSON Lines."""

import json

import pytest

from qrag_jax.data.questions.examples import read_examples
from qrag_jax.types import Example, InputError, UsageError

GOOD = {"question": "Where?", "chunks": ["one", "two", "three"], "gold": [2, 0]}


def write(tmp_path, *rows):
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_reads_examples(tmp_path):
    path = write(tmp_path, GOOD, "", GOOD | {"id": 7, "answer": "there", "extra": [1]})
    assert read_examples(path) == [
        Example("own.jsonl:1", "Where?", ("one", "two", "three"), (0, 2), None),
        Example("7", "Where?", ("one", "two", "three"), (0, 2), "there"),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"question": ', "not JSON"),
        ("[1]", "expected a JSON object, got list"),
        (GOOD | {"question": " "}, "question must be a text that is not empty"),
        ({"chunks": ["a"], "gold": [0]}, "question must be a text .* got None"),
        (GOOD | {"chunks": []}, "chunks must be a list of texts, at least one"),
        (GOOD | {"chunks": "one"}, "chunks must be a list of texts"),
        (GOOD | {"chunks": ["a", " "], "gold": [0]}, r"chunks\[1\] must be a text that is not empty"),
        (GOOD | {"chunks": ["a", 3], "gold": [0]}, r"chunks\[1\] must be a text .* got 3"),
        (GOOD | {"gold": [3]}, r"gold chunk 3 does not exist; chunks has 3 \(indices 0..2\)"),
        (GOOD | {"gold": [-1]}, "gold chunk -1 does not exist"),
        (GOOD | {"gold": [True]}, "gold must hold integers, got True"),
        (GOOD | {"gold": [0.0]}, "gold must hold integers, got 0.0"),
        (GOOD | {"gold": []}, "gold must be a list of indices into chunks, at least one"),
        (GOOD | {"question": "a \ud800"}, "question holds half of a surrogate pair"),
        (GOOD | {"chunks": ["a", "\udfff"], "gold": [0]}, r"chunks\[1\] holds half of a surrogate pair"),
        (GOOD | {"gold": [1, 1]}, "gold names a chunk twice"),
        (GOOD | {"answer": 3}, "answer must be a text"),
        (GOOD | {"id": ["x"]}, "id must be a text or an integer"),
        (GOOD | {"id": "own.jsonl:1"}, "id 'own.jsonl:1' was used before at .*own.jsonl:1"),
    ],
)
def test_refusals_name_file_and_line(tmp_path, row, message):
    with pytest.raises(InputError, match=rf"own.jsonl:2: .*{message}"):
        read_examples(write(tmp_path, GOOD, row))


def test_a_refusal_has_its_place_field_and_value(tmp_path):
    path = write(tmp_path, GOOD, GOOD | {"chunks": ["a", 3], "gold": [0]})
    with pytest.raises(InputError) as caught:
        read_examples(path)
    assert (caught.value.file, caught.value.field, caught.value.value) == (f"{path}:2", "chunks[1]", 3)


def test_empty_and_missing_files(tmp_path):
    with pytest.raises(InputError, match="own.jsonl: empty file; expected lines"):
        read_examples(write(tmp_path, "\n"))
    with pytest.raises(UsageError, match="none.jsonl: no such file"):
        read_examples(tmp_path / "none.jsonl")
