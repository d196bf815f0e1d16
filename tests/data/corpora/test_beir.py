"""BEIR folders written by hand."""

import gzip
import json

import pytest

from qrag_jax.data.corpora.beir import (
    EMPTY_DOCUMENT,
    ITSELF,
    LOST_RELEVANT,
    NO_QUERY,
    NO_RELEVANT,
    NOT_IN_CORPUS,
    read_beir,
    whole_judgements,
)
from qrag_jax.types import InputError, InputWarning, UsageError

CORPUS = [
    {"_id": "d1", "title": "Rye", "text": "Rye is a grass.\nIt is hardy."},
    {"_id": "d2", "title": "", "text": " Oats are grown. "},
    {"_id": "d3", "title": "Title only", "text": ""},
    {"_id": "d4", "title": " ", "text": ""},
    {"_id": 5, "text": "No title field."},
]
QUERIES = [
    {"_id": "q2", "text": "What is rye?"},
    {"_id": "q1", "text": "What is grown?", "metadata": {}},
    {"_id": "of another split", "text": "Which?"},
    {"_id": "q3", "text": "Nothing?"},
    {"_id": "q4", "text": "Elsewhere?"},
]
QRELS = """query-id\tcorpus-id\tscore
q1\td2\t1
q1\t5\t2
q2\td1\t1
q2\td2\t0
q2\tgone\t1
q3\td1\t0
q4\tgone\t1
q9\td1\t1
"""

LEFT_OUT = pytest.mark.filterwarnings("ignore:.*such judgements are left out")


def write(tmp_path, corpus=CORPUS, queries=QUERIES, qrels=QRELS, split="test", gz=False):
    (tmp_path / "qrels").mkdir(exist_ok=True)
    for name, rows in (("corpus.jsonl", corpus), ("queries.jsonl", queries)):
        put(tmp_path / name, "\n".join(json.dumps(row) for row in rows), gz)
    put(tmp_path / "qrels" / f"{split}.tsv", qrels, gz)
    return tmp_path


def put(path, text, gz):
    if gz:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


@LEFT_OUT
def test_reads_a_folder(tmp_path):
    task = read_beir(write(tmp_path), "grain")
    assert (task.name, task.kind, dict(task.sentences)) == ("grain", "documents", {})
    assert [(document.id, document.text) for document in task.documents] == [
        ("d1", "Rye\nRye is a grass.\nIt is hardy."),
        ("d2", "Oats are grown."),
        ("d3", "Title only"),
        ("5", "No title field."),
    ]
    # In the order of the queries; a score of 0 is not relevant; what is not in the corpus cannot be found.
    assert [(q.id, q.text, q.relevant) for q in task.questions] == [
        ("q2", "What is rye?", ("d1",)),
        ("q1", "What is grown?", ("d2", "5")),
    ]
    assert task.left_out == {EMPTY_DOCUMENT: 1, NO_RELEVANT: 1, NOT_IN_CORPUS: 1, NO_QUERY: 1, LOST_RELEVANT: 1}


@LEFT_OUT
def test_compressed_files_and_other_qrels_are_the_same(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "packed").mkdir()
    plain = read_beir(write(tmp_path / "plain"), "grain")
    packed = read_beir(write(tmp_path / "packed", split="dev", gz=True), "grain", qrels="dev")
    assert plain == packed


def test_a_query_may_have_the_id_of_a_document(tmp_path):
    task = read_beir(write(tmp_path, queries=[{"_id": "d1", "text": "?"}], qrels="q\td\tscore\nd1\td1\t1\n"), "t")
    assert task.questions[0].relevant == ("d1",)


def test_a_document_with_the_id_of_a_question_is_itself_unless_it_is_relevant(tmp_path):
    queries = [{"_id": "d1", "text": "Like this?"}, {"_id": "d2", "text": "And this?"}, {"_id": "q", "text": "What?"}]
    task = read_beir(write(tmp_path, queries=queries, qrels="d1\td2\t1\nd2\td2\t1\nq\td2\t1\n"), "t")
    assert [question.itself for question in task.questions] == ["d1", "", ""]
    assert task.left_out == {EMPTY_DOCUMENT: 1, ITSELF: 1}


@pytest.mark.parametrize(
    "qrels",
    [
        "query-id\tcorpus-id\tscore\nq1\td2\t1\n7\t5\t2\n",
        "q1\td2\t1\n7\t5\t2\n",  # no header: the first line counts too
        "Query ID\tDoc_ID\tRelevance\nq1\td2\t1\n7\t5\t2",
        "qid\tx\ty\nq1\td2\t0.5\n7\t5\t1e-3\nq1\td1\t-0.5\nq1\td1\t-0.5\n",
        "\ufeffq1\td2\t1\r\n\r\n7\t5\t1\r\n",
        " q1\td2 \t 1 \n7 \t 5\t1\nq1\td2\t1.0\n",  # said twice, but the same
    ],
)
def test_judgements_in_other_clothes(tmp_path, qrels):
    queries = [{"_id": " q1 ", "text": "What is grown?"}, {"_id": 7, "text": "And?"}]
    task = read_beir(write(tmp_path, queries=queries, qrels=qrels), "grain")
    assert [(question.id, question.relevant) for question in task.questions] == [("q1", ("d2",)), ("7", ("5",))]
    assert task.left_out == {EMPTY_DOCUMENT: 1}


def test_ids_stay_as_they_are_written(tmp_path):
    corpus, queries = [{"_id": "my doc", "text": "Rye."}], [{"_id": "q%20 1", "text": "What?"}]
    task = read_beir(write(tmp_path, corpus, queries, "q%20 1\tmy doc\t1\n"), "grain")
    assert [(question.id, question.relevant) for question in task.questions] == [("q%20 1", ("my doc",))]


@LEFT_OUT
def test_a_query_that_is_not_judged_may_be_empty(tmp_path):
    whole = read_beir(write(tmp_path), "grain")
    empty = [query | {"text": " "} if query["_id"] == "of another split" else query for query in QUERIES]
    assert read_beir(write(tmp_path, queries=[*empty, {"_id": "no text"}]), "grain") == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": [{"_id": "a"}, {"_id": " a"}]}, "queries.jsonl:2: _id 'a' was used before"),
        ({"qrels": "q1\td1\n"}, "test.tsv:1: 2 fields: expected lines query id"),
        ({"qrels": "q1\td2\tyes\nq1\td1\t1\n"}, "test.tsv:1: score must be a number, got 'yes'"),
        ({"qrels": "q1\td1\t1\nquery-id\tcorpus-id\tscore\n"}, "test.tsv:2: score must be a number, got 'score'"),
        ({"qrels": "q1\td1\tnan\n"}, "test.tsv:1: score must be a number, got 'nan'"),
        ({"qrels": "q1\td1\t1\nq1\td2\t-inf\n"}, "test.tsv:2: score must be a number, got '-inf'"),
        ({"qrels": "q1\td1\t1\nq1\td1\t0"}, "test.tsv:2: query q1 and document d1 had another score before"),
        ({"qrels": "q1\t \t1\n"}, "test.tsv:1: document id must be a text or an integer, got ' '"),
        ({"qrels": "q3\td1\t0\n"}, "no question of qrels/test.tsv can be asked: .*no relevant document"),
    ],
)
def test_broken_folders_are_refused(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        read_beir(write(tmp_path, **change), "t")


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        ("q1\td2\t1\nq9\td2\t1\n", "test.tsv:2: queries.jsonl has no query 'q9'; such judgements are left out"),
        ("q1\td2\t1\nq1\tx\t1\n", "test.tsv:2: corpus.jsonl has no document 'x' with a text; such judgements are left"),
    ],
)
def test_the_first_judgement_of_something_unknown_is_told(tmp_path, qrels, message):
    with pytest.warns(InputWarning, match=message):
        assert len(read_beir(write(tmp_path, qrels=qrels), "t").questions) == 1


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        ("q9\td2\t1\n", "can be asked: .*; line 1: queries.jsonl has no query 'q9'"),
        ("q1\td2\t0\nq1\tx\t1\n", "can be asked: .*; line 2: corpus.jsonl has no document 'x' with a text"),
        ("query-id\tcorpus-id\tscore\n", "can be asked: .*documents without title and text"),
    ],
)
def test_where_nothing_can_be_asked_the_first_unknown_is_named(tmp_path, qrels, message):
    with pytest.raises(InputError, match=message):
        read_beir(write(tmp_path, qrels=qrels), "t")


def test_judgements_as_whole_numbers(tmp_path):
    found = whole_judgements(write(tmp_path))
    assert found["q2"] == {"d1": 1, "d2": 0, "gone": 1} and list(found) == ["q1", "q2", "q3", "q4", "q9"]
    with pytest.raises(InputError, match="test.tsv:2: score 0.5 is no whole number"):
        whole_judgements(write(tmp_path, qrels="q1\td1\t2.0\nq1\td2\t0.5\n"))


def test_missing_files(tmp_path):
    with pytest.raises(UsageError, match=r"train.tsv: no such file; this folder has the qrels test"):
        read_beir(write(tmp_path), "t", qrels="train")
    with pytest.raises(UsageError, match="corpus.jsonl: no such file"):
        read_beir(tmp_path / "qrels", "t")
