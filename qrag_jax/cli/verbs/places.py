"""How a passage is shown: where it stands, and how it reads on one line."""

from qrag_jax.cli.terminal import shown
from qrag_jax.retrieval.context.fill import line_of
from qrag_jax.types import Document


def place_of(document: Document, start: int) -> str:
    """`file:line` of a character."""
    return shown(f"{document.id}:{line_of(document.text, start)}")


def file_and_line(document: Document, start: int) -> dict[str, object]:
    """The same as fields of JSON."""
    return {"file": document.id, "line": line_of(document.text, start)}


def excerpt(text: str, most: int) -> str:
    """A text on one line, of at most so many characters; `--json` has the whole."""
    line = " ".join(text.split())
    return shown(line if len(line) <= most else line[: most - 3] + "...")
