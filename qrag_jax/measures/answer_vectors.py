"""BERTScore (Zhang et al. 2019): how much of an answer is in a reference, token by token, by contextual vectors.

Every token is matched with its nearest token of the other text, by cosine; several tokens may have the same match. With
unit vectors a_i of the n tokens of the answer and r_j of the m tokens of the reference

    precision = 1/n sum_i max_j a_i . r_j,   recall = 1/m sum_j max_i a_i . r_j,   F1 = 2 P R / (P + R)

Differences from the published tool, `bert_score`:

- the encoder is ours, at its last layer; the tool has a table of the layer that suits each model best. Numbers of
  different encoders, or layers, cannot be compared: a table has one encoder.
- special tokens are left out altogether; the tool gives [CLS] and [SEP] no weight, but lets a token match them. So
  its scores are never lower: about the same for sentences, but much higher for a single word (MiniLM, "yes" for
  "Yes.": F1 .89 instead of .64, because the full stop matches [SEP]).
- tokens have equal weight: the tool can weigh them by idf (`idf=True`), which it does not by default.
- no rescaling with a baseline (the tool's `rescale_with_baseline`, off by default): unrelated texts score well above
  0, so differences say more than the numbers.
- of several references, the one with the best F1 gives all three numbers; the tool takes the best of each separately,
  so the F1 is the same.
- nothing is cut: a text beyond the window is read in windows (`TextEmbedder.tokens`); the tool cuts it.

Query-answer similarity: the cosine of a question and the answer that was generated for it.

The measure of "Is Semantic Chunking Worth the Computational Cost?", appendix D ("QA similarity"). It needs no
reference, so it does not measure truth: an answer that repeats the question scores best. Read it together with
BERTScore, never alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from qrag_jax.types import Embed, EmbedTokens, InputError
from qrag_jax.unit_rows import checked_vectors, unit_rows


def answer_similarities(questions: Sequence[str], answers: Sequence[str], embed: Embed) -> Float[np.ndarray, " n"]:
    """Cosine of each question with its answer, float64 [n], in [-1, 1].

        similarity = q . a / (|q| |a|)

    A blank answer has 0, as has a vector of zeros. A text beyond the encoder's window is what `embed` makes of it.

    Args:
        answers: their answers, in the same order.
        embed: texts -> vectors; called once with all questions and all answers that are not blank.
    """
    if len(questions) != len(answers):
        raise InputError(f"{len(questions)} questions and {len(answers)} answers: give one answer a question")
    cosines = np.zeros(len(questions))
    given = [number for number, answer in enumerate(answers) if answer.strip()]
    if not given:
        return cosines
    texts = [texts[number] for texts in (questions, answers) for number in given]
    vectors = unit_rows(checked_vectors(embed(texts), texts, np.float64))
    cosines[given] = np.clip((vectors[: len(given)] * vectors[len(given) :]).sum(axis=1), -1.0, 1.0)
    return cosines


@dataclass(frozen=True)
class BertScore:
    """Mean cosines of the best matches, at most 1: of the answer's tokens, of the reference's, harmonic mean of both.

    `f1` is 0 where precision or recall is not positive.
    """

    precision: float
    recall: float
    f1: float


NOTHING = BertScore(0.0, 0.0, 0.0)


def bert_score(answer: str, references: Sequence[str], embed_tokens: EmbedTokens) -> BertScore:
    """BERTScore of an answer against the reference that it agrees with best, by F1; the first of equals.

    Args:
        answer: any text; one without tokens scores 0.
        references: at least one, none blank; a reference without tokens (the tokenizer drops all its characters)
            scores 0.
        embed_tokens: one text -> its token vectors, special tokens left out; called once for each text.
    """
    _check_references(references)
    candidate = _vectors(answer, embed_tokens) if answer.strip() else None
    if candidate is None or not len(candidate):
        return NOTHING
    scores = [match_tokens(candidate, _vectors(reference, embed_tokens)) for reference in references]
    return max(scores, key=lambda score: score.f1)


def _check_references(references: Sequence[str]) -> None:
    """Refuses references that no answer can be compared with."""
    if not references:
        raise InputError("references is empty: BERTScore needs at least one reference answer")
    for number, reference in enumerate(references):
        if not reference.strip():
            raise InputError(f"references[{number}] is blank: leave it out")


def match_tokens(candidate: Float[np.ndarray, "n dim"], reference: Float[np.ndarray, "m size"]) -> BertScore:
    """The score of token vectors, of any length; a vector of zeros has cosine 0 with every other.

    Args:
        candidate: of the answer, float [n, dim]; n = 0 scores 0.
        reference: of the reference, float [m, dim]; m = 0 scores 0.
    """
    if candidate.shape[1] != reference.shape[1]:
        raise InputError(f"token vectors of sizes {candidate.shape[1]} and {reference.shape[1]}: use one encoder")
    cosines = _unit("answer", candidate) @ _unit("reference", reference).T
    if not cosines.size:
        return NOTHING
    cosines = np.clip(cosines, -1.0, 1.0)  # rounding: a text agrees with itself by 1, not by more
    precision, recall = float(cosines.max(axis=1).mean()), float(cosines.max(axis=0).mean())
    f1 = 2 * precision * recall / (precision + recall) if min(precision, recall) > 0 else 0.0
    return BertScore(precision, recall, f1)


def _vectors(text: str, embed_tokens: EmbedTokens) -> np.ndarray:
    vectors = np.asarray(embed_tokens(text)[0])
    if vectors.ndim != 2:
        raise InputError(f"embedder: token vectors have shape {list(vectors.shape)}, expected [num_tokens, dim]")
    return vectors


def _unit(name: str, vectors: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    """The vectors at length 1, float64."""
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if wrong.size:
        raise InputError(f"{name}: the vector of token {wrong[0]} is not finite: mend the encoder")
    return unit_rows(vectors.astype(np.float64))
