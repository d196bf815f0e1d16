"""Which documents the chunks that were found come from: recall, precision and F1 over distinct documents."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from qrag_jax.types import InputError


@dataclass(frozen=True)
class FoundScore:
    """Recall, precision and their F1 of one question, each in [0, 1]."""

    recall: float
    precision: float
    f1: float


def found_score(right: int, found: int, wanted: int) -> FoundScore:
    """Recall right / wanted, precision right / found, and F1; a share of nothing is 0.

    Args:
        right: what was found and wanted.
        wanted: all that should be found.
    """
    recall, precision = right / wanted if wanted else 0.0, right / found if found else 0.0
    return FoundScore(recall, precision, harmonic_mean(recall, precision))


def harmonic_mean(recall: float, precision: float) -> float:
    """F1 = 2 * recall * precision / (recall + precision); 0 where both are 0."""
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def document_scores(documents: Sequence[str], relevant: Collection[str], k: int) -> FoundScore:
    """Document retrieval through chunks, over distinct documents.

    The first k chunks stand for the set of documents that they come from (so k is a number of chunks, not of
    documents):

        recall@k    = relevant documents in the set / relevant documents
        precision@k = relevant documents in the set / documents in the set

    Five chunks of one relevant document so have a precision of 1, and a second chunk of a wrong document costs nothing
    more. The precision over chunks, or over k, is another measure. No chunk at all has a precision of 0.

    Args:
        documents: document id of each chunk that was found, best first; ids may repeat.
        relevant: ids of the documents that answer, at least one.
        k: at least 1; fewer chunks than k are taken as they are.
    """
    if k < 1:
        raise InputError(f"k {k}: give at least 1")
    if not relevant:
        raise InputError("relevant is empty: a question without relevant documents has no recall; leave it out")
    found, wanted = set(documents[:k]), set(relevant)
    return found_score(len(found & wanted), len(found), len(wanted))
