"""Filings of a few pages, written by hand in the form of FinanceBench."""

import json

import pytest

from qrag_jax.data.corpora.financebench import NO_EVIDENCE, NO_FILING, NO_PAGE, read_financebench
from qrag_jax.types import InputError

PAGES = [
    "ACME CO.\nForm 10-K\n",
    " ",
    "We sold more boats. Sales rose in the year ended March 31, 2022\nand costs fell.\n"
    "(in millions) 2021 2022\nStockholders\u2019 equity \u2014 \u2014\nNet sales $ 5 $ 7\nSee notes.\n",
    "Sales rose again.",
]
TEXT = "\n\n".join(page.strip() for page in PAGES if page.strip())
FILING = {"doc_name": "ACME_2022", "pages": PAGES}
TABLE = "(in millions)\n2021\n2022\nStockholders equity\nNet sales\n$\n5 $\n7"


def question(name="fb_1", **change):
    item = {"evidence_text": TABLE, "evidence_page_num": 2, "doc_name": "ACME_2022"} | change
    return {
        "financebench_id": name,
        "doc_name": "ACME_2022",
        "question": "What\nrose?",
        "answer": "Sales",
        "evidence": [item],
    }


def write(folder, questions=None, filings=(FILING,)):
    for name, rows in (("pages.jsonl", filings), ("questions.jsonl", questions or [question()])):
        (folder / name).write_text("\n".join(json.dumps(row) for row in rows))
    return folder


def test_a_filing_and_its_units(tmp_path):
    task = read_financebench(write(tmp_path), "fb")
    (document,) = task.documents
    assert (document.id, document.text) == ("ACME_2022", TEXT)
    pages = document.metadata["pages"]
    assert [document.text[start:end] for start, end in pages] == [page.strip() for page in PAGES]
    assert [document.text[start:end] for start, end in task.sentences["ACME_2022"]] == [
        "ACME CO.\nForm 10-K",
        "We sold more boats.",
        "Sales rose in the year ended March 31, 2022\nand costs fell.",
        "(in millions) 2021 2022",
        "Stockholders\u2019 equity \u2014 \u2014",
        "Net sales $ 5 $ 7",
        "See notes.",
        "Sales rose again.",
    ]


def test_evidence_is_found_on_its_page(tmp_path):
    task = read_financebench(write(tmp_path), "fb")
    (asked,) = task.questions
    assert (asked.id, asked.text, asked.relevant, asked.answers) == ("fb_1", "What rose?", ("ACME_2022",), ("Sales",))
    (piece,) = asked.evidence
    assert (
        TEXT[piece.start : piece.end]
        == "in millions) 2021 2022\nStockholders\u2019 equity \u2014 \u2014\nNet sales $ 5 $ 7"
    )
    assert task.documents[0].metadata["whole_page_evidence"] == 0


def test_pages_count_from_0_and_the_whole_page_stands_in(tmp_path):
    task = read_financebench(write(tmp_path, [question(evidence_page_num=3)]), "fb")
    (piece,) = task.questions[0].evidence
    assert TEXT[piece.start : piece.end] == "Sales rose again."
    assert task.documents[0].metadata["whole_page_evidence"] == 1


def test_very_long_sentences_are_cut_into_lines(tmp_path):
    names = [f"Subsidiary of the {letter} kind" for letter in "abcdefghijklm"]
    page = "\n".join(names)
    rows = [question(evidence_text=names[4], evidence_page_num=0)]
    task = read_financebench(write(tmp_path, rows, [{"doc_name": "ACME_2022", "pages": [page]}]), "fb")
    assert [page[start:end] for start, end in task.sentences["ACME_2022"]] == names
    assert page[slice(*(task.questions[0].evidence[0].start, task.questions[0].evidence[0].end))] == names[4]


def test_what_cannot_be_asked_is_counted(tmp_path):
    rows = [
        question(),
        question("a", doc_name="OTHER"),
        question("b", evidence_page_num=1),
        question("c", evidence_page_num=9),
        question("d") | {"evidence": []},
    ]
    task = read_financebench(write(tmp_path, rows), "fb")
    assert [asked.id for asked in task.questions] == ["fb_1"]
    assert task.left_out == {NO_FILING: 1, NO_PAGE: 2, NO_EVIDENCE: 1}


@pytest.mark.parametrize(
    ("questions", "filings", "message"),
    [
        ([question()], [{"doc_name": "A", "pages": [" "]}], "pages.jsonl:1: filing A has no text"),
        ([question(doc_name="B")], [FILING], "no question of questions.jsonl can be asked: .*filing not in the corpus"),
    ],
)
def test_broken_rows_are_refused(tmp_path, questions, filings, message):
    with pytest.raises(InputError, match=message):
        read_financebench(write(tmp_path, questions, filings), "fb")
