"""The type checker that conftest switches on: beartype on functions, not on the constructors of dataclasses.

A dataclass that is a pytree is rebuilt by JAX with whatever a transformation puts in the place of its arrays
(shapes under `jax.eval_shape`, shardings, numbers as `in_axes`), so a check of its fields fails on correct code.
"""

from collections.abc import Callable

import beartype


def check_functions(function: Callable) -> Callable:
    return function if function.__name__ == "__init__" else beartype.beartype(function)
