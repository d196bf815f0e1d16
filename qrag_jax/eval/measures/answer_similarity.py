"""Query-answer similarity: the cosine of a question and the answer that was generated for it.

The measure of "Is Semantic Chunking Worth the Computational Cost?", appendix D ("QA similarity"). It needs no reference
and so knows nothing of what is true: an answer that repeats the question is nearest to it. Read it beside BERTScore,
never alone.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from qrag_jax.types import Embed, InputError
from qrag_jax.unit_rows import unit_rows


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
    vectors = np.asarray(embed(texts), np.float64)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise InputError(f"embedder: vectors of {len(texts)} texts have shape {list(vectors.shape)}")
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if wrong.size:
        raise InputError(f"embedder: the vector of {texts[wrong[0]][:60]!r} is not finite: mend the encoder")
    vectors = unit_rows(vectors)
    cosines[given] = np.clip((vectors[: len(given)] * vectors[len(given) :]).sum(axis=1), -1.0, 1.0)
    return cosines
