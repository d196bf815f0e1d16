"""Chroma's chunking benchmark from small corpora written by hand."""

import copy
import csv
import gzip
import json

import pytest

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.chroma import EMPTY_QUESTION, NO_REFERENCE, NOT_IN_CORPUS, read_chroma
from qrag_jax.data.corpora.study_task import Evidence
from qrag_jax.types import InputError, UsageError

CORPORA = {
    "rivers": "# Oru\n\nThe Oru is a river \u2014 it\u2019s long. It rises in Belm. It rises in Belm.\n",
    "towns": "Dun is a town. Rye grows there.",
}


def _reference(corpus, text):
    start = CORPORA[corpus].index(text)
    return {"content": text, "start_index": start, "end_index": start + len(text)}


ROWS = [
    {"question": "Where?", "references": [_reference("towns", "Rye grows")], "corpus_id": "towns"},
    {
        "question": "What is the Oru?",
        "references": [_reference("rivers", "It rises in Belm."), _reference("rivers", "it\u2019s long")],
        "corpus_id": "rivers",
    },
]


def _written(folder, rows, nested=False):
    place = folder / "corpora" if nested else folder
    place.mkdir(exist_ok=True)
    for name, text in CORPORA.items():
        (place / f"{name}.md").write_bytes(text.encode())
    lines = [json.dumps({**row, "references": json.dumps(row["references"])}) for row in rows]
    (folder / "questions.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


def test_references_become_evidence(tmp_path):
    (tmp_path / "notes.md").write_text("No question names this file.")
    task = read_chroma(_written(tmp_path, ROWS), "chroma")
    assert [(document.id, document.text) for document in task.documents] == [
        ("towns", CORPORA["towns"]),
        ("rivers", CORPORA["rivers"]),
    ]
    first, second = task.questions
    assert (first.id, first.text, first.relevant) == ("towns.1", "Where?", ("towns",))
    assert first.evidence == (Evidence("towns", 15, 24),)
    assert second.id == "rivers.2"
    said = [CORPORA["rivers"][part.start : part.end] for part in second.evidence]
    assert said == ["it\u2019s long", "It rises in Belm."]  # in the order of the text
    assert task.kind == "evidence" and not task.left_out
    assert task.sentences == {name: split_sentences(text) for name, text in CORPORA.items()}


def test_all_layouts_say_the_same(tmp_path):
    packed = read_chroma(_written(tmp_path, ROWS), "chroma")
    plain = tmp_path / "plain"
    plain.mkdir()
    _written(plain, ROWS, nested=True)
    (plain / "questions.jsonl.gz").unlink()
    with (plain / "questions_df.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "references", "corpus_id"])
        writer.writerows([row["question"], json.dumps(row["references"]), row["corpus_id"]] for row in ROWS)
    assert read_chroma(plain, "chroma") == read_chroma(plain / "questions_df.csv", "chroma") == packed
    (plain / "asked.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    assert read_chroma(plain / "asked.jsonl", "chroma") == packed


@pytest.mark.parametrize("shift", [-200, -1, 1, 200])
def test_a_reference_beside_its_place_is_found_by_its_text(tmp_path, shift):
    rows = copy.deepcopy(ROWS)
    for name in ("start_index", "end_index"):
        rows[0]["references"][0][name] += shift
    assert read_chroma(_written(tmp_path, rows), "chroma") == read_chroma(_written(tmp_path, ROWS), "chroma")


def test_questions_that_cannot_be_posed_are_counted(tmp_path):
    rows = copy.deepcopy(ROWS)
    rows[1]["references"][0]["end_index"] += 1  # its text is there twice
    missing = {"content": "nowhere", "start_index": 0, "end_index": 7}
    rows.append({**ROWS[0], "references": [missing, *ROWS[0]["references"]]})
    rows.append({**ROWS[0], "references": []})
    rows.append({**ROWS[0], "question": " "})
    task = read_chroma(_written(tmp_path, rows), "chroma")
    assert task.left_out == {NOT_IN_CORPUS: 2, NO_REFERENCE: 1, EMPTY_QUESTION: 1}
    assert [question.id for question in task.questions] == ["towns.1"]
    assert [document.id for document in task.documents] == ["towns", "rivers"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(corpus_id="x" * 10_000), r":2: corpus_id 'xxx\S+ must be the name of a file"),
        (lambda r: r.update(corpus_id="../rivers"), r":2: corpus_id '../rivers' must be the name of a file"),
    ],
)
def test_broken_questions_are_refused_with_their_place(tmp_path, change, message):
    rows = copy.deepcopy(ROWS)
    change(rows[1])
    with pytest.raises(InputError, match=message):
        read_chroma(_written(tmp_path, rows), "chroma")


def test_broken_files_are_refused(tmp_path):
    _written(tmp_path, [{**ROWS[0], "corpus_id": "hills"}])
    with pytest.raises(UsageError, match=r"hills.md: no such file; expected the corpus that .*:1 names"):
        read_chroma(tmp_path, "chroma")
    path = tmp_path / "q.csv"
    path.write_text("question,references\nWhat?,[]\n")
    with pytest.raises(InputError, match=r"q.csv:1: columns \['question', 'references'\]; expected questions"):
        read_chroma(path, "chroma")
    path.write_text('question,references,corpus_id\n"What?"x,[],towns\n')
    with pytest.raises(InputError, match="q.csv:2: not CSV"):
        read_chroma(path, "chroma")
    path.write_text("question,references,corpus_id\nWhat?,[],towns\n")
    with pytest.raises(InputError, match="chroma: 1 documents and 0 questions"):
        read_chroma(path, "chroma")


def test_names_with_blanks_and_broken_characters(tmp_path):
    (tmp_path / "two towns.md").write_text("Dun. Fen.")
    reference = {"content": "Fen.", "start_index": 5, "end_index": 9}
    row = {"question": "Half \ud83d?", "references": [reference], "corpus_id": "two towns"}
    (tmp_path / "questions.jsonl").write_text(json.dumps(row))
    [question] = read_chroma(tmp_path, "chroma").questions
    assert (question.id, question.text, question.relevant) == ("two towns.1", "Half \ufffd?", ("two towns",))
