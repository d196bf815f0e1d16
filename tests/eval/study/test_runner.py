"""A whole study with an encoder of words: what it reports, what it keeps, and that it goes on where it was killed."""

import csv
import json
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from support.study import WordEmbedder, fixed, make_config, make_encoder, make_task, make_tasks

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.config import load_config
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.study.config import StudyConfig, TaskConfig
from qrag_jax.eval.study.results.question_scores import score_questions
from qrag_jax.eval.study.runner import run_study
from qrag_jax.llm.journal.journal import Journal
from qrag_jax.measures.trec import read_qrels, read_run
from qrag_jax.types import Document, Generation, InputError, UsageError

TESTS = Path(__file__).parents[2]


def without_times(result):
    """A result as JSON values, but for what depends on a clock."""
    values = json.loads(json.dumps(asdict(result), allow_nan=False))
    for row in values["rows"]:
        del row["cost"]["seconds"], row["cost"]["dollars"]
    return values


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """(folder, result) of a whole study."""
    out = tmp_path_factory.mktemp("study")
    return out, run_study(make_config(), make_tasks(), make_encoder(), out)


def test_a_reranker_goes_with_its_name(tmp_path):
    with pytest.raises(UsageError, match="rerank .smollm2.: goes with a loaded reranker"):
        run_study(make_config(rerank="smollm2"), make_tasks(), make_encoder(), tmp_path)
    assert not list(tmp_path.iterdir())


# --- what it reports


def test_by_hand(tmp_path):
    """Two documents of one chunk each, and a question for each that its words find: F1@1 1, F1@2 2/3.

    Whole documents are their only chunks. `fixed` cuts by the sentence: the second chunk of q1 is of its document, so
    that its F1@2 stays 1; of q2 it is of the other document.
    """
    documents = (Document("sea", "Whales sing. Whales sing low."), Document("sky", "Comets burn."))
    questions = (StudyQuestion("q1", "Whales sing", ("sea",)), StudyQuestion("q2", "Comets burn", ("sky",)))
    task = StudyTask("tiny", "documents", documents, questions, left_out={"no label": 3})
    strategies = {"fixed": (fixed(3),), "whole": (ChunkConfig("document"),)}
    config = StudyConfig(tasks={"tiny": TaskConfig("beir", "tiny")}, strategies=strategies, ks=(1, 2), report_k=2)
    result = run_study(config, [task], make_encoder(), tmp_path)
    by_sentence, whole = result.rows
    assert (by_sentence.strategy, by_sentence.num_chunks, whole.strategy, whole.num_chunks) == ("fixed", 3, "whole", 2)
    assert (by_sentence.scores["f1@1"], by_sentence.scores["f1@2"]) == (1, pytest.approx((1 + 2 / 3) / 2))
    assert (whole.scores["f1@1"], whole.scores["f1@2"], whole.context_tokens) == (1, pytest.approx(2 / 3), 7)
    assert (whole.was_chosen, whole.dev_score, whole.n) == (False, None, 2)
    (compared,) = result.comparisons
    assert (compared.strategy, compared.baseline, compared.n) == ("whole", "fixed", 2)
    assert compared.difference == pytest.approx(-1 / 6) and compared.p_holm == compared.p_value == 1
    assert [one["question_id"] for one in result.questions] == ["q1", "q2", "q1", "q2"]
    assert [hit["spans"] for hit in result.questions[0]["hits"]] == [[[0, 12]], [[13, 29]]]
    assert result.notes[0] == "tiny: left out, no label: 3" and "first config" in result.notes[1]


def test_questions_beyond_the_window_are_counted(tmp_path):
    task = make_task("facts", num_documents=2)
    longer = replace(task.questions[0], text="Why " * (make_encoder().window - 1))  # one beside [CLS] and [SEP]
    just = replace(task.questions[1], text="Why " * (make_encoder().window - 2))
    task = replace(task, questions=(longer, just, *task.questions[2:]))
    config = make_config(tasks={"facts": TaskConfig("files", "facts", "facts.jsonl")})
    notes = run_study(config, [task], make_encoder(), tmp_path).notes
    assert "facts: questions of which only the beginning fits into the encoder's window: 1" in notes


def test_rows_are_of_the_test_part_and_of_the_config_that_dev_chose(done):
    """Every choice looked up in the stored cells of dev; no question of dev is reported."""
    out, result = done
    names = [("facts", "fixed"), ("facts", "breakpoint"), ("facts", "late")]
    assert [(row.task, row.strategy) for row in result.rows] == [*names, *(("pages", name) for _, name in names)]
    for row in result.rows:
        configs = make_config().strategies[row.strategy]
        paths = [out / "cells" / row.task / f"{row.strategy}-{number}-dev.json" for number in range(len(configs))]
        found = [json.loads(path.read_text().split("\n")[1])["result"]["found"] for path in paths]
        task = next(task for task in make_tasks() if task.name == row.task)
        scores = [dev_f1(task, one) for one in found]
        assert (row.number, row.was_chosen) == (int(np.argmax(scores)), True)
        assert row.dev_score == pytest.approx(max(scores))
        asked = {one["question_id"] for one in result.questions if one["task"] == row.task}
        assert len(asked) == row.n and not asked & {one["question_id"] for one in found[0]}


def dev_f1(task, found):
    """Mean over k = 1, 3 of the mean F1 of the questions, from JSON."""
    from qrag_jax.eval.study.records import FoundChunk, FoundChunks

    hits = [
        FoundChunks(
            one["question_id"],
            tuple(FoundChunk(**{**hit, "spans": tuple((a, b) for a, b in hit["spans"])}) for hit in one["hits"]),
        )
        for one in found
    ]
    questions = {question.id: question for question in task.questions}
    part = replace(task, questions=tuple(questions[one["question_id"]] for one in found))
    scores = score_questions(part, hits, (1, 3), lambda text: len(text.split()))
    return float(np.mean([scores["f1@1"].mean(), scores["f1@3"].mean()]))


def test_documents_of_dev_and_test_are_apart_where_the_task_says_so(done):
    out, result = done
    paths = {part: out / "cells" / "pages" / f"late-0-{part}.json" for part in ("dev", "test")}
    cells = {part: json.loads(path.read_text().split("\n")[1])["result"] for part, path in paths.items()}
    documents = {
        part: {hit["document_id"] for one in cell["found"] for hit in one["hits"]} for part, cell in cells.items()
    }
    assert not documents["dev"] & documents["test"]
    assert [cell["num_documents"] for cell in cells.values()] == [4, 8]
    row = next(row for row in result.rows if (row.task, row.strategy) == ("pages", "late"))
    assert row.num_documents == 8 and row.cost.embedder_tokens == cells["test"]["cost"]["embedder_tokens"]
    # Only the chosen config was run on test.
    assert len(list((out / "cells/pages").glob("fixed-*-test.json"))) == 1


def test_files_of_trec_are_of_the_test_questions(done):
    out, result = done
    qrels, run = read_qrels(out / "trec/facts.qrels"), read_run(out / "trec/facts.late.run")
    asked = [one for one in result.questions if (one["task"], one["strategy"]) == ("facts", "late")]
    assert list(qrels) == list(run) == [one["question_id"] for one in asked]
    for one in asked:
        assert list(run[one["question_id"]]) == list(dict.fromkeys(hit["document"] for hit in one["hits"]))
    assert load_config(StudyConfig, out / "config.yaml") == make_config()


def test_a_strategy_costs_what_it_would_cost_alone(done, tmp_path):
    """After other strategies or alone, its configs in this order or the other: it reads as much."""
    config = make_config()
    alone = replace(config, strategies={"breakpoint": config.strategies["breakpoint"][::-1]}, baseline="breakpoint")
    rows = run_study(alone, make_tasks(), make_encoder(), tmp_path).rows
    before = [row for row in done[1].rows if row.strategy == "breakpoint"]
    for one, other in zip(rows, before, strict=True):
        assert one.config == other.config and one.scores == other.scores
        assert (one.cost.embedder_tokens, one.cost.flops) == (other.cost.embedder_tokens, other.cost.flops)


@pytest.mark.slow
def test_progress_is_in_characters_and_starts_with_what_is_stored(done, tmp_path):
    seen = []
    result = run_study(make_config(), make_tasks(), make_encoder(), tmp_path, lambda *one: seen.append(one))
    assert without_times(result) == without_times(done[1])  # another folder and another time, the same study
    steps = [(now, of) for stage, now, of in seen if stage == "study"]
    assert steps[0][0] == 0 and steps[-1][0] == steps[-1][1] and steps == sorted(steps)
    assert {stage for stage, _, _ in seen} == {"warm-up", "study"}
    seen.clear()
    run_study(make_config(), make_tasks(), make_encoder(), tmp_path, lambda *one: seen.append(one))
    assert seen == [("study", steps[-1][1], steps[-1][1])] * 2


# --- what it keeps


def test_a_study_that_is_there_is_read_and_not_run(done):
    out, result = done
    embedder = WordEmbedder()
    assert run_study(make_config(), make_tasks(), make_encoder(embedder), out) == result
    assert embedder.calls == []


def test_a_damaged_cell_is_run_again_and_nothing_else_changes(done, tmp_path):
    out, result = done
    for path in out.rglob("*"):
        if path.is_file():
            (tmp_path / path.relative_to(out)).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path.relative_to(out)).write_bytes(path.read_bytes())
    for name in ("cells/facts/fixed-0-test.json", "cells/pages/late-0-dev.json"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "cells/facts/breakpoint-1-dev.json").unlink()
    with pytest.warns(UserWarning, match="damaged"):
        again = run_study(make_config(), make_tasks(), make_encoder(), tmp_path)
    assert without_times(again) == without_times(result)
    assert normal_files(tmp_path) == normal_files(out)


def test_prices_change_dollars_and_no_cell(tmp_path):
    prices, embedder = tmp_path / "prices.yaml", WordEmbedder()
    config = make_config(prices=str(prices))
    prices.write_text("embedder: hosted\nembedder_per_million_tokens: 1000000\n")
    dear = run_study(config, make_tasks(), make_encoder(embedder), tmp_path / "out")
    prices.write_text("embedder: hosted\nembedder_per_million_tokens: 2000000\n")
    calls = len(embedder.calls)
    dearer = run_study(config, make_tasks(), make_encoder(embedder), tmp_path / "out")
    assert len(embedder.calls) == calls
    for one, other in zip(dear.rows, dearer.rows, strict=True):
        assert one.cost.dollars == one.cost.embedder_tokens and other.cost.dollars == 2 * one.cost.dollars


class Repeating:
    """Answers with the last words of the prompt, and fails where it is about tea."""

    model = "repeating"

    def __init__(self):
        self.asked = []

    def generate(self, prompts, *, sampling, finished=None):
        self.asked += [tuple(prompt) for prompt in prompts]
        return [self.answer(prompt[-1].content) for prompt in prompts]

    def answer(self, text):
        if "tea" in text.rpartition("Why")[2]:
            return Generation("", "error", 9, 0, "no tea")
        return Generation(text[-20:], "stop", 9, 3)


def question_of(prompt):
    return prompt[-1].content.rpartition("Why")[2]


@pytest.mark.slow
def test_a_language_model_answers_the_test_questions_once(tmp_path):
    generator = Repeating()
    first = run_study(make_config(), make_tasks(), make_encoder(), tmp_path, generator=generator)
    asked, failed = list(generator.asked), [prompt for prompt in generator.asked if "tea" in question_of(prompt)]
    answered = [prompt for prompt in asked if prompt not in failed]
    assert len(answered) == len(set(answered)) <= sum(one["answer"]["error"] is None for one in first.questions)
    assert 0 < len(failed) == sum(one["answer"]["error"] is not None for one in first.questions)
    for row in first.rows:
        own = [one["answer"] for one in first.questions if (one["task"], one["strategy"]) == (row.task, row.strategy)]
        share = sum(one["error"] is not None for one in own) / len(own)
        assert row.scores["answers_failed@3"] == share and -1 <= row.scores["answer_cosine@3"] <= 1
        assert row.cost.prompt_tokens == 9 * row.n
        assert (share > 0) == any(note.startswith(f"{row.task}, {row.strategy}: ") for note in first.notes)
    again = run_study(make_config(), make_tasks(), make_encoder(), tmp_path, generator=generator)
    assert again == first and generator.asked == asked + failed
    assert Journal(tmp_path / "answers" / "journal.sqlite").num_answers() == len(answered)


# --- what it refuses


def test_another_study_in_the_folder_is_refused(done):
    out, _ = done
    with pytest.raises(UsageError, match="differs from this study in seed: choose another out"):
        run_study(make_config(seed=3), make_tasks(), make_encoder(), out)
    with pytest.raises(UsageError, match="another encoder: .* choose another out"):
        run_study(make_config(), make_tasks(), make_encoder(fingerprint="other"), out)
    changed = [make_task("facts", seed=7), make_tasks()[1]]
    with pytest.raises(UsageError, match="another task content: .* choose another out"):
        run_study(make_config(), changed, make_encoder(), out)


def test_what_is_wrong_is_found_before_anything_is_written(tmp_path):
    out, config = tmp_path / "out", make_config()
    with pytest.raises(UsageError, match=r"tasks \['facts'\]: the config has \['facts', 'pages'\]"):
        run_study(config, make_tasks()[:1], make_encoder(), out)
    late = (config.strategies["late"][0], ChunkConfig("late"))  # an overlap of 64 in windows of 24
    wrong = {**config.strategies, "late": late}
    with pytest.raises(UsageError, match=r"strategies.late, config 1: late.overlap_tokens 64"):
        run_study(replace(config, strategies=wrong), make_tasks(), make_encoder(), out)
    with pytest.raises(UsageError, match="prices.yaml"):
        run_study(replace(config, prices=str(tmp_path / "prices.yaml")), make_tasks(), make_encoder(), out)
    facts, pages = make_tasks()
    blank = replace(pages, documents=(*pages.documents, Document("empty.txt", " \n")))
    with pytest.raises(InputError, match="pages: document 'empty.txt' is blank"):
        run_study(config, [facts, blank], make_encoder(), out)
    assert not out.exists()


# --- killed and resumed

STUDY = """
import sys
import time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from support.study import WordEmbedder, make_config, make_encoder, make_tasks

from qrag_jax.eval.study.results.report import write_report
from qrag_jax.eval.study.runner import run_study


class SlowEmbedder(WordEmbedder):
    def __call__(self, texts, progress=None):
        time.sleep(0.01)
        return super().__call__(texts, progress)


def report(stage, done, of):
    print(stage, done, of, flush=True)


out = Path(sys.argv[2])
write_report(run_study(make_config(), make_tasks(), make_encoder(SlowEmbedder()), out, report), out)
"""


def start_study(script, out):
    command = [sys.executable, script, TESTS, out]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_study(script, out, share):
    """Kills a study by force once it has done that share of its work, and counts the cells that it leaves."""
    with start_study(script, out) as process:
        assert process.stdout is not None
        for line in process.stdout:
            stage, now, of = line.split()
            if stage == "study" and int(now) >= share * int(of):
                break
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it ended before it was killed"
    assert not (out / "results.json").exists()
    return len(list(out.glob("cells/*/*.json")))


def normal_files(out):
    """Name -> content of every file of a study, but for times and what is drawn or rounded from them."""
    return {path.relative_to(out).as_posix(): normal(path) for path in sorted(out.rglob("*")) if path.is_file()}


def normal(path):
    if path.suffix in (".png", ".md"):
        return "there"
    if path.suffix == ".vectors":  # sha256, a line of JSON with what it cost, the array
        _, header, array = path.read_bytes().split(b"\n", 2)
        return {**json.loads(header), "cost": dict.fromkeys(json.loads(header)["cost"])}, array
    if path.name == "table.csv":
        with path.open(newline="") as file:
            return [{name: text for name, text in row.items() if "seconds" not in name} for row in csv.DictReader(file)]
    if path.suffix == ".json":
        text = path.read_text()
        return timeless(json.loads(text if path.name == "results.json" else text.split("\n")[1]))
    return path.read_bytes()


def timeless(value):
    if isinstance(value, dict):
        return {name: None if name == "seconds" else timeless(item) for name, item in value.items()}
    return [timeless(item) for item in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_a_study_that_was_killed_leaves_the_files_of_one_that_was_not(tmp_path):
    script = tmp_path / "study.py"
    script.write_text(STUDY)
    left = kill_study(script, tmp_path / "killed", 0.4)
    for out in ("killed", "whole"):
        with start_study(script, tmp_path / out) as process:
            _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert 0 < left < len(list(tmp_path.glob("whole/cells/*/*.json")))
    whole, killed = normal_files(tmp_path / "whole"), normal_files(tmp_path / "killed")
    assert list(killed) == list(whole)
    assert killed == whole
    assert {"config.yaml", "results.json", "per_query.jsonl", "table.csv", "trec/pages.qrels"} <= set(whole)
