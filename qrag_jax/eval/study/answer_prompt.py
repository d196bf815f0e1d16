"""The prompt of answer generation: what a document says in it is data (`llm/prompts.py:fence`)."""

from collections.abc import Sequence

from qrag_jax.llm.prompts import fence, load_prompt
from qrag_jax.types import Message

_NAME = "study_answer"


def make_prompt(question: str, passages: Sequence[str], name: str) -> tuple[Message, ...]:
    """The conversation that asks a question: what to do, then the passages in the order given and the question.

    Args:
        question: what is asked.
        passages: texts of the chunks, whole; none is allowed.
        name: id of the question. The mark is drawn from it: the same for all strategies, known to no document.
    """
    mark, fenced = fence(passages, name, beside=[question])
    return load_prompt(_NAME).fill(mark=mark, passages=fenced, question=question)


def prompt_sha256() -> str:
    """Hash of the templates, hexadecimal: answers to prompts of other templates cannot be compared."""
    return load_prompt(_NAME).sha256
