"""Jinja for templates that come with a model's files and are not to be trusted: few functions, and a cap on the work.

A chat template is a program. Jinja's sandbox keeps it away from Python's internals, but not from `'a' * 10**10` or text
that doubles in a loop. So what a template writes, joins and repeats is counted, about a character each, and a clock
stops what is slow. A single comparison or search of large values is not stopped.
"""

import json
import re
import time
from collections.abc import Mapping
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from qrag_jax.types import InputError

MAX_SECONDS = 10.0
_MAX_TEMPLATE_CHARACTERS = 65_536
_WORK_PER_CHARACTER = 64  # of template and values; a template reads a message a few times
_SMALLEST_WORK = 1_048_576
_STEP = 16  # of a round or a call: roughly what it costs in characters

# Those that give the same every time and make a text longer only by what is counted.
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last", "length",
    "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "title",
    "trim", "unique", "upper",
)  # fmt: skip
# Methods of texts, lists and dicts; none of them changes what it belongs to.
_METHODS = frozenset(
    "capitalize count endswith find get index isalnum isalpha isdigit isspace islower isupper items join keys lower "
    "lstrip partition removeprefix removesuffix replace rfind rpartition rsplit rstrip split splitlines startswith "
    "strip title upper values".split()
)
# What a template's own mistakes raise, whatever it does: Jinja hands Python's errors through.
_FAULTS = (
    TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError,
    NameError, SyntaxError, TypeError, ValueError,
)  # fmt: skip


class TemplateRefused(InputError):
    """The template itself turned its input down, by `raise_exception`."""


def render_template(source: str, values: Mapping[str, Any], name: str = "template") -> str:
    """Renders a template within its caps; the same input always gives the same text.

    There is no clock (`strftime_now`), no randomness, no other template to load.

    Args:
        source: Jinja, with the switches of chat templates: `trim_blocks`, `lstrip_blocks`, `break` and `continue`.
        values: plain data: texts, numbers, None, lists and dicts of them.
        name: names the template in errors.

    Raises:
        InputError: a template that is too long, broken, unsafe, or that costs more than the caps allow.
        TemplateRefused: the template calls `raise_exception`.
    """
    if len(source) > _MAX_TEMPLATE_CHARACTERS:
        raise InputError(f"{len(source)} characters, at most {_MAX_TEMPLATE_CHARACTERS} are allowed", file=name)
    environment = _Environment(_WORK_PER_CHARACTER * (len(source) + len(json.dumps(values, ensure_ascii=False))))
    try:
        tree = _Counting().visit(environment.parse(source))
        tree.set_environment(environment)
        return environment.from_string(tree).render(values)
    except InputError as error:
        raise error.at(name) from None
    except _FAULTS as error:
        reason = str(error)[:300] or "it failed"
        raise InputError(f"{type(error).__name__}: {reason}. Use a model with a valid template", file=name) from error


class _Counting(NodeTransformer):
    """Makes a template tell the environment what it does where Jinja has no hook: output, `~` and rounds of loops."""

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_call("text_of", child, at=node) for child in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("join", nodes.List(node.nodes, lineno=node.lineno), at=node)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("charge", at=node), lineno=node.lineno))
        return node


def _call(name: str, *args: nodes.Expr, at: nodes.Node) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None, lineno=at.lineno)


class _Generation(Extension):
    """`{% generation %}`, which marks what a model is trained on in some templates and means nothing here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox of one rendering, with the work that is left to it."""

    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self, work: int) -> None:
        extensions = [loopcontrols, _Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, cache_size=0, extensions=extensions)
        self._left = max(work, _SMALLEST_WORK)
        self._end = time.thread_time() + MAX_SECONDS
        self.filters = {name: FILTERS[name] for name in _FILTERS}
        self.filters |= {"indent": self.indent, "join": self.join, "replace": self.replace, "safe": self.text_of}
        self.filters |= {"string": self.text_of, "tojson": self.to_json}
        self.tests |= {"divisibleby": self.divides, "even": self.divides, "odd": lambda value: not self.divides(value)}
        self.globals = {"dict": dict, "namespace": _Namespace, "range": safe_range, "raise_exception": _refuse}
        self._functions = tuple(self.globals.values())

    def charge(self, work: int = _STEP) -> None:
        """Ends the rendering when there is no work or time left."""
        self._left -= max(work, 0)
        if self._left < 0:
            raise InputError("it does or writes more than a chat template needs: refused")
        if time.thread_time() > self._end:
            raise InputError(f"it runs longer than {MAX_SECONDS:g} s: refused")

    def size(self, value: Any) -> int:
        """About how many characters a value would take, its parts counted as often as they occur in it; at least 1."""
        total, stack = 0, [value]
        while stack and total <= self._left:
            item = stack.pop()
            total += 1 + (len(item) if isinstance(item, str) else item.bit_length() // 3 if type(item) is int else 0)
            if isinstance(item, dict | list | tuple):
                stack.extend(item)
                stack.extend(item.values() if isinstance(item, dict) else ())
        return total

    def text_of(self, value: Any) -> str:
        if not isinstance(value, str | int | float | list | tuple | dict | Undefined | None):
            raise SecurityError(f"a {type(value).__name__} is not a string")
        self.charge(self.size(value))
        return str(value)

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(obj, BuiltinMethodType):
            return obj.__name__ in _METHODS and isinstance(obj.__self__, str | list | tuple | dict)
        if isinstance(obj, MethodType):
            return isinstance(obj.__self__, LoopContext)
        return isinstance(obj, Macro | LoopContext | Undefined) or any(obj is known for known in self._functions)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__}")

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Calls what is allowed; the names are Jinja's own, so that any keyword may be passed on."""
        if isinstance(__obj, MethodType) and __obj.__self__ is __self:  # what `_Counting` wrote
            return __obj(*args)
        __self.charge()
        for name in ("_loop_vars", "_block_vars"):  # Jinja's own, for functions that look at the template's names
            kwargs.pop(name, None)
        if isinstance(text := getattr(__obj, "__self__", None), str):
            if __obj.__name__ == "replace":
                return __self.replace(text, *args, **kwargs)
            if __obj.__name__ == "join":
                return __self.join(*args, d=text, **kwargs)
        made = super().call(__context, __obj, *args, **kwargs)
        __self.charge(__self.size(made))
        return made

    def call_binop(self, context: Context | None, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("no template needs a power")
        if operator == "%" and isinstance(left, str) and "%" in re.sub("%[sd%]", "", left):
            raise SecurityError("a format other than %s and %d")
        work = self.size(left) + self.size(right)
        if operator == "*" and not (isinstance(left, int | float) and isinstance(right, int | float)):
            work *= next((max(times, 1) for times in (left, right) if isinstance(times, int)), 1)
        self.charge(work)
        return self.binop_table[operator](left, right)

    def divides(self, value: Any, by: Any = 2) -> bool:
        return self.call_binop(None, "%", value, by) == 0

    def replace(self, value: Any, old: Any, new: Any, count: int = -1) -> str:
        return self.join(self.text_of(value).split(self.text_of(old), count), new)

    def join(self, value: Any, d: Any = "", attribute: Any = None) -> str:
        between = self.text_of(d)
        texts = []
        for item in value:
            self.charge(len(between))
            texts.append(self.text_of(item if attribute is None else self.getitem(item, attribute)))
        return between.join(texts)

    def indent(self, value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
        text = self.text_of(value)
        self.charge((1 + text.count("\n")) * (len(width) if isinstance(width, str) else width))
        return FILTERS["indent"](text, width, first, blank)

    def to_json(self, value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        # Every item may have a line with its indentation, at most a level deep for each item, and separators around.
        space = (indent or 0) + len("".join(options.get("separators") or ()))
        self.charge(8 * self.size(value) * (1 + space))
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, allow_nan=False, **options)


class _Namespace(Namespace):
    """One that does not spell out its contents, which may be each other."""

    def __repr__(self) -> str:
        return "namespace"


def _refuse(message: Any = "no reason is given") -> None:
    """Raises an error for a template whose model was not trained on this form of conversation."""
    raise TemplateRefused(f"refuses the conversation: {message!s:.300}")
