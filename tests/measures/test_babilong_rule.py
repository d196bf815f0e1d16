import pytest
from hypothesis import given
from hypothesis import strategies as st

from qrag_jax.measures.answer_scores import TASK_LABELS, babilong_correct, labels_of
from qrag_jax.types import InputError

PLACES = TASK_LABELS["qa1"]
WHERE = "Where is Mary? "


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("The milk is in the Kitchen.", True),
        ("kitchen", True),
        ("The milk is in the garden.", False),
        ("kitchen or garden", False),  # two labels
        ("The kitchen. Before that it was in the garden.", True),  # what follows the first sentence does not count
        ("I think so. The kitchen.", False),
        ("kitchen <context> garden", True),
        ("kitchen<example>garden", True),
        ("kitchen question: garden", False),
        ("It was before the office in the kitchen", True),  # the question names the office
        ("kitchenette", True),  # labels are parts of words
        ("", False),
        (". kitchen", False),
    ],
)
def test_answers_by_hand(answer, right):
    assert babilong_correct(answer, "kitchen", "Where was the milk before the office? ", PLACES) is right


def test_case_of_reference_and_labels_does_not_matter():
    assert babilong_correct("bill did", "Bill", "Who gave the milk to Fred?", TASK_LABELS["qa5"])
    assert not babilong_correct("Fred gave the milk", "Bill", "Who gave the milk to Fred?", TASK_LABELS["qa5"])


@given(st.lists(st.sampled_from([*sorted(PLACES), "the", "in", "not"]), max_size=5), st.sampled_from(sorted(PLACES)))
def test_right_is_the_reference_and_no_other_label(words, reference):
    named = {word for word in words if word in PLACES}
    assert babilong_correct(" ".join(words), reference, WHERE, PLACES) == (named == {reference})


def test_labels_come_from_the_answers_of_a_task():
    assert labels_of(["kitchen", "Garden", "kitchen"]) == PLACES
    assert labels_of(["milk", "Mary"]) == TASK_LABELS["qa5"]
    assert labels_of(["Attic", "cellar"]) == {"attic", "cellar"}
    assert labels_of(["kitchen", "attic"]) == {"kitchen", "attic"}


def test_what_cannot_be_judged_is_refused():
    with pytest.raises(InputError, match="'hall' is part of 'hallway'"):
        labels_of(["hallway", "hall"])
    for answers in ([], ["kitchen", ""]):
        with pytest.raises(InputError, match="needs the answers of the task"):
            labels_of(answers)
    with pytest.raises(InputError, match="'attic' is none of the labels bathroom, bedroom"):
        babilong_correct("attic", "attic", WHERE, PLACES)
    with pytest.raises(InputError, match="names its own answer 'kitchen'"):
        babilong_correct("kitchen", "kitchen", "Is the kitchen where Mary is?", PLACES)
