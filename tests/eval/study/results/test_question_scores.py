from dataclasses import replace

import numpy as np
import pytest

from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.eval.study.records import FoundChunk, FoundChunks
from qrag_jax.eval.study.results.question_scores import headline_means, score_questions, score_retriever
from qrag_jax.index.index import open_index
from qrag_jax.measures.aggregate import mean_interval, paired_difference
from qrag_jax.types import Document, Hit, InputError, Place, Sentence

DOCUMENTS = (Document("d", "One two. Three four five. Six."), Document("e", "Seven. Eight nine."))
SENTENCES = {"d": ((0, 8), (9, 25), (26, 30)), "e": ((0, 6), (7, 18))}
QUESTIONS = (
    StudyQuestion("q1", "How many?", ("d",), (Evidence("d", 15, 19), Evidence("d", 26, 29))),  # "four", "Six"
    StudyQuestion("q2", "Which?", ("d", "e"), (Evidence("d", 4, 7), Evidence("e", 7, 18))),  # "two", "Eight nine."
)
EVIDENCE = StudyTask("numbers", "evidence", DOCUMENTS, QUESTIONS, SENTENCES)
BY_DOCUMENT = StudyTask("numbers", "documents", DOCUMENTS, tuple(replace(q, evidence=()) for q in QUESTIONS))


def one(text):
    """Every word is a token."""
    return len(text.split())


def hit(document, *spans, num_tokens=10):
    return FoundChunk(f"{document}{spans}", document, spans, num_tokens, 0.5)


FOUND = (
    FoundChunks("q1", (hit("d", (9, 30), num_tokens=4), hit("e", (0, 6), num_tokens=1), hit("d", (0, 8), (26, 30)))),
    FoundChunks("q2", (hit("e", (0, 18), num_tokens=3),)),
)


def test_documents_by_hand():
    scores = score_questions(BY_DOCUMENT, FOUND, (1, 2, 3), one)
    assert {name.split("@")[0] for name in scores} == {"recall", "precision", "f1", "context_tokens"}
    assert len(scores) == 4 * 3
    np.testing.assert_array_equal(scores["recall@1"], [1, 1 / 2])
    np.testing.assert_array_equal(scores["precision@2"], [1 / 2, 1])
    np.testing.assert_allclose(scores["f1@3"], [2 / 3, 2 / 3])
    np.testing.assert_array_equal(scores["context_tokens@1"], [4, 3])
    np.testing.assert_array_equal(scores["context_tokens@3"], [15, 3])
    assert all(values.dtype == np.float64 for values in scores.values())


def test_evidence_by_hand():
    """Gold of q1: sentences 1 and 2 of d; of q2: 0 of d and 1 of e. Tokens of evidence: 2; 3 (cut words: "two" of
    "two." is 3 of 4 characters)."""
    scores = score_questions(EVIDENCE, FOUND, (1, 3), one)
    names = {"recall", "precision", "f1", "token_recall", "token_precision", "iou", "context_tokens"}
    assert set(scores) == {f"{name}@{k}" for name in names for k in (1, 3)}
    np.testing.assert_array_equal(scores["recall@1"], [1, 1 / 2])
    np.testing.assert_array_equal(scores["precision@1"], [1, 1 / 2])
    np.testing.assert_array_equal(scores["precision@3"], [2 / 5, 1 / 2])  # sentence 2 of d stands in two chunks
    np.testing.assert_allclose(scores["f1@3"], [2 * 2 / (5 + 2), 1 / 2])
    two, six = 3 / 4, 3 / 4
    np.testing.assert_allclose(scores["token_recall@1"], [1, 2 / (2 + two)])
    np.testing.assert_allclose(scores["token_precision@1"], [(1 + six) / 4, 2 / 3])
    np.testing.assert_allclose(scores["token_precision@3"], [(1 + six) / (4 + 1 + 3), 2 / 3])
    np.testing.assert_allclose(scores["iou@1"], [(1 + six) / 4, 2 / (3 + two)])


def test_a_question_that_found_nothing_scores_zero():
    nothing = (FoundChunks("q1", ()), FoundChunks("q2", ()))
    for task in (EVIDENCE, BY_DOCUMENT):
        scores = score_questions(task, nothing, (1, 5), one)
        assert all(not values.any() and values.shape == (2,) for values in scores.values())


def test_a_whole_corpus_is_all_recall():
    everything = tuple(
        FoundChunks(q.id, tuple(hit(d.id, (0, len(d.text))) for d in DOCUMENTS)) for q in QUESTIONS
    )  # fmt: skip
    scores = score_questions(EVIDENCE, everything, (2,), one)
    np.testing.assert_array_equal(scores["recall@2"], [1, 1])
    np.testing.assert_array_equal(scores["token_recall@2"], [1, 1])
    np.testing.assert_array_equal(scores["precision@2"], [2 / 5, 2 / 5])
    np.testing.assert_array_equal(scores["token_precision@2"], scores["iou@2"])


def test_values_follow_the_questions():
    """Another order of the questions is another order of the values; a question scores the same alone."""
    turned = score_questions(replace(EVIDENCE, questions=QUESTIONS[::-1]), FOUND[::-1], (1, 3), one)
    alone = score_questions(replace(EVIDENCE, questions=QUESTIONS[1:]), FOUND[1:], (1, 3), one)
    for name, values in score_questions(EVIDENCE, FOUND, (1, 3), one).items():
        np.testing.assert_array_equal(turned[name], values[::-1])
        np.testing.assert_array_equal(alone[name], values[1:])


def test_a_distinct_word_is_counted_once_and_only_where_something_was_found():
    asked = []

    def count(text):
        asked.append(text)
        return 1

    documents = (DOCUMENTS[0], Document("e", "Seven. Seven. six."), Document("unread", "Ten."))
    score_questions(
        replace(EVIDENCE, documents=documents, sentences={**SENTENCES, "unread": ((0, 4),)}), FOUND, (1,), count
    )
    assert sorted(asked) == sorted({*DOCUMENTS[0].text.split(), "Seven.", "six."})


# --- means


def test_means_by_hand():
    """One question has all the recall, the other all the precision."""
    scores = {"recall@5": np.array([1.0, 0.0]), "precision@5": np.array([0.0, 1.0]), "f1@5": np.array([0.0, 0.0])}
    assert headline_means(scores, [5]) == {"recall@5": 0.5, "precision@5": 0.5, "f1@5": 0.0, "f1_of_means@5": 0.5}


def test_means_of_equal_questions_are_theirs():
    scores = {"recall@1": np.full(3, 0.5), "precision@1": np.full(3, 0.25), "iou@1": np.full(3, 0.125)}
    assert headline_means(scores, [1]) == pytest.approx(
        {"recall@1": 0.5, "precision@1": 0.25, "iou@1": 0.125, "f1_of_means@1": 1 / 3}
    )
    assert headline_means({name: values * 0 for name, values in scores.items()}, [1])["f1_of_means@1"] == 0


# --- refusals


def test_what_was_not_found_for_this_task_is_refused():
    with pytest.raises(InputError, match="numbers: found 2 results of other questions, or in another order"):
        score_questions(EVIDENCE, FOUND[::-1], (1,), one)
    with pytest.raises(InputError, match="found 1 results"):
        score_questions(EVIDENCE, FOUND[:1], (1,), one)
    for wrong, message in [
        (hit("x", (0, 1)), "question q2: chunk .*: is of document 'x', which is not in the corpus"),
        (hit("e", (0, 19)), r"span \[0, 19\) after character 0 of 18"),
        (hit("e", (7, 9), (8, 10)), r"span \[8, 10\) after character 9 of 18"),
        (hit("e"), "has no span"),
    ]:
        with pytest.raises(InputError, match=message):
            score_questions(EVIDENCE, (FOUND[0], FoundChunks("q2", (wrong,))), (1,), one)
    for ks in ((), (0, 1)):
        with pytest.raises(InputError, match="give at least one, each at least 1"):
            score_questions(EVIDENCE, FOUND, ks, one)


@pytest.mark.parametrize(
    ("evidence", "message"),
    [((8, 9), "question q1: evidence is empty or blank"), ((0, 8), "question q1: gold is empty")],
)
def test_evidence_that_no_sentence_holds_is_refused(evidence, message):
    question = replace(QUESTIONS[0], evidence=(Evidence("d", *evidence),))
    task = replace(EVIDENCE, questions=(question,), sentences={**SENTENCES, "d": ((9, 25), (26, 30))})
    with pytest.raises(InputError, match=message):
        score_questions(task, FOUND[:1], (1,), one)


def passage(document, start, end, folder="", change=""):
    text = next(one.text for one in DOCUMENTS if one.id == document)[start:end] + change
    place = Place(f"{folder}{document}", start, end, 1)
    return Hit(1, place, ((start, end),), text, 0.5, Sentence(text, place))


def test_any_function_that_finds_is_scored_by_hand():
    """Of q1 the first passage holds one of two sentences of evidence, and one that is none; of q2 both documents."""
    found = {
        "How many?": [passage("e", 0, 6, "notes/"), passage("d", 9, 30, "notes/")],
        "Which?": [passage("e", 0, 18), passage("d", 0, 8), passage("d", 26, 30)],
    }
    scores = score_retriever(lambda question, top_k: found[question][:top_k], EVIDENCE, (1, 2))
    np.testing.assert_array_equal(scores.values["recall@1"], [0, 1 / 2])
    np.testing.assert_array_equal(scores.values["recall@2"], [1, 1])
    np.testing.assert_array_equal(scores.values["precision@2"], [2 / 3, 2 / 3])
    np.testing.assert_array_equal(scores.values["context_tokens@2"], [1 + 4, 3 + 2])  # words
    np.testing.assert_allclose(scores.values["ndcg@2"], [1 / np.log2(3), 1])
    np.testing.assert_array_equal(scores.values["ndcg@1"], [0, 1])
    assert scores.means["recall@1"] == mean_interval(np.array([0, 1 / 2]))
    assert not any(name.startswith("context_tokens") for name in scores.means)
    assert paired_difference(scores.values["recall@2"], scores.values["recall@1"]).mean == 3 / 4


def test_an_index_of_files_is_scored(tmp_path):
    for document in DOCUMENTS:
        (tmp_path / f"{document.id}").with_suffix(".md").write_text(document.text)
    rename = {name: f"{name}.md" for name in SENTENCES}
    task = StudyTask(
        "numbers",
        "documents",
        tuple(replace(one, id=rename[one.id]) for one in DOCUMENTS),
        (StudyQuestion("q", "eight nine", ("e.md",)), StudyQuestion("r", "three four five", ("d.md",))),
    )
    with open_index(tmp_path, retriever="bm25") as index:
        scores = score_retriever(index, task, ks=(1,))
    assert scores.means["recall@1"].mean == scores.means["ndcg@1"].mean == 1
    assert scores.means["recall@1"].low < 1


@pytest.mark.parametrize("other", ["\n\nAnna has it. Ask her.", "Anna  has it.\nAsk her."])
@pytest.mark.parametrize("kind", ["documents", "evidence"])
def test_evidence_in_a_copy_of_a_passage_is_found(tmp_path, kind, other):
    texts = {"a.md": "Anna has it. Ask her.", "b.md": other, "c.md": "Anna has it. Ask her."}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    evidence = (Evidence("b.md", other.index("Ask"), len(other)),) if kind == "evidence" else ()
    question = StudyQuestion("q", "Who has it? Anna!", ("b.md",), evidence)
    documents = tuple(Document(name, text) for name, text in texts.items())
    task = StudyTask("keys", kind, documents, (question,), {name: ((0, len(text)),) for name, text in texts.items()})
    with open_index(tmp_path, retriever="bm25") as index:
        assert len(index.search(question.text, 3)) == 1
        assert score_retriever(index, task, ks=(1,)).means["recall@1"].mean == 1


ELSEWHERE = replace(passage("d", 0, 8), place=Place("x", 0, 8, 1))


@pytest.mark.parametrize("hit", [passage("d", 0, 8, change="!"), ELSEWHERE])
def test_hits_of_other_texts_are_refused(hit):
    with pytest.raises(InputError):
        score_retriever(lambda question, top_k: [hit], EVIDENCE)
