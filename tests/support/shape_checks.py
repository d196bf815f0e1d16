"""The type checker that conftest switches on: beartype on functions, not on the constructors of dataclasses.

A dataclass that is a pytree is rebuilt by JAX with whatever a transformation puts in the place of its arrays
(shapes under `jax.eval_shape`, shardings, numbers as `in_axes`), so a check of its fields fails on correct code.

jaxtyping's own wrapper remembers the sizes of axes while a function runs. That takes longer than most functions do, so
only those have it whose annotations name a shape; the types of all others are checked by beartype alone. And most of
what a test process imports it never calls, so a check is made when its function is called first.
"""

import functools
import importlib._bootstrap_external
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, get_args

import beartype
import jaxtyping

_jaxtyped = jaxtyping.jaxtyped


def install() -> None:
    """Checks `qrag_jax`, which must not be imported yet."""
    jaxtyping.jaxtyped = _jaxtyped_where_shapes_are
    jaxtyping.install_import_hook("qrag_jax", "support.shape_checks.check_functions")
    sys.meta_path[0] = _Finder(sys.meta_path[0])


class _Finder(MetaPathFinder):
    """jaxtyping's import hook, but what a checked module imports is read as it was compiled when it was installed.

    While a checked module runs, jaxtyping gives compiled code another file name, also that of all packages which the
    module imports. No such file is there, so that every process compiled flax, transformers and others anew.
    """

    def __init__(self, finder: MetaPathFinder) -> None:
        self.finder = finder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = self.finder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.get_code = functools.partial(_code_of_one_module, spec.loader.get_code)
        return spec


def _code_of_one_module(get_code: Callable[[str], CodeType | None], name: str) -> CodeType | None:
    code = get_code(name)
    importlib._bootstrap_external.cache_from_source = importlib.util.cache_from_source
    return code


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
    """True if a part of an annotation is jaxtyping's; of one that is a text it is not known."""
    if isinstance(annotation, str) or type(annotation).__module__.startswith("jaxtyping"):
        return True
    parts = annotation if isinstance(annotation, list) else get_args(annotation)
    return any(map(_names_shape, parts))
