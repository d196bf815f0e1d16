"""What the steps of a template cost, counted before they are taken; the unit is about a character."""

import re
import sys
from typing import Any

from jinja2.exceptions import SecurityError

STEP = 16  # of an iteration, an item: roughly what they cost in characters
_MAX_INTEGER_BITS = 1024
_MAX_PARTS = 1_000_000


def size_of(value: Any) -> int:
    """About how many characters a value would take, its parts counted as often as they occur in it; at least 1."""
    total, parts, stack = 1, 1, [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str | range):
            total += len(item)
        elif isinstance(item, int):
            total += item.bit_length() // 3
        elif isinstance(item, dict | list | tuple):
            parts += len(item)
            if parts > _MAX_PARTS:
                return sys.maxsize  # lists that hold a list twice, which holds a list twice: nobody can pay for it
            stack.extend(item)
            stack.extend(item.values() if isinstance(item, dict) else ())
    return total + STEP * parts


def work_of(sign: str, left: Any, right: Any) -> int:
    """Work of `left sign right`.

    Raises:
        SecurityError: a number, or a width in a format, that no template needs.
    """
    if sign == "%" and isinstance(left, str):
        if re.sub("%[sd%]", "", left).count("%"):
            raise SecurityError("a format other than %s and %d")
        return size_of(left) + left.count("%") * size_of(right)
    sizes = size_of(left) + size_of(right)
    if sign == "*" and not (isinstance(left, int | float) and isinstance(right, int | float)):
        return sizes + sum(
            max(times, 0) * size_of(item) for times, item in ((left, right), (right, left)) if isinstance(times, int)
        )
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 1) if sign == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_INTEGER_BITS:
            raise SecurityError(f"a whole number of more than {_MAX_INTEGER_BITS} bits")
    return sizes
