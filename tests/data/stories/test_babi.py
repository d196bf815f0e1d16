"""Reader of bAbI files, on small files written here."""

import gzip

import pytest

from qrag_jax.data.stories.babi import read_babi
from qrag_jax.types import InputError, UsageError

GOOD = (
    "1 Mary moved to the bathroom.\n"
    "2 Mary got the milk there.\n"
    "3 Where is the milk? \tbathroom\t2 1\n"
    "4 Mary went to the office.\n"
    "5 Where is the milk?\toffice\t2 4\n"
    "1 John went to the hall.\n"
    "2 Where is John?\thall\t1\n"
)


def write(tmp_path, text, name="qa.txt"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_reads_stories_questions_and_supports(tmp_path):
    stories = read_babi(write(tmp_path, GOOD))
    assert [stories.question(i) for i in range(3)] == ["Where is the milk?", "Where is the milk?", "Where is John?"]
    assert stories.answers == ("bathroom", "office", "hall")
    assert [gold.tolist() for gold in stories.gold] == [[0, 1], [1, 2], [0]]  # line 4 is fact 2: line 3 is a question
    assert stories.fact_texts(1) == [
        "Mary moved to the bathroom.",
        "Mary got the milk there.",
        "Mary went to the office.",
    ]
    assert stories.fact_texts(2) == ["John went to the hall."]
    assert stories.query_ids == ("qa.txt:3", "qa.txt:5", "qa.txt:7")


def test_gzip_and_windows_line_ends_read_the_same(tmp_path):
    plain = read_babi(write(tmp_path, GOOD))
    packed = tmp_path / "qa.txt.gz"
    packed.write_bytes(gzip.compress(GOOD.replace("\n", "\r\n").encode()))
    other = read_babi(packed)
    assert other.texts == plain.texts and other.answers == plain.answers
    assert [gold.tolist() for gold in other.gold] == [gold.tolist() for gold in plain.gold]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Mary moved.", "qa.txt:8: expected `n sentence` or"),
        ("x Mary moved.", "qa.txt:8: expected"),
        ("3", "qa.txt:8: expected"),
        ("0 Mary moved.", "qa.txt:8: expected"),
        ("7 Mary moved.", "qa.txt:8: line number 7 follows 2; .* 1 starts a new story"),
        ("3 Where?\thall", "qa.txt:8: .* got 2 tab-separated parts"),
        ("3 Where?\thall\t1\t2", "qa.txt:8: .* got 4 tab-separated parts"),
        ("3 Where?\t\t1", "qa.txt:8: .* tab-separated parts"),
        ("3 Where?\thall\tone", "qa.txt:8: supporting line numbers must be integers, got 'one'"),
        (f"3 Where?\thall\t{'9' * 5_000}", "qa.txt:8: supporting line numbers must be integers, got '9999"),
        (f"{'1' * 5_000} Mary moved.", "qa.txt:8: expected `n sentence`"),
        ("3 Where?\thall\t9", r"qa.txt:8: support fact 9 does not exist .* lines \[1\]"),
        ("3 Where?\thall\t3", "qa.txt:8: support fact 3 does not exist above this question"),
        ("3 Where?\thall\t2", "qa.txt:8: support fact 2 is a question"),
        ("3 Where?\thall\t0", "qa.txt:8: support fact 0 does not exist"),
        ("1 Where?\thall\t1", "qa.txt:8: support fact 1 does not exist"),
    ],
)
def test_malformed_lines_name_file_and_line(tmp_path, line, message):
    with pytest.raises(InputError, match=message):
        read_babi(write(tmp_path, GOOD + line + "\n"))


def test_empty_missing_and_broken_files(tmp_path):
    with pytest.raises(InputError, match="no question in this file"):
        read_babi(write(tmp_path, " \n\n"))
    with pytest.raises(InputError, match="no question in this file"):
        read_babi(write(tmp_path, "1 Mary moved.\n"))
    with pytest.raises(UsageError, match="none.txt: no such file; expected a bAbI file"):
        read_babi(tmp_path / "none.txt")
    broken = tmp_path / "qa.txt.gz"
    broken.write_bytes(gzip.compress(GOOD.encode())[:-20])
    with pytest.raises(InputError, match="check that the file is complete"):
        read_babi(broken)
    (tmp_path / "latin.txt").write_bytes(b"1 Ren\xe9 moved.\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_babi(tmp_path / "latin.txt")
