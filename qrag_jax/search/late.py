"""Late interaction: scores passages by the vectors of their tokens, as ColBERT does.

    late(q, c) = 1/n sum_{i=1..n} max_j cos(q_i, c_j)          i: tokens of the question, j: tokens of the passage

That is MaxSim of Khattab and Zaharia (2020), eq. 3, divided by the number of tokens of the question, so that one weight
fits questions of any length. It orders the best passages of a search again (`search/rerank.py`):

    score(c) = search(c) + LATE_WEIGHT * late(q, c)
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int8

from qrag_jax.chunking.text.spans import readable
from qrag_jax.search.corpus import are_unknown
from qrag_jax.types import Counts, ReadsTokens

# Chosen on questions about documentation, and for speed.
LATE_WEIGHT, LATE_PASSAGES = 4.0, 24
WEIGHT_AFTER_LATE = 5.0  # times the own weight of a reranker that follows, because scores then differ more
StoredTokens = Callable[[Sequence[str]], Mapping[str, np.ndarray]]  # texts -> codes of those that are stored


def late_score(question: Float[np.ndarray, "n dim"], passage: Int8[np.ndarray, "m dim"]) -> float:
    """`late(q, c)` of the module, in [-1, 1]; 0 if either has no token.

    Args:
        question: vectors of its tokens, of length 1.
        passage: directions of its tokens (`models/encoder/text_encoder.py:encode_with_codes`).
    """
    if not len(question) or not len(passage):
        return 0.0
    codes = passage.astype(np.float32)
    lengths = np.sqrt(np.einsum("md,md->m", codes, codes))
    cosines = question @ codes.T / np.maximum(lengths, 1)  # a zero vector has the cosine 0
    return float(cosines.max(axis=1).mean())


class LateScorer:
    """Scores passages by `late_score`; satisfies `types.Reranker`.

    Attributes:
        name, weight, num_parameters: as in `types.Reranker`.
    """

    name, num_parameters, weight = "late", None, LATE_WEIGHT

    def __init__(self, encoder: ReadsTokens, stored: StoredTokens | None = None) -> None:
        """Scores by the token vectors of an encoder.

        Args:
            stored: finds token vectors that this encoder made before; None if there are none.
        """
        self._encoder, self._stored = encoder, stored

    @property
    def counts(self) -> Counts:
        """Texts and tokens that the encoder has read so far."""
        return self._encoder.counts

    def __call__(
        self, question: str, passages: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> Float[np.ndarray, " n"]:
        """Scores of passages, float64 [n]; those in words that the encoder does not know get the lowest of all."""
        asked = self._encoder.question_tokens(readable(question))
        known = dict(self._stored(passages)) if self._stored is not None else {}
        missing = [passage for passage in passages if passage not in known]
        if missing:
            _, codes = self._encoder.with_tokens([readable(passage) for passage in missing])
            known |= dict(zip(missing, codes, strict=True))
        scores = np.array([late_score(asked, known[passage]) for passage in passages], np.float64)
        unknown = are_unknown(self._encoder, passages)
        return np.where(unknown, scores.min(), scores) if unknown.any() else scores
