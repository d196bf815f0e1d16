"""Real documents as Markdown: words kept, pages right, seconds and memory of each kind of file.

    pip install pypdf==7.1.0                                # another extractor, for PDF alone
    python benchmarks/documents.py FOLDER [--each 20]       # a few minutes; FOLDER/pdf, FOLDER/html, ... of real files

Each file goes through `read_document`, so into a child with its limits. Of every kind the first `--each` files are
taken by the sha256 of their names, those left aside that have fewer than `--least` words by the reference.

words kept   the words of a reference that are in ours, each as often as it is there; median, and the worst file. The
             reference of PDF is pypdf; of DOCX all runs of text and of equations in its XML; of EPUB all text of the
             pages in its order of reading; of HTML what a person marked as the article (`NAME.expected` beside
             `NAME.html`, as in the test pages of mozilla/readability), else the text outside of nav, header, footer,
             aside and scripts
words added  of ours that the reference has not: navigation, in the case of HTML
pages right  pages of which pypdf has at least 5 words, and whose words are most alike to the page that we number so
seconds      CPU of the child, its start and imports included; median and slowest
memory       peak of the largest child
"""

import argparse
import hashlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import zipfile
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from qrag_jax.documents.kinds import reader_of
from qrag_jax.documents.read import DocumentFile, read_document
from qrag_jax.types import Document, InputError

KINDS = ("pdf", "html", "docx", "epub")
RESULTS = Path(__file__).parent / "results"
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")  # a letter of Chinese is one
_AROUND = {"nav", "header", "footer", "aside", "script", "style", "head", "form", "noscript", "svg", "template"}


def words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.lower()))


class Text(HTMLParser):
    """The text of a page by Python's own parser, without some elements."""

    def __init__(self, without: set[str]):
        super().__init__()
        self._without, self._depth, self.parts = without, 0, []

    def handle_starttag(self, tag, attrs):
        self._depth += tag in self._without
        self.parts.append(" ")

    def handle_startendtag(self, tag, attrs):
        self.parts.append(" ")

    def handle_endtag(self, tag):
        self._depth = max(0, self._depth - (tag in self._without))
        self.parts.append(" ")

    def handle_data(self, data):
        if not self._depth:
            self.parts.append(data)


def page_text(html: str, without: set[str]) -> str:
    parser = Text(without)
    parser.feed(html)
    return "".join(parser.parts)


def pdf_pages(path: Path) -> list[Counter[str]]:
    import pypdf

    return [words(page.extract_text()) for page in pypdf.PdfReader(path).pages]


def docx_words(path: Path) -> Counter[str]:
    total: Counter[str] = Counter()
    with zipfile.ZipFile(path) as archive:
        for name in ("word/document.xml", "word/footnotes.xml", "word/endnotes.xml"):
            if name in archive.namelist():
                xml = re.sub(r"<mc:Fallback>.*?</mc:Fallback>", "", archive.read(name).decode(), flags=re.DOTALL)
                for part in re.split(r"</w:p>|<w:tab/>|<w:br/>|</w:tc>", xml):
                    total += words(unescape("".join(re.findall(r"<(?:w|m):t(?: [^>]*)?>([^<]*)</(?:w|m):t>", part))))
    return total


def epub_words(path: Path) -> Counter[str]:
    with zipfile.ZipFile(path) as archive:
        container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
        package = next(container.iterfind(".//{*}rootfile")).get("full-path") or ""
        root = ElementTree.fromstring(archive.read(package))
        items = {item.get("id"): item for item in root.iterfind(".//{*}item")}
        total: Counter[str] = Counter()
        for reference in root.iterfind(".//{*}itemref"):
            item = items[reference.get("idref")]
            if "nav" not in (item.get("properties") or "") and "html" in (item.get("media-type") or ""):
                name = os.path.normpath(os.path.join(os.path.dirname(package), item.get("href") or ""))
                total += words(page_text(archive.read(name).decode("utf-8-sig"), {"head", "script", "style"}))
    return total


def html_words(path: Path) -> Counter[str]:
    expected = path.with_suffix(".expected")
    if expected.is_file():
        return words(page_text(expected.read_text(encoding="utf-8"), {"head", "script", "style"}))
    return words(page_text(path.read_text(encoding="utf-8", errors="replace"), _AROUND))


REFERENCES = {"docx": docx_words, "epub": epub_words, "html": html_words}


def right_pages(ours: Document, reference: list[Counter[str]]) -> tuple[int, int]:
    """(right, looked at); see the module."""
    starts = [*ours.metadata["pages"], len(ours.text)]
    pages = [words(ours.text[a:b]) for a, b in zip(starts[:-1], starts[1:], strict=True)]
    looked = [number for number, page in enumerate(reference) if page.total() >= 5]
    best = {number: max(range(len(pages)), key=lambda p: _alike(pages[p], reference[number])) for number in looked}
    return sum(best[number] == number for number in looked), len(looked)


def _alike(a: Counter[str], b: Counter[str]) -> float:
    return (a & b).total() / max(1, (a | b).total())


def measure(path: Path, kind: str) -> dict[str, object]:
    """A file, what came of it, and what it took."""
    pages = pdf_pages(path) if kind == "pdf" else []
    reference = sum(pages, Counter()) if kind == "pdf" else REFERENCES[kind](path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    row: dict[str, object] = {"name": path.name, "kilobytes": path.stat().st_size // 1000, "words": reference.total()}
    try:
        found = read_document(DocumentFile(path.name, path, True))
    except InputError as error:
        row["refused"] = str(error).removeprefix(f"{path.name}: ")
    else:
        ours = words(found.text)
        row["kept"] = (ours & reference).total() / max(1, reference.total())
        row["added"] = 1 - (ours & reference).total() / max(1, ours.total())
        row["left_out"] = list(found.metadata.get("left_out", ()))
        row["headings"] = len(re.findall(r"^#{1,6} ", found.text, re.MULTILINE))
        if kind == "pdf":
            row["pages_right"], row["pages"] = right_pages(found, pages)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    row["seconds"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row["megabytes"] = after.ru_maxrss * 1024 / 1e6  # of the largest child up to here
    return row


def chosen(folder: Path, kind: str, each: int, least: int) -> list[Path]:
    """Files of a kind that the reference can read, and which have words; in an order that nobody chose."""
    found = []
    for path in sorted(folder.glob(f"*.{kind}"), key=lambda path: hashlib.sha256(path.name.encode()).digest()):
        try:
            size = sum(pdf_pages(path), Counter()).total() if kind == "pdf" else REFERENCES[kind](path).total()
        except Exception as error:  # noqa: BLE001 -- of another extractor
            print(f"{path.name}: not read by the reference ({type(error).__name__}: {error})", file=sys.stderr)
            continue
        found += [path] if size >= least else []
        if len(found) == each:
            break
    return found


def line(kind: str, rows: list[dict]) -> str:
    read = [row for row in rows if "refused" not in row]
    kept, added = [row["kept"] for row in read], [row["added"] for row in read]
    worst = min(read, key=lambda row: row["kept"])
    seconds = [row["seconds"] for row in rows]
    right = f"{sum(row['pages_right'] for row in read)} of {sum(row['pages'] for row in read)}" if kind == "pdf" else ""
    return (
        f"| {kind} | {len(read)} of {len(rows)} | {statistics.median(kept):.3f}, {worst['kept']:.3f} | "
        f"{statistics.median(added):.3f} | {right} | {sum(row['headings'] for row in read)} | "
        f"{statistics.median(seconds):.2f}, {max(seconds):.2f} | {max(row['megabytes'] for row in rows):.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=20, help="files of a kind (default: %(default)s)")
    parser.add_argument("--least", type=int, default=100, help="words of a file (default: %(default)s)")
    parser.add_argument("--kind", choices=KINDS, help="one kind alone, as JSON: memory is that of a process")
    args = parser.parse_args()
    if args.kind:
        paths = chosen(args.folder / args.kind, args.kind, args.each, args.least)
        print(json.dumps([measure(path, args.kind) for path in paths]))
        return
    lines = [
        "| kind | read | words kept: median, worst | words added | pages right | headings | CPU s: median, most | MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = {}
    for kind in KINDS:
        command = [
            sys.executable,
            __file__,
            str(args.folder),
            f"--each={args.each}",
            f"--least={args.least}",
            f"--kind={kind}",
        ]
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        rows[kind] = json.loads(ended.stdout)
        for row in rows[kind]:
            print(kind, json.dumps(row))
        lines.append(line(kind, rows[kind]))
    print("\n".join(lines))
    print("\n".join(reader_of(kind) for kind in KINDS))


if __name__ == "__main__":
    main()
