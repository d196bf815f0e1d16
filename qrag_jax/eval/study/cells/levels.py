"""What contexts hold that are filled from any range of levels, of every question, range and budget.

Contexts are filled as plain ones are (`contexts.py`): the best nodes that do not overlap, the last one cut at the
budget, tokens counted word by word. So a range of large nodes has exactly as much to read as one of small ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float, Int

from qrag_jax.chunking.tree.levels import LevelRange
from qrag_jax.data.corpora.study_task import StudyQuestion, StudyTask
from qrag_jax.eval.measures.answer_scores import normalise_answer
from qrag_jax.eval.measures.evidence_recall import evidence_recall
from qrag_jax.eval.study.cells.contexts import question_pieces
from qrag_jax.retrieval.context.fill import Budget, Context, fill_context
from qrag_jax.retrieval.corpus.corpus import Corpus, ReportProgress
from qrag_jax.retrieval.index.hybrid import Ranked
from qrag_jax.retrieval.index.levels import LevelIndex
from qrag_jax.types import CountTokens, InputError


@dataclass(frozen=True)
class LevelRecall:
    """Contexts of every range, question and budget.

    Attributes:
        recall: float64 [questions, ranges, budgets], evidence recall.
        sent: int64, likewise, tokens of the context.
    """

    recall: Float[np.ndarray, "questions ranges budgets"]
    sent: Int[np.ndarray, "questions ranges budgets"]


class LevelContexts:
    """Fills contexts from rankings of nodes and looks for evidence in them; words are counted once."""

    def __init__(self, corpus: Corpus, task: StudyTask, budgets: Sequence[int], count: CountTokens) -> None:
        """Nothing is counted yet.

        Args:
            corpus: of trees of the task's documents.
        """
        self.corpus, self.task, self.budgets = corpus, task, tuple(budgets)
        count_word = cache(count)
        self._count = cache(lambda text: sum(count_word(word) for word in text.split()))
        self._pieces = cache(self._find_pieces)
        self._of_question = {question.id: question for question in task.questions}

    def fill(self, ranked: Ranked, budget: int) -> Context:
        """The context of a ranking, filled to the token."""
        return fill_context(self.corpus, ranked, Budget(budget, self._count, max_notes=0, cut_last=True))

    def recalls(self, question: StudyQuestion, ranked: Ranked) -> tuple[list[float], list[int]]:
        """(evidence recall, tokens sent) at every budget."""
        pieces, found, sent = self._pieces(question.id), [], []
        for budget in self.budgets:
            context = self.fill(ranked, budget)
            found.append(evidence_recall(pieces, "\n".join(passage.text for passage in context.passages)))
            sent.append(context.num_tokens)
        return found, sent

    def _find_pieces(self, question_id: str) -> list[str]:
        pieces = question_pieces(self.task, self._of_question[question_id])
        if not any(normalise_answer(piece) for piece in pieces):
            raise InputError(
                f"{self.task.name}: question {question_id!r}: its evidence has no word: there is nothing to find; "
                "leave the question out, or measure without budgets"
            )
        return pieces


def level_recall(
    index: LevelIndex,
    contexts: LevelContexts,
    questions: Sequence[StudyQuestion],
    vectors: Float[np.ndarray, "questions dim"],
    ranges: Sequence[LevelRange],
    *,
    scope: str = "corpus",
    progress: ReportProgress | None = None,
) -> LevelRecall:
    """The recall of contexts from every range.

    Args:
        scope: `corpus`, or `document`: a question searches its relevant documents alone.
        progress: called with (questions done, of).
    """
    most = max(contexts.budgets)  # nodes: none has less than a token
    shape = len(questions), len(ranges), len(contexts.budgets)
    recall, sent = np.zeros(shape), np.zeros(shape, np.int64)
    for row, (question, vector) in enumerate(zip(questions, vectors, strict=True)):
        documents = question.relevant if scope == "document" else None
        for column, levels in enumerate(ranges):
            ranked = index.rank(question.text, vector, levels, most, documents=documents)
            recall[row, column], sent[row, column] = contexts.recalls(question, ranked)
        if progress is not None:
            progress(row + 1, len(questions))
    return LevelRecall(recall, sent)
