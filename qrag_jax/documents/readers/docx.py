"""DOCX documents: headings, lists, tables, notes, boxes, charts and equations as Markdown."""

from collections.abc import Callable

from qrag_jax.documents.converted import Converted, ReadOptions, cleaned
from qrag_jax.documents.kinds import FileKind
from qrag_jax.types import InputError


def read_docx(raw: bytes, comments: bool = False) -> Converted:
    """The text of a DOCX document; its headers and footers stand once at the end.

    Deleted and hidden text, pictures and embedded files are left out.

    Args:
        comments: keep the remarks of reviewers.
    """
    from qrag_jax.documents.readers.docx_body import Body
    from qrag_jax.documents.readers.office import joined

    body = Body(raw, comments)
    text = cleaned(joined(body.blocks()))
    if not text.strip():
        raise InputError("a DOCX document without text (only pictures or empty paragraphs); leave it out")
    return Converted(text, left_out=dict(+body.left_out))


def _load(options: ReadOptions) -> Callable[[bytes], Converted]:
    import qrag_jax.documents.readers.docx_body  # noqa: F401

    return lambda raw: read_docx(raw, options.comments)


KIND = FileKind((".docx",), "a DOCX document", ("lxml",), _load, member=b"word/document", version=2, uses=("comments",))
