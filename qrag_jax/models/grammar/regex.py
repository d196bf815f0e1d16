"""A subset of Python's regular expressions, as `re.fullmatch` with `re.ASCII` reads them.

Literals, `.`, classes, `\\d \\w \\s` and their opposites, groups, `|`, and repetitions. Python's own parser reads the
pattern. What a finite automaton cannot do, or what means nothing where the whole text is matched, is refused by name.
"""

import re
import warnings
from importlib import import_module
from typing import Any

from qrag_jax.models.grammar.expressions import (
    Characters,
    Either,
    Expression,
    Ranges,
    Repeated,
    Sequenced,
    union,
    without,
)
from qrag_jax.types import UsageError

_parser = import_module("re._parser")  # the only one that gives the tree of a pattern
_CATEGORIES: dict[str, Ranges] = {
    "DIGIT": ((48, 57),),
    "WORD": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "SPACE": ((9, 13), (32, 32)),  # not 28 to 31: with re.ASCII they are none
}
_CATEGORIES |= {f"NOT_{name}": without(ranges) for name, ranges in _CATEGORIES.items()}
_REFUSED = {
    "AT": "^, $, \\b and the like: the whole answer is matched; leave them out, or write \\^ and \\$",
    "ASSERT": "look-arounds are not read",
    "GROUPREF": "references to groups are not read",
    "ATOMIC_GROUP": "atomic groups are not read",
    "POSSESSIVE_REPEAT": "possessive repetitions are not read",
}
_MAX_DEPTH = 50  # of groups
_MAX_COUNT = 10_000  # of a repetition


def parse_regex(pattern: str) -> Expression:
    """The expression of a pattern."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about sets that may mean something else one day
            tree = _parser.parse(pattern, re.ASCII)
        if tree.state.flags != re.ASCII:
            raise ValueError("flags are not read")
        return _sequence(tree, 0)
    except RecursionError:
        what = f"groups are nested more than {_MAX_DEPTH} deep"
    except (re.error, ValueError, OverflowError) as error:
        what = str(error)
    raise UsageError(f"grammar: regular expression {pattern!r:.200}: {what}")


def _sequence(tree: Any, depth: int) -> Expression:
    """The expression of a pattern's tree; what is not read raises ValueError."""
    if depth > _MAX_DEPTH:
        raise RecursionError
    return Sequenced(tuple(_part(kind.name, value, depth) for kind, value in tree))


def _part(kind: str, value: Any, depth: int) -> Expression:
    match kind:
        case "LITERAL":
            return Characters(((value, value),))
        case "NOT_LITERAL":
            return Characters(without(((value, value),)))
        case "ANY":
            return Characters(without(((10, 10),)))
        case "IN":
            return Characters(_set(value))
        case "BRANCH":
            return Either(tuple(_sequence(option, depth) for option in value[1]))
        case "SUBPATTERN":
            _, added, removed, tree = value
            if added or removed:
                raise ValueError("flags are not read")
            return _sequence(tree, depth + 1)
        case "MAX_REPEAT" | "MIN_REPEAT":  # greedy or lazy: which texts match is the same
            least, most, tree = value
            most = None if most == _parser.MAXREPEAT else most
            if max(least, most or 0) > _MAX_COUNT:
                raise ValueError(f"a count is at most {_MAX_COUNT:,}")
            return Repeated(_sequence(tree, depth), least, most)
        case _:
            raise ValueError(_REFUSED[kind.removesuffix("_NOT").removesuffix("_EXISTS")])


def _set(items: Any) -> Ranges:
    """The characters of a class."""
    parts: list[Ranges] = []
    for kind, value in items:
        match kind.name:
            case "LITERAL":
                parts.append(((value, value),))
            case "RANGE":
                parts.append((value,))
            case "CATEGORY":
                parts.append(_CATEGORIES[value.name.removeprefix("CATEGORY_")])
    return without(union(parts)) if items[0][0].name == "NEGATE" else union(parts)
