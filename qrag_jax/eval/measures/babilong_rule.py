"""BabiLong's own rule for answers to bAbI questions (Kuratov et al. 2024, as the authors' `metrics.py` computes it).

An answer counts where, of the labels of the task, its first sentence names the right one and no other; labels that the
question names do not count, whether the answer repeats them or not.

    L(t) = labels that are part of the text t;   right  <=>  L(first sentence of the answer) - L(question) = {reference}

Both texts in lower case. The first sentence ends at the first full stop, or before `<context>` or `<example>`, with
which their prompts open. (They also look for `Question`, after the text was put in lower case, so that it is never
found; and so it is here.) Labels are found as parts of words: `office` in `officer`. So labels of which one is part of
another cannot be told apart and are refused.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from qrag_jax.types import InputError

_PLACES = frozenset({"bathroom", "bedroom", "garden", "hallway", "kitchen", "office"})
# Of the five tasks that BabiLong reports.
TASK_LABELS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        **dict.fromkeys(("qa1", "qa2", "qa3", "qa4"), _PLACES),
        "qa5": frozenset({"bill", "fred", "jeff", "mary", "apple", "football", "milk"}),
    }
)
_ENDS = (".", "<context>", "<example>")


def labels_of(answers: Iterable[str]) -> frozenset[str]:
    """The labels of a task whose reference answers are known: BabiLong's own set where it holds them, else they."""
    named = frozenset(answer.lower() for answer in answers)
    if not named or "" in named:
        raise InputError("BabiLong's rule needs the answers of the task, each of them a text that is not empty")
    for labels in TASK_LABELS.values():
        if named <= labels:
            return labels
    for label in sorted(named):
        longer = next((other for other in sorted(named) if label != other and label in other), None)
        if longer is not None:
            raise InputError(
                f"BabiLong's rule finds labels as parts of a text, and {label!r} is part of {longer!r}: score these "
                "answers by exact match and F1"
            )
    return named


def babilong_correct(answer: str, reference: str, question: str, labels: Collection[str]) -> bool:
    """Whether an answer is right by the rule above.

    Args:
        question: its labels do not count in the answer.
        labels: of the task, in lower case (`labels_of`).
    """
    right = reference.lower()
    if right not in labels:
        raise InputError(f"reference answer {reference!r} is none of the labels {', '.join(sorted(labels))}")
    asked = _labels_in(question.lower(), labels)
    if right in asked:
        raise InputError(
            f"the question {question!r} names its own answer {reference!r}: BabiLong's rule cannot judge it"
        )
    said = answer.lower()
    for end in _ENDS:
        said = said.split(end, 1)[0]
    return _labels_in(said, labels) - asked == {right}


def _labels_in(text: str, labels: Collection[str]) -> set[str]:
    return {label for label in labels if label in text}
