"""ROUGE-L of long answers: Google's `rouge-score` with tokens of our own, which read every script.

The package's tokenizer keeps a-z and 0-9 only: a Chinese answer has no token in it, and would score 0 whatever it says.
Ours (`retrieval/rank/bm25.py:bm25_tokens`) gives the same tokens on ASCII text, so English scores are the package's own
(without stemming); it also reads letters with accents, and scripts without spaces character by character.
"""

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from qrag_jax.chunking.text.words import bm25_tokens
from qrag_jax.types import InputError, UsageError


class _Tokens:
    """The tokenizer as `rouge-score` asks for it."""

    def tokenize(self, text: str) -> list[str]:
        return bm25_tokens(text)


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
    if not references:
        raise InputError("a question without reference answers cannot be scored: leave it out, or give it one")
    for reference in references:
        if not bm25_tokens(reference):
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
