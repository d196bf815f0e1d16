"""Words in charts and diagrams of Office documents."""

import re

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs
from lxml.etree import _Element as Element  # pyright: ignore[reportAttributeAccessIssue]

from qrag_jax.documents.readers.office_story import whole_number

A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_C = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
_LONG = re.compile(r"-?\d{1,9}\.\d{13,20}")  # numbers as computers store them: 4.4000000000000004


def chart(root: Element) -> list[Element]:
    """The titles of a chart, and its series as a table of HTML: categories in the first column."""
    found = words(root)
    names = [(" ".join(_points(one, "tx").values()), _points(one, "cat", "xVal"), _points(one, "val", "yVal"))
             for one in root.iter(f"{_C}ser")]  # fmt: skip
    categories = {index: text for _, texts, _ in reversed(names) for index, text in texts.items()}
    rows = [["", *(name for name, _, _ in names)]] + [
        [categories.get(index, ""), *(values.get(index, "") for _, _, values in names)]
        for index in sorted({index for _, texts, values in names for index in (*texts, *values)})
    ]
    table = etree.Element("table")
    for row in rows if names else [[one.text or ""] for one in root.iter("{*}pt")]:  # charts of 2016 have only points
        line = etree.SubElement(table, "tr")
        for text in row:
            etree.SubElement(line, "td").text = text
    return [*found, table]


def words(root: Element) -> list[Element]:
    """The paragraphs of a drawing, and titles of charts that are the value of a cell."""
    found = []
    for one in root.iter(f"{A}p", f"{_C}title"):
        paragraph = etree.Element("p")
        names = (f"{A}t", f"{A}br") if one.tag == f"{A}p" else (f"{_C}v",)
        paragraph.text = "".join(part.text or " " for part in one.iter(*names))
        found.append(paragraph)
    return found


def _points(series: Element, *names: str) -> dict[int, str]:
    """Index of a point -> its text, of the first of these elements that is there."""
    found = next((one for name in names if (one := series.find(_C + name)) is not None), None)
    if found is None:
        return {}
    points: dict[int, str] = {}
    for one in found.iter(f"{_C}v"):
        index = whole_number(one.getparent().get("idx"))
        text = one.text or ""
        text = f"{float(text):.12g}" if _LONG.fullmatch(text) else text
        points[index] = f"{points.get(index, '')} {text}".strip()
    return points
