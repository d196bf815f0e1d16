"""Jinja for templates that come with a model's files and are not to be trusted: caps on what they may do and cost.

A chat template is a program. Jinja's sandbox keeps it away from Python's internals, but not from `'a' * 10**10`,
endless recursion or text that doubles in a loop. Here every step is charged to a budget before it is taken: the syntax
tree is rewritten so that loops, concatenations, lists, comparisons and output report to the environment, and only the
filters, methods and functions that chat templates need are left.

The budget's unit is about a character.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from qrag_jax.types import InputError

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


class Charging(NodeTransformer):
    """Makes a template tell the environment what it does where Jinja offers no hook."""

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        """Every output is a text, and paid for."""
        self.generic_visit(node)
        node.nodes = [_call("text_of", child, at=node) for child in node.nodes]
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        """The text between tags too: a loop may repeat it."""
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """`~`, which is no operator that the sandbox sees."""
        self.generic_visit(node)
        return _call("concatenated", *node.nodes, at=node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """Comparing and searching read what they compare."""
        self.generic_visit(node)
        node.expr = _call("seen", node.expr, at=node)
        for operand in node.ops:
            operand.expr = _call("seen", operand.expr, at=node)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """Every round of a loop, and every item that its condition looks at."""
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.Or(_call("step", at=node), node.test, lineno=node.lineno)  # a step is an empty text
        node.body.insert(0, nodes.ExprStmt(_call("step", at=node), lineno=node.lineno))
        return node

    def _seen(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        # What is assigned to is no value.
        return node if getattr(node, "ctx", "load") != "load" else _call("seen", node, at=node)

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802
        """Arguments that are unpacked, which happens before the environment hears of the call."""
        self.generic_visit(node)
        for name in ("dyn_args", "dyn_kwargs"):
            if (packed := getattr(node, name)) is not None:
                setattr(node, name, _call("seen", packed, at=node))
        return node

    visit_List = visit_Tuple = visit_Dict = visit_Getitem = _seen


def _call(name: str, *args: nodes.Expr, at: nodes.Node) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None, lineno=at.lineno)


class Generation(Extension):
    """`{% generation %}`, which marks what a model is trained on in some templates and means nothing here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Leaves the body only."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_MAX_TEMPLATE_CHARACTERS = 65_536
MAX_SECONDS = 10.0
_WORK_PER_CHARACTER = 64  # of template and values; a template reads a message a few times
_SMALLEST_WORK = 1_048_576
_MAX_INDENT = 64
_MAX_RANGE = 100_000

# Those that cannot grow a text but by what is charged for them, keep no secret and give the same every time.
_PLAIN_FILTERS = (
    "abs", "capitalize", "dictsort", "float", "int", "items", "list", "lower", "map", "max", "min", "reject",
    "rejectattr", "reverse", "select", "selectattr", "sort", "title", "unique", "upper",
)  # fmt: skip
_CHEAP_FILTERS = ("count", "d", "default", "first", "last", "length")  # whatever they are given
# Those that only look at what kind of thing a value is; those that compare values read them.
_CHEAP_TESTS = (
    "boolean", "callable", "defined", "false", "float", "integer", "iterable", "mapping", "none", "number", "sameas",
    "sequence", "string", "true", "undefined",
)  # fmt: skip
_COMPARING_TESTS = (
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lower", "lt",
    "ne", "upper",
)  # fmt: skip
# CPython looks for the argument at every place of the text anew.
_SLOW_METHODS = frozenset(("lstrip", "rfind", "rpartition", "rsplit", "rstrip", "strip"))
_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        "capitalize count endswith find index isalnum isalpha isdigit isspace islower isupper join lower lstrip "
        "partition removeprefix removesuffix replace rfind rpartition rsplit rstrip split splitlines startswith strip "
        "title upper".split()
    ),
    dict: frozenset(("get", "items", "keys", "values")),
    list: frozenset(("count", "index")),
    tuple: frozenset(("count", "index")),
}
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
    environment = _Environment(_WORK_PER_CHARACTER * (len(source) + size_of(values)))
    try:
        tree = Charging().visit(environment.parse(source))
        tree.set_environment(environment)
        return environment.from_string(tree).render(values)
    except InputError as error:
        raise error.at(name) from None
    except _FAULTS as error:
        reason = str(error)[:300] or "it failed"
        raise InputError(f"{type(error).__name__}: {reason}. Use a model with a valid template", file=name) from error


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox of one rendering, with its budget."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, work: int) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, cache_size=0, extensions=[loopcontrols, Generation]
        )
        self._left = max(work, _SMALLEST_WORK)
        self._end = time.thread_time() + MAX_SECONDS
        self.filters = {name: self._charged(FILTERS[name]) for name in _PLAIN_FILTERS}
        self.filters |= {name: FILTERS[name] for name in _CHEAP_FILTERS}
        self.filters |= {"indent": self.indented, "join": self.joined, "replace": self.replaced, "safe": self.text_of}
        self.filters |= {"string": self.text_of, "tojson": self.json_of, "trim": self.trimmed}
        self.tests = {name: TESTS[name] for name in _CHEAP_TESTS}
        self.tests |= {name: self._charged(TESTS[name]) for name in _COMPARING_TESTS}
        self.tests |= {"divisibleby": self.divisible, "even": self.divisible, "odd": lambda x: not self.divisible(x)}
        self.globals = {"dict": dict, "namespace": _Namespace, "range": _short_range, "raise_exception": _refuse}
        self._functions = tuple(self.globals.values())

    def charge(self, work: int) -> None:
        """Pays before something is done; ends the rendering when there is nothing left to pay with."""
        self._left -= work
        if self._left < 0:
            raise InputError("it does or writes more than a chat template needs: refused")
        if time.thread_time() > self._end:
            raise InputError(f"it runs longer than {MAX_SECONDS:g} s: refused")

    # What the rewritten tree calls.

    def step(self) -> str:
        self.charge(STEP)
        return ""

    def seen(self, value: Any) -> Any:
        self.charge(size_of(value))
        return value

    def text_of(self, value: Any) -> str:
        if not isinstance(value, str | int | float | list | tuple | dict | Undefined | None):
            raise SecurityError(f"a {type(value).__name__} is not a string")
        self.charge(size_of(value))
        return str(value)

    def concatenated(self, *values: Any) -> str:
        return "".join(self.text_of(value) for value in values)

    # What a template calls.

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(obj, BuiltinMethodType):
            return obj.__name__ in _METHODS.get(type(obj.__self__), ())
        if isinstance(obj, MethodType):
            return isinstance(obj.__self__, LoopContext)
        return isinstance(obj, Macro | LoopContext | Undefined) or any(obj is known for known in self._functions)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Calls what is allowed; the names are Jinja's own, so that any keyword may be passed on."""
        for name in ("_loop_vars", "_block_vars"):  # Jinja's own, for functions that look at the template's names
            kwargs.pop(name, None)
        if isinstance(__obj, MethodType) and __obj.__self__ is __self:
            return __obj(*args)
        __self.charge(STEP + size_of(args) + size_of(kwargs) + size_of(getattr(__obj, "__self__", None)))
        if isinstance(__obj, BuiltinMethodType) and isinstance(__obj.__self__, str):
            if __obj.__name__ == "replace":
                return __self.replaced(__obj.__self__, *args, **kwargs)
            if __obj.__name__ == "join":
                return __self.joined(*args, d=__obj.__self__, **kwargs)
            if __obj.__name__ in _SLOW_METHODS:
                longest = max((len(each) for each in args if isinstance(each, str)), default=1)
                __self.charge(len(__obj.__self__) * longest)
        return __self.seen(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.charge(STEP + work_of(operator, left, right))
        return self.binop_table[operator](left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__}")

    def _charged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)  # keeps Jinja's mark of those that are handed context or environment
        def run(*args: Any, **kwargs: Any) -> Any:
            self.charge(STEP + size_of(args) + size_of(kwargs))
            made = self.seen(function(*args, **kwargs))
            return self.paid(made) if isinstance(made, Iterator) else made

        return run

    def paid(self, items: Iterator[Any]) -> Iterator[Any]:
        """Items that a filter makes only when they are asked for."""
        for item in items:
            self.charge(STEP)
            yield item

    def trimmed(self, value: Any, chars: str | None = None) -> str:
        text = self.text_of(value)
        self.charge(len(text) * len(chars or " "))
        return text.strip(chars)

    def divisible(self, value: Any, by: Any = 2) -> bool:
        if not isinstance(value, int | float):
            raise SecurityError(f"division of a {type(value).__name__}")
        return value % by == 0

    def replaced(self, value: Any, old: Any, new: Any, count: int = -1) -> str:
        text, old, new = self.text_of(value), self.text_of(old), self.text_of(new)
        self.charge(len(text) + text.count(old) * len(new))
        return text.replace(old, new, count)

    def joined(self, value: Any, d: Any = "", attribute: Any = None) -> str:
        between = self.text_of(d)
        texts = []
        for item in value:
            self.charge(STEP + len(between))
            texts.append(self.text_of(item if attribute is None else self.getitem(item, attribute)))
        return between.join(texts)

    def indented(self, value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
        margin = width if isinstance(width, str) else " " * min(width, _MAX_INDENT + 1)
        if len(margin) > _MAX_INDENT:
            raise SecurityError(f"an indentation of more than {_MAX_INDENT} characters")
        lines = self.text_of(value).split("\n")
        self.charge(len(lines) * (STEP + len(margin)))
        indented = [margin + line if line or blank else line for line in lines[1:]]
        return "\n".join([margin + lines[0] if first else lines[0], *indented])

    def json_of(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        if indent is not None and not 0 <= indent <= 8:
            raise SecurityError(f"JSON with an indentation of {indent}")
        if separators is not None and any(len(each) > 4 for each in separators):
            raise SecurityError("JSON with separators of more than 4 characters")
        self.charge(8 * size_of(value))
        text = json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, allow_nan=False
        )
        return self.seen(text)


class _Namespace(Namespace):
    """One that does not spell out its contents, which may be each other."""

    def __repr__(self) -> str:
        return "namespace"


def _short_range(*args: Any) -> range:
    made = range(*args)
    if len(made) > _MAX_RANGE:
        raise SecurityError(f"a range of more than {_MAX_RANGE}")
    return made


def _refuse(message: Any = "no reason is given") -> None:
    """Raises an error for a template whose model was not trained on this form of conversation."""
    raise TemplateRefused(f"refuses the conversation: {message!s:.300}")
