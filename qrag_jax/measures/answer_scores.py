"""Exact match and token F1 of short answers, as the scripts of SQuAD, HotpotQA and MuSiQue compute them.

Texts are compared after SQuAD's normalisation: lower case, ASCII punctuation deleted, the articles a, an, the deleted,
white space shortened. It is made for English: a script without spaces is one token a clause, so that its F1 is all or
nothing (`measures/answer_scores.py` reads such texts character by character).

Two conventions of F1 are in use:

    squad    plain overlap of tokens: SQuAD, MuSiQue, bAbI
    hotpot   besides, 0 where one side is `yes`, `no` or `noanswer` and the other is not the same: HotpotQA, 2Wiki

Where both sides are empty after normalisation (the band The The), they are equal: EM and F1 are 1, as SQuAD 2.0 has it.

BabiLong's own rule for answers to bAbI questions (Kuratov et al. 2024, as the authors' `metrics.py` computes it).

An answer counts where, of the labels of the task, its first sentence names the right one and no other; labels that the
question names do not count, whether the answer repeats them or not.

    L(t) = labels that are part of the text t;   right  <=>  L(first sentence of the answer) - L(question) = {reference}

Both texts in lower case. The first sentence ends at the first full stop, or before `<context>` or `<example>`, with
which their prompts open. (They also look for `Question`, but in lower-cased text, so it is never found; we do the
same.) Labels are found as parts of words: `office` in `officer`. So labels that contain each other cannot be
distinguished and raise an error.

ROUGE-L of long answers: Google's `rouge-score` with tokens of our own, which read every script.

The package's tokenizer keeps a-z and 0-9 only: a Chinese answer has no token in it, and would score 0 whatever it says.
Ours (`chunking/text/words.py:plain_tokens`) gives the same tokens on ASCII text, so English scores are the package's
own (without stemming); it also reads letters with accents, and scripts without spaces character by character.
"""

import importlib
import re
import string
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, get_args

from qrag_jax.chunking.text.words import plain_tokens
from qrag_jax.types import InputError, UsageError

Convention = Literal["squad", "hotpot"]
CONVENTIONS: tuple[str, ...] = get_args(Convention)
_CLOSED = frozenset({"yes", "no", "noanswer"})  # answers that share no token with a right one but by chance
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True)
class GivenAnswer:
    """An answer to a question, with the right answers.

    Attributes:
        id: of the question.
        question: its text.
        answer: may be blank.
        references: right answers, any one of which is enough; at least one.
    """

    id: str
    question: str
    answer: str
    references: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.references or not all(reference.strip() for reference in self.references):
            raise InputError(
                f"question {self.id}: it has no reference answer, or a blank one, to be scored against: leave it out"
            )


@dataclass(frozen=True)
class AnswerScore:
    """Exact match (0 or 1) and token F1, in [0, 1]; each the best over the reference answers, maybe of two of them."""

    em: float
    f1: float


def normalise_answer(text: str) -> str:
    """SQuAD's normalisation: lower case, no ASCII punctuation, no articles, single blanks between the words.

    Punctuation is deleted first and leaves no blank (`well-known` is one token, `a.` an article).
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, reference: str) -> float:
    """1 where both are the same after normalisation, else 0."""
    return float(normalise_answer(answer) == normalise_answer(reference))


def token_f1(answer: str, reference: str, convention: Convention = "squad") -> float:
    """F1 of the bags of tokens, in [0, 1].

        c = tokens in common, repeated ones counted as often as both have them
        P = c / tokens of the answer,  R = c / tokens of the reference,  F1 = 2 P R / (P + R)

    Args:
        answer: a blank one scores 0 against every reference that is not blank.
        convention: see the head of this file.
    """
    said, right = normalise_answer(answer), normalise_answer(reference)
    if said == right:
        return 1.0
    if convention == "hotpot" and not _CLOSED.isdisjoint((said, right)):
        return 0.0
    said_tokens, right_tokens = said.split(), right.split()
    common = (Counter(said_tokens) & Counter(right_tokens)).total()
    return 2 * common / (len(said_tokens) + len(right_tokens))


def contains_reference(answer: str, references: Sequence[str]) -> float:
    """1 if the answer contains a reference, token for token after normalisation, else 0 ("cover EM").

    For readers that answer in sentences, whose EM is 0 even if they are right. It cannot distinguish an answer from a
    list of all candidates, so report it only with other measures. A reference that is empty after normalisation
    matches only an empty answer.
    """
    _check_references(references)
    said = normalise_answer(answer)
    return float(any(_contains(said, normalise_answer(reference)) for reference in references))


def string_match(answer: str, references: Sequence[str], needs_all: bool) -> float:
    """RULER's score of an answer: a reference counts if the answer contains it, without case.

    needs_all:  the share of the references that it contains    (needles, variables)
    else:       1 if it contains one of them, else 0             (question answering)
    """
    _check_references(references)
    found = [reference.lower() in answer.lower() for reference in references]
    return sum(found) / len(found) if needs_all else float(any(found))


def score_answer(answer: str, references: Sequence[str], convention: Convention = "squad") -> AnswerScore:
    """EM and F1 against the reference that fits best, each measure on its own."""
    _check_references(references)
    return AnswerScore(
        em=max(exact_match(answer, reference) for reference in references),
        f1=max(token_f1(answer, reference, convention) for reference in references),
    )


def _contains(said: str, right: str) -> bool:
    return said == right if not right else f" {right} " in f" {said} "


def _check_references(references: Sequence[str]) -> None:
    if not references:
        raise InputError("a question without reference answers cannot be scored: leave it out, or give it one")


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
    """True if an answer is right by the rule above.

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


class _Tokens:
    """The tokenizer as `rouge-score` asks for it."""

    def tokenize(self, text: str) -> list[str]:
        return plain_tokens(text)


def check_rouge() -> None:
    """Refuses to go on without the package, so that nobody pays for answers that cannot be scored."""
    _scorer()


def rouge_l(answer: str, references: Sequence[str]) -> float:
    """ROUGE-L, the F measure with beta = 1, best over the references; in [0, 1].

        l = length of a longest common subsequence of the tokens of answer and reference
        P = l / tokens of the answer,  R = l / tokens of the reference,  F = 2 P R / (P + R)

    It is sentence-level ROUGE-L (Lin 2004): a text is one sequence, whatever its sentences. No stemming.

    Args:
        answer: a text without any token (blank, or signs only) has 0.
        references: texts with at least one token each.
    """
    _check_references(references)
    for reference in references:
        if not plain_tokens(reference):
            raise InputError(f"reference answer {reference[:60]!r} holds no word to compare with: leave it out")
    score = _scorer().score_multi(list(references), answer)["rougeL"]
    return float(score.fmeasure)


@cache
def _scorer() -> Any:
    try:
        rouge_scorer = importlib.import_module("rouge_score.rouge_scorer")
    except ModuleNotFoundError as error:
        raise UsageError(
            "ROUGE-L needs the package rouge-score, which is not installed: pip install 'qrag_jax[eval]'"
        ) from error
    return rouge_scorer.RougeScorer(["rougeL"], tokenizer=_Tokens())
