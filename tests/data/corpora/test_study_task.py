import pytest

from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.types import Document, InputError

TEXT = "A cat sat. A dog ran."
DOCUMENTS = (Document("a", TEXT), Document("b", "Nothing."))
SENTENCES = {"a": ((0, 10), (11, 21)), "b": ((0, 8),)}


def question(**changed):
    fields = {"id": "q1", "text": "Who sat?", "relevant": ("a",), "evidence": (Evidence("a", 0, 10),)} | changed
    return StudyQuestion(**fields)


def task(**changed):
    fields = {
        "name": "t",
        "kind": "evidence",
        "documents": DOCUMENTS,
        "questions": (question(),),
        "sentences": SENTENCES,
    } | changed
    return StudyTask(**fields)


def test_a_task_keeps_what_it_was_given():
    made = task(left_out={"no answer": 3})
    assert made.documents == DOCUMENTS and made.questions[0].evidence[0] == Evidence("a", 0, 10)
    assert dict(made.left_out) == {"no answer": 3}


def test_ids_may_hold_blanks():
    assert task(questions=(question(id="my file.jsonl:1"),)).questions[0].id == "my file.jsonl:1"


def test_documents_need_no_evidence_and_no_sentences():
    assert task(kind="documents", questions=(question(evidence=()),), sentences={}).kind == "documents"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"documents": ()}, "t: 0 documents and 1 questions"),
        ({"questions": (), "left_out": {"no answer": 7}}, "t: 2 documents and 0 questions.*; left out, no answer: 7"),
        ({"documents": (*DOCUMENTS, Document("a", "Again."))}, "document id 'a' is given twice"),
        ({"questions": (question(), question())}, "question id 'q1' is given twice"),
        ({"questions": (question(id=""),)}, "question id '' is empty"),
        ({"questions": (question(answers=("Tom", " ")),)}, "one is blank"),
        ({"questions": (question(text=" "),)}, "question q1: has no text"),
        ({"questions": (question(relevant=()),)}, "name at least one document"),
        ({"questions": (question(relevant=("a", "a")),)}, "each once"),
        ({"questions": (question(relevant=("a", "c")),)}, "relevant document 'c' is not in the corpus"),
        ({"questions": (question(evidence=()),)}, "question q1: has no evidence"),
        ({"questions": (question(relevant=("b",)),)}, "evidence in 'a', which is not among its relevant documents"),
        (
            {"questions": (question(evidence=(Evidence("a", 5, 22),)),)},
            r"evidence \[5, 22\) must be a range inside 'a', which has 21",
        ),
        ({"questions": (question(evidence=(Evidence("a", 5, 5),)),)}, r"evidence \[5, 5\)"),
        (
            {"sentences": {"a": ((0, 10), (9, 21)), "b": ((0, 8),)}},
            r"document a: sentence \[9, 21\) after character 10",
        ),
        ({"sentences": {"a": ((0, 10), (11, 22)), "b": ((0, 8),)}}, r"sentence \[11, 22\) after character 10 of 21"),
        ({"sentences": {"a": ((0, 10),)}}, "document b: has no sentences"),
    ],
)
def test_what_is_wrong_is_named(changed, message):
    with pytest.raises(InputError, match=message):
        task(**changed)
