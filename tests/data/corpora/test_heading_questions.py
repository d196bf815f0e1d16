"""Sections asked for by their titles, by hand and on made documents."""

import json

import pytest

from qrag_jax.data.corpora.headed_documents import read_headed
from qrag_jax.data.corpora.heading_questions import (
    ASKED_BEFORE,
    FEW_SENTENCES,
    MOST_OF_DOCUMENT,
    read_headings,
    section_span,
)
from qrag_jax.types import InputError, UsageError

BOOK = """# Book

First words. More words. Even more of them here.

## Trees

Oaks grow. Elms grow. Pines grow.

### Roots

Roots hold. Roots drink. Roots rest.

## Seas

Waves come. Waves go. Waves rest.

## Short

One. Two.

## Seas

Again seas. And more. And more still.

## Long

It goes on. And on. And on and on.
"""


@pytest.fixture
def book(tmp_path):
    (tmp_path / "book.md").write_text(BOOK)
    return tmp_path / "book.md"


def said(task):
    texts = {document.id: document.text for document in task.documents}
    return {one.text: texts[e.document_id][e.start : e.end] for one in task.questions for e in one.evidence}


def test_by_hand(book):
    task = read_headings(book, "t")
    assert said(task) == {
        "book: Trees": "Oaks grow. Elms grow. Pines grow. Roots hold. Roots drink. Roots rest.",
        "book: Trees: Roots": "Roots hold. Roots drink. Roots rest.",
        "book: Seas": "Waves come. Waves go. Waves rest.",
        "book: Long": "It goes on. And on. And on and on.",
    }
    assert task.left_out == {FEW_SENTENCES: 1, ASKED_BEFORE: 1}
    (document,) = task.documents
    assert not any(line.startswith("#") or line in ("Trees", "Seas", "Book") for line in document.text.split("\n"))
    assert [(document.text[start : start + 5], level) for start, level in task.sections[document.id]] == [
        ("Oaks ", 1),
        ("Roots", 2),
        ("Waves", 1),
        ("One. ", 1),
        ("Again", 1),
        ("It go", 1),
    ]
    assert read_headings(book, "t") == task


def test_a_section_ends_where_one_of_its_level_or_a_higher_one_begins(book):
    """Beside a slow reading: the units up to the next point that is no deeper."""
    (document,) = read_headed(str(book))
    for place, (first, level) in enumerate(document.points):
        stop = first + 1
        while stop < len(document.text) and not any(u == stop and other <= level for u, other in document.points):
            stop += 1
        assert section_span(document, place) == (first, stop)


def test_most_of_a_document_is_no_part_of_it(tmp_path):
    (tmp_path / "a.md").write_text("# A\n\nFirst. Second. Third.\n\n## All of it\n\n" + "Much more. " * 9)
    with pytest.raises(InputError, match=f"none to study; left out, {MOST_OF_DOCUMENT}: 1"):
        read_headings(tmp_path / "a.md", "t")


def test_documents_of_one_title_are_told_apart(tmp_path):
    rows = [
        {
            "title": "Rome #1",
            "items": [{"text": opening}, {"heading": "Kings", "level": 2}, {"text": "Anna. Otto. Karl."}],
        }
        for opening in ("One. Two. Three. Four.", "Five. Six. Seven. Eight.")
    ]
    (tmp_path / "articles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = read_headings(tmp_path, "t", source="wikitext2")
    assert [document.id for document in task.documents] == ["Rome #1", "Rome #1#2"]
    assert [(one.id, one.text) for one in task.questions] == [
        ("Rome #1.0", "Rome #1: Kings"),
        ("Rome #1#2.0", "Rome #1: Kings"),
    ]


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read_headings(tmp_path / "none.md", "t")
    with pytest.raises(UsageError, match="source 'novels': choose wikitext2 or scisumm, or none for Markdown"):
        read_headings(tmp_path, "t", source="novels")
    (tmp_path / "bare.md").write_text("No heading. At all.")
    with pytest.raises(InputError, match="none of 1 documents has a heading"):
        read_headings(tmp_path / "bare.md", "t")
