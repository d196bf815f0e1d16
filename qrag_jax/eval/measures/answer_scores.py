"""Exact match and token F1 of short answers, as the scripts of SQuAD, HotpotQA and MuSiQue compute them.

Texts are compared after SQuAD's normalisation: lower case, ASCII punctuation deleted, the articles a, an, the deleted,
white space shortened. It is made for English: a script without spaces is one token a clause, so that its F1 is all or
nothing (`eval/measures/rouge.py` reads such texts character by character).

Two conventions of F1 are in use:

    squad    plain overlap of tokens: SQuAD, MuSiQue, bAbI
    hotpot   besides, 0 where one side is `yes`, `no` or `noanswer` and the other is not the same: HotpotQA, 2Wiki

Where both sides are empty after normalisation (the band The The), they are equal: EM and F1 are 1, as SQuAD 2.0 has it.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from qrag_jax.types import InputError

Convention = Literal["squad", "hotpot"]
CONVENTIONS: tuple[str, ...] = get_args(Convention)
_CLOSED = frozenset({"yes", "no", "noanswer"})  # answers that share no token with a right one but by chance
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True)
class GivenAnswer:
    """What was said to a question, and what is right.

    Attributes:
        id: of the question.
        question: its text.
        answer: what was said; may be blank.
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
        answer: what was said; a blank answer has 0 against every reference that is not blank.
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
    """1 where some reference stands in the answer, token for token after normalisation, else 0 ("cover EM").

    For readers that answer in sentences, whose EM is 0 however right they are. It cannot tell an answer from a list of
    all candidates, so it never stands alone. A reference that is empty after normalisation is contained in its like
    only.
    """
    _check_references(references)
    said = normalise_answer(answer)
    return float(any(_contains(said, normalise_answer(reference)) for reference in references))


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
