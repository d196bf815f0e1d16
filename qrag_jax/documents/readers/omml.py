"""Equations of Office (OMML) as text in one line: `x^2/(y + 1)`, `sqrt(x)`, `∑_(i=1)^n x`."""

import re
from collections import defaultdict

from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

_ATOM = re.compile(r"[+\-−]?\w*(?:\.\d+)?|\([^()]*\)|.")
_FORMS = {
    "f": "{num}/{den}", "sSup": "{e}^{sup}", "sSub": "{e}_{sub}", "sSubSup": "{e}_{sub}^{sup}",
    "limLow": "{e}_{lim}", "limUpp": "{e}^{lim}", "func": "{fName} {e}",
}  # fmt: skip
_BETWEEN = {"mr": ", ", "m": "; ", "eqArr": "; ", "oMathPara": "; "}  # parts


def linear(element: Element) -> str:
    """An equation, or a part of one, as text."""
    kind = _name(element)
    if kind in ("t", "del", "moveFrom"):
        return (element.text or "") if kind == "t" else ""
    inside = [(_name(child), linear(child)) for child in element if not _name(child).endswith("Pr")]
    part = defaultdict(str, {name: _atom(text) for name, text in inside})
    if kind in _FORMS:
        return _FORMS[kind].format_map(part)
    if kind in ("nary", "sPre"):
        scripts = "".join(mark + part[name] for name, mark in (("sub", "_"), ("sup", "^")) if part[name])
        return f"{_value(element, 'chr', '∫') if kind == 'nary' else ''}{scripts} {part['e']}"
    if kind == "d":
        parts = _value(element, "sepChr", "|").join(text for name, text in inside if name == "e")
        return f"{_value(element, 'begChr', '(')}{parts}{_value(element, 'endChr', ')')}"
    written = _BETWEEN.get(kind, "").join(text for _, text in inside)
    if kind == "rad":
        base = dict(inside).get("e", "")
        return f"root({base}, {part['deg']})" if part["deg"] else f"sqrt({base})"
    return written + _value(element, "chr", "\u0302") if kind == "acc" else f"[{written}]" if kind == "m" else written


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _atom(text: str) -> str:
    return text if _ATOM.fullmatch(text) else f"({text})"


def _value(element: Element, name: str, default: str) -> str:
    """A character from the properties of an element; without the property the default."""
    found = element.find(f"{{*}}{_name(element)}Pr/{{*}}{name}")
    return default if found is None else next(iter(found.attrib.values()), "")
