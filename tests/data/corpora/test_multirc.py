"""MultiRC paragraphs and their evidence sentences, from lines written by hand."""

import copy
import gzip
import json

from qrag_jax.data.corpora.multirc import EMPTY_QUESTION, NO_EVIDENCE, OUT_OF_RANGE, read_multirc
from qrag_jax.data.corpora.study_task import Evidence

ROWS = [
    {
        "doc_id": 7,
        "sentences": ["Ada mills rye .", " Dr . Fen sails . ", "Rain falls ."],
        "questions": [
            {"question": "Who mills?", "evidence_sets": [[0]]},
            {"question": "Who sails?", "evidence_sets": [[2, 1], [1, 0]]},
            {"question": "Who mills?", "evidence_sets": [[0]]},
        ],
    },
    {"doc_id": "b", "sentences": ["One."], "questions": [{"question": "How many?", "evidence_sets": [[0]]}]},
]


def _written(folder, rows):
    (folder / "evidence.jsonl.gz").write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))
    return folder


def test_sentences_of_the_data_are_the_units(tmp_path):
    task = read_multirc(_written(tmp_path, ROWS), "multirc")
    assert [(document.id, document.text) for document in task.documents] == [
        ("7", "Ada mills rye . Dr . Fen sails . Rain falls ."),
        ("b", "One."),
    ]
    assert task.sentences == {"7": ((0, 15), (16, 32), (33, 45)), "b": ((0, 4),)}
    assert [(question.id, question.text, question.relevant) for question in task.questions] == [
        ("7.1", "Who mills?", ("7",)),
        ("7.2", "Who sails?", ("7",)),
        ("7.3", "Who mills?", ("7",)),
        ("b.1", "How many?", ("b",)),
    ]
    assert task.questions[0].evidence == (Evidence("7", 0, 15),)
    assert task.questions[1].evidence == (Evidence("7", 0, 15), Evidence("7", 16, 32), Evidence("7", 33, 45))
    assert task.kind == "evidence" and not task.left_out


def test_order_and_repetition_of_evidence_do_not_matter(tmp_path):
    rows = copy.deepcopy(ROWS)
    rows[0]["questions"][1]["evidence_sets"] = [[0, 1, 1, 2]]
    assert read_multirc(_written(tmp_path, rows), "multirc") == read_multirc(_written(tmp_path, ROWS), "multirc")


def test_evidence_of_every_question_is_whole_sentences(tmp_path):
    task = read_multirc(_written(tmp_path, ROWS), "multirc")
    for question in task.questions:
        row = next(row for row in ROWS if str(row["doc_id"]) == question.relevant[0])
        text = next(document.text for document in task.documents if document.id == question.relevant[0])
        asked = row["questions"][int(question.id.split(".")[1]) - 1]
        wanted = {row["sentences"][number].strip() for numbers in asked["evidence_sets"] for number in numbers}
        assert {text[part.start : part.end] for part in question.evidence} == wanted


def test_questions_that_cannot_be_posed_are_counted(tmp_path):
    rows = copy.deepcopy(ROWS)
    rows[0]["questions"] = [
        {"question": "A?", "evidence_sets": [[0, 3]]},
        {"question": "B?", "evidence_sets": [[-1]]},
        {"question": "C?", "evidence_sets": [[]]},
        {"question": "D?", "evidence_sets": []},
        {"question": " ", "evidence_sets": [[0]]},
    ]
    task = read_multirc(_written(tmp_path, rows), "multirc")
    assert task.left_out == {OUT_OF_RANGE: 2, NO_EVIDENCE: 2, EMPTY_QUESTION: 1}
    assert [document.id for document in task.documents] == ["7", "b"]
    assert [question.id for question in task.questions] == ["b.1"]
