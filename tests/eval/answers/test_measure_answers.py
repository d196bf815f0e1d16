import pytest
from support.scripted_models import make_judge

from qrag_jax.eval.answers.measure_answers import MeasureOptions, check_measures, measure_answers
from qrag_jax.eval.answers.records import MEASURES, SCORES
from qrag_jax.llm.scripted import ScriptedGenerator, failed
from qrag_jax.measures.answer_scores import TASK_LABELS, GivenAnswer
from qrag_jax.types import UsageError

ALL = MeasureOptions(tuple(MEASURES), labels=TASK_LABELS["qa1"])
KITCHEN = GivenAnswer("q", "Where is Mary?", "the kitchen.", ("kitchen", "the kitchen."))
OFFICE = GivenAnswer("r", "Where is John?", "office or garden", ("office",))


def test_all_measures_of_a_batch():
    measured = measure_answers([KITCHEN, OFFICE], [make_judge()], ALL)
    assert set(measured.scores[0]) == set(measured.scores[1]) == set(SCORES)
    assert set(measured.scores[0].values()) == {1.0}
    assert measured.scores[1] == {
        "em": 0.0,
        "f1": pytest.approx(2 * 1 / 4),
        "contains": 1.0,
        "rouge_l": pytest.approx(2 * 1 / 4),
        "babilong": 0.0,
        "claim_precision": 0.0,  # to letters, `office or garden` does not stand in `office`
        "claim_recall": 1.0,
        "claim_f1": 0.0,
        "judge": 1.0,
    }
    assert measured.errors == ({}, {}) and set(measured.agreement) == {"claims", "judge"} and measured.calls


def test_the_convention_reaches_f1():
    one = GivenAnswer("q", "Is it?", "yes it is", ("yes",))
    plain, hotpot = (measure_answers([one], options=MeasureOptions(convention=name)) for name in ("squad", "hotpot"))
    assert plain.scores[0]["f1"] == pytest.approx(1 / 2) and hotpot.scores[0]["f1"] == 0.0


def test_what_a_measure_cannot_score_is_an_error_of_that_measure_alone():
    """A reference that is no label, one without a word, a judge that fails: no score, and no 0."""
    strange = GivenAnswer("s", "Where?", "attic", ("attic",))
    signs = GivenAnswer("t", "Which?", "?!", ("?!",))
    judge = ScriptedGenerator(lambda prompt: failed("down"))
    measured = measure_answers([strange, signs], [judge], ALL)
    assert measured.scores == (
        {"em": 1.0, "f1": 1.0, "contains": 1.0, "rouge_l": 1.0},
        {"em": 1.0, "f1": 1.0, "contains": 1.0},
    )
    assert set(measured.errors[0]) == {"babilong", "claims", "judge"}
    assert set(measured.errors[1]) == {"rouge_l", "babilong", "claims", "judge"}
    assert measured.errors[0]["judge"] == "scripted: down" and "none of the labels" in measured.errors[0]["babilong"]


def test_no_answers_no_scores():
    measured = measure_answers([], [make_judge()], ALL)
    assert measured.scores == measured.errors == measured.calls == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (MeasureOptions(("em", "bleu")), "measure 'bleu': no such measure; choose from em, f1, contains, rouge_l"),
        (MeasureOptions(()), "name at least one"),
        (MeasureOptions(("em", "em")), "each once"),
        (MeasureOptions(("babilong",)), "BabiLong's rule is for bAbI questions"),
        (MeasureOptions(("claims",)), "name at least one"),
        (MeasureOptions(("judge",)), "name at least one"),
    ],
)
def test_measures_that_can_score_nothing_are_refused_first(options, message):
    with pytest.raises(UsageError, match=message):
        check_measures(options, 0)
    with pytest.raises(UsageError, match=message):
        measure_answers([KITCHEN], options=options)
