"""Users' own examples from JSON Lines."""

import json

import pytest

from qrag_jax.data.questions.examples import read_examples
from qrag_jax.types import Example, InputError

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
        (GOOD | {"chunks": ["a", " "], "gold": [0]}, r"chunks\[1\] must be a text that is not empty"),
        (GOOD | {"gold": [3]}, r"gold chunk 3 does not exist; chunks has 3 \(indices 0..2\)"),
        (GOOD | {"gold": [-1]}, "gold chunk -1 does not exist"),
        (GOOD | {"gold": [0.0]}, "gold must be integers, got 0.0"),
        (GOOD | {"question": "a \ud800"}, "question contains half of a surrogate pair"),
        (GOOD | {"chunks": ["a", "\udfff"], "gold": [0]}, r"chunks\[1\] contains half of a surrogate pair"),
        (GOOD | {"gold": [1, 1]}, "gold names a chunk twice"),
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
