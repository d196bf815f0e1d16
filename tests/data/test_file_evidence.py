"""Names of files and places in them: what is understood, what is left out, what is refused."""

import pytest

from qrag_jax.data.file_evidence import (
    NO_FILE,
    NO_PLACE,
    SEVERAL_FILES,
    SEVERAL_PLACES,
    Corpus,
    NotFound,
    find_file,
    locate,
    named_file,
)
from qrag_jax.data.study_task import Evidence
from qrag_jax.types import InputError

TEXTS = {
    "README.md": "Top readme. Rye is\nhardy. Twice.",
    "docs/a.md": "Oats are grown. Twice.",
    "docs/sub/a.md": "Below.",
    "docs/sub/b.md": "Caf\u00e9 opens.",
    "notes.v1.txt": "One. Two.",
    "same.md": "Same.",
    "same.txt": "Same too.",
}
CORPUS = Corpus(TEXTS, "/home/ada/corpus")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("docs/a.md", "docs/a.md"),
        ("./docs/a.md", "docs/a.md"),
        (" docs\\sub\\b.md ", "docs/sub/b.md"),
        ("docs//sub/../a.md", "docs/a.md"),
        ("../corpus/docs/a.md", "docs/a.md"),
        ("corpus/docs/sub/a.md", "docs/sub/a.md"),
        ("/home/ada/corpus/README.md", "README.md"),
        ("/docs/a.md", "docs/a.md"),
        ("b.md", "docs/sub/b.md"),
        ("sub/a.md", "docs/sub/a.md"),
        ("b", "docs/sub/b.md"),
        ("README", "README.md"),
        ("corpus/docs/a", "docs/a.md"),
        ("notes.v1", "notes.v1.txt"),
        ("same.txt", "same.txt"),
    ],
)
def test_natural_names(name, file):
    assert find_file(name, CORPUS, "file") == file


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone.md", NO_FILE),
        ("other/README.md", NO_FILE),  # some other folder's
        ("eadme.md", NO_FILE),
        ("DME.md", NO_FILE),
        ("README.pdf", NO_FILE),
        (".", NO_FILE),
        ("a.md", SEVERAL_FILES),
        ("same", SEVERAL_FILES),
    ],
)
def test_names_of_no_file_or_of_several(name, reason):
    with pytest.raises(NotFound, match=f"{reason}: relevant '{name}'") as caught:
        find_file(name, CORPUS, "relevant")
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("item", "places"),
    [
        ({"file": "docs/a.md", "start": 0, "end": 4}, [("docs/a.md", "Oats")]),
        ({"document": "docs/a", "spans": [[0, 4], [9, 14]]}, [("docs/a.md", "Oats"), ("docs/a.md", "grown")]),
        ({"path": "b.md", "start": 0, "end": 4}, [("docs/sub/b.md", "Caf\u00e9")]),
        ({"file": "README.md", "text": "Rye is hardy."}, [("README.md", "Rye is\nhardy.")]),
        ({"file": "README.md", "text": "Twice."}, [("README.md", "Twice.")]),
        ({"text": " Caf\u00e9  opens "}, [("docs/sub/b.md", "Caf\u00e9 opens")]),
        ("Oats are grown", [("docs/a.md", "Oats are grown")]),
        ({"file": "README.md", "start": 12, "end": 25, "text": "Rye is hardy."}, [("README.md", "Rye is\nhardy.")]),
    ],
)
def test_places(item, places):
    found = list(locate(item, CORPUS, None, "evidence", "q.jsonl:1"))
    assert [(piece.document_id, TEXTS[piece.document_id][piece.start : piece.end]) for piece in found] == places


def test_the_file_of_the_line_stands_in():
    assert list(locate([0, 4], CORPUS, "docs/a.md", "evidence[0]", "f:1")) == [Evidence("docs/a.md", 0, 4)]
    assert list(locate("Twice.", CORPUS, "docs/a.md", "evidence[0]", "f:1")) == [Evidence("docs/a.md", 16, 22)]
    item = {"file": "same.md", "start": 0, "end": 4}
    assert list(locate(item, CORPUS, "docs/a.md", "evidence[0]", "f:1")) == [Evidence("same.md", 0, 4)]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("Nowhere.", NO_PLACE),
        ("Twice.", SEVERAL_PLACES),
        ({"file": "docs/a.md", "text": "Rye"}, NO_PLACE),
        ({"file": "notes.v1.txt", "text": "."}, SEVERAL_PLACES),
        ({"file": "gone.md", "start": 0, "end": 4}, NO_FILE),
    ],
)
def test_what_stands_nowhere_or_twice(item, reason):
    with pytest.raises(NotFound, match=rf"{reason}: evidence\[1\] ") as caught:
        list(locate(item, CORPUS, None, "evidence[1]", "f:1"))
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (3, "evidence must be .*, got 3"),
        ("  ", "evidence.text must be a text that is not empty"),
        ({"file": 3, "text": "x"}, "evidence: file must be a text that is not empty, got 3"),
        ({"file": "docs/a.md"}, "evidence has neither text nor start and end"),
        ({"start": 0, "end": 4}, "evidence has start and end but no file"),
        ([0, 4], "evidence has start and end but no file"),
        ({"file": "docs/a.md", "start": 5}, r"start and end must be whole numbers, got \[5, None\]"),
        ({"file": "docs/a.md", "start": 0, "end": True}, r"start and end must be whole numbers, got \[0, True\]"),
        ({"file": "docs/a.md", "start": 0.0, "end": 4}, r"start and end must be whole numbers, got \[0.0, 4\]"),
        ({"file": "docs/a.md", "spans": [0, 4]}, "start and end must be whole numbers, got 0"),
        ({"file": "docs/a.md", "spans": "0-4"}, r"evidence.spans must be a list of \[start, end\]"),
        ({"file": "docs/a.md", "start": 4, "end": 4}, r"\[4, 4\) is not inside docs/a.md, which has 22 characters"),
        ({"file": "docs/a.md", "start": -1, "end": 4}, r"\[-1, 4\) is not inside"),
        ({"file": "docs/a.md", "start": 0, "end": 23}, r"\[0, 23\) is not inside"),
        ({"file": "README.md", "start": 18, "end": 19}, r"\[18, 19\) of README.md is blank"),
        (
            {"file": "docs/a.md", "start": 1, "end": 4, "text": "Oats"},
            "docs/a.md has 'ats', not 'Oats'; offsets",
        ),
    ],
)
def test_what_is_wrong_is_refused(item, message):
    with pytest.raises(InputError, match=f"q.jsonl:7: .*{message}"):
        list(locate(item, CORPUS, None, "evidence", "q.jsonl:7"))


def test_the_file_that_an_object_names():
    assert named_file({"document": "a", "file": None}, "f:1") == "a"
    assert named_file({"text": "a"}, "f:1") is None
