"""Elements of HTML that are written in a way of their own: headings, lists, code, controls, formulas."""

import re
from collections.abc import Callable, Mapping
from functools import partial

from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

from qrag_jax.documents.readers.html_tables import write_table
from qrag_jax.documents.readers.html_writer import BREAK, HEADINGS, Writer

_VALUES = ("text", "search", "email", "url", "tel", "number", "date", "button")  # shown inputs
_FORMULA = re.compile(r"math|\btex\b", re.IGNORECASE)  # classes of pictures of formulas
_MARKS = " \t\n\r¶#§⚓🔗\uf0c1\ufe0f\u200b"  # of links from a heading to itself
_MAX_FLAT = 9  # elements on one line in one another, in which a superscript gets a mark; each reads its text again
_TICKS = re.compile("`+")

_ORDINAL = re.compile(r"\d(?:st|nd|rd|th|er|re|e|ère|ème|o|a|os|as|º|ª|°)|.(?:tm|sm|®|™|℠)", re.IGNORECASE)
_UNIT = re.compile(r"(?:^|[\W\d])(?:[A-Za-zµΩ]|[cdkmnµ]m|ft|yd|mi)$")
_ELEMENT = re.compile(r"(?:[A-Z][a-z]?|\))$")  # of chemistry
_SIMPLE = re.compile(r"[+\-−]?\w+")
_SMALL = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def raised(text: str, before: str, is_up: bool) -> str:
    """A superscript or subscript with a mark: 2^10, x_1, H₂O, m²; but 4th.

    Args:
        text: of the superscript or subscript.
        before: the text before it.
        is_up: for a superscript.
    """
    last = before[-1:]
    if not text or not (last.isalnum() or last in tuple(")]}′'")) or text[0] in "[(" or _ORDINAL.fullmatch(last + text):
        return text
    if is_up and text in ("2", "3") and _UNIT.search(before[-3:]):
        return "²" if text == "2" else "³"
    if not is_up and text.isascii() and text.isdigit() and _ELEMENT.search(before[-2:]):
        return text.translate(_SMALL)
    return ("^" if is_up else "_") + _group(text)


def raise_all(root: Element) -> None:
    """Replaces all superscripts and subscripts by their text with a mark."""
    for element in list(root.iter("sup", "sub")):
        previous, tail = element.getprevious(), element.tail
        before = (element.getparent().text if previous is None else previous.tail or previous.text) or ""
        text = " ".join("".join(element.itertext()).split())
        element.clear()
        element.text, element.tail = raised(text, before[-3:], element.tag == "sup"), tail


def _group(text: str) -> str:
    return text if _SIMPLE.fullmatch(text := text.strip()) else f"({text})"


def _raised(writer: Writer, element: Element) -> None:
    if writer.num_flat > _MAX_FLAT:
        writer.children(element)
        return
    text = writer.flat(element)
    writer.pieces.append(raised(text, "".join(writer.pieces[-3:])[-3:], element.tag == "sup"))


def _heading(writer: Writer, element: Element, level: int) -> None:
    if writer.num_flat:
        writer.found.add("block")
        writer.block(element)
        return
    writer.end_block()
    if text := writer.flat(element):
        writer.heading(text, level)


def _list(writer: Writer, element: Element) -> None:
    writer.end_block()
    writer.end_definition()
    step = -1 if "reversed" in element.attrib else 1
    number = _number(element.get("start"), sum(child.tag == "li" for child in element) if step < 0 else 1)
    is_inner = writer.in_list
    for place, child in enumerate(element):
        if child.tag == "li" and not writer.leaves_out(child):
            number = _number(child.get("value"), number)
            if place or is_inner:
                writer.between = "\n"
            _item(writer, child, f"{number}. " if element.tag == "ol" else "- ")
            number += step
        elif child.tag != "li":
            writer.element(child)
        writer.pieces.append(child.tail or "")
    writer.end_block()
    writer.between = "\n\n"


def _number(value: str | None, default: int) -> int:
    found = re.match(r"\s*(-?\d{1,9})", value or "")
    return int(found[1]) if found else default


def _item(writer: Writer, element: Element, marker: str) -> None:
    if not writer.num_flat:
        writer.within(element, marker, " " * len(marker))
        return
    writer.pieces.append("; " if element.getprevious() is not None else " ")
    writer.pieces.append("" if marker == "- " else marker)
    writer.children(element)


def _term(writer: Writer, element: Element) -> None:
    writer.end_block()
    before = element.getprevious()
    if (element.getparent() if before is None else before).tag == "dt":  # the parser nests terms without an end
        writer.between = "\n"
    writer.block(element)


def _quote(writer: Writer, element: Element) -> None:
    if writer.num_flat:
        writer.block(element)
    else:
        writer.within(element, "> ", "> ")


def _code(writer: Writer, element: Element) -> None:
    if writer.is_raw:
        writer.block(element)
        return
    writer.end_block()
    code = writer.flat(element, is_raw=True).strip("\n")
    if writer.num_flat:
        writer.found.update(["block"] * ("\n" in code))
        writer.pieces.append(f"{code} ")
    elif code.strip():
        fence = "`" * max([3, *(len(ticks) + 1 for ticks in _TICKS.findall(code))])
        writer.write([fence, *code.split("\n"), fence], is_paragraph=False)


def _div(writer: Writer, element: Element) -> None:
    if "fragment" in element.get("class", "").split():  # code of Doxygen, whose lines are elements
        _code(writer, element)
    else:
        writer.block(element)


def _control(writer: Writer, element: Element) -> None:
    """Something that is drawn apart from the text beside it."""
    writer.pieces.append(" ")
    if element.tag == "select":
        choices = element.iter("optgroup", "option")
        shown = (one.get("label") or (writer.flat(one) if one.tag == "option" else "") for one in choices)
        writer.pieces.append(", ".join(filter(None, shown)))
    elif element.tag == "input" and element.get("type", "text").lower() in _VALUES:
        writer.pieces.append(element.get("value", ""))
    elif element.tag == "textarea":
        writer.pieces.append((element.text or "").strip("\n").replace("\n", BREAK))
    else:
        writer.children(element)
    writer.pieces.append(" ")


def _media(writer: Writer, element: Element) -> None:
    writer.left_out["embedded media"] += 1
    if element.tag == "embed":  # has no end tag, so the parser puts what follows it into it
        writer.children(element)


def _picture(writer: Writer, element: Element) -> None:
    text = element.get("alt")
    if text and _FORMULA.search(element.get("class", "")):
        writer.pieces.append(f" {text} ")
    elif text != "":  # else it is decoration
        writer.left_out["pictures"] += 1


def _script(writer: Writer, element: Element) -> None:
    if element.get("type", "").startswith("math/tex"):
        writer.pieces.append(f" ${element.text or ''}$ ")


def _link(writer: Writer, element: Element) -> None:
    may_be_mark = element.get("href", "").startswith("#") and not any(len(child) for child in element[:2])
    if not may_be_mark or "".join(element.itertext()).strip(_MARKS):
        writer.children(element)


def _enclosed(writer: Writer, element: Element, opening: str, closing: str) -> None:
    writer.pieces.append(opening)
    writer.children(element)
    writer.pieces.append(closing)


def _math(writer: Writer, element: Element) -> None:
    if element.get("display") == "block":
        writer.end_block()
    writer.pieces.append(linear_math(element))
    if element.get("display") == "block":
        writer.end_block()


def linear_math(element: Element) -> str:
    """MathML on one line: (a + b)/2, x_1^2, sqrt(x)."""
    tag = element.tag.rpartition(":")[2]
    if tag in ("annotation", "annotation-xml", "mprescripts"):
        return ""
    parts = [linear_math(child) for child in element]
    if tag == "msqrt":
        return f"sqrt({''.join(parts).strip()})"
    num_parts, form = _MATH.get(tag, (0, ""))
    if form and len(parts) >= num_parts:
        return form.format(*(_group(part) for part in parts), base=parts[0].strip())
    if tag == "mtable":
        return f"[{'; '.join(parts)}]"
    if tag in ("mtr", "mlabeledtr"):
        return ", ".join(part.strip() for part in parts)
    text = " ".join((element.text or "").split())
    is_apart = tag == "mtext" or (tag == "mo" and text not in _TIGHT and element.getprevious() is not None)  # no sign
    return f" {text} " if is_apart else text + "".join(parts)


_TIGHT = frozenset("()[]{}|,.;!′'\u2061\u2062\u2063") | {""}  # the last three are invisible operators
# Element of MathML -> (number of its children, how they are written).
_MATH = {
    "mfrac": (2, "{}/{}"), "msup": (2, "{base}^{1}"), "mover": (2, "{base}^{1}"), "msub": (2, "{base}_{1}"),
    "munder": (2, "{base}_{1} "), "msubsup": (3, "{base}_{1}^{2}"), "munderover": (3, "{base}_{1}^{2} "),
    "mroot": (2, "root({base}, {1})"),
}  # fmt: skip

WRITERS: Mapping[str, Callable[[Writer, Element], None]] = {
    **{tag: partial(_heading, level=int(tag[1])) for tag in HEADINGS},
    **dict.fromkeys(("ul", "ol", "menu", "dir"), _list),
    **dict.fromkeys(("pre", "xmp", "listing", "plaintext"), _code),
    **dict.fromkeys(("sup", "sub"), _raised),
    **dict.fromkeys(("button", "input", "label", "select", "textarea", "text"), _control),  # the last is of SVG
    **dict.fromkeys(("audio", "canvas", "embed", "frame", "iframe", "video"), _media),
    "li": partial(_item, marker="- "), "blockquote": _quote, "dt": _term, "dd": Writer.definition, "div": _div,
    "br": lambda writer, _: writer.pieces.append(BREAK), "img": _picture, "script": _script, "a": _link,
    "rt": partial(_enclosed, opening="(", closing=")"), "q": partial(_enclosed, opening="“", closing="”"),
    "math": _math, "table": write_table,
}  # fmt: skip
