"""Syntax trees of our sources, for tests that look for what code must not do."""

import ast
import gc


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
