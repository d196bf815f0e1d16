"""Do all words of a book arrive? Words of the reader beside a straight reading of all pages of the reading order.

    python -m benchmarks.quality.epub_books BOOKS                     # a folder of .epub files
    python -m benchmarks.quality.epub_books BOOKS --out benchmarks/quality/results/epub_books.md

The straight reading uses Python's own zip and XML libraries: it takes the package file that the container names, each
item of the spine, and all text of its body outside of scripts, styles, `nav`, definitions of SVG, and media that a
browser plays. Every element but those of a line separates words, and so do superscripts. `hidden` elements count as
text: a reader must say what it leaves out. Formulas of MathML become one line, so their letters are not compared.

    arrived = |in pages & read| / |in pages|     extra = |read - in pages - title| / |in pages|     (multisets of words)

What is missing counts as said if `left_out` counts at least so many things. Books have at least 30 words. The results
are those of all samples in the repository IDPF/epub3-samples, and of the books in readium/readium-test-files,
futurepress/epub.js, psiegman/epublib and FolioReader/FolioReaderKit.
"""

import json
import posixpath
import re
import zipfile
from collections import Counter
from html.entities import html5
from io import BytesIO
from pathlib import Path
from unicodedata import normalize
from urllib.parse import unquote
from xml.etree import ElementTree

from benchmarks.common import arguments, grid
from qrag_jax.documents.readers.epub import read_epub
from qrag_jax.types import InputError

MIN_WORDS = 30  # of a book
_WORD = re.compile(r"[^\W\d_]+|\d+")
_ENTITY = re.compile(r"&(\w+;)")
_LINE = frozenset("a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd mark q rb ruby s samp small "
                  "span strike strong time tspan tt u var wbr".split())  # fmt: skip
_NO_TEXT = frozenset("head script style nav template metadata title desc defs math video audio canvas iframe".split())


def words(text: str) -> Counter[str]:
    """Runs of letters and runs of digits, in lower case."""
    return Counter(_WORD.findall(normalize("NFKC", text).lower()))


def in_pages(raw: bytes) -> tuple[Counter[str], str]:
    """The words of the pages of the reading order, and the title of the book."""
    archive = zipfile.ZipFile(BytesIO(raw))
    container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
    package = next(element.get("full-path") or "" for element in container.iter() if _tag(element) == "rootfile")
    root = ElementTree.fromstring(archive.read(package))
    items = {element.get("id"): element for element in root.iter() if _tag(element) == "item"}
    title = next((element.text or "" for element in root.iter() if _tag(element) == "title"), "")
    found: Counter[str] = Counter()
    for element in root.iter():
        item = items.get(element.get("idref")) if _tag(element) == "itemref" else None
        if item is not None and (item.get("media-type") or "").endswith(("html+xml", "html", "svg+xml")):
            name = posixpath.normpath(posixpath.join(posixpath.dirname(package), unquote(item.get("href") or "")))
            if name in archive.namelist():
                pieces: list[str] = []
                _text(_page(archive.read(name)), pieces)
                found += words("".join(pieces))
    return found, title


def _page(raw: bytes) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(raw)
    except ElementTree.ParseError:  # entities of HTML
        text = re.sub(r"<!DOCTYPE[^\[>]*>", "", raw.decode("utf-8-sig"))
        plain = ("amp;", "lt;", "gt;", "quot;", "apos;")
        return ElementTree.fromstring(
            _ENTITY.sub(lambda found: found[0] if found[1] in plain else html5.get(found[1], ""), text)
        )


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2].lower()


def _text(element: ElementTree.Element, pieces: list[str]) -> None:
    tag = _tag(element)
    if tag in _NO_TEXT:
        return
    apart = "" if tag in _LINE else " "
    pieces.append(apart + (element.text or ""))
    for child in element:
        _text(child, pieces)
        pieces.append(child.tail or "")
    pieces.append(apart)


def measure(path: Path) -> dict[str, object] | None:
    """A row of the table; None for a book with few words."""
    raw = path.read_bytes()
    wanted, title = in_pages(raw)
    if wanted.total() < MIN_WORDS:
        return None
    try:
        found = read_epub(raw)
    except InputError as error:
        return {"book": path.stem, "words": wanted.total(), "arrived": 0.0, "refused": str(error)}
    read = words(found.text)
    missing = wanted - read
    return {
        "book": path.stem,
        "words": wanted.total(),
        "arrived": 1 - missing.total() / wanted.total(),
        "extra": (read - wanted - words(title)).total() / wanted.total(),
        "is_said": missing.total() <= sum(found.left_out.values()),
        "missing": " ".join(word for word, _ in missing.most_common(8)),
        "left_out": dict(found.left_out),
    }


def table(rows: list[dict]) -> list[str]:
    """Lines of Markdown."""
    heads = ("book", "words", "arrived", "extra", "left_out")
    cells = (
        (row["book"], f"{row['words']:,}", f"{row['arrived']:.2%}", f"{row['extra']:.2%}",
         ", ".join(f"{number:,} {kind}" for kind, number in row["left_out"].items()) or "-")
        for row in rows
    )  # fmt: skip
    total = sum(row["words"] for row in rows)
    arrived = sum(row["words"] * row["arrived"] for row in rows) / total
    extra = sum(row["words"] * row["extra"] for row in rows) / total
    complete = sum(row["arrived"] >= 0.995 for row in rows)
    said = sum(row["arrived"] >= 0.995 or row["is_said"] for row in rows)
    return [
        f"{len(rows)} books, {total:,} words: {arrived:.2%} arrive, {extra:.2%} are extra. At least 99.5% arrive of",
        f"{complete} books; of {said}, at least that or the rest is said.",
        "",
        *grid(heads, cells),
    ]


def main() -> None:
    """Measures books, and prints or writes the table."""
    parser = arguments(__doc__)
    parser.add_argument("books", nargs="+", type=Path, help="folders of .epub files")
    parser.add_argument("--out", type=Path, help="page of results")
    parser.add_argument("--verbose", action="store_true", help="print missing words too")
    given = parser.parse_args()
    rows = [row for folder in given.books for path in sorted(folder.glob("*.epub")) if (row := measure(path))]
    if given.verbose:
        print("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    lines = table(rows)
    print("\n".join(lines))
    if given.out:
        head = "# Words of EPUB books that arrive\n\n`python -m benchmarks.quality.epub_books BOOKS`\n\n"
        given.out.write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
