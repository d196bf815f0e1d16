"""Expressions as text of LLGuidance, the library that holds answers of llama.cpp to grammars.

Every part that stands in several places is one terminal, so the text is as small as the expression.
"""

from qrag_jax.models.grammar.expressions import Characters, Either, Expression, Ranges, Repeated, Run, Sequenced

_HEAD = "%llguidance {}\nstart: "


def lark_text(expression: Expression) -> str:
    """The text of an expression: `start`, and a terminal for each part."""
    terminals = _Terminals()
    start = terminals.name(expression)
    return "\n".join([_HEAD + start, *terminals.lines, ""])


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
