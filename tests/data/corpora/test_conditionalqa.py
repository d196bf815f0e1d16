"""Government pages and questions about them, written by hand in the forms of ConditionalQA."""

import gzip
import json

import pytest

from qrag_jax.data.corpora.conditionalqa import NO_EVIDENCE, NO_PAGE, NOT_ANSWERABLE, NOT_IN_PAGE, read_conditionalqa
from qrag_jax.types import InputError, UsageError

ELEMENTS = [
    "<h1>Licences</h1>",
    "<p>You need a <a href='x'>licence</a> &amp; a  stamp.</p>",
    "<li>a form</li>",
    "<li>yes</li>",
    "<h3>Fees<br/>due</h3>",
    "<p> </p>",
    "<tr>Boat | \u00a32</tr>",
    "<tr>Ship | \u00a39</tr>",
    "<li>yes</li>",
]
TEXT = """# Boat licence

# Licences

You need a licence & a stamp.

- a form
- yes

### Fees due

Boat | \u00a32
Ship | \u00a39

- yes"""
PAGE = {"url": "https://gov/boat", "title": "Boat  licence", "contents": ELEMENTS}
QUESTION = {
    "id": "dev-0",
    "url": "https://gov/boat",
    "scenario": "I own a boat.",
    "question": "What do I pay?",
    "not_answerable": False,
    "answers": [["\u00a32", []], ["\u00a39", ["<li>yes</li>"]]],
    "evidences": ["<tr>Boat | \u00a32</tr>", "<li>yes</li>", "<tr>Boat | \u00a32</tr>"],
}


def write(folder, pages=(PAGE,), questions=(QUESTION,), name="dev.json"):
    (folder / "documents.json").write_text(json.dumps(pages))
    (folder / name).write_text(json.dumps(questions))
    return folder


def test_a_page_becomes_markdown(tmp_path):
    task = read_conditionalqa(write(tmp_path), "gov")
    (document,) = task.documents
    assert (document.id, document.text) == ("https://gov/boat", TEXT)
    assert [document.text[start:end] for start, end in task.sentences[document.id]] == [
        "# Licences",
        "You need a licence & a stamp.",
        "- a form",
        "- yes",
        "### Fees due",
        "Boat | \u00a32",
        "Ship | \u00a39",
        "- yes",
    ]


def test_a_question_is_scenario_and_question(tmp_path):
    (question,) = read_conditionalqa(write(tmp_path), "gov").questions
    assert (question.id, question.text) == ("dev-0", "I own a boat. What do I pay?")
    assert question.answers == ("\u00a32", "\u00a39")
    assert question.relevant == ("https://gov/boat",)
    # An element that the page has twice is its first one; one that is named twice counts once.
    assert [TEXT[piece.start : piece.end] for piece in question.evidence] == ["Boat | \u00a32", "- yes"]
    assert question.evidence[1].start == TEXT.index("- yes")


def test_what_cannot_be_asked_is_counted(tmp_path):
    changes = [
        {"not_answerable": True, "evidences": [], "answers": []},
        {"evidences": []},
        {"url": "https://gov/gone"},
        {"evidences": ["<p>Else.</p>"]},
    ]
    questions = [QUESTION, *(QUESTION | change | {"id": f"x{i}"} for i, change in enumerate(changes))]
    task = read_conditionalqa(write(tmp_path, questions=questions), "gov")
    assert [question.id for question in task.questions] == ["dev-0"]
    assert task.left_out == {NOT_ANSWERABLE: 1, NO_EVIDENCE: 1, NO_PAGE: 1, NOT_IN_PAGE: 1}


def test_the_pool_of_evidence_where_there_are_no_whole_pages(tmp_path):
    pool = {"url": "https://gov/boat", "evidence_elements": ["<tr>Boat | \u00a32</tr>", "<li>yes</li>"]}
    (tmp_path / "evidence_pool.jsonl.gz").write_bytes(gzip.compress(json.dumps(pool).encode()))
    (tmp_path / "train.json.gz").write_bytes(gzip.compress(json.dumps([QUESTION]).encode()))
    task = read_conditionalqa(tmp_path, "gov", questions="train")
    assert task.documents[0].text == "Boat | \u00a32\n\n- yes"
    assert len(task.sentences["https://gov/boat"]) == 2
    write(tmp_path)  # whole pages are taken where both are
    assert read_conditionalqa(tmp_path, "gov").documents[0].text == TEXT
    assert read_conditionalqa(tmp_path / "documents.json", "gov") == read_conditionalqa(tmp_path, "gov")
    assert read_conditionalqa(tmp_path / "evidence_pool.jsonl.gz", "gov").documents == task.documents


@pytest.mark.parametrize(
    ("pages", "questions", "message"),
    [
        ([PAGE], [{"url": "u", "question": "?"}], "dev.json: row 0: no evidences: .*without their answers"),
        ([PAGE], [QUESTION | {"evidences": []}], "no question of dev.json can be asked: .*no evidence"),
    ],
)
def test_broken_rows_are_refused(tmp_path, pages, questions, message):
    with pytest.raises(InputError, match=message):
        read_conditionalqa(write(tmp_path, pages, questions), "gov")


def test_missing_files(tmp_path):
    with pytest.raises(UsageError, match=r"a folder with documents.json or evidence_pool.jsonl \(or .gz of it\)"):
        read_conditionalqa(tmp_path, "gov")
    with pytest.raises(UsageError, match="a folder with train.json"):
        read_conditionalqa(write(tmp_path), "gov", questions="train")
