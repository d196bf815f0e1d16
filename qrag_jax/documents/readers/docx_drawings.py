"""Words in charts and diagrams of Office documents."""

from collections.abc import Iterator

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

from qrag_jax.documents.readers.office import Block, in_one_line, table

A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
C = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
_DIAGRAM = "{http://schemas.openxmlformats.org/drawingml/2006/diagram}"


def chart(root: etree._Element) -> list[Block]:
    """The titles of a chart, and its series as a table: categories in the first column."""
    titles = [Block(text) for title in root.iter(f"{C}title") if (text := words(title))]
    series = [(_cached(one, "tx"), _cached(one, "cat", "xVal"), _cached(one, "val", "yVal"), _cached(one, "bubbleSize"))
              for one in root.iter(f"{C}ser")]  # fmt: skip
    columns = [(" ".join(name.values()), points) for name, _, *values in series for points in values if points]
    categories: dict[int, str] = {}
    for _, names, *_ in series:
        categories = names | categories
    indices = sorted(set(categories).union(*(points for _, points in columns)))
    rows = [[categories.get(index, ""), *(points.get(index, "") for _, points in columns)] for index in indices]
    other = [] if columns else [Block(text) for one in root.iter("{*}pt") if (text := in_one_line(one.text or ""))]
    return [*titles, *table([["", *(name for name, _ in columns)], *rows] if columns else []), *other]


def diagram(root: etree._Element) -> Iterator[Block]:
    """The words of the shapes of a diagram (SmartArt), as items of a list."""
    for point in root.iter(f"{_DIAGRAM}pt"):
        yield from (Block(f"- {text}", is_item=True) for one in point.iter(f"{A}p") if (text := words(one)))


def words(element: etree._Element) -> str:
    """The text of a drawing's paragraphs, in one line."""
    lines = ("".join(part.text or " " for part in one.iter(f"{A}t", f"{A}br")) for one in element.iter(f"{A}p"))
    return in_one_line(" ".join(lines))


def _cached(series: etree._Element, *names: str) -> dict[int, str]:
    """Index of a point -> its text, in the order of the first of these elements that is there."""
    found = next((one for name in names if (one := series.find(C + name)) is not None), ())
    points: dict[int, str] = {}
    for part in () if isinstance(found, tuple) else found.iter(f"{C}pt", f"{C}v"):
        if part.tag == f"{C}pt":
            index = int(part.get("idx", "0"))
            texts = [in_one_line(one.text or "") for one in part.iter(f"{C}v")]
            points[index] = " ".join(filter(None, [points.get(index, ""), *texts]))
        elif not points:
            points[0] = in_one_line(part.text or "")
    return points
