"""How a passage is shown: where it stands, and how it reads on one line."""

from qrag_jax.chunking.text.chunks import chunk_text
from qrag_jax.cli.terminal import shown
from qrag_jax.documents.read import page_of
from qrag_jax.search.context.pack import line_of
from qrag_jax.search.corpus import Corpus
from qrag_jax.types import Document, Note


def place_of(document: Document, start: int) -> str:
    """`file:line` of a character; `report.pdf#page=3` where the document has pages, as browsers take it."""
    page = page_of(document, start)
    return shown(f"{document.id}:{line_of(document.text, start)}" if page is None else f"{document.id}#page={page}")


def fields_of(document: Document, start: int) -> dict[str, object]:
    """The same as fields of JSON: `file`, `line` (of the text that was made of it), and `page` where there is one."""
    page = page_of(document, start)
    found: dict[str, object] = {"file": document.id, "line": line_of(document.text, start)}
    return found if page is None else found | {"page": page}


def note_to_json(note: Note, corpus: Corpus) -> dict[str, object]:
    """A note as fields of JSON: its text, the place that it comes from, and where in its passage it belongs."""
    asking, answering = (_document_of(chunk, corpus) for chunk in (note.asking, note.answering))
    return {
        "text": note.text,
        "reader": note.reader,
        **({"question": note.question, "answer": note.answer} if note.question else {}),
        "source": fields_of(asking, note.source[0]) | {"start": note.source[0], "end": note.source[1]},
        "evidence": fields_of(answering, note.evidence[0])
        | {"start": note.evidence[0], "end": note.evidence[1], "text": note.quote},
    }


def pair_to_json(note: Note, corpus: Corpus) -> dict[str, object]:
    """A note with the whole chunks that it joins, as a row of a data set; `question` is null where none was asked."""
    chunks = {
        name: corpus.nodes[corpus.by_chunk[key]]
        for name, key in (("asking", note.asking), ("answering", note.answering))
    }
    return (
        {"question": None, "answer": None}
        | note_to_json(note, corpus)
        | {
            name: fields_of(corpus.by_id[chunk.document_id], chunk.spans[0][0])
            | {"spans": [list(span) for span in chunk.spans]}
            | {"text": chunk_text(corpus.by_id[chunk.document_id].text, chunk.spans)}
            for name, chunk in chunks.items()
        }
    )


def source_place(note: Note, corpus: Corpus) -> str:
    """`file:line` of what a note comes from."""
    return place_of(_document_of(note.asking, corpus), note.source[0])


def excerpt(text: str, most: int) -> str:
    """A text on one line, of at most so many characters; `--json` has the whole."""
    line = " ".join(text.split())
    return shown(line if len(line) <= most else line[: most - 3] + "...")


def _document_of(chunk: str, corpus: Corpus) -> Document:
    return corpus.by_id[corpus.nodes[corpus.by_chunk[chunk]].document_id]
