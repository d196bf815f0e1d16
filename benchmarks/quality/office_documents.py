"""Words of DOCX and ODT files that arrive, beside LibreOffice's text and the words of the XML.

    python -m benchmarks.quality.office_documents FOLDER          # 5 minutes: LibreOffice (soffice) converts each file
    python -m benchmarks.quality.office_documents FOLDER --texts TEXTS     # its texts (NAME.txt) are there already
    python -m benchmarks.quality.office_documents FOLDER --smoke  # two files of each kind

Of each suffix and each half the first files with at least 100 words, by the sha256 of their names. The rules were made
while looking at files of the first half only.

`office` is the share of the words of LibreOffice's text that arrive. That text has no notes, text boxes, headers and
charts, so `xml` is the share of the words of all paragraphs of body, notes, headers, charts and diagrams, but for
deleted and hidden text. `added` is the share of our words that are in neither.
"""

import hashlib
import io
import re
import subprocess
import tempfile
import time
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

from benchmarks.common import about, about_lines, arguments, grid, write
from qrag_jax.documents.converted import ReadOptions
from qrag_jax.names import FILE_READERS
from qrag_jax.types import InputError

_HEAD = """Files of the public repositories apache/poi, eea/odfpy, jgm/pandoc, mwilliamson/python-mammoth,
opensagres/xdocreport, plutext/docx4j and tdf/odftoolkit, the first by the sha256 of their names. The script says what
the columns mean. LibreOffice's text also has deletions that are tracked (poi__stress023) and fields that it computed
anew (docx4j__themeFontLang, docx4j__DOCPROP_builtin)."""
RESULTS = Path(__file__).parent / "results"
HALVES = ("first", "second")
_LEAST_WORDS, _EACH = 100, {".docx": 12, ".odt": 8}  # files of each half
_WORD = re.compile(r"\w+")
_MARKS = re.compile(r"(?<=[\w)\]])[_^](?=[\w(+−-])")
_STORIES = re.compile(
    r"word/(document\d*|(foot|end)notes|(header|footer)\d*|diagrams/data\d*|charts/chart\d*)\.xml|"
    r"((Object \d+/)?content|styles)\.xml"
)
_DROPPED = {
    "del", "moveFrom", "Fallback", "tracked-changes", "annotation", "instrText", "delText", "rPr", "pPr", "f",
    "automatic-styles", "settings", "title", "desc",
}  # fmt: skip
_BREAKS = {"tab", "br", "cr", "ptab", "s", "line-break", "footnoteReference", "note-citation", "oMath", "sym"}
_OWN_LINE = {"p", "h", "pt", "tc", "note", "v", "txbxContent"}


def main() -> None:
    """Measures all files; a file that cannot be read is told with the reason."""
    parser = arguments(__doc__, "two files of each kind")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=Path, help="folder of texts that LibreOffice made")
    parser.add_argument("--all", action="store_true", help="all files, not only the first ones")
    told = parser.parse_args()
    files = sorted(
        (one for one in told.folder.iterdir() if one.suffix.lower() in _EACH),
        key=lambda one: hashlib.sha256(one.name.encode()).hexdigest(),
    )
    with tempfile.TemporaryDirectory() as made:
        texts = told.texts or _texts_of_libreoffice(files, Path(made))
        rows = list(_measured(files, texts, 10**9 if told.all else 2 if told.smoke else 0))
    for row in sorted(rows, key=lambda row: min(row["office"], row["xml"])):
        print(*(f"{value:.4f}" if isinstance(value, float) else value for value in row.values()), sep="\t")
    if not told.smoke and not told.all:
        result = {"about": about("lxml"), "files": rows}
        write(RESULTS, "office_documents", result, "\n".join(_page(result)))


def _measured(files: list[Path], texts: Path, most: int) -> Iterator[dict]:
    taken: Counter[tuple[str, str]] = Counter()
    for file in files:
        half, suffix = HALVES[int(hashlib.sha256(file.name.encode()).hexdigest(), 16) % 2], file.suffix.lower()
        text = texts / f"{file.stem}.txt"
        if not text.exists() or taken[half, suffix] >= (most or _EACH[suffix]):
            continue
        office = _words(text.read_text("utf-8-sig"))
        if office.total() < _LEAST_WORDS:
            continue
        raw, kind = file.read_bytes(), suffix[1:]
        read = FILE_READERS.load(kind).load(ReadOptions())
        begun = time.process_time()
        try:
            found = read(raw)
        except InputError as error:
            print(f"{file.name}: {error}")
            continue
        seconds = time.process_time() - begun
        taken[half, suffix] += 1
        ours, xml = _words(found.text), _words_of_xml(raw)
        yield {
            "file": file.name, "half": half, "words": office.total(), "office": _kept(office, ours),
            "xml": _kept(xml, ours), "added": (ours - (office | xml)).total() / max(ours.total(), 1),
            "seconds a MB": seconds / len(raw) * 1e6, "left out": dict(found.left_out),
        }  # fmt: skip


def _kept(reference: Counter[str], ours: Counter[str]) -> float:
    return (reference & ours).total() / max(reference.total(), 1)


def _words(text: str) -> Counter[str]:
    """Words, without the marks of raised and lowered text that ours has."""
    plain = _MARKS.sub("", text.replace("\u00ad", ""))
    return Counter(_WORD.findall(unicodedata.normalize("NFKC", plain).casefold()))


def _words_of_xml(raw: bytes) -> Counter[str]:
    words: Counter[str] = Counter()
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for name in archive.namelist():
            if _STORIES.fullmatch(name):
                words += _words("".join(_shown(etree.fromstring(archive.read(name)))))
    return words


def _shown(element: etree._Element) -> Iterator[str]:
    """Text of an element and those in it, with blanks where a word ends."""
    name = etree.QName(element).localname if isinstance(element.tag, str) else "del"
    if name in _DROPPED or (name == "r" and element.find("{*}rPr/{*}vanish") is not None):
        return
    ends = name in _BREAKS or name in _OWN_LINE
    yield " " if ends else ""
    if name in ("t", "v") or "opendocument" in str(element.tag):
        yield element.text or ""
    for child in element:
        yield from _shown(child)
        if "opendocument" in str(element.tag):
            yield child.tail or ""
    yield " " if ends else ""


def _texts_of_libreoffice(files: list[Path], folder: Path) -> Path:
    for start in range(0, len(files), 25):
        command = [
            "soffice",
            f"-env:UserInstallation=file://{folder}/profile",
            "--headless",
            "--convert-to",
            "txt:Text",
        ]
        group = [str(one) for one in files[start : start + 25]]
        subprocess.run([*command, "--outdir", str(folder), *group], capture_output=True, check=False, timeout=600)
    return folder


def _page(result: dict) -> list[str]:
    heads = ("file", "words", "office", "xml", "added", "s a MB", "left out")
    lines = ["# Words of DOCX and ODT files that arrive", "", *_HEAD.split("\n"), "", *about_lines(result["about"])]
    for half in HALVES:
        rows = [row for row in result["files"] if row["half"] == half]
        total = sum(row["words"] for row in rows)
        office = sum(row["office"] * row["words"] for row in rows) / max(total, 1)
        xml = sum(row["xml"] * row["words"] for row in rows) / max(total, 1)
        lines += [
            f"## The {half} half: {office:.4f} of {total:,} words of LibreOffice's text, {xml:.4f} of the XML's",
            "",
        ]
        lines += grid(heads, [[
            row["file"], f"{row['words']:,}", f"{row['office']:.4f}", f"{row['xml']:.4f}", f"{row['added']:.4f}",
            f"{row['seconds a MB']:.2f}", ", ".join(f"{number} {what}" for what, number in row["left out"].items()),
        ] for row in rows])  # fmt: skip
        lines.append("")
    return lines


if __name__ == "__main__":
    main()
