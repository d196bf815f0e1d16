import json
from dataclasses import replace

import numpy as np
import pytest
from support.study import fixed, make_config

from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig
from qrag_jax.data.corpora.study_task import Evidence, StudyQuestion, StudyTask
from qrag_jax.eval.study.records import FEWEST_DOCUMENTS, CellResult, FoundChunk, FoundChunks
from qrag_jax.eval.study.results.study_answers import StudyAnswer
from qrag_jax.eval.study.results.summary import (
    Choice,
    Outcome,
    choose,
    compare_all,
    compare_fills,
    describe_config,
    dev_score,
    document_run,
    make_row,
    question_objects,
    write_trec,
)
from qrag_jax.llm.prices import Prices
from qrag_jax.measures.aggregate import holm_p_values, mean_interval, paired_difference
from qrag_jax.measures.answer_vectors import BertScore
from qrag_jax.measures.trec import read_qrels, read_run
from qrag_jax.types import Cost, Document, Generation

STUDY = make_config(ks=(1, 2), report_k=2)
DOCUMENTS = (Document("a b", "One. Two."), Document("c", "Three."))
QUESTIONS = (StudyQuestion("q1", "Two?", ("a b",)), StudyQuestion("q2", "All?", ("a b", "c")))
TASK = StudyTask("facts", "documents", DOCUMENTS, QUESTIONS)
HITS = (FoundChunk("c0", "a b", ((0, 4),), 1, 0.75), FoundChunk("c2", "c", ((0, 6),), 1, 0.5))
COST = Cost({"chunk": 1800.0, "embed_sentences": 0.0, "embed_chunks": 1800.0}, 500, 2e9, 128)


def make_outcome(strategy="fixed", f1=(0.5, 1.0), config=None, **changes):
    found = (FoundChunks("q1", HITS[:1]), FoundChunks("q2", HITS))
    cell = CellResult("facts", strategy, 1, "test", 2, 3, 4 / 3, 2, 0.25, COST, found)
    scores = {f"{name}@{k}": np.array(f1) for name in ("recall", "precision", "f1") for k in (1, 2)}
    scores |= {"context_tokens@1": np.array([1.0, 1.0]), "context_tokens@2": np.array([1.0, 2.0])}
    outcome = Outcome(TASK, config or fixed(9), Choice(1, True, 0.625), cell, scores)
    return replace(outcome, **changes)


def test_a_row_by_hand():
    row = make_row(make_outcome(), STUDY, None)
    assert (row.task, row.kind, row.strategy) == ("facts", "documents", "fixed")
    assert (row.number, row.config) == (1, "fixed.num_tokens=9")
    assert (row.was_chosen, row.dev_score, row.n, row.context_tokens) == (True, 0.625, 2, 1.5)
    assert row.scores["f1@2"] == row.scores["f1_of_means@2"] == 0.75 and row.scores["context_tokens@1"] == 1
    interval = mean_interval(np.array([0.5, 1.0]), seed=STUDY.seed)
    assert (row.low, row.high) == (interval.low, interval.high) and row.low <= 0.75 <= row.high
    assert (row.num_documents, row.num_chunks, row.mean_tokens, row.most_tokens) == (2, 3, 4 / 3, 2)
    assert row.share_beyond_window == 0.25 and row.cost == COST


def test_dollars_come_from_prices_and_not_from_the_cell():
    """An hour at 3 dollars."""
    assert make_row(make_outcome(), STUDY, Prices(compute_per_hour=3.0)).cost == replace(COST, dollars=3.0)


@pytest.mark.parametrize(
    ("config", "name", "text"),
    [
        (ChunkConfig(), "fixed", ""),
        (ChunkConfig("late"), "late", ""),
        (ChunkConfig("late", max_tokens=9), "mine", "strategy=late, max_tokens=9"),
        (ChunkConfig("breakpoint", min_tokens=2), "breakpoint", "min_tokens=2"),
        (replace(fixed(7), strategy="document"), "document", ""),
        (ChunkConfig("breakpoint", breakpoint=BreakpointConfig(value=50.0)), "breakpoint", "breakpoint.value=50.0"),
    ],
)
def test_a_config_is_what_differs_from_the_defaults(config, name, text):
    assert describe_config(config, name) == text


def test_every_strategy_is_compared_with_the_baseline_and_holm_counts_all_tasks():
    rng = np.random.default_rng(0)
    outcomes = []
    for task in ("facts", "pages"):
        for strategy in ("late", "fixed", "breakpoint"):
            outcome = make_outcome(strategy, rng.random(20))
            outcomes.append(replace(outcome, cell=replace(outcome.cell, task=task)))
    found = compare_all(outcomes, STUDY)
    names = [("facts", "late"), ("facts", "breakpoint"), ("pages", "late"), ("pages", "breakpoint")]
    assert [(one.task, one.strategy) for one in found] == names
    values = {(outcome.cell.task, outcome.cell.strategy): outcome.scores["f1@2"] for outcome in outcomes}
    for one in found:
        expected = paired_difference(values[one.task, one.strategy], values[one.task, "fixed"], seed=STUDY.seed)
        assert (one.baseline, one.measure, one.n) == ("fixed", "f1@2", 20)
        assert one.difference == pytest.approx(np.mean(values[one.task, one.strategy] - values[one.task, "fixed"]))
        assert (one.low, one.high, one.p_value) == (expected.low, expected.high, expected.p_value)
    assert [one.p_holm for one in found] == holm_p_values([one.p_value for one in found])
    assert compare_all([outcome for outcome in outcomes if outcome.cell.strategy == "fixed"], STUDY) == ()


def asked_of(names, several=False):
    """Outcomes of two strategies on a question a name, about the document of this name: its questions gain alike."""
    rng = np.random.default_rng(1)
    documents = tuple(Document(name, "One. Two.") for name in dict.fromkeys(names))
    questions = [StudyQuestion(f"q{row}", "Two?", (name,)) for row, name in enumerate(names)]
    if several:
        questions[0] = replace(questions[0], relevant=tuple(document.id for document in documents[:2]))
    task = StudyTask("facts", "documents", documents, tuple(questions))
    gains = {document.id: rng.uniform(-0.2, 0.3) for document in documents}
    base = rng.uniform(0.3, 0.6, len(names))
    late = base + [gains[name] for name in names]
    return [make_outcome("fixed", base, task=task), make_outcome("late", late, task=task)]


def test_questions_of_a_document_are_drawn_and_flipped_together():
    names = [f"d{row // 5}" for row in range(60)]
    base, late = outcomes = asked_of(names)
    (found,) = compare_all(outcomes, STUDY)
    values = late.scores["f1@2"], base.scores["f1@2"]
    expected = paired_difference(*values, groups=names, seed=STUDY.seed)
    assert (found.low_by_document, found.high_by_document) == (expected.low, expected.high)
    assert (found.p_by_document, found.num_groups, found.n) == (expected.p_value, 12, 60)
    assert found.low == paired_difference(*values, seed=STUDY.seed).low
    assert found.high_by_document - found.low_by_document > 1.5 * (found.high - found.low)  # 12 gains, not 60
    assert found.p_holm_by_document == found.p_by_document > found.p_value == found.p_holm


def test_a_comparison_without_documents_counts_in_their_family():
    of_documents = asked_of([f"d{row // 2}" for row in range(24)])
    rng = np.random.default_rng(2)
    others = [make_outcome(name, rng.random(2)) for name in ("fixed", "late")]
    others = [replace(one, cell=replace(one.cell, task="pages")) for one in others]
    first, second = compare_all([*of_documents, *others], STUDY)
    assert first.p_by_document is not None and second.p_by_document is None and second.num_groups is None
    assert [first.p_holm_by_document, second.p_holm_by_document] == holm_p_values([first.p_by_document, second.p_value])
    assert [first.p_holm, second.p_holm] == holm_p_values([first.p_value, second.p_value])


@pytest.mark.parametrize(
    ("num_documents", "several", "is_given"),
    [(FEWEST_DOCUMENTS, False, True), (FEWEST_DOCUMENTS - 1, False, False), (FEWEST_DOCUMENTS, True, False)],
)
def test_few_documents_or_several_a_question_have_no_interval_of_theirs(num_documents, several, is_given):
    (found,) = compare_all(asked_of([f"d{row % num_documents}" for row in range(30)], several), STUDY)
    given = [found.low_by_document, found.high_by_document, found.p_by_document, found.num_groups]
    assert all(one is not None for one in given) if is_given else given == [None] * 4


def test_fills_are_compared_by_document_too():
    names = [f"d{row // 2}" for row in range(24)]
    rng = np.random.default_rng(0)
    recall = {f"{fill}@9": tuple(rng.random(24)) for fill in ("plain", "merge")}
    outcome = asked_of(names)[0]
    (found,) = compare_fills([replace(outcome, cell=replace(outcome.cell, recall=recall))], STUDY)
    values = [np.array(recall[f"{fill}@9"]) for fill in ("merge", "plain")]
    expected = paired_difference(*values, groups=names, seed=STUDY.seed)
    assert (found.measure, found.baseline, found.budget, found.fill) == ("erec", "plain", 9, "merge")
    assert (found.difference, found.low_by_document) == (expected.mean, expected.low)
    assert found.p_by_document == found.p_holm_by_document == expected.p_value


def test_an_object_a_question():
    first, second = question_objects(make_outcome())
    assert first == {
        "task": "facts",
        "strategy": "fixed",
        "number": 1,
        "question_id": "q1",
        "question": "Two?",
        "gold": ["a b"],
        "hits": [{"id": "c0", "document": "a b", "spans": [[0, 4]], "tokens": 1, "score": 0.75}],
        "scores": {
            **{f"{name}@{k}": 0.5 for name in ("recall", "precision", "f1") for k in (1, 2)},
            "context_tokens@1": 1.0,
            "context_tokens@2": 1.0,
        },
    }
    assert json.loads(json.dumps(second, allow_nan=False)) == second and len(second["hits"]) == 2


def test_gold_of_evidence_is_its_place():
    question = replace(QUESTIONS[0], evidence=(Evidence("a b", 5, 9),))
    task = StudyTask("facts", "evidence", DOCUMENTS, (question,), {"a b": ((0, 4), (5, 9)), "c": ((0, 6),)})
    outcome = make_outcome(task=task)
    outcome = replace(outcome, cell=replace(outcome.cell, found=outcome.cell.found[:1]))
    assert question_objects(outcome)[0]["gold"] == [{"document": "a b", "start": 5, "end": 9}]


def test_answers_stand_in_row_and_objects_with_failures_apart():
    answered = StudyAnswer("q1", ("c0",), Generation("Two.", "stop", 30, 2), BertScore(0.6, 0.8, 0.7), 0.5)
    failed = StudyAnswer("q2", ("c0", "c2"), Generation("", "error", 40, 0, "no credit"))
    answers = (answered, failed)
    row = make_row(make_outcome(answers=answers), STUDY, None)
    assert row.scores["answer_cosine@2"] == 0.5 and row.scores["answers_failed@2"] == 0.5
    assert row.scores["answer_bert_f1@2"] == 0.7
    assert (row.cost.prompt_tokens, row.cost.completion_tokens, row.cost.embedder_tokens) == (70, 2, 500)
    first, second = question_objects(make_outcome(answers=answers))
    assert first["answer"]["answer"] == "Two." and second["answer"]["error"] == "no credit"
    none = make_row(make_outcome(answers=(failed, failed)), STUDY, None)
    assert not {"answer_cosine@2", "answer_bert_f1@2"} & none.scores.keys()


def test_a_document_stands_where_its_best_chunk_does():
    places = zip("abacb", (0.9, 0.8, 0.7, 0.6, 0.5), strict=True)
    hits = [replace(HITS[0], document_id=name, score=score) for name, score in places]
    run = document_run([FoundChunks("q", tuple(hits)), FoundChunks("none", ())])
    assert {name: list(scores) for name, scores in run.items()} == {"q": ["a", "b", "c"], "none": []}
    assert list(run["q"].values()) == pytest.approx([0.9, 0.8, 0.6])


@pytest.mark.parametrize("score", [1.0, 0.0, -0.3, 1e-30])
def test_equal_scores_fall_strictly_also_as_32_bit_floats(score):
    hits = [replace(HITS[0], document_id=name, score=score) for name in "abcd"]
    scores = list(document_run([FoundChunks("q", tuple(hits))])["q"].values())
    assert all(np.float32(one) > np.float32(other) for one, other in zip(scores, scores[1:], strict=False))
    assert scores == pytest.approx([score] * 4, abs=1e-6)


def test_trec_files(tmp_path):
    write_trec(make_outcome(), tmp_path)
    assert read_qrels(tmp_path / "facts.qrels") == {"q1": {"a b": 1}, "q2": {"a b": 1, "c": 1}}
    assert read_run(tmp_path / "facts.fixed.run") == {"q1": {"a b": 0.75}, "q2": {"a b": 0.75, "c": 0.5}}


def f1_of(one, five):
    """F1 of each question at 1 and at 5, beside what must not count."""
    return {"f1@1": np.array(one), "f1@5": np.array(five), "recall@1": np.ones(len(one)), "f1@10": np.ones(len(one))}


def test_a_choice_by_hand():
    """Means .5 and .2 over two questions are .35; .25 and .5 are .375: the second config."""
    first, second = f1_of([1.0, 0.0], [0.4, 0.0]), f1_of([0.5, 0.0], [1.0, 0.0])
    assert dev_score(first, (1, 5)) == pytest.approx(0.35) and dev_score(second, (1, 5)) == pytest.approx(0.375)
    assert choose([first, second], (1, 5)) == Choice(1, True, pytest.approx(0.375))
    assert choose([first, second], (1,)).number == 0


def test_the_first_of_equals():
    """0.1 + 0.2 and 0.3 are the same F1 by other sums."""
    best = [f1_of([0.1, 0.2], [0.0, 0.0]), f1_of([0.3, 0.0], [0.0, 0.0])]
    assert choose(best, (1, 5)).number == choose(best[::-1], (1, 5)).number == 0
    assert choose([f1_of([0.0, 0.1], [0.0, 0.0]), *best, *best], (1, 5)).number == 1


def test_without_dev_the_first_is_taken_and_called_so():
    assert choose(None, (1, 5)) == Choice(0, False, None)
