"""The prompt of answer generation: what a document says in it is data (`llm/prompts.py:fence`)."""

from collections.abc import Sequence

from qrag_jax.llm.prompts import load_prompt, passages_prompt
from qrag_jax.types import Message

_NAME = "study_answer"


def make_prompt(question: str, passages: Sequence[str], name: str) -> tuple[Message, ...]:
    """The conversation that asks a question: what to do, then the passages in the order given and the question.

    Args:
        passages: texts of the chunks, whole; none is allowed.
        name: id of the question. The mark is drawn from it: the same for all strategies, known to no document.
    """
    return passages_prompt(load_prompt(_NAME), question, passages, name)


def prompt_sha256() -> str:
    """Hash of the templates, hexadecimal: answers to prompts of other templates cannot be compared."""
    return load_prompt(_NAME).sha256
