"""The automaton over bytes of each kind of grammar, and its text for LLGuidance, which llama.cpp has."""

import json
from functools import lru_cache

from qrag_jax.models.grammar.automaton import ByteAutomaton, byte_automaton
from qrag_jax.models.grammar.expressions import (
    Characters,
    Either,
    Expression,
    Ranges,
    Repeated,
    Run,
    Sequenced,
    either,
)
from qrag_jax.models.grammar.json_schema import parse_schema
from qrag_jax.models.grammar.regex import parse_regex
from qrag_jax.types import Choice, Grammar, JsonSchema, Regex


@lru_cache(maxsize=64)
def compile_grammar(grammar: Grammar) -> ByteAutomaton:
    """Compiles a grammar into an automaton over bytes."""
    return byte_automaton(_expression(grammar))


@lru_cache(maxsize=64)
def lark_of(grammar: Grammar) -> str:
    """The grammar as llama.cpp's LLGuidance reads it; it admits what `compile_grammar` admits.

    Every part that stands in several places is one terminal, so the text is as small as the expression.

    Raises:
        UsageError: a grammar that cannot be read, or that is too large.
    """
    compile_grammar(grammar)  # llama.cpp ignores what it cannot read, so the grammar is checked here
    terminals = _Terminals()
    start = terminals.name(_expression(grammar))
    return "\n".join([f"%llguidance {{}}\nstart: {start}", *terminals.lines, ""])


def _expression(grammar: Grammar) -> Expression:
    match grammar:
        case Choice(texts):
            return either(*texts)
        case Regex(pattern):
            return parse_regex(pattern)
        case JsonSchema(text):
            return parse_schema(json.loads(text))


class _Terminals:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[int, str] = {}

    def name(self, expression: Expression) -> str:
        """A terminal of an expression; one object has one."""
        if isinstance(expression, Characters):
            return _class(expression.ranges)
        if id(expression) not in self._names:
            body = self._body(expression)
            self._names[id(expression)] = f"T{len(self._names)}"
            self.lines.append(f"{self._names[id(expression)]}: {body}")
        return self._names[id(expression)]

    def _body(self, expression: Expression) -> str:
        match expression:
            case Characters(ranges):
                return _class(ranges)
            case Sequenced(parts):
                return " ".join(map(self.name, parts)) or '""'
            case Either(options):
                return " | ".join(map(self.name, options)) or _class(())
            case Repeated(_, _, 0) | Run(_, 0):
                return '""'
            case Repeated(part, least, most):
                return f"({self.name(part)}){{{least},{'' if most is None else most}}}"
            case Run(part, most):
                return f"({self.name(part)}){{0,{most}}}"


def _class(ranges: Ranges) -> str:
    inside = "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in ranges)
    return f"/[{inside}]/" if inside else "/[^\\x{0}-\\x{10FFFF}]/"
