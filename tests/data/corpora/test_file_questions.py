"""Users' own files and questions: every form of a line, what is left out, what is refused."""

import json
from pathlib import Path

import pytest

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.file_evidence import NO_FILE, NO_PLACE, SEVERAL_PLACES
from qrag_jax.data.corpora.file_questions import BLANK_FILES, NO_EVIDENCE, read_with_problems
from qrag_jax.data.corpora.study_task import Evidence
from qrag_jax.types import InputError, UsageError

FILES = {
    "a.md": "# Rye\n\nRye is a grass. It is\nhardy. Both.\n",
    "sub/b.txt": "Oats are grown. Both.",
    "sub/.hidden.md": "Hidden.",
    "image.png": "no text",
}


def read_file_questions(*args, **options):
    """The task alone."""
    return read_with_problems(*args, **options)[0]


def write(tmp_path, *rows, files=FILES):
    for name, text in files.items():
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    questions = tmp_path / "my questions.jsonl"
    questions.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return tmp_path / "corpus", questions


def asked(text="What?", **fields):
    return {"question": text, **fields}


def test_evidence_in_every_form(tmp_path):
    rows = [
        asked(evidence=[{"file": "a.md", "start": 7, "end": 22}, {"file": "b", "text": "Oats are grown."}], id="first"),
        asked(evidence=["It is hardy."], answer="hardy"),
        asked(evidence="Oats are grown.", answers=["oats", 4], id=7),
        asked(evidence={"document": "./sub/b.txt", "spans": [[0, 4], [9, 14]]}, answer=["x", " "]),
        asked(file="a.md", evidence=[[7, 10], "Both."]),
        asked(file="sub/b.txt", start=0, end=4),
        asked(file="sub/b.txt", spans=[[0, 4]], answer=None),
        asked(evidence=[{"text": "Rye is a grass."}], relevant="sub/b.txt"),
        asked(evidence=["It is hardy.", "It is\nhardy."]),
        asked(file="a.md", evidence=[7, 10]),
        asked(filename="sub/b.txt", evidence=None, start=0.0, end=4.0),
        asked(file="sub/b.txt", span=[0, 4], evidence=None),
        asked(source="sub/b.txt", spans=[{"start": 0, "end": 4}]),
        asked(source="Ada wrote it", evidence="Oats are grown."),
    ]
    task, problems = read_with_problems(*write(tmp_path, *rows), "own")
    assert problems == () and task.left_out == {}
    assert (task.name, task.kind) == ("own", "evidence")
    assert [document.id for document in task.documents] == ["a.md", "sub/b.txt"]
    texts = {document.id: document.text for document in task.documents}
    assert texts["a.md"] == FILES["a.md"]
    assert {name: list(spans) for name, spans in task.sentences.items()} == {
        name: split_sentences(text) for name, text in texts.items()
    }
    assert [q.id for q in task.questions] == ["first", "my questions.jsonl:2", "7"] + [
        f"my questions.jsonl:{line}" for line in range(4, 15)
    ]
    said = [
        [(piece.document_id, texts[piece.document_id][piece.start : piece.end]) for piece in q.evidence]
        for q in task.questions
    ]
    assert said == [
        [("a.md", "Rye is a grass."), ("sub/b.txt", "Oats are grown.")],
        [("a.md", "It is\nhardy.")],
        [("sub/b.txt", "Oats are grown.")],
        [("sub/b.txt", "Oats"), ("sub/b.txt", "grown")],
        [("a.md", "Rye"), ("a.md", "Both.")],
        [("sub/b.txt", "Oats")],
        [("sub/b.txt", "Oats")],
        [("a.md", "Rye is a grass.")],
        [("a.md", "It is\nhardy.")],
        [("a.md", "Rye")],
        [("sub/b.txt", "Oats")],
        [("sub/b.txt", "Oats")],
        [("sub/b.txt", "Oats")],
        [("sub/b.txt", "Oats are grown.")],
    ]
    assert [q.relevant for q in task.questions][0] == ("a.md", "sub/b.txt")
    assert task.questions[7].relevant == ("sub/b.txt", "a.md")
    assert [q.answers for q in task.questions][1:4] == [("hardy",), ("oats", "4"), ("x",)]


def test_files_that_answer_without_evidence(tmp_path):
    rows = [asked(relevant=["a.md", "sub/b.txt", "./a.md"]), asked(relevant="b"), asked(file="a")]
    task, problems = read_with_problems(*write(tmp_path, *rows), "own")
    assert (task.kind, dict(task.sentences), problems) == ("documents", {}, ())
    assert [question.relevant for question in task.questions] == [("a.md", "sub/b.txt"), ("sub/b.txt",), ("a.md",)]


def test_one_file_needs_no_name(tmp_path):
    corpus, questions = write(
        tmp_path, asked(evidence=[[0, 4]]), asked(start=5, end=8), files={"b.txt": "Oats are grown."}
    )
    for place in (corpus, corpus / "b.txt"):
        task = read_file_questions(place, questions, "own")
        assert [question.evidence for question in task.questions] == [
            (Evidence("b.txt", 0, 4),),
            (Evidence("b.txt", 5, 8),),
        ]


def test_a_relative_folder_and_a_json_list(tmp_path, monkeypatch):
    write(tmp_path, asked(evidence="Rye is a grass."))
    (tmp_path / "list.json").write_text(
        json.dumps([asked(evidence="Rye is a grass."), asked(file="corpus/a.md", start=7, end=10)])
    )
    monkeypatch.chdir(tmp_path)
    task = read_file_questions(Path("./corpus/"), Path("list.json"), "own")
    assert [q.evidence for q in task.questions] == [(Evidence("a.md", 7, 22),), (Evidence("a.md", 7, 10),)]
    monkeypatch.chdir(tmp_path / "corpus")
    assert [document.id for document in read_file_questions(Path("."), Path("../list.json"), "own").documents] == [
        "a.md",
        "sub/b.txt",
    ]


def test_what_cannot_be_asked_is_counted_and_named(tmp_path):
    rows = [
        asked(evidence=["Rye is a grass."]),
        asked(evidence=["Rye is a grass.", "Nowhere."]),
        asked(evidence="Both."),
        asked(evidence={"file": "gone.md", "start": 0, "end": 1}),
        asked(evidence=[]),
        asked(relevant=["a.md"]),
    ]
    task, problems = read_with_problems(*write(tmp_path, *rows), "own")
    assert task.left_out == {NO_PLACE: 1, SEVERAL_PLACES: 1, NO_FILE: 1, NO_EVIDENCE: 2}
    assert sum(task.left_out.values()) + len(task.questions) == len(rows)
    told = [line.split("my questions.jsonl:")[1] for line in problems]
    assert told == [
        "2: evidence text not found: evidence[1] 'Nowhere.'",
        "3: evidence text occurs in several places: evidence 'Both.': a.md at 36, sub/b.txt at 16",
        "4: names a file that is not in the corpus: evidence 'gone.md'",
        "5: no evidence: an empty list",
        "6: no evidence: this line names files only, others say where in them",
    ]
    assert read_file_questions(*write(tmp_path, *rows), "own") == task


def test_another_file_is_not_the_only_one(tmp_path):
    rows = [asked(evidence=[0, 4]), asked(doc_id="b", start=0, end=4), asked(doc_id="c", start=0, end=4)]
    rows.append(asked(evidence=[{"doc_id": "c.md", "start": 0, "end": 4}]))
    task, problems = read_with_problems(*write(tmp_path, *rows, files={"b.txt": "Oats are grown."}), "own")
    assert [question.evidence for question in task.questions] == [(Evidence("b.txt", 0, 4),)] * 2
    assert task.left_out == {NO_FILE: 2} and len(problems) == 2


def test_blank_files_of_a_folder_are_left_out(tmp_path):
    files = FILES | {"empty.md": "", "sub/blank.txt": "\ufeff \r\n"}
    rows = [asked(evidence="Rye is a grass."), asked(evidence={"file": "empty.md", "text": "x"})]
    corpus, questions = write(tmp_path, *rows, files=files)
    task, problems = read_with_problems(corpus, questions, "own")
    assert [document.id for document in task.documents] == ["a.md", "sub/b.txt"]
    assert task.left_out == {NO_FILE: 1, BLANK_FILES: 2}
    assert problems == (
        f"{corpus}/empty.md: blank file",
        f"{corpus}/sub/blank.txt: blank file",
        f"{questions}:2: {NO_FILE}: evidence 'empty.md'",
    )
    with pytest.raises(InputError, match="empty.md: empty document"):
        read_file_questions(corpus / "empty.md", questions, "own")


def test_only_blank_files(tmp_path):
    with pytest.raises(
        InputError, match="none of 1 questions can be asked: .*empty.md: blank file; .*:1: evidence text"
    ):
        read_file_questions(*write(tmp_path, asked(evidence="Rye"), files={"empty.md": "\n"}), "own")


def test_files_of_another_encoding(tmp_path):
    corpus, questions = write(tmp_path, asked(evidence="\u00c4pfel sind rot."), files={})
    corpus.mkdir()
    (corpus / "a.txt").write_bytes("\u00c4pfel sind rot.".encode("latin-1"))
    with pytest.raises(InputError, match="a.txt: not UTF-8 at byte 0; .*encoding="):
        read_file_questions(corpus, questions, "own")
    task = read_file_questions(corpus, questions, "own", encoding="latin-1")
    assert task.documents[0].text == "\u00c4pfel sind rot."
    assert task == read_with_problems(corpus, questions, "own", split_sentences, "latin-1")[0]
    with pytest.raises(UsageError, match="encoding 'latin-99': Python knows no"):
        read_file_questions(corpus, questions, "own", encoding="latin-99")


def test_a_task_of_which_only_files_are_left_is_no_other_task(tmp_path):
    with pytest.raises(
        InputError, match="my questions.jsonl: none of 2 questions can be asked: .*:1: evidence text not found"
    ):
        read_file_questions(*write(tmp_path, asked(evidence="Nowhere."), asked(relevant="a.md")), "own")


def test_windows_line_ends_count(tmp_path):
    files = {"a.md": "\ufeffOne.\r\nTwo words."}
    rows = [
        asked(evidence=[{"file": "a.md", "start": 6, "end": 16}]),
        asked(evidence="One. Two"),
        asked(evidence=[{"start": 5, "end": 15, "text": "Two words."}]),  # of Python's text mode
        asked(evidence=[{"start": 7, "end": 17, "text": "Two words."}]),  # the byte order mark counted
    ]
    task = read_file_questions(*write(tmp_path, *rows, files=files), "own")
    text = task.documents[0].text
    assert [text[q.evidence[0].start : q.evidence[0].end] for q in task.questions] == [
        "Two words.",
        "One.\r\nTwo",
        "Two words.",
        "Two words.",
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not JSON"),
        (asked(), "neither evidence nor relevant; expected lines"),
        (asked(" ", evidence="Both."), "question must be a text that is not empty"),
        ({"evidence": "x"}, "question must be a text that is not empty, got None"),
        (asked(evidence=3), "evidence must be .*, got 3"),
        (asked(evidence=["Oats", 3]), r"evidence\[1\] must be .*, got 3"),
        (asked(evidence=[{"file": "a.md", "start": 0, "end": 99}]), r"evidence\[0\]: \[0, 99\) is not inside a.md"),
        (asked(evidence=[[0, 4]]), r"evidence\[0\] has start and end but no file"),
        (asked(relevant=[3]), "relevant must be a text that is not empty, got 3"),
        (asked(relevant="a", answer={}), "answer must be a text, got {}"),
        (asked(relevant="a", id=[1]), r"id must be a text or an integer, got \[1\]"),
        (asked(evidence="Rye is a grass.", id="first"), "id 'first' was used before at .*my questions.jsonl:1"),
    ],
)
def test_a_bad_line_is_named(tmp_path, row, message):
    with pytest.raises(InputError, match=rf"my questions.jsonl:2: {message}"):
        read_file_questions(*write(tmp_path, asked(evidence="Rye is a grass.", id="first"), row), "own")


def test_missing_files(tmp_path):
    corpus, questions = write(tmp_path, asked(evidence="Rye is a grass."))
    with pytest.raises(UsageError, match="none.jsonl: no such file"):
        read_file_questions(corpus, tmp_path / "none.jsonl", "own")
    with pytest.raises(UsageError, match="nowhere: no such file or folder"):
        read_file_questions(tmp_path / "nowhere", questions, "own")
