"""Points by a language model on the command line: flags, estimates, what is said, what is refused."""

import json
from types import SimpleNamespace

import pytest

from qrag_jax.annotate.ask_chunks import Reading
from qrag_jax.annotate.hichunk import HiChunkConfig
from qrag_jax.annotate.windows import PointsReading
from qrag_jax.cli import llm_flags
from qrag_jax.cli.llm_output import format_points
from qrag_jax.llm.config import ReadyGenerator, make_generator
from qrag_jax.llm.prices import Prices

MILL = "The mill was built. It is old.\n\nThe bridge is new. It was opened in 1931.\n"
MARKDOWN = "# Village\n\n## Mill\n\nThe mill was built. It is old.\n\n## Bridge\n\nThe bridge is new. It was opened.\n"
NO_MERGE = ("--set", "hierarchy.merge_tokens=0")


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.txt").write_text(MILL)
    (tmp_path / "headed.md").write_text(MARKDOWN)
    return tmp_path


@pytest.fixture
def qrag(files, command):
    """(verb, script, arguments) -> (exit code, standard output, standard error), of answers by a script."""

    def run(verb, answers, *argv):
        lines = [{"answer": answer} if isinstance(answer, str) else answer for answer in answers]
        (files / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        scripted = ("--llm", "scripted", "--llm_model", "script.jsonl", "--journal", "journal.sqlite")
        return command(verb, *argv, *(scripted if answers else ()))

    return run


def chunk(qrag, answers, *argv):
    return qrag("chunk", answers, "plain.txt", "--strategy", "hierarchy", *NO_MERGE, *argv)


def test_the_help_tells_the_size_of_a_window():
    assert f"(default: {HiChunkConfig.window_tokens:,}" in llm_flags.POINTS


def test_chunks_of_the_parts_that_a_model_names(qrag):
    answer = "0, Level One, true\n2, Level One, false\n9, Level One, true"
    code, out, err = chunk(qrag, [answer], "--points", "llm")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == ["plain.txt:0-30", "plain.txt:32-73"]
    assert err.startswith("boundaries by llm: at most 1 calls of the language model, ")
    assert "1 texts in 1 windows, 2 boundaries, 2 rows kept, dropped: 1 line out of range, 1 new calls" in err
    assert "0 new calls and 1 from the journal" in chunk(qrag, [answer], "--points", "llm")[2]


def test_chunks_of_where_a_model_sees_the_content_change(qrag):
    code, out, err = chunk(qrag, ["1"], "--points", "lumber")
    assert code == 0 and len(out.splitlines()) == 2 and "by lumber: 1 texts in 1 windows, 1 boundaries" in err


def test_an_estimate_asks_nothing(qrag, files):
    code, out, _ = chunk(qrag, ["none"], "--points", "llm", "--estimate", "--tokens_per_second", "100,10")
    assert code == 0 and out.count("at most 1 calls") == 1 and out.endswith("hours; nothing was asked (--estimate)\n")
    methods = ("--methods", "none,llm,lumber", "--view", "plain", "--estimate")
    code, out, _ = qrag("boundaries", ["none"], "headed.md", *methods)
    assert code == 0 and [line.split(": at most")[0] for line in out.splitlines()] == [
        f"{view}: boundaries by {name}" for name in ("llm", "lumber") for view in ("plain", "removed")]  # fmt: skip
    assert not (files / "journal.sqlite").stat().st_size or b"none" not in (files / "journal.sqlite").read_bytes()


def test_points_of_a_model_are_scored(qrag):
    right = {"match": "0: The mill was built.", "answer": "0, Level One, false\n2, Level One, false"}
    code, out, err = qrag("boundaries", [right], "headed.md", "--methods", "none,llm", "--json", "-")
    rows = {row["method"]: row for row in json.loads(out)}
    assert code == 0 and (rows["none"]["f1_any"], rows["llm"]["f1_any"]) == (0.0, 1.0)
    assert "boundaries by llm: 1 texts in 1 windows, 2 boundaries" in err


@pytest.mark.parametrize(
    "argv, message",
    [
        (("--points", "headings", "--estimate"), "--estimate: works only with boundaries by llm"),
        (("--points", "llm", "--tokens_per_second", "3"), "--tokens_per_second: give two numbers"),
        (("--points", "llm", "--window_tokens", "9000"), "--window_tokens 9000: the model's window of 8,192 tokens"),
    ],
)
def test_flags_that_do_not_fit(qrag, monkeypatch, argv, message):
    local = SimpleNamespace(window=8_192, count=lambda text: len(text.split()), generator=None)
    monkeypatch.setattr("qrag_jax.annotate.boundary_sources.make_generator", lambda llm: _make(llm, local))
    code, out, err = chunk(qrag, [], *argv)
    assert code == 2 and not out and message in err


def _make(llm, local):
    return make_generator(llm) if llm.llm != "local" else ReadyGenerator(local, local.window, local.count)


def test_a_failed_call_gives_no_chunks(qrag):
    code, out, err = chunk(qrag, [{"error": "the server is down"}], "--points", "llm")
    assert code != 0 and not out and "the server is down; 1 of" in err and "1 call failed" in err


def test_a_reading_with_prices():
    reading = PointsReading(2, 3, 4, 4, {"no row": 1}, Reading(num_calls=3, prompt_tokens=1_000_000))
    line = format_points(reading, Prices(prompt_per_million_tokens=2.0, completion_per_million_tokens=1.0))
    assert line.endswith(
        "dropped: 1 no row, 3 new calls and 0 from the journal, 1,000,000 tokens read, 0 written, $2.0000"
    )
