"""`qrag hicbench build`: the folder, what is said, what is refused."""

import json

import pytest
from support.scripted_models import build_script

from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.service import headed

SENTENCES = " ".join(f"Fact {number} of this is so and no other way." for number in range(60))
PAGE = "# Village\n\n" + "".join(f"## {place}\n\n{SENTENCES}\n\n" for place in ("Mill", "Bridge", "Road"))


@pytest.fixture
def build(tmp_path, monkeypatch, command):
    """(answers by stage, arguments) -> (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(PAGE)

    def run(*argv, **answers):
        generator = ScriptedGenerator(build_script(**answers))
        generator.count = lambda text: len(text.split())
        monkeypatch.setattr(headed, "make_generator", lambda llm: generator)
        return command("hicbench", "build", "page.md", "--out", "bench", *argv)

    return run


def all_sentences(_):
    return json.dumps({"sentences": list(range(60))})


def test_a_benchmark_is_built(build, tmp_path):
    code, out, err = build("--num_two", "1", evidence=all_sentences)
    assert code == 0 and not out
    assert "1 documents, 3 questions tried, 3 kept (2 T1, 1 T2), rejected: none, 0 unreadable answers, " in err
    rows = [json.loads(line) for line in (tmp_path / "bench" / "questions.jsonl").read_text().splitlines()]
    text = (tmp_path / "bench" / "documents" / "0000.txt").read_text()
    assert [row["type"] for row in rows] == ["T1", "T1", "T2"]
    assert all(text[one["start"] : one["end"]] == one["text"] for row in rows for one in row["evidence"])


def test_nothing_kept_is_an_error_that_says_why(build, tmp_path):
    code, _, err = build(evidence='{"sentences": [0]}')
    assert code == 1 and "rejected: 4 too little evidence" in err and "no question is kept" in err
    assert not (tmp_path / "bench").exists()


def test_what_is_refused(build, tmp_path):
    code, _, err = build(summaries="no JSON", questions=failed("down"))
    assert code == 1 and "questions: 4 of 4 calls of the language model failed; the first one: down" in err
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "a").write_text("mine")
    code, _, err = build()
    assert code == 2 and "bench" in err
