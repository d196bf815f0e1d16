"""Names of files and places in them: what is understood, what is left out, what is refused."""

import pytest

from qrag_jax.data.corpora.file_evidence import (
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
from qrag_jax.data.corpora.study_task import Evidence
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
        ({"file": "docs/a.md", "start": 1, "end": 4, "text": "Oats"}, [("docs/a.md", "Oats")]),
        ({"file": "docs/a.md", "span": [0.0, 4]}, [("docs/a.md", "Oats")]),
        ({"file": "docs/a.md", "spans": [{"start": 0, "end": 4}]}, [("docs/a.md", "Oats")]),
        ({"text": "Oats", "page": 3}, [("docs/a.md", "Oats")]),  # cannot move the place
        ("One\u2014Two!", [("notes.v1.txt", "One. Two")]),
        ("Cafe\u0301 opens.", [("docs/sub/b.md", "Caf\u00e9 opens")]),
    ],
)
def test_places(item, places):
    found = list(locate(item, CORPUS, None, "evidence", "q.jsonl:1"))
    assert [(piece.document_id, TEXTS[piece.document_id][piece.start : piece.end]) for piece in found] == places


@pytest.mark.parametrize(
    "name", ["file", "document", "path", "doc", "doc_id", "document_id", "filename", "file_name", "source"]
)
def test_an_item_may_name_its_file_in_many_ways(name):
    assert list(locate({name: "same.md", "start": 0, "end": 4}, CORPUS, "docs/a.md", "evidence", "f:1")) == [
        Evidence("same.md", 0, 4)
    ]
    with pytest.raises(NotFound, match=NO_FILE):  # and not some other file's characters
        list(locate({name: "b.txt", "start": 0, "end": 4}, CORPUS, "docs/a.md", "evidence", "f:1"))


def test_exact_in_one_file_before_another_form_in_another():
    corpus = Corpus({"a.md": "A cat\nsat. He said \u2018no\u2019.", "b.md": "A cat sat. He said\n'no'."})
    assert list(locate("A cat sat.", corpus, None, "evidence", "f:1")) == [Evidence("b.md", 0, 10)]
    assert list(locate("He said 'no'.", corpus, None, "evidence", "f:1")) == [Evidence("b.md", 11, 24)]
    with pytest.raises(NotFound, match=SEVERAL_PLACES):
        list(locate('He said "no".', corpus, None, "evidence", "f:1"))


def test_names_in_either_unicode_form():
    corpus = Corpus({"caf\u00e9.md": "x", "sub/re\u0301sume\u0301.md": "y"}, "/home/zoe\u0308/docs")
    for name in ("cafe\u0301.md", "caf\u00e9", "/home/zo\u00eb/docs/cafe\u0301.md"):
        assert find_file(name, corpus, "file") == "caf\u00e9.md"
    assert find_file("r\u00e9sum\u00e9", corpus, "file") == "sub/re\u0301sume\u0301.md"


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
        (3, r"evidence must be .*, or \[start, end\] where the file is known, got 3"),
        ("  ", "evidence.text must be a text that is not empty"),
        ({"file": 3, "text": "x"}, "evidence: file must be a text that is not empty, got 3"),
        ({"file": "docs/a.md"}, "evidence has neither text nor start and end"),
        ({"start": 0, "end": 4}, "evidence has start and end but no file"),
        ([0, 4], "evidence has start and end but no file"),
        ({"file": "docs/a.md", "start": 5}, r"start and end must be whole numbers, got \[5, None\]"),
        ({"file": "docs/a.md", "start": 0, "end": True}, r"start and end must be whole numbers, got \[0, True\]"),
        ({"file": "docs/a.md", "start": 0.5, "end": 4}, r"start and end must be whole numbers, got \[0.5, 4\]"),
        (
            {"file": "docs/a.md", "start": 0, "end": 4, "page": 1},
            "evidence has an unknown field 'page'; known are file, ",
        ),
        ({"file": "docs/a.md", "spans": [0, 4]}, "start and end must be whole numbers, got 0"),
        ({"file": "docs/a.md", "spans": "0-4"}, r"evidence.spans must be a list of \[start, end\]"),
        ({"file": "docs/a.md", "start": 4, "end": 4}, r"\[4, 4\) is not inside docs/a.md, which has 22 characters"),
        ({"file": "docs/a.md", "start": -1, "end": 4}, r"\[-1, 4\) is not inside"),
        ({"file": "docs/a.md", "start": 0, "end": 23}, r"\[0, 23\) is not inside"),
        ({"file": "README.md", "start": 18, "end": 19}, r"\[18, 19\) of README.md is blank"),
        (
            {"file": "docs/a.md", "start": 1, "end": 4, "text": "Rye"},
            "docs/a.md has 'ats', not 'Rye', which does not occur exactly once; offsets",
        ),
    ],
)
def test_what_is_wrong_is_refused(item, message):
    with pytest.raises(InputError, match=f"q.jsonl:7: .*{message}"):
        list(locate(item, CORPUS, None, "evidence", "q.jsonl:7"))


def test_the_file_that_an_object_names():
    assert named_file({"document": "a", "file": None}, "f:1") == "a"
    assert named_file({"text": "a"}, "f:1") is None
