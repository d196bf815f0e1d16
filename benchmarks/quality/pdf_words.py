"""Words of PDF files that arrive, beside poppler's `pdftotext`.

    python -m benchmarks.quality.pdf_words FOLDER            # 1 minute; folders of a kind in it: forms, slides, ...
    python -m benchmarks.quality.pdf_words FOLDER --smoke    # two files of each kind

The first half is every second file by the sha256 of its name. Details of these files were looked at while the rules
were made. Of the second half, slides and papers were not looked at; forms and remarks were, before the halves were
chosen.

`words` are those of `pdftotext`, without hyphens and in NFKC. `arrive` is the share of them in our text; `but for
blanks` counts also those that are in our text without its blanks, since both programs guess blanks from distances.
`added` is our words that `pdftotext` lacks, as a share of its words. `order` is the share of its pairs of neighbouring
words that are neighbours in our text too. Seconds are of CPU, in process; `as before` is the time to take pdfium's text
of each page alone.
"""

import hashlib
import re
import subprocess
import time
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pypdfium2

from benchmarks.common import about, about_lines, arguments, grid, write
from qrag_jax.documents.converted import counted
from qrag_jax.documents.readers.pdf import read_pdf
from qrag_jax.types import InputError

RESULTS = Path(__file__).parent / "results"
_BLANK = re.compile("[\u00ad\u200b\ufeff]|[-\u2010\u2011]\\s*\n\\s*|[-\u2010\u2011]")
_WORD = re.compile(r"\w+")


class _Row(NamedTuple):
    kind: str
    name: str
    words: int
    arrive: float
    but_for_blanks: float
    added: float
    order: float
    seconds: float
    as_before: float
    said: str


def main() -> None:
    """Measures all files; a file that cannot be read is told with the reason."""
    parser = arguments(__doc__, "two files of each kind")
    parser.add_argument("folder", type=Path)
    told = parser.parse_args()
    read_pdf((next(told.folder.glob("*/*.pdf"))).read_bytes())  # imports
    halves: tuple[list[_Row], list[_Row]] = ([], [])
    for kind in sorted(one for one in told.folder.iterdir() if one.is_dir()):
        files = sorted(kind.glob("*.pdf"), key=lambda one: hashlib.sha256(one.name.encode()).hexdigest())
        for number, file in enumerate(files[: 2 if told.smoke else None]):
            halves[number % 2].append(_measured(file))
            print(halves[number % 2][-1], flush=True)
    made = {"about": about("pypdfium2"), "halves": [[one._asdict() for one in half] for half in halves]}
    write(RESULTS / "smoke" if told.smoke else RESULTS, "pdf_words", made, _report(made["about"], halves))


def _measured(file: Path) -> _Row:
    shown = subprocess.run(["pdftotext", "-enc", "UTF-8", file, "-"], capture_output=True, check=True).stdout
    raw, wanted = file.read_bytes(), _words(shown.decode("utf-8", "replace"))
    start = time.process_time()
    document = pypdfium2.PdfDocument(raw)
    for page in document:
        page.get_textpage().get_text_range()
    before = time.process_time() - start
    start = time.process_time()
    try:
        found = read_pdf(raw)
    except InputError as error:
        return _Row(file.parent.name, file.name, len(wanted), 0, 0, 0, 0, 0, before, str(error))
    seconds, ours = time.process_time() - start, _words(found.text)
    missing, whole = Counter(wanted) - Counter(ours), "".join(ours)
    lost = sum(number for word, number in missing.items() if word not in whole)
    pairs = Counter(zip(wanted, wanted[1:], strict=False)) - Counter(zip(ours, ours[1:], strict=False))
    shares = (missing.total(), lost, -(Counter(ours) - Counter(wanted)).total(), pairs.total())
    arrive, but_for_blanks, added, order = (1 - share / len(wanted) for share in shares)
    values = (len(wanted), arrive, but_for_blanks, added - 1, order, seconds, before)
    return _Row(file.parent.name, file.name, *values, counted(found.left_out) if found.left_out else "")


def _words(text: str) -> list[str]:
    return _WORD.findall(_BLANK.sub("", unicodedata.normalize("NFKC", text)).lower())


def _report(told: dict, halves: Sequence[Sequence[_Row]]) -> str:
    lines = ["# Words of PDF files that arrive", "", *about_lines(told), "", (__doc__ or "").split("\n\n", 2)[2], ""]
    for name, rows in zip(("First half", "Second half"), halves, strict=True):
        heads = ["kind", "file", "words", "arrive", "but for blanks", "added", "order", "s", "as before", "left out"]
        cells = [
            [one.kind, one.name, f"{one.words:,}", *(f"{value:.4f}" for value in one[3:7]), f"{one.seconds:.2f}"]
            + [f"{one.as_before:.2f}", one.said]
            for one in rows
        ]
        total = sum(one.words for one in rows)
        mean = [sum(one[column] * one.words for one in rows) / total for column in range(3, 7)]
        spent = [f"{sum(one[column] for one in rows):.2f}" for column in (7, 8)]
        enough = sum(one.but_for_blanks >= 0.995 for one in rows)
        last = [
            "all",
            f"{enough} of {len(rows)} have .995",
            f"{total:,}",
            *(f"{value:.4f}" for value in mean),
            *spent,
            "",
        ]
        lines += [f"## {name}", "", *grid(heads, [*cells, last]), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
