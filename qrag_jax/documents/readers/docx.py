"""The text of a DOCX document; headings, lists and tables come from its styles."""

import re
from collections.abc import Callable
from io import BytesIO

from qrag_jax.documents.converted import Converted, ReadOptions
from qrag_jax.documents.kinds import FileKind
from qrag_jax.documents.readers.zip_archive import MAX_XML_BYTES, Archive
from qrag_jax.types import InputError

_MAIN = "word/document.xml"
_EQUATION = re.compile(rb"<(?:\w+:)?oMath[\s>]")
_TITLES = "p[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => p:fresh"


def read_docx(raw: bytes) -> Converted:
    """The text of a DOCX document, without headers, footers, comments, pictures and equations."""
    import mammoth

    from qrag_jax.documents.readers.html_as_markdown import markdown

    archive = Archive(raw)
    parts = {name for name in archive.names() if name.endswith((".xml", ".rels")) and "/theme/" not in name}
    size = sum(archive.size(name) for name in parts)
    if size > MAX_XML_BYTES:
        raise InputError(
            f"{len(raw):,} bytes contain {size:,} bytes of XML, more than the {MAX_XML_BYTES:,} that are read; split "
            "the document"
        )
    num_equations = len(_EQUATION.findall(archive.read_xml(_MAIN)))
    for name in parts - {_MAIN}:
        archive.read_xml(name)
    found = mammoth.convert_to_html(BytesIO(raw), style_map=_TITLES, convert_image=lambda image: [])
    text = markdown(found.value)
    if not text.strip():
        raise InputError("a DOCX document without text (only pictures or equations); leave it out")
    return Converted(text, left_out={"equations": num_equations} if num_equations else {})


def _load(_: ReadOptions) -> Callable[[bytes], Converted]:
    import mammoth  # noqa: F401

    import qrag_jax.documents.readers.html_as_markdown  # noqa: F401

    return read_docx


KIND = FileKind((".docx",), "a DOCX document", ("mammoth", "lxml"), _load, member=_MAIN.encode())
