"""Plans as a language model writes them: a trace of sentences, then JSON that names the levels to search, and no more.

    The question asks for one fact. {"largest_chunk_size": "paragraph", "smallest_chunk_size": "sentence"}

An answer about several documents ends with a list of such objects, one for each document.
"""

import json
import re
from collections.abc import Sequence

from qrag_jax.chunking.tree.level_ranges import LevelRange, full_range
from qrag_jax.types import CountTokens, InputError

LARGEST, SMALLEST = "largest_chunk_size", "smallest_chunk_size"
_OBJECT = re.compile(r"\{[^{}]*\}")  # a plan has no objects inside
_ENDING = re.compile(r"(\{[^{}]*\}|\[[^\[\]]*\])\s*\Z")


def plan_json(levels: LevelRange, names: Sequence[str]) -> str:
    """The JSON object that ends a plan."""
    return json.dumps({LARGEST: names[levels.least], SMALLEST: names[levels.most]})


def plan_range(largest: object, smallest: object, names: Sequence[str]) -> LevelRange:
    """The range of the two names of a plan.

    Raises:
        InputError: a name is not a level, or the largest size is finer than the smallest; the message is a reason for
            the model.
    """
    for field, name in ((LARGEST, largest), (SMALLEST, smallest)):
        if name not in names:
            raise InputError(f"{field} must be one of {', '.join(names)}, got {name!r}")
    least, most = names.index(str(largest)), names.index(str(smallest))
    if least > most:
        raise InputError(
            f"{LARGEST} {largest!r} is smaller than {SMALLEST} {smallest!r}: exchange them; from the largest to the "
            f"smallest the sizes are {', '.join(names)}"
        )
    return LevelRange(least, most)


def trace_of(text: str) -> str:
    """The part of an answer before the JSON at its end; all of an answer that does not end with JSON."""
    found = _ENDING.search(text)
    return text if found is None else text[: found.start()]


def parse_plan(
    text: str, names: Sequence[str], *, max_trace: int | None = None, count: CountTokens | None = None
) -> LevelRange:
    """The range of an answer about one document; arguments and errors as in `parse_plans`."""
    plans = parse_plans(text, names, max_trace=max_trace, count=count)
    if len(plans) != 1:
        raise InputError(f"it has {len(plans)} plans; end with one JSON object")
    return plans[0]


def parse_plans(
    text: str, names: Sequence[str], *, max_trace: int | None = None, count: CountTokens | None = None
) -> tuple[LevelRange, ...]:
    """The ranges of an answer: of one object, or of each object in a list.

    Args:
        text: a whole answer of a model; only white space may follow its JSON.
        names: of the levels, the coarsest first.
        max_trace: most tokens of the trace; None is no limit.
        count: text -> its tokens; None counts words.

    Raises:
        InputError: the answer is not such a plan; the message is a reason for the model.
    """
    trace = trace_of(text)
    written = text[len(trace) :]
    if not written:
        where = "goes on after its JSON object" if _OBJECT.search(text) else "has no JSON object"
        raise InputError(f"it {where}; end with one, with the fields {LARGEST} and {SMALLEST}")
    if _OBJECT.search(trace):
        raise InputError("it has several JSON objects; give one, at the end")
    if max_trace is not None and (size := len(trace.split()) if count is None else count(trace)) > max_trace:
        raise InputError(f"its trace has {size:,} tokens, at most {max_trace:,}; write a shorter one")
    try:
        value = json.loads(written, object_pairs_hook=tuple)
    except ValueError as error:
        example = plan_json(full_range(names), names)
        raise InputError(f"its JSON does not parse ({error}); end with an object like {example}") from error
    plans = value if isinstance(value, list) else [value]
    return tuple(_range(pairs, names) for pairs in plans)


def _range(pairs: object, names: Sequence[str]) -> LevelRange:
    """The range of a parsed object, which is a tuple of (field, value)."""
    fields = [field for field, _ in pairs] if isinstance(pairs, tuple) else []
    if sorted(fields) != [LARGEST, SMALLEST] or not isinstance(pairs, tuple):
        given = ", ".join(fields) or "none"
        raise InputError(f"its JSON object has the fields {given}; give {LARGEST} and {SMALLEST}, each once")
    value = dict(pairs)
    return plan_range(value[LARGEST], value[SMALLEST], names)
