"""The type checker that conftest switches on: beartype on functions, not on the constructors of dataclasses.

A dataclass that is a pytree is rebuilt by JAX with whatever a transformation puts in the place of its arrays
(shapes under `jax.eval_shape`, shardings, numbers as `in_axes`), so a check of its fields fails on correct code.

jaxtyping's own wrapper remembers the sizes of axes while a function runs. That takes longer than most functions do, so
only those have it whose annotations name a shape; the types of all others are checked by beartype alone. And most of
what a test process imports it never calls, so a check is made when its function is called first.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args

import beartype
import jaxtyping

_jaxtyped = jaxtyping.jaxtyped


def check_functions(function: Callable) -> Callable:
    return function if function.__name__ == "__init__" else beartype.beartype(function)


def _jaxtyped_where_shapes_are(decorated: Any = None, *, typechecker: Any) -> Any:
    """In the place of `jaxtyping.jaxtyped`, by which jaxtyping's import hook decorates classes and functions."""
    if decorated is None:
        return functools.partial(_jaxtyped_where_shapes_are, typechecker=typechecker)
    if inspect.isclass(decorated):  # its methods are decorated one by one
        return decorated
    if not inspect.isfunction(decorated):
        return _jaxtyped(decorated, typechecker=typechecker)
    if any(map(_names_shape, decorated.__annotations__.values())):
        return _at_first_call(decorated, functools.partial(_jaxtyped, typechecker=typechecker))
    return _at_first_call(decorated, check_functions) if decorated.__annotations__ else decorated


def _at_first_call(function: Callable, decorate: Callable[[Callable], Callable]) -> Callable:
    decorated = functools.cache(lambda: decorate(function))

    @functools.wraps(function)
    def call(*args, **kwargs):
        return decorated()(*args, **kwargs)

    return call


def _names_shape(annotation: Any) -> bool:
    """Whether a part of an annotation is jaxtyping's; of one that is a text it is not known."""
    if isinstance(annotation, str) or type(annotation).__module__.startswith("jaxtyping"):
        return True
    parts = annotation if isinstance(annotation, list) else get_args(annotation)
    return any(map(_names_shape, parts))


jaxtyping.jaxtyped = _jaxtyped_where_shapes_are
