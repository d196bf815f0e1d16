"""Syntax trees of our sources, for tests that look for what code must not do."""

import ast
import gc
from collections.abc import Iterator


def syntax_tree(source: str) -> ast.Module:
    """Of a module.

    Python 3.11 counts the depth of all parses together: one that begins within another ends that with a SystemError.
    The garbage collector begins one where it finds an exception that nobody heard of, whose traceback it prints.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_on:
            gc.enable()


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """All statements of a module, at any depth, without a look at their expressions, of which there are far more."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, field, ())
        if isinstance(node, ast.stmt):
            yield node
