"""`--html FILE` of `qrag find` and `qrag ask`."""

import pytest
from support.pages import read

QUESTION = "Who picked up the milk?"


def test_the_passages_and_their_documents(files, command, tmp_path):
    code, out, err = command("find", *files, QUESTION, "--retriever", "bm25", "--html", "new/trace.html")
    assert (code, err) == (0, "page: new/trace.html\n")
    assert out == command("find", *files, QUESTION, "--retriever", "bm25")[1]
    page = read((tmp_path / "new" / "trace.html").read_text(encoding="utf-8"))
    assert page.marks[0] == "Mary picked up\nthe milk there."
    assert {"Mary picked up", "the milk there."} <= set(page.marks)  # two lines of the document
    assert any(link.startswith("#doc-1-at-") for link in page.links)


def test_the_steps_of_a_run(run, files, command, tmp_path):
    assert command("find", run.folder, *files, QUESTION, "--html", "trace.html", "--json")[0] == 0
    page = read((tmp_path / "trace.html").read_text(encoding="utf-8"))
    assert all(f"Step {number}" in page.text for number in (1, 2, 3)) and "Q of the best chunks" in page.text


def test_questions_one_below_the_other(files, command, tmp_path):
    (tmp_path / "questions.txt").write_text(f"{QUESTION}\nzebra\n")
    code, _, _ = command(
        "find", *files, "--questions", "questions.txt", "--retriever", "bm25", "--html", "trace.html", "--json"
    )
    page = read((tmp_path / "trace.html").read_text(encoding="utf-8"))
    assert code == 0 and {"q1", "q2"} <= set(page.ids) and "shares a word" in page.text


def test_an_answer(files, command, tmp_path):
    assert command("ask", *files, QUESTION, "--retriever", "bm25", "--html", "answer.html")[0] == 0
    page = read((tmp_path / "answer.html").read_text(encoding="utf-8"))
    assert '"Mary picked up the milk there." [1]' in page.text.replace("\n", " ") and "#q1-passage-1" in page.links


@pytest.mark.parametrize(
    "path, message",
    [
        ("article", "names a file to write; --html_part article chooses a part of HTML files"),
        ("-", "only --json can print to standard output"),
        ("notes", "is a folder; name a file"),
        ("diary.txt", "is a document that is searched; name another file"),
        ("diary.txt/x.html", "is not a folder"),
    ],
)
def test_a_path_that_cannot_be_written_or_would_be_lost(files, command, path, message):
    code, out, err = command("find", *files, QUESTION, "--retriever", "bm25", "--html", path)
    assert (code, out) == (2, "") and f"--html {path}: " in err and message in err


def test_a_file_of_a_run_is_kept(run, files, command):
    code, _, err = command("find", run.folder, *files, QUESTION, "--html", f"{run.folder}/new.html")
    assert code == 2 and f"is in {run.folder}, which is searched" in err
