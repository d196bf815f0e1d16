"""Approximate search of a large search file, by the signs of its vectors.

It is used only after it has shown that it finds what an exact comparison finds among all vectors of the file. A file
beside the file of documents says so. Without it, searches compare all vectors.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.files.array_file import ArrayFile, write_arrays
from qrag_jax.index.parts.part import StoredPart, rows_of
from qrag_jax.search.signs import Signs

NEAR = ".near"
LEAST_RECALL = 0.99
RECALL_AT = 10
_AIM = 0.993  # of the number of rows to compare; more than `LEAST_RECALL`, because other questions differ
_MOST_TRIED = 0.05  # share of all rows; more take as long as a comparison of all
_AT_ONCE = 32  # questions that are compared with all vectors
_SLACK = 1e-6  # of scores that are equal


@dataclass(frozen=True, eq=False)
class Near:
    """Finds rows of a file that may be the nearest of a question.

    Attributes:
        signs: of its vectors.
        tried: rows to compare exactly for `RECALL_AT` wanted ones.
    """

    signs: Signs
    tried: int

    @property
    def most(self) -> int:
        """The most rows of a search; one for more takes as long as a comparison of all."""
        return int(_MOST_TRIED * len(self.signs)) * RECALL_AT // max(self.tried, 1)

    def find(self, question: Float[np.ndarray, " dim"], k: int) -> Int[np.ndarray, " _"]:
        """Rows among which are about all of the `k` nearest, in their order."""
        return self.signs.first(question, self.tried * max(k, RECALL_AT) // RECALL_AT)


def open_near(part: StoredPart, documents: Int[np.ndarray, " _"]) -> Near | None:
    """Opens a search file for approximate search; None if nothing has shown that the recall is at least .99.

    Args:
        part: the file.
        documents: those of the file that are in the pool.

    Raises:
        Damaged: a file was changed or cut off.
    """
    path = part.path.with_suffix(NEAR)
    if not path.exists():
        return None
    about = ArrayFile(path).about
    if about["recall"] < LEAST_RECALL:
        return None
    gone = np.setdiff1d(np.arange(len(part.sizes)), documents)
    return Near(Signs(part.signs(documents), rows_of(part.starts, gone) if len(gone) else None), about["tried"])


def try_near(part: StoredPart, questions: Float[np.ndarray, "q dim"]) -> float:
    """Measures how many rows of a file must be compared for a recall of .99, and writes it beside the file.

    Args:
        part: the file, with signs.
        questions: vectors of length 1 that are not among those of the file.

    Returns:
        The recall@10 of the questions against an exact comparison.
    """
    vectors, signs = part.vectors, Signs(part.signs())
    worst: list[float] = []  # of each question the score of the last of its nearest
    needed: list[int] = []  # of each of the nearest its place by distance
    for start in range(0, len(questions), _AT_ONCE):
        some = questions[start : start + _AT_ONCE]
        for question, products in zip(some, some @ vectors.T, strict=True):
            nearest = np.argpartition(products, -RECALL_AT)[-RECALL_AT:]
            distances = signs.distances(question)
            worst.append(float(products[nearest].min()))
            needed += [int((distances <= distances[row]).sum()) for row in nearest.tolist()]
    tried = min(int(np.quantile(needed, _AIM, method="higher")), int(_MOST_TRIED * len(vectors)))
    made, found = Near(signs, tried), 0
    for question, least in zip(questions, worst, strict=True):
        scores = vectors[made.find(question, RECALL_AT)] @ question
        found += min(RECALL_AT, int((scores >= least - _SLACK).sum()))
    recall = found / (RECALL_AT * len(questions))
    write_arrays(part.path.with_suffix(NEAR), {"recall": recall, "tried": tried}, {})
    return recall
