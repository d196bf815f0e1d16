"""The files of `examples/`: what they say of each other is so."""

import json
from pathlib import Path

import pytest

from qrag_jax.chunking.units import unit_chunks
from qrag_jax.data.questions.examples import read_examples
from qrag_jax.documents.read import read_files
from qrag_jax.qrag.chunk_encoder import one_line

FOLDER = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def documents():
    return {Path(document.id).name: document for document in read_files(FOLDER / "station")}


def test_evidence_stands_in_its_file_once(documents):
    rows = [json.loads(line) for line in (FOLDER / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(documents) == 6 and len(rows) >= 8
    for row in rows:
        for one in row["evidence"]:
            assert documents[one["file"]].text.count(one["text"]) == 1


@pytest.mark.parametrize("name", ["train.jsonl", "valid.jsonl"])
def test_chunks_of_a_question_are_what_a_run_reads_of_a_file(documents, name):
    read = {
        tuple(one_line(document.text[slice(*chunk.spans[0])]) for chunk in unit_chunks(document, len))
        for document in documents.values()
    }
    found = read_examples(FOLDER / name)
    assert found and {one.chunks for one in found} <= read


def test_no_question_is_in_two_files():
    questions = [one.question for name in ("train.jsonl", "valid.jsonl") for one in read_examples(FOLDER / name)]
    questions += [json.loads(line)["question"] for line in (FOLDER / "questions.jsonl").read_text().splitlines()]
    assert len(set(questions)) == len(questions)
