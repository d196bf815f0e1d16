"""How a passage is shown: where it stands, and how it reads on one line."""

from qrag_jax.cli.terminal import shown
from qrag_jax.data.files.documents import page_of
from qrag_jax.retrieval.context.fill import line_of
from qrag_jax.types import Document


def place_of(document: Document, start: int) -> str:
    """`file:line` of a character; `report.pdf#page=3` where the document has pages, as browsers take it."""
    page = page_of(document, start)
    return shown(f"{document.id}:{line_of(document.text, start)}" if page is None else f"{document.id}#page={page}")


def fields_of(document: Document, start: int) -> dict[str, object]:
    """The same as fields of JSON: `file`, `line` (of the text that was made of it), and `page` where there is one."""
    page = page_of(document, start)
    found: dict[str, object] = {"file": document.id, "line": line_of(document.text, start)}
    return found if page is None else found | {"page": page}


def excerpt(text: str, most: int) -> str:
    """A text on one line, of at most so many characters; `--json` has the whole."""
    line = " ".join(text.split())
    return shown(line if len(line) <= most else line[: most - 3] + "...")
