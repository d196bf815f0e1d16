import json
import os
import re
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.processes import held

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.cli.main import parse
from qrag_jax.cli.study import _split_words, _warnings_once
from qrag_jax.data.corpora import file_questions
from qrag_jax.eval.study.cells.study_encoder import StudyEncoder
from qrag_jax.eval.study.config import DEFAULT_STRATEGIES
from qrag_jax.files.folder_lock import LOCK
from qrag_jax.models.encoder.config import EncoderConfig
from qrag_jax.service import studying
from qrag_jax.service.studying import StudyRequest, check_out, default_out, study_config, task_name
from qrag_jax.types import TextCounts

GARDEN = "# Garden\n\nThe pump is behind the shed. Water it twice a week.\n\n## Tools\n\nThe rake is red.\n"
CELLAR = "The wine is in the cellar. The key to the cellar hangs in the kitchen. It is cold there.\n"
FILES = {"notes/garden.md": GARDEN, "notes/house/cellar.txt": CELLAR}
QUESTIONS = [
    {"question": "Where is the pump?", "evidence": ["The pump is behind the shed."]},
    {"question": "What colour has the rake?", "evidence": {"file": "garden.md", "text": "The rake is red."}},
    {"question": "Where is the key?", "evidence": [{"file": "house/cellar.txt", "start": 27, "end": 71}]},
]
LINE = ("study", "--corpus", "notes", "--questions", "questions.jsonl")
CONFIG = "strategies:\n  fixed:\n    - {max_tokens: 8}\n  recursive:\n    - {strategy: recursive, max_tokens: 8}\n"
TASKS = "tasks:\n  mine: {kind: files, path: notes, questions: questions.jsonl}\n"


class WordEmbedder:
    """A token is a word; the vector of a text counts the letters of its words."""

    dim, window, lengths = 26, 256, (256,)

    def __init__(self):
        self.counts = TextCounts()

    def __call__(self, texts, progress=None):
        return np.array([self._vector(text) for text in texts], np.float32).reshape(-1, self.dim)

    def tokens(self, text):
        spans, start = [], 0
        for word in text.split():
            start = text.index(word, start)
            spans.append((start, start + len(word)))
            start += len(word)
        vectors = np.array([self._vector(word) for word in text.split()], np.float32)
        return vectors.reshape(-1, self.dim), np.array(spans, np.int64).reshape(-1, 2)

    def count_tokens(self, text):
        return len(text.split())

    def _vector(self, text):
        self.counts = self.counts.plus(1, len(text.split()) + 2, 0)
        return [text.lower().count(letter) + 1e-3 for letter in "abcdefghijklmnopqrstuvwxyz"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder of notes and their questions, and an encoder that needs no weights."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    write_questions(tmp_path, QUESTIONS)
    config = EncoderConfig(vocab_size=5, hidden_size=26, num_layers=1, num_heads=1, intermediate_size=8)
    encoder = StudyEncoder(WordEmbedder(), config, "words", "print")
    monkeypatch.setattr(studying, "load_study_encoder", lambda model, window: encoder)
    return tmp_path


def write_questions(folder, questions):
    (folder / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))


@pytest.fixture
def study(files, command):
    """(arguments) -> (exit code, standard output, standard error) of `qrag study`."""
    return partial(command, "study")


def untimed(rows):
    """Rows without their seconds, which no two runs share."""
    return [row | {"cost": row["cost"] | {"seconds": None}} for row in rows]


def test_your_own_documents_with_nothing_else(study, files):
    code, out, err = study(*LINE[1:])
    assert code == 0, err
    assert out.startswith("notes (evidence): 3 questions, 2 documents; first config of each, nothing was chosen\n")
    rows = [line.split() for line in out.split("\n\n")[0].splitlines()[2:]]
    assert [row[0] for row in rows] == list(DEFAULT_STRATEGIES)
    assert "too few to choose" in out
    assert err.splitlines()[0] == "notes: 3 questions about 2 documents (179 characters)"
    assert "notes: only 3 questions; the intervals are wide" in err
    assert "qrag study runs/study-notes/config.yaml --out OTHER" in err
    written = {path.name for path in (files / "runs/study-notes").iterdir()}
    assert {"table.md", "table.csv", "plot.png", "results.json", "per_query.jsonl", "config.yaml"} <= written


def test_rows_as_json_and_the_same_study_again_from_its_config(study, files):
    (files / "small.yaml").write_text(CONFIG)
    code, out, err = study(*LINE[1:], "small.yaml", "--out", "first", "--json", "ks=[1,2]", "report_k=2")
    rows = json.loads(out)
    assert code == 0 and [row["strategy"] for row in rows] == ["fixed", "recursive"]
    assert {"f1@1", "f1@2", "iou@2"} <= set(rows[0]["scores"]) and rows[0]["n"] == 3
    code, again, _ = study("first/config.yaml", "--out", "second", "--json")
    assert code == 0 and untimed(json.loads(again)) == untimed(rows)
    assert json.loads((files / "second/results.json").read_text())["rows"] == json.loads(again)
    lines = [(files / name / "per_query.jsonl").read_text() for name in ("first", "second")]
    assert lines[0] == lines[1] and len(lines[0].splitlines()) == 6
    assert (files / "first/config.yaml").read_text() == (files / "second/config.yaml").read_text()


def test_the_same_line_again_computes_nothing_anew(study, files, monkeypatch):
    (files / "small.yaml").write_text(CONFIG)
    _, first, _ = study(*LINE[1:], "small.yaml", "--json")
    monkeypatch.setattr(WordEmbedder, "__call__", lambda *_: pytest.fail("embedded again"))
    _, second, _ = study(*LINE[1:], "small.yaml", "--json")
    assert json.loads(first) == json.loads(second)  # the seconds too: they are those of the first run


def test_a_config_that_names_its_tasks(study, files):
    (files / "mine.yaml").write_text(CONFIG + TASKS)
    code, out, _ = study("mine.yaml", "tasks.mine.num_questions=2")
    assert code == 0 and out.startswith("mine (evidence): 2 questions")
    assert (files / "runs/study-mine/table.md").is_file()


def test_results_are_not_written_among_the_documents(study, files):
    (files / "notes/broken.txt").write_bytes(b"\xff")  # would be refused if anything was read
    (files / "notes/questions.jsonl").write_text((files / "questions.jsonl").read_text())
    (files / "link").symlink_to(files / "notes")
    for argv in (
        [*LINE[1:], "--out", "notes/out"],
        [*LINE[1:], "--out", "link/a/../out"],
        [*LINE[1:], "--out", str(files / "notes")],
        ["--corpus", ".", "--questions", "questions.jsonl"],
        ["--corpus", "link", "--questions", "questions.jsonl", "--out", "notes/out"],
    ):
        code, out, err = study(*argv)
        assert (code, out) == (2, "") and re.match(r"qrag: error: --out \S+: is inside the documents of \w+ ", err), err
        assert "give --out a folder outside of it" in err
    assert not (files / "runs").exists() and not (files / "notes/out").exists()


def test_results_beside_the_documents_are_fine(files):
    for corpus in ("notes", "notes/garden.md"):
        config = study_config(StudyRequest(corpus=corpus, questions="questions.jsonl"))
        for out in ("notes-out", "out", "runs/notes"):
            check_out(Path(out), config)


def test_questions_that_cannot_be_asked_are_named_with_their_line(study, files, monkeypatch):
    read, calls = file_questions.read_with_problems, []
    told = lambda *args, **more: calls.append(args) or read(*args, **more)  # noqa: E731
    monkeypatch.setattr(file_questions, "read_with_problems", told)
    (files / "small.yaml").write_text(CONFIG)
    bad = [{"question": f"Where is {i}?", "evidence": ["nowhere to be found"]} for i in range(7)]
    write_questions(files, [*QUESTIONS, *bad])
    code, out, err = study(*LINE[1:], "small.yaml")
    assert code == 0 and "left out, evidence text not found: 7" in err
    assert err.count("questions.jsonl:") == 5 and "questions.jsonl:4: " in err and "  and 2 more\n" in err
    assert "left out, evidence text not found: 7" in out
    assert len(calls) == 1


def test_a_folder_that_another_study_writes_to_is_refused(study, files):
    """Before documents are read and the encoder is loaded."""
    line = (*LINE[1:], "--out", "out")
    with held(files / "out", "qrag study") as first:
        code, out, err = study(*line)
        assert (code, out) == (2, "") and err.startswith(
            f"qrag: error: {files / 'out'}: in use by qrag study (process {first.pid} on "
        )
    assert [path.name for path in (files / "out").iterdir()] == [LOCK]
    code, _, err = study(*line)
    assert code == 0, err
    assert LOCK not in os.listdir("out") and "table.md" in os.listdir("out")


CONTEXTS = ("--budgets", "5,90", "--fill", "plain,merge", "--levels", "each,all", "--parents", "mean")


def test_ctrl_c_says_how_it_goes_on(study, files, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(studying, "run_study", stop)
    code, out, err = study("--corpus", "notes", "--questions", "questions.jsonl", "seed=3", "--out", "a b", *CONTEXTS)
    assert (code, out) == (130, "")
    assert f"  qrag study --corpus notes --questions questions.jsonl --out 'a b' {' '.join(CONTEXTS)} seed=3\n" in err
    (files / "notes").rename(files / "-notes")
    _, _, err = study("--corpus=-notes", "--questions", "questions.jsonl", "--out=-o")
    line = "  qrag study --corpus=-notes --questions questions.jsonl --out=-o\n"
    assert line in err and parse(line.split()[1:]).values["corpus"] == "-notes"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "nothing to study; give a config with tasks, or your own documents"),
        (["report_k=3"], "nothing to study"),
        (["--corpus", "notes"], "--corpus needs --questions too"),
        (["--questions", "questions.jsonl", "mine.yaml"], "--questions needs --corpus too"),
        (["--corpus", "nots", "--questions", "questions.jsonl"], "--corpus nots: no such file or folder"),
        (["--corpus", "notes", "--questions", "q.jsonl"], "--questions q.jsonl: no such file or folder"),
        (["--corpus", "notes", "--questions", "notes"], "--questions notes: is a folder"),
        ([*LINE[1:], "mine.yaml"], r"--corpus notes: mine.yaml names tasks too \(mine\)"),
        ([*LINE[1:], "tasks.b.kind=chroma", "tasks.b.path=x"], r"--corpus notes: an override names tasks too \(b\)"),
        (["mine.yaml", "small.yaml"], "mine.yaml, small.yaml: give one config"),
    ],
)
def test_wrong_combinations(argv, message, files, study):
    (files / "small.yaml").write_text(CONFIG)
    (files / "mine.yaml").write_text(CONFIG + TASKS)
    (files / "relevant.jsonl").write_text('{"question": "Where is the key?", "relevant": ["house/cellar.txt"]}')
    code, out, err = study(*argv)
    assert (code, out) == (2, "")
    assert re.match(f"qrag: error: {message}", err), err
    assert not (files / "runs").exists()


def test_a_broken_question_is_bad_data(study, files):
    (files / "questions.jsonl").write_text('{"question": 3}\n')
    code, out, err = study(*LINE[1:])
    assert (code, out) == (1, "") and "questions.jsonl:1: " in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), (None, ())),
        (("a.yaml", "seed=3", "tasks.a.path=x=y"), ("a.yaml", ("seed=3", "tasks.a.path=x=y"))),
        (("seed=3", "runs/a=b/config.yaml"), ("runs/a=b/config.yaml", ("seed=3",))),
        (("./seed=3",), ("./seed=3", ())),
        (("tasks.my-task.num_questions=1",), (None, ("tasks.my-task.num_questions=1",))),
    ],
)
def test_words(words, expected):
    assert _split_words(words) == expected


@pytest.mark.parametrize(
    ("corpus", "name"),
    [("notes", "notes"), ("my notes-2/", "my_notes_2"), ("a/book.txt", "book"), ("2024", "corpus"), ("/", "corpus")],
)
def test_names_of_tasks(corpus, name):
    assert task_name(corpus) == name


OWN = StudyRequest(overrides=("seed=7", "tasks.notes.num_questions=2"), corpus="notes", questions="questions.jsonl")


def test_the_config_of_a_corpus(files):
    config = study_config(OWN)
    task = config.tasks["notes"]
    assert (task.kind, task.path, task.questions, task.scope) == ("files", "notes", "questions.jsonl", "corpus")
    assert (config.seed, task.num_questions, config.strategies) == (7, 2, DEFAULT_STRATEGIES)


@pytest.mark.parametrize(
    "name",
    [
        '"quoted"', "'quoted'", "a: b", "a #b", "-notes", "--notes=1", "null", "5", "[x", "back\\slash", "a b\t\nc\r",
        "\u00fcn\u00ef\u2028\x7f", "\U0001f600", os.fsdecode(b"caf\xe9"),
    ],
)  # fmt: skip
def test_any_path_is_taken_as_it_is(name, files):
    (files / name).mkdir()
    (files / f"{name}.jsonl").write_text("")
    (task,) = study_config(StudyRequest(corpus=name, questions=f"{name}.jsonl")).tasks.values()
    assert (task.path, task.questions) == (name, f"{name}.jsonl")


def test_paths_on_the_command_line_are_not_below_the_data_of_a_config(files):
    (files / "small.yaml").write_text("data: elsewhere\n" + CONFIG)
    config = study_config(StudyRequest("small.yaml", corpus="notes", questions="questions.jsonl"))
    assert config.data == "" and list(config.strategies) == ["fixed", "recursive"]
    assert config.strategies["fixed"] == (ChunkConfig(max_tokens=8),)


def test_default_folders(files):
    (files / "mine.yaml").write_text(TASKS)
    own = study_config(StudyRequest(corpus="notes", questions="questions.jsonl"))
    assert default_out(None, own) == "runs/study-notes"
    (files / "two.yaml").write_text(TASKS + "  other: {kind: chroma, path: c}\n")
    assert default_out("x/two.yaml", study_config(StudyRequest("two.yaml"))) == "runs/study-two"


def test_each_kind_of_warning_is_said_once(capsys):
    with _warnings_once():
        for number in range(3):
            warnings.warn(f"{1000 * number:,} sentences: cut into windows of 10,000", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = ["0 sentences: cut into windows of 10,000 (shown once)", "something else (shown once)"]
    assert captured.err.splitlines() == lines


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--fill", "merge"), "--fill merge: needs --budgets"),
        (("--budgets", "9,5"), "budgets \\[9, 5\\]: numbers of tokens, at least 1, increasing"),
    ],
)
def test_budgets_that_are_none_are_refused(study, flags, message):
    code, out, err = study(*LINE[1:], *flags)
    assert (code, out) == (2, "") and re.search(message, err), err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--parents", "mean"), "--parents mean: needs --levels"),
        (("--levels", "all"), "give budgets too"),
    ],
)
def test_wrong_levels_are_refused(study, flags, message):
    code, _, err = study(*LINE[1:], *flags)
    assert code == 2 and message in err
