"""Does all text of a web page arrive? Words of the reader beside the words that a browser shows.

    python -m benchmarks.quality.html_pages PAGES                     # a folder of .html files
    python -m benchmarks.quality.html_pages PAGES --engines reader article inscriptis --json OUT.json
    python -m benchmarks.quality.html_pages TUNED OTHER --out benchmarks/quality/results/html_pages.md

A page is one file, without its style sheets and pictures, as the reader gets it. Chromium shows it in a frame without
scripts and without a network, and writes `innerText` of its body, with navigation (`nav`, `role=navigation`) and
without it. Before that, the frame adds to the text what `innerText` lacks and a person sees: text of closed `details`,
numbers of lists, values of text fields, formulas of `script type=math/tex` (which MathJax draws). Superscripts,
subscripts and buttons are separated from the words beside them: 2^10 is two numbers.

    arrived = |shown & read| / |shown|      extra = |read - shown - title| / |shown|      (multisets of words)

The title is no part of `innerText`, but the reader puts it first, so its words are not extra. What is missing counts as
said if `left_out` names at least so many words. PAGE names are GENERATOR__NAME.html. The results were measured on pages
of public repositories, half of which the reader was tuned on.
"""

import base64
import json
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, grid
from qrag_jax.documents.converted import ReadOptions
from qrag_jax.documents.readers.html import read_html
from qrag_jax.documents.readers.html_encoding import decoded
from qrag_jax.types import InputError

Row = dict[str, Any]
MIN_WORDS = 30  # of a page
AT_ONCE = 25  # pages in one browser, which ends after a while
_WORD = re.compile(r"[^\W_]+")
_TITLE = re.compile(r"<title[^<>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
_HOST = r"""<!doctype html><meta charset=utf-8>
<meta http-equiv=Content-Security-Policy content="default-src 'none'; script-src 'unsafe-inline';
 style-src 'unsafe-inline'">
<body><pre id=out></pre><script>
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const pages = JSON.parse(new TextDecoder().decode(bytes("PAGES")));
const NUMBERS = ["decimal", "lower-alpha", "upper-alpha", "lower-roman", "upper-roman"];
const TEXTS = ["text", "search", "email", "url", "tel", "number", "date"];
const view = (html) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-same-origin";
  frame.style = "width:1200px;height:800px";
  frame.onload = () => {
    const page = frame.contentDocument, style = (element) => frame.contentWindow.getComputedStyle(element);
    page.querySelectorAll("noscript").forEach((element) => element.remove());  // a browser with scripts hides them
    page.querySelectorAll("details").forEach((element) => element.open = true);
    page.querySelectorAll("ol").forEach((list) => {
      const items = [...list.children].filter((child) => child.tagName == "LI"), step = list.reversed ? -1 : 1;
      let number = list.hasAttribute("start") || !list.reversed ? list.start : items.length;
      for (const item of items) {
        if (item.hasAttribute("value")) number = item.value;
        if (NUMBERS.includes(style(item).listStyleType)) item.prepend(number + ". ");
        number += step;
      }
    });
    page.querySelectorAll("sup, sub, button").forEach((element) => { element.before(" "); element.after(" "); });
    page.querySelectorAll("textarea, input").forEach((field) => {
      if (field.matches("textarea") || TEXTS.includes(field.type)) field.after(" " + field.value + " ");
    });
    page.querySelectorAll("script[type^='math/tex']").forEach((script) => script.after(" " + script.text + " "));
    const all = page.body ? page.body.innerText : "";
    page.querySelectorAll("nav, [role=navigation]").forEach((element) => element.remove());
    done([all, page.body ? page.body.innerText : ""]);
    frame.remove();
  };
  frame.srcdoc = html.replace(/http-equiv\s*=\s*["']?refresh/gi, "name=x");  // it would leave the page
  document.body.append(frame);
});
(async () => {
  const found = [];
  for (const page of pages) found.push(await view(page));
  const text = new TextEncoder().encode(JSON.stringify(found));
  let binary = "";
  for (const byte of text) binary += String.fromCharCode(byte);
  document.getElementById("out").textContent = "BEGIN" + btoa(binary) + "END";
  document.title = "done";
})();
</script>"""


def shown(pages: list[str], browser: str) -> list[tuple[str, str]]:
    """(text, text without navigation) of each page, as the browser shows it."""
    packed = base64.b64encode(json.dumps(pages).encode()).decode()
    with tempfile.TemporaryDirectory() as folder:
        host = Path(folder, "host.html")
        host.write_text(_HOST.replace("PAGES", packed), encoding="utf-8")
        command = [
            browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
            "--host-resolver-rules=MAP * 127.0.0.1", "--virtual-time-budget=600000", "--dump-dom", host.as_uri(),
        ]  # fmt: skip
        dumped = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    found = re.search("BEGIN([A-Za-z0-9+/=]+)END</pre>", dumped)
    if found is None:
        raise SystemExit("the browser wrote no result")
    return [(whole, content) for whole, content in json.loads(base64.b64decode(found[1]))]


def _reader(raw: bytes) -> tuple[str, dict[str, int]]:
    found = read_html(raw)
    return found.text, dict(found.left_out)


def _article(raw: bytes) -> tuple[str, dict[str, int]]:
    found = read_html(raw, ReadOptions(html="article"))
    return found.text, dict(found.left_out)


def _markdownify(raw: bytes) -> tuple[str, dict[str, int]]:
    import markdownify

    return markdownify.markdownify(raw.decode("utf-8", "replace"), bs4_options="lxml"), {}


def _html_to_markdown(raw: bytes) -> tuple[str, dict[str, int]]:
    import html_to_markdown

    return html_to_markdown.convert(raw.decode("utf-8", "replace")).content, {}


def _turbohtml(raw: bytes) -> tuple[str, dict[str, int]]:
    import turbohtml

    return turbohtml.parse(raw).to_markdown(), {}


def _inscriptis(raw: bytes) -> tuple[str, dict[str, int]]:
    import inscriptis

    return inscriptis.get_text(raw.decode("utf-8", "replace")), {}


ENGINES: dict[str, Callable[[bytes], tuple[str, dict[str, int]]]] = {
    "reader": _reader, "article": _article, "markdownify": _markdownify, "html-to-markdown": _html_to_markdown,
    "turbohtml": _turbohtml, "inscriptis": _inscriptis,
}  # fmt: skip


def words(text: str) -> Counter[str]:
    """Words in lower case, with their numbers."""
    return Counter(_WORD.findall(text.lower()))


def measure(path: Path, truth: tuple[str, str], engine: str) -> Row:
    """One row of the table."""
    raw = path.read_bytes()
    start = time.process_time()
    try:
        text, left_out = ENGINES[engine](raw)
    except InputError as error:
        text, left_out = "", {str(error)[:60]: 0}
    seconds = time.process_time() - start
    wanted, title = words(truth[1]), _TITLE.search(decoded(raw)[0])
    read = words(text)
    missing, extra = wanted - read, read - wanted - words(title[1] if title else "")
    return {
        "page": path.name, "words": wanted.total(), "navigation": words(truth[0]).total() - wanted.total(),
        "arrived": 1 - missing.total() / max(wanted.total(), 1), "extra": extra.total() / max(wanted.total(), 1),
        "left_out": left_out, "seconds": seconds, "bytes": len(raw),
        "missing_words": list(missing.elements())[:40], "extra_words": list(extra.elements())[:40],
    }  # fmt: skip


def measure_all(folder: Path, names: list[str], truth: dict[str, tuple[str, str]], engine: str) -> list[Row]:
    """Rows of the pages of a folder."""
    measure(folder / names[0], truth[names[0]], engine)  # imports
    return [measure(folder / name, truth[name], engine) for name in names]


def summary(rows: list[Row]) -> str:
    """Pages at the goal, means and speed."""
    good = sum(row["arrived"] >= 0.99 and row["extra"] <= 0.02 for row in rows)
    total = sum(row["words"] for row in rows)
    arrived, extra = (sum(row[name] * row["words"] for row in rows) / total for name in ("arrived", "extra"))
    speed = sum(row["seconds"] for row in rows) / sum(row["bytes"] for row in rows) * 1e6
    return (
        f"{len(rows)} pages of {len({row['page'].split('__')[0] for row in rows})} sites: {good} at the goal (99% "
        f"arrived, at most 2% extra); {arrived:.2%} of {total:,} words arrived, {extra:.2%} extra, {speed:.2f} s a MB"
    )


def table(rows: list[Row]) -> list[str]:
    """All pages, one a row."""
    heads = ["page", "words", "arrived", "extra", "navigation", "said"]
    return grid(heads, (
        [row["page"], f"{row['words']:,}", f"{row['arrived']:.1%}", f"{row['extra']:.1%}", f"{row['navigation']:,}",
         ", ".join(f"{number:,} {kind}" for kind, number in row["left_out"].items())]
        for row in rows
    ))  # fmt: skip


def truth_of(folder: Path, browser: str) -> dict[str, tuple[str, str]]:
    """Name of a page -> what the browser shows (`shown`); kept in the folder, because the browser takes a while."""
    kept = folder / "shown.json"
    if not kept.exists():
        pages = {path.name: decoded(path.read_bytes())[0] for path in sorted(folder.glob("*.*htm*"))}
        htmls = list(pages.values())
        parts = (htmls[start : start + AT_ONCE] for start in range(0, len(htmls), AT_ONCE))
        texts = [text for part in parts for text in shown(part, browser)]
        kept.write_text(json.dumps(dict(zip(pages, texts, strict=True))), encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))


def main() -> None:
    """Measures all pages of folders."""
    parser = arguments(__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="PAGES")
    parser.add_argument("--browser", default="chromium")
    parser.add_argument(
        "--engines", choices=sorted(ENGINES), nargs="+", default=["reader"], help="the first has tables"
    )
    parser.add_argument("--json", type=Path, help="the rows, with examples of words")
    parser.add_argument("--out", type=Path, help="the tables")
    options = parser.parse_args()
    all_rows, lines = [], []
    for folder in options.folders:
        truth = truth_of(folder, options.browser)
        names = [name for name, (_, content) in truth.items() if words(content).total() >= MIN_WORDS]
        lines += [f"## {folder.name}", ""]
        measured = {engine: measure_all(folder, names, truth, engine) for engine in options.engines}
        for engine, rows in measured.items():
            print(folder.name, engine, summary(rows))
            lines.append(f"- {engine}: {summary(rows)}")
        rows = measured[options.engines[0]]
        lines += ["", *table(rows), ""]
        all_rows += rows
    if options.json:
        options.json.write_text(json.dumps(all_rows, indent=1), encoding="utf-8")
    if options.out:
        options.out.write_text("\n".join(["# Words of web pages that arrive", "", *lines]), encoding="utf-8")


if __name__ == "__main__":
    main()
