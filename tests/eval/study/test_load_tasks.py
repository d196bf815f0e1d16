"""Tasks by kind, samples of them, and dev and test parts."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.eval.study import load_tasks as tasks
from qrag_jax.eval.study.config import TaskConfig
from qrag_jax.eval.study.load_tasks import NOT_SAMPLED, ON_BOTH_SIDES, load_task, load_with_problems, split_task
from qrag_jax.types import Document, InputError, UsageError


def make_task(owners, num_documents, kind="documents", name="small"):
    """A question for each tuple of document numbers that answer it."""
    documents = tuple(Document(f"d{i}", f"Text {i}.") for i in range(num_documents))
    questions = []
    for number, owned in enumerate(owners):
        names = tuple(f"d{i}" for i in owned)
        evidence = tuple(Evidence(one, 0, 4) for one in names) if kind == "evidence" else ()
        questions.append(StudyQuestion(f"q{number}", f"What is {number}?", names, evidence))
    units = {document.id: ((0, len(document.text)),) for document in documents} if kind == "evidence" else {}
    return StudyTask(name, kind, documents, tuple(questions), units, {"before": 1})


DOCS = Path(__file__).parents[3] / "docs/reference/study.md"


def write_beir(folder, task):
    (folder / "qrels").mkdir(parents=True)
    rows = {
        "corpus.jsonl": [json.dumps({"_id": one.id, "text": one.text}) for one in task.documents],
        "queries.jsonl": [json.dumps({"_id": one.id, "text": one.text}) for one in task.questions],
        "qrels/dev.tsv": [
            "query-id\tcorpus-id\tscore",
            *(f"{one.id}\t{name}\t1" for one in task.questions for name in one.relevant),
        ],
    }
    for name, lines in rows.items():
        (folder / name).write_text("\n".join(lines))


def load(tmp_path, name="small", seed=0, **fields):
    config = TaskConfig("beir", "set", questions="dev", **fields)
    return load_task(name, config, str(tmp_path), seed, split_sentences)


@pytest.fixture
def folder(tmp_path):
    write_beir(tmp_path / "set", make_task([(i % 20, (i + 1) % 20) for i in range(60)], 20))
    return tmp_path


def test_a_task_is_read_as_it_is(folder):
    task = load(folder)
    assert [document.id for document in task.documents] == [f"d{i}" for i in range(20)]
    assert (len(task.questions), task.left_out) == (60, {})
    absolute = load_task("small", TaskConfig("beir", str(folder / "set"), "dev"), "elsewhere", 0, split_sentences)
    assert absolute == task
    with pytest.raises(UsageError, match="test.tsv: no such file; this folder has the qrels dev"):
        load_task("small", TaskConfig("beir", "set"), str(folder), 0, split_sentences)


def test_files_are_read_below_the_data_folder(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.md").write_text("Rye is hardy.")
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "What?", "evidence": "hardy"}))
    config = TaskConfig("files", "own", questions="q.jsonl")
    task = load_task("mine", config, str(tmp_path), 0, split_sentences)
    assert (task.name, task.kind, task.questions[0].evidence) == ("mine", "evidence", (Evidence("a.md", 7, 12),))


def write_files(folder, text="Rye is hardy."):
    (folder / "own").mkdir()
    (folder / "own" / "a.md").write_bytes(text.encode("cp1252"))
    rows = [{"question": "What?", "evidence": "hardy"}, {"question": "Where?", "evidence": "nowhere"}]
    (folder / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))


def test_the_encoding_of_files(tmp_path):
    write_files(tmp_path, "Ros\u00e9 is hardy.")
    known = TaskConfig("files", "own", questions="q.jsonl", encoding="cp1252")
    task = load_task("mine", known, str(tmp_path), 0, split_sentences)
    assert task.documents[0].text == "Ros\u00e9 is hardy."
    with pytest.raises(InputError, match="a.md: not UTF-8"):
        load_task("mine", replace(known, encoding="utf-8"), str(tmp_path), 0, split_sentences)
    with pytest.raises(UsageError, match="encoding 'cp125': Python knows no text encoding"):
        load_task("mine", replace(known, encoding="cp125"), str(tmp_path), 0, split_sentences)


def test_what_could_not_be_asked_comes_with_the_task(tmp_path, folder):
    write_files(tmp_path)
    config = TaskConfig("files", "own", questions="q.jsonl")
    task, (problem,) = load_with_problems("mine", config, str(tmp_path), 0, split_sentences)
    assert problem.startswith(f"{tmp_path / 'q.jsonl'}:2: ") and sum(task.left_out.values()) == 1
    assert task == load_task("mine", config, str(tmp_path), 0, split_sentences)
    beir = TaskConfig("beir", "set", questions="dev")
    assert load_with_problems("small", beir, str(folder), 0, split_sentences) == (load(folder), ())


def test_a_search_in_the_right_documents_only_takes_evidence(tmp_path, folder):
    with pytest.raises(UsageError, match="^tasks.small.scope: document: searches only the relevant documents"):
        load(folder, scope="document")
    write_files(tmp_path)
    config = TaskConfig("files", "own", questions="q.jsonl", scope="document")
    assert load_task("mine", config, str(tmp_path), 0, split_sentences).kind == "evidence"


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("multirc", ["evidence.jsonl"]),
        ("scisumm", ["cited_papers.jsonl", "citances.jsonl"]),
        ("financebench", ["pages.jsonl", "questions.jsonl"]),
    ],
)
def test_the_rows_of_the_docs_are_read(kind, files, tmp_path):
    blocks = re.findall(r"```json\n(.*?)```", DOCS.read_text().partition("but as conversions")[2], re.DOTALL)
    (block,) = [block for block in blocks if block.count("\n{") == len(files) - 1 and _first_field(kind) in block]
    decoder, place = json.JSONDecoder(), 0
    for name in files:
        row, place = decoder.raw_decode(block, place)
        place += 1
        (tmp_path / name).write_text(json.dumps(row))
    task = load_task(kind, TaskConfig(kind, str(tmp_path)), "", 0, split_sentences)
    assert (len(task.documents), len(task.questions), task.left_out) == (1, 1, {})
    assert not task.documents[0].metadata.get("whole_page_evidence")


def _first_field(kind):
    return {"multirc": '{"doc_id"', "scisumm": '{"id"', "financebench": '{"doc_name"'}[kind]


def test_a_sample_of_questions_keeps_their_order(folder):
    task = load(folder, num_questions=9)
    numbers = [int(question.id[1:]) for question in task.questions]
    assert len(set(numbers)) == 9 and numbers == sorted(numbers)
    assert len(task.documents) == 20
    assert load(folder, num_questions=9) == task
    assert load(folder, num_questions=9, seed=1) != task
    other = load(folder, name="other", num_questions=9)
    assert other.questions != task.questions
    assert load(folder, num_questions=99) == load(folder)


def test_a_sample_of_documents_keeps_what_they_answer(folder):
    whole, task = load(folder), load(folder, num_documents=5)
    names = [document.id for document in task.documents]
    assert len(names) == 5 and names == [document.id for document in whole.documents if document.id in names]
    kept = {question.id: question.relevant for question in task.questions}
    for question in whole.questions:
        there = tuple(name for name in question.relevant if name in names)
        assert kept.get(question.id, ()) == there
    assert task.left_out == {NOT_SAMPLED: 60 - len(kept)}
    assert load(folder, num_documents=20) == whole


def test_documents_then_questions_then_stitching(folder):
    task = load(folder, num_documents=10, num_questions=5, stitch_sentences=4)
    assert [len(document.metadata["parts"]) for document in task.documents] == [4, 4, 2]
    assert len(task.questions) == 5
    assert all(name.startswith("stitched-") for question in task.questions for name in question.relevant)


def test_a_sample_that_nothing_is_asked_about(tmp_path):
    write_beir(tmp_path / "set", make_task([(0,)], 500))
    with pytest.raises(InputError, match="small: no question is about the sample of 1 of 500 documents: raise num_doc"):
        load(tmp_path, num_documents=1)


def test_sampled_evidence_goes_with_its_document():
    task = make_task([(0, 1), (1, 2), (2, 0)], 3, "evidence")
    sample = tasks._sample_documents(task, 1, 0)
    (document,) = sample.documents
    assert set(sample.sentences) == {document.id}
    assert [question.evidence for question in sample.questions] == [(Evidence(document.id, 0, 4),)] * 2
    # A document that is relevant without evidence in it poses no question of evidence.
    bare = replace(task.questions[0], id="bare", evidence=task.questions[0].evidence[:1])
    for seed in range(9):
        sample = tasks._sample_documents(replace(task, questions=(*task.questions, bare)), 1, seed)
        assert ("bare" in {question.id for question in sample.questions}) == (sample.documents[0].id == "d0")


QUESTIONS = TaskConfig("squad", "x", split="questions")
DOCUMENTS = TaskConfig("squad", "x", split="documents")


def ids(task):
    return [question.id for question in task.questions]


@given(st.lists(st.integers(0, 11), min_size=1, max_size=40), st.floats(0.1, 0.9), st.integers(0, 2))
def test_questions_of_one_document_stay_together(owners, share, seed):
    task = make_task([(owner,) for owner in owners], 12)
    dev, test = split_task(task, QUESTIONS, share, 1, seed)
    if dev is None:
        assert test == task
        return
    assert sorted(ids(dev) + ids(test)) == sorted(ids(task))
    assert dev.documents == test.documents == task.documents
    both = {q.relevant for q in dev.questions} & {q.relevant for q in test.questions}
    sizes = Counter(owners)
    if len(sizes) >= 10:
        assert not both
        assert abs(len(dev.questions) - share * len(owners)) <= max(sizes.values()) / 2
    else:
        assert len(dev.questions) == round(share * len(owners))
    assert ids(dev) == sorted(ids(dev), key=lambda name: int(name[1:]))


def test_single_questions_where_they_have_several_documents():
    task = make_task([(i % 12, (i + 1) % 12) for i in range(50)], 12)
    dev, test = split_task(task, QUESTIONS, 0.34, 10, 0)
    assert dev is not None and (len(dev.questions), len(test.questions)) == (17, 33)
    assert split_task(task, QUESTIONS, 0.34, 10, 0) == (dev, test)
    assert split_task(task, QUESTIONS, 0.34, 10, 1) != (dev, test)
    assert split_task(replace(task, name="other"), QUESTIONS, 0.34, 10, 0)[1].questions != test.questions


@given(
    st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=2, unique=True), min_size=1, max_size=30),
    st.integers(0, 3),
)
def test_documents_on_one_side_each(owners, seed):
    task = make_task(owners, 8, "evidence")
    dev, test = split_task(task, DOCUMENTS, 0.5, 1, seed)
    if dev is None:
        assert test == task
        return
    names = [{document.id for document in part.documents} for part in (dev, test)]
    assert [len(side) for side in names] == [4, 4] and not names[0] & names[1]
    for part, side in zip((dev, test), names, strict=True):
        assert ids(part) == [q.id for q in task.questions if set(q.relevant) <= side]
        assert set(part.sentences) == side
        lost = len(owners) - len(dev.questions) - len(test.questions)
        assert part.left_out == {"before": 1} | ({ON_BOTH_SIDES: lost} if lost else {})


def test_too_few_dev_questions_choose_nothing():
    task = make_task([(i,) for i in range(20)], 20)
    dev, test = split_task(task, QUESTIONS, 0.34, 7, 0)
    assert dev is not None and len(dev.questions) == 7
    assert split_task(task, QUESTIONS, 0.34, 8, 0) == (None, task)
    assert split_task(task, QUESTIONS, 0.99, 0, 0) == (None, task)  # nothing would be left to report
    assert split_task(task, QUESTIONS, 0.001, 0, 0) == (None, task)
    assert split_task(task, DOCUMENTS, 0.34, 8, 0) == (None, task)


def test_headings_are_read_below_the_data_folder_and_keep_their_sections(tmp_path):
    sections = "".join(f"## Part {i}\n\nOne {i}. Two {i}. Three {i}.\n\n" for i in range(12))
    (tmp_path / "book.md").write_text(f"# Book\n\n{sections}")
    task = load_task("own", TaskConfig("headings", "book.md", num_questions=4), str(tmp_path), 0, split_sentences)
    (document,) = task.documents
    assert len(task.questions) == 4 and len(task.sections[document.id]) == 12
    dev, test = split_task(task, TaskConfig("headings", "book.md"), 0.5, 1, 0)
    assert dev is not None and dev.sections == test.sections == task.sections
