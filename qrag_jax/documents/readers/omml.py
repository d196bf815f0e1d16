"""Equations of Office (OMML) as text in one line: `x^2/(y + 1)`, `sqrt(x)`, `∑_(i=1)^n x`."""

import re

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

_ATOM = re.compile(r"[^\W_]*(?:\.\d+)?|\([^()]*\)|.")
_SCRIPTS = {"sub": "_", "sup": "^"}


def linear(element: etree._Element) -> str:
    """An equation, or a part of one, as text."""
    kind = _name(element)
    if kind == "t":
        return element.text or ""
    inside = [(_name(child), child) for child in element if not _name(child).endswith("Pr")]
    texts = [(name, linear(child)) for name, child in inside]
    part = dict(texts)
    base, written = part.get("e", ""), "".join(text for _, text in texts)
    match kind:
        case "f":
            return f"{_atom(part.get('num', ''))}/{_atom(part.get('den', ''))}"
        case "sSub" | "sSup" | "sSubSup":
            return _atom(base) + _scripts(part)
        case "sPre":
            return _scripts(part) + _atom(base)
        case "nary":
            return f"{_value(element, 'chr', '∫')}{_scripts(part)} {_atom(base)}"
        case "limLow" | "limUpp":
            return f"{base}{'_' if kind == 'limLow' else '^'}{_atom(part.get('lim', ''))}"
        case "rad":
            degree = part.get("deg", "")
            return f"root({degree}, {base})" if degree else f"sqrt({base})"
        case "d":
            parts = _value(element, "sepChr", "|").join(text for name, text in texts if name == "e")
            return f"{_value(element, 'begChr', '(')}{parts}{_value(element, 'endChr', ')')}"
        case "func":
            return f"{part.get('fName', '')} {base}"
        case "acc":
            return base + _value(element, "chr", "\u0302")
        case "m":
            return f"[{'; '.join(text for name, text in texts if name == 'mr')}]"
        case "mr" | "eqArr":
            return (", " if kind == "mr" else "; ").join(text for name, text in texts if name == "e")
        case "oMathPara":
            return "; ".join(text for _, text in texts)
    return written


def _name(element: etree._Element) -> str:
    return element.tag.rpartition("}")[2]


def _atom(text: str) -> str:
    return text if _ATOM.fullmatch(text) else f"({text})"


def _scripts(part: dict[str, str]) -> str:
    return "".join(f"{mark}{_atom(part[name])}" for name, mark in _SCRIPTS.items() if part.get(name))


def _value(element: etree._Element, name: str, default: str) -> str:
    """A character from the properties of an element; without the property the default."""
    space = element.tag.rpartition("}")[0] + "}"
    found = element.find(f"{space}{_name(element)}Pr/{space}{name}")
    return default if found is None else found.get(f"{space}val", "")
