"""The syntax tree of a template, rewritten so that every step reports to the environment of `template_sandbox.py`."""

from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer


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
