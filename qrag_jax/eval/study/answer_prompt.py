"""The prompt of answer generation: what a document says in it is data.

The passages stand between marks that occur in none of them nor in the question, so no document can close its passage
and speak as the prompt does. A model may still believe what a passage claims: marks tell data from orders, no more.
"""

from collections.abc import Sequence
from hashlib import sha256
from importlib import resources
from itertools import count
from string import Template

from qrag_jax.types import Message

_FILES = ("answer_system.txt", "answer_user.txt")
_MARK_DIGITS = 8


def make_prompt(question: str, passages: Sequence[str], name: str) -> tuple[Message, Message]:
    """The conversation that asks a question: what to do, then the passages in the order given and the question.

    Args:
        question: what is asked.
        passages: texts of the chunks, whole; none is allowed.
        name: id of the question. The mark is drawn from it: the same for all strategies, known to no document.
    """
    mark = _mark(name, [question, *passages])
    fenced = "\n\n".join(f"<{mark}>\n{passage}\n</{mark}>" for passage in passages)
    system, user = (Template(_template(file)) for file in _FILES)
    return (
        Message("system", system.substitute(mark=mark).strip()),
        # One pass: what is put in is not searched for more places to put something in.
        Message("user", user.substitute(passages=fenced, question=question).strip()),
    )


def prompt_sha256() -> str:
    """Hash of the templates, hexadecimal: answers to prompts of other templates cannot be compared."""
    return sha256("\0".join(_template(file) for file in _FILES).encode()).hexdigest()


def _template(file: str) -> str:
    return resources.files("qrag_jax.eval.study").joinpath("prompts", file).read_text("utf-8")


def _mark(name: str, texts: Sequence[str]) -> str:
    lowered = [text.lower() for text in texts]  # a model may not care for case
    digests = (sha256(f"{attempt} {name}".encode("utf-8", "surrogatepass")).hexdigest() for attempt in count())
    digits = (digest[:_MARK_DIGITS] for digest in digests)
    return "passage-" + next(mark for mark in digits if not any(mark in text for text in lowered))
