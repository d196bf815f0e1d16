"""Page and line of answers in decks, papers, manuals and web pages, beside other programs.

    python -m benchmarks.search.places DECKS PAPERS MANUALS PAGES            # 2 minutes
    python -m benchmarks.search.places DECKS PAPERS MANUALS PAGES --smoke    # one answer of each

DECKS and PAPERS are folders of PDF, MANUALS of Markdown, PAGES of HTML; of each the first 15 files with an answer, by
the sha256 of their names. An answer is a line whose three rarest words stand together nowhere else in the file: of a
page as `pdftotext` has it (and pdfium no other page with them), of a Markdown file as it is, of a web page as `qrag
chunk --text` prints it. The question is
these words. `qrag find` by words must name the page of a PDF, and else the line, of the sentence with the words.

`passage` is the page or line on which the passage begins, which `qrag find` named before.
"""

import contextlib
import hashlib
import io
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pypdfium2

from benchmarks.common import about, about_lines, arguments, grid, write
from qrag_jax.cli.main import main as qrag
from qrag_jax.index.index import open_index

RESULTS = Path(__file__).parent / "results"
_FILES = 15  # of each kind
_WORD = re.compile(r"[^\W\d_]{5,}")
_KINDS = {"decks": ".pdf", "papers": ".pdf", "manuals": ".md", "pages": ".html"}


def main() -> None:
    """Asks for the answers of all files."""
    parser = arguments(__doc__, "one answer of each kind")
    for kind in _KINDS:
        parser.add_argument(kind, type=Path)
    told = parser.parse_args()
    rows: list[list[str]] = []
    for kind, suffix in _KINDS.items():
        files = [file for file in getattr(told, kind).rglob(f"*{suffix}") if file.is_file()]
        files.sort(key=lambda file: hashlib.sha256(file.name.encode()).hexdigest())
        asked = (row for file in files if (row := _asked(kind, file)) is not None)
        rows += [row for _, row in zip(range(1 if told.smoke else _FILES), asked, strict=False)]
    made = {"about": about("pypdfium2"), "rows": rows}
    write(RESULTS / "smoke" if told.smoke else RESULTS, "places", made, _report(made["about"], rows))


def _asked(kind: str, file: Path) -> list[str] | None:
    """The row of a file; None if it has no answer."""
    parts = list(_pages(file)) if file.suffix == ".pdf" else _text(file).splitlines()
    counts = Counter(word for part in parts for word in _words(part))
    for number, line in _lines(parts, is_pdf=file.suffix == ".pdf"):
        words = sorted(_words(line), key=lambda word: (counts[word], word))[:3]
        places = [place for place, part in enumerate(parts, 1) if set(words) <= set(_words(part))]
        if len(words) == 3 and counts[words[2]] <= 3 and places == [number] and _is_alone(file, words):
            break
    else:
        return None
    question = " ".join(words)
    with open_index(str(file), retriever="bm25") as index:
        (hit,) = index.search(question, 1)
    sentence, text = hit.sentence, hit.text
    found = sentence.place.page or sentence.place.line + _line_in(sentence.text, words)
    began = hit.place.page or hit.place.line
    is_right = found == number and set(words) <= set(_words(text))
    return [kind, file.name, question, str(number), str(found), str(began), "yes" if is_right else "NO"]


def _is_alone(file: Path, words: Sequence[str]) -> bool:
    """True unless several pages of a PDF have the words as pdfium reads it, text that is not visible yet included."""
    if file.suffix != ".pdf":
        return True
    texts = [page.get_textpage().get_text_range() for page in pypdfium2.PdfDocument(file)]
    return sum(set(words) <= set(_words(text)) for text in texts) == 1


def _line_in(sentence: str, words: Sequence[str]) -> int:
    """The number of line ends of a sentence before the line that has its words: a sentence may have several lines."""
    lines = sentence.splitlines()
    return next((number for number, line in enumerate(lines) if set(words) <= set(_words(line))), 0)


def _lines(parts: Sequence[str], *, is_pdf: bool) -> Iterator[tuple[int, str]]:
    """(page or line from 1, text) of every line in an order that depends on the text alone."""
    lines = [
        (number, line) for number, part in enumerate(parts, 1) for line in (part.splitlines() if is_pdf else [part])
    ]
    return iter(sorted(lines, key=lambda one: hashlib.sha256(one[1].encode()).hexdigest()))


def _pages(file: Path) -> Iterator[str]:
    shown = subprocess.run(["pdftotext", "-enc", "UTF-8", file, "-"], capture_output=True, check=True).stdout
    yield from shown.decode("utf-8", "replace").split("\f")[:-1]


def _text(file: Path) -> str:
    if file.suffix == ".md":
        return file.read_text(encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        qrag(["chunk", str(file), "--text"])
    return printed.getvalue()


def _words(text: str) -> list[str]:
    return [word.lower() for word in dict.fromkeys(_WORD.findall(text))]


def _report(told: dict, rows: Sequence[Sequence[str]]) -> str:
    heads = ["kind", "file", "question", "right", "found", "passage", "is right"]
    right = {kind: [row[-1] for row in rows if row[0] == kind] for kind in _KINDS}
    counts = [[kind, f"{found.count('yes')} of {len(found)}"] for kind, found in right.items()]
    began = sum(row[3] == row[5] for row in rows)
    lines = ["# Places of answers", "", *about_lines(told), "", (__doc__ or "").split("\n\n", 2)[2], ""]
    lines += [*grid(["kind", "right places"], counts), "", f"The passage begins there for {began} of {len(rows)}.", ""]
    return "\n".join([*lines, *grid(heads, rows), ""])


if __name__ == "__main__":
    main()
