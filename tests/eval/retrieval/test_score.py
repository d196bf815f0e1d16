import json

import numpy as np
import pytest
from support.answers import make_reader
from support.runs import save_run

from qrag_jax.cli.main import main
from qrag_jax.data.questions.examples import read_examples
from qrag_jax.eval.answers.answering import Reader, check_reader, choose_measures, read_answers
from qrag_jax.eval.retrieval import score as score_module
from qrag_jax.eval.retrieval.records import row_values
from qrag_jax.eval.retrieval.score import Options, Run, default_methods, open_run, score, score_run
from qrag_jax.qrag.tasks import examples_task
from qrag_jax.types import UsageError, Watch

QUESTIONS = [
    {"question": "Where is Ada?", "chunks": ["Ada is in Rome.", "x y", "z w"], "gold": [0], "answer": "Rome"},
    {"question": "Where is Ben?", "chunks": ["x y", "z w", "Ben is in Oslo."], "gold": [2], "answer": "Oslo"},
    {"question": "Where is Cy?", "chunks": ["u v", "Cy is in Bonn.", "x y"], "gold": [1], "answer": "Bonn"},
]
METHODS = ("trained", "bm25")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("runs") / "run", ("Ada is in Rome.", "Where is Ada?", "a story of a river"))


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions") / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    return path


def timeless(rows):
    return [row | {"seconds": 0.0} for row in rows]


@pytest.mark.slow
def test_a_python_user_gets_the_rows_of_the_command_and_nothing_is_printed(run, questions, tmp_path, capsys):
    task = examples_task("mine", read_examples(questions))
    rows, records = score_run(run, [task], Options(METHODS))
    assert capsys.readouterr() == ("", "")
    out = tmp_path / "rows.json"
    assert main(["eval", str(run), "--jsonl", str(questions), "--methods", "trained,bm25", "--json", str(out)]) == 0
    assert timeless(row_values(rows)) == timeless(json.loads(out.read_text()))
    # BM25 finds the chunk that holds the name.
    assert [(row.setting.method, row.n) for row in rows] == [("trained", 3), ("bm25", 3)] and rows[1].fact_em == 1.0
    assert [record.query_id for record in records[0]] == list(task.query_ids) * 2
    assert all(len(record.texts) == 2 for record in records[0])


def test_whoever_watches_is_told_what_a_terminal_shows(run, questions):
    task = examples_task("mine", read_examples(questions))
    long = examples_task("long", read_examples(questions), num_left_out=1)
    noted, doing, embedded = [], [], []
    watch = Watch(noted.append, doing.append, lambda stage, done, of, _: embedded.append((done, of)))
    held_out = examples_task("held out", read_examples(questions))
    score(open_run(run), [long, task], Options(METHODS, num_questions=2), held_out, watch)
    # What thresholds would be fitted on is reported: then there are none.
    assert noted[0] == "long: no threshold rows, 2 of its questions were used to fit the threshold"
    assert [text for text in doing if "bm25" in text] == ["long: bm25 at 3 chunks", "mine: bm25 at 3 chunks"]
    assert embedded and all(0 <= done <= of for done, of in embedded)


def test_beams_and_defaults(run, questions):
    task = examples_task("mine", read_examples(questions))
    scored = score_run(run, [task], Options(("trained",), num_steps=1, beam_widths=(2,)))
    assert [(row.setting.method, row.setting.beam_width) for row in scored.rows] == [("trained", 1), ("trained", 2)]
    assert {len(record.chosen) for record in scored.records[0]} == {1}
    assert {record.setting.num_chunks for record in scored.records[0]} == {3}


def test_what_cannot_be_is_refused_before_anything_is_embedded(run, questions):
    task, trained = examples_task("mine", read_examples(questions)), open_run(run)
    told = []
    watch = Watch(told.append, told.append, lambda *_: told.append("embedded"))
    for options, field in (
        (Options(METHODS, protocols=("threshold",)), "protocols"),
        (Options(protocols=("stop",)), "protocols"),
        (Options(("bm25",), beam_widths=(4,)), "beam_widths"),
    ):
        with pytest.raises(UsageError) as caught:
            score(trained, [task], options, watch=watch)
        assert caught.value.field == field
    assert told == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"methods": ("trained", "bm52")}, r"methods=.*'bm52'.*out of trained, untrained, single_step, bm25"),
        ({"methods": "bm25"}, "methods='bm25': give a tuple"),
        ({"methods": ()}, r"methods=\(\)"),
        ({"protocols": ("fix",)}, "protocols=.*out of fixed, threshold, stop, oracle"),
        ({"protocols": ("fixed", "fixed")}, "protocols=.*twice"),
        ({"num_steps": 0}, "num_steps=0: give a whole number of at least 1"),
        ({"num_steps": 2.5}, "num_steps=2.5"),
        ({"num_questions": -1}, "num_questions=-1"),
        ({"seed": -1}, "seed=-1: give a whole number of at least 0"),
        ({"beam_widths": ()}, r"beam_widths=\(\)"),
        ({"beam_widths": (1, 0)}, r"beam_widths=\(1, 0\)"),
    ],
)
def test_an_option_that_the_command_line_refuses_is_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        Options(**wrong)


def test_all_that_the_task_and_the_machine_allow(run, monkeypatch):
    said = []
    monkeypatch.setattr(score_module, "is_installed", lambda: False)
    assert default_methods(note=said.append) == ("trained", "bm25") == default_methods()
    assert len(said) == 1 and "not installed" in said[0]
    monkeypatch.setattr(score_module, "is_installed", lambda: True)
    assert default_methods() == ("trained", "untrained", "single_step", "bm25")
    assert default_methods(vectors=True) == ("trained", "single_step")


def test_a_run_says_what_its_rows_say(run):
    trained = open_run(run)
    assert isinstance(trained, Run) and trained.threshold is None and trained.data["task"] == "worlds"
    labels = trained.labels
    assert (labels.mode, labels.positions, labels.seed, labels.training_chunks) == ("latent", "relative", 0, 1)


def test_a_python_user_has_answers_read_and_scored(run, questions, capsys):
    tasks = [examples_task("mine", read_examples(questions))]
    options = Options(("bm25",), num_questions=2, seed=5)
    scored = score_run(run, tasks, options)
    measures = tuple(choose_measures(task, ("em", "f1")) for task in tasks)
    check_reader(measures)
    answered = read_answers(Reader(make_reader(), measures), tasks, scored.records, bounds=options)
    assert [row.setting.method for row in answered.rows] == ["bm25", "gold_chunks", "no_chunks"]
    # The reader finds the name in what it is given, and says `unknown` to nothing.
    assert [row.scores["em"].mean for row in answered.rows] == [1.0, 1.0, 0.0]
    assert not answered.all_failed and len(answered.records) == 2 * 3
    assert capsys.readouterr() == ("", "")


def test_measures_are_chosen_by_the_kind_of_questions(questions):
    task, said = examples_task("mine", read_examples(questions)), []
    assert choose_measures(task).measures == ("em", "f1")
    assert choose_measures(task, kind="hotpot").convention == choose_measures(task, kind="2wiki").convention == "hotpot"
    assert choose_measures(task, kind="babi", note=said.append).measures == ("em", "f1", "babilong") and not said
    assert choose_measures(task, ("em",), kind="babi").measures == ("em",)
    assert np.isin(["rome", "oslo", "bonn"], [*choose_measures(task, kind="babi").labels]).all()
