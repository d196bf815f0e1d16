"""DOCX and ODT documents: headings, lists, tables, notes, boxes, charts and equations as Markdown.

Headers and footers stand once at the end. Deleted and hidden text, pictures and embedded files are left out.
"""

from collections.abc import Callable

from qrag_jax.documents.converted import Converted, ReadOptions
from qrag_jax.documents.kinds import FileKind


def read_docx(raw: bytes, comments: bool = False) -> Converted:
    """The text of a DOCX document, with the remarks of reviewers if `comments`."""
    from qrag_jax.documents.readers.docx_body import read_body
    from qrag_jax.documents.readers.office_story import converted

    return converted(*read_body(raw, comments), "a DOCX document")


def read_odt(raw: bytes, comments: bool = False) -> Converted:
    """The text of an OpenDocument text, with the remarks of reviewers if `comments`."""
    from qrag_jax.documents.readers.odt_body import read_body
    from qrag_jax.documents.readers.office_story import converted

    return converted(*read_body(raw, comments), "an OpenDocument text")


def _load_docx(options: ReadOptions) -> Callable[[bytes], Converted]:
    import qrag_jax.documents.readers.docx_body  # noqa: F401

    return lambda raw: read_docx(raw, options.comments)


def _load_odt(options: ReadOptions) -> Callable[[bytes], Converted]:
    import qrag_jax.documents.readers.odt_body  # noqa: F401

    return lambda raw: read_odt(raw, options.comments)


_USES = ("comments",)
DOCX = FileKind((".docx",), "a DOCX document", ("lxml",), _load_docx, member=b"word/document", version=2, uses=_USES)
ODT = FileKind((".odt",), "an OpenDocument text", ("lxml",), _load_odt, member=b"content.xml", uses=_USES)
