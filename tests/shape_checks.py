"""The type checker that conftest switches on: beartype on functions, not on the constructors of dataclasses.

A dataclass that is a pytree is rebuilt by JAX with whatever a transformation puts in the place of its arrays
(shapes under `jax.eval_shape`, shardings, numbers as `in_axes`), so a check of its fields fails on correct code.
"""

import functools
from collections.abc import Callable

import beartype


def check_functions(function: Callable) -> Callable:
    """`function`, checked from its first call on: most of what a test process imports it never calls."""
    if function.__name__ == "__init__":
        return function
    checked: list[Callable] = []

    @functools.wraps(function)
    def check(*args, **kwargs):
        if not checked:
            checked.append(beartype.beartype(function))
        return checked[0](*args, **kwargs)

    return check
