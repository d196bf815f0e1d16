import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.measures.trec import rank_documents, read_qrels, read_run, write_qrels, write_run
from qrag_jax.types import InputError, UsageError

QRELS = {"q1": {"d1": 2, "Paris (city)": 0}, "q 2": {"50 %": 1, "é": -1, "#d": 1, "a%20b": 1}}


def test_files_by_hand(tmp_path):
    write_qrels(tmp_path / "qrels", QRELS)
    assert (tmp_path / "qrels").read_text(encoding="ascii") == (
        "q1 0 d1 2\nq1 0 Paris%20(city) 0\nq%202 0 50%20%25 1\nq%202 0 %C3%A9 -1\nq%202 0 %23d 1\nq%202 0 a%2520b 1\n"
    )
    write_run(tmp_path / "run", {"#1": {"a": 0.25, "b c": 1e-7, "x": 0.25}, "q2": {}, "q3": {"a/b#4": -2.0}}, "bm25")
    assert (tmp_path / "run").read_text(encoding="ascii") == (
        "%231 Q0 x 1 0.25 bm25\n%231 Q0 a 2 0.25 bm25\n%231 Q0 b%20c 3 1e-07 bm25\nq3 Q0 a/b#4 1 -2.0 bm25\n"
    )
    assert read_qrels(tmp_path / "qrels") == QRELS
    assert read_run(tmp_path / "run") == {"#1": {"x": 0.25, "a": 0.25, "b c": 1e-7}, "q3": {"a/b#4": -2.0}}


def test_files_of_others(tmp_path):
    """Tabs, many blanks, other ranks, comments, Windows line ends, gzip, a percent sign that escapes nothing."""
    with gzip.open(tmp_path / "run.gz", "wt", newline="") as file:
        file.write("# made by hand\r\n301\tQ0\tFR940202-2\t104\t  2.129133\tSTANDARD\r\n\r\n301 Q0 100% 7 .5E1 x\n")
    assert read_run(tmp_path / "run.gz") == {"301": {"FR940202-2": 2.129133, "100%": 5.0}}
    (tmp_path / "qrels").write_text("301 0 a#b 1\n # no comment 1\n302 0 a +3")
    assert read_qrels(tmp_path / "qrels") == {"301": {"a#b": 1}, "#": {"comment": 1}, "302": {"a": 3}}


names = st.text(st.characters(), min_size=1, max_size=6)
SETTINGS = {"min_size": 1, "max_size": 4}


@given(st.dictionaries(names, st.dictionaries(names, st.integers(), **SETTINGS), **SETTINGS))
def test_qrels_come_back(tmp_path_factory, qrels):
    path = tmp_path_factory.mktemp("qrels") / "qrels"
    write_qrels(path, qrels)
    assert read_qrels(path) == qrels
    assert list(read_qrels(path)) == list(qrels)


scores = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(names, st.dictionaries(names, scores, **SETTINGS), **SETTINGS))
def test_runs_come_back_in_the_order_of_their_ranks(tmp_path_factory, run):
    path = tmp_path_factory.mktemp("run") / "run"
    write_run(path, run, "tag")
    found = read_run(path)
    assert found == run
    assert [list(row) for row in found.values()] == [rank_documents(row) for row in run.values()]


def test_names_that_are_not_unicode_come_back(tmp_path):
    """A file name of Latin-1 bytes has a lone surrogate in Python."""
    write_qrels(tmp_path / "qrels", {"q": {"caf\udce9.txt": 1}})
    assert read_qrels(tmp_path / "qrels") == {"q": {"caf\udce9.txt": 1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q 0 d 1\nq d 1\n", ":2: 3 columns; expected lines of 4 columns: query, 0, document, judgement"),
        ("query-id corpus-id score\n", ":1: 3 columns"),  # a qrels file of BEIR
        ("q 0 d 1 x\n", ":1: 5 columns"),
        ("q 0 d 1.5\n", ":1: judgement '1.5' is no whole number"),
        ("q 0 d 1_0\n", ":1: judgement '1_0' is no whole number"),
        (f"q 0 d {'9' * 5_000}\n", ":1: judgement '999"),
        ("\n\nq 0 d 1\nq 0 %64 2\n", ":4: query 'q' has document 'd' twice"),
        ("q 0 d%FF 1\n", ":1: id 'd%FF' is no percent-encoded UTF-8; write a % of its own as %25"),
        ("# nothing\n\n", ": empty file; expected lines of 4 columns"),
    ],
)
def test_broken_qrels_are_refused(tmp_path, text, message):
    (tmp_path / "qrels").write_text(text)
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / 'qrels'}{message}")):
        read_qrels(tmp_path / "qrels")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 d 1 0.5", "5 columns; expected lines of 6 columns: query, Q0, document, rank, score, tag"),
        ("q Q0 d 1 0.5 tag more", "7 columns"),
        ("q Q0 d 1 nan tag", "score 'nan' is no finite number"),
        ("q Q0 d 1 NaN tag", "score 'NaN' is no finite number"),
        ("q Q0 d 1 -inf tag", "score '-inf' is no finite number"),
        ("q Q0 d 1 1e999 tag", "score '1e999' is no finite number"),
        ("q Q0 d 1 high tag", "score 'high' is no finite number"),
        ("q Q0 d 1 1_0 tag", "score '1_0' is no finite number"),
        ("q Q0 other 9 0.1 tag", "query 'q' has document 'other' twice"),
        ("q%80 Q0 d 1 0.5 tag", "id 'q%80' is no percent-encoded UTF-8"),
    ],
)
def test_broken_runs_are_refused(tmp_path, line, message):
    path = tmp_path / "run"
    path.write_text(f"q Q0 other 1 0.5 tag\n{line}\n")
    with pytest.raises(InputError, match=re.escape(f"{path}:2: {message}")):
        read_run(path)


def floats(rows):
    return {query: {document: float(value) for document, value in row.items()} for query, row in rows.items()}


def test_what_a_file_would_lose_is_refused(tmp_path):
    path = tmp_path / "file"
    for write in (write_qrels, lambda path, rows: write_run(path, floats(rows), "tag")):
        with pytest.raises(InputError, match="nothing to write"):
            write(path, {})
        with pytest.raises(InputError, match="an id is empty"):
            write(path, {"": {"d": 1}})
        with pytest.raises(InputError, match="an id is empty"):
            write(path, {"q": {"": 1}})
    with pytest.raises(InputError, match="query 'q' has no judgement"):
        write_qrels(path, {"q": {}})
    for score in ("nan", "inf", "-inf"):
        with pytest.raises(InputError, match=f"query 'q', document 'd': score {score} is not finite"):
            write_run(path, {"q": {"d": float(score)}}, "tag")
    for tag in ("", "two words", " tag"):
        with pytest.raises(InputError, match="tag .*: one word without blank space"):
            write_run(path, {"q": {"d": 1.0}}, tag)
    assert not path.exists()


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="no such file; expected lines of 6 columns"):
        read_run(tmp_path / "run")
