"""Tells an observer of each search and answer: what was asked, what was found, and when. For traces and logs."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from qrag_jax.index.options import Found
from qrag_jax.search.answer import Answer
from qrag_jax.types import Hit

T = TypeVar("T")
Result = Found | Answer | Sequence[Hit]


@dataclass(frozen=True)
class Observed:
    """A question that was searched or answered.

    Attributes:
        question: as asked.
        results: by the name of the index; of all indexes that were searched before an error.
        start, end: nanoseconds since 1970.
        error: that ended it.
    """

    question: str
    results: Mapping[str, Result]
    start: int
    end: int
    error: Exception | None = None


Observe = Callable[[Observed], None]  # called once for each question, in the thread that searched


@contextmanager
def observing(question: str, observe: Observe | None) -> Iterator[dict[str, Any]]:
    """Gives a dictionary for the results by index, and tells the observer of it at the end, also after an error."""
    results: dict[str, Result] = {}
    start, error = time.time_ns(), None
    try:
        yield results
    except Exception as caught:
        error = caught
        raise
    finally:
        if observe is not None:
            observe(Observed(question, results, start, time.time_ns(), error))


def traced(retriever: T, observe: Observe) -> T:
    """Makes an `Index`, or another `Retriever`, tell of each of its searches and answers from now on; returns it."""
    for name in ("find", "ask") if hasattr(retriever, "find") else ("search",):  # `search` of an index calls `find`
        setattr(retriever, name, _observed(getattr(retriever, name), getattr(retriever, "name", ""), observe))
    return retriever


def _observed(call: Callable[..., Result], index: str, observe: Observe) -> Callable[..., Result]:
    @wraps(call)
    def calls(question: str, *args: Any, **more: Any) -> Result:
        with observing(question, observe) as results:
            results[index] = call(question, *args, **more)
        return results[index]

    return calls
