import pytest
from support.documents import paragraph, picture, tiny_docx

from qrag_jax.types import InputError

pytest.importorskip("mammoth")

from qrag_jax.documents.readers import zip_archive as archive  # noqa: E402
from qrag_jax.documents.readers.docx import read_docx  # noqa: E402

EQUATION = "<w:p><m:oMathPara><m:oMath><m:r><m:t>E=mc</m:t></m:r></m:oMath></m:oMathPara></w:p>"


def cell(text):
    return f"<w:tc>{paragraph(text)}</w:tc>"


def test_headings_paragraphs_and_tables_become_markdown():
    table = f"<w:tbl><w:tr>{cell('a')}{cell('b')}</w:tr><w:tr>{cell('1')}{cell('2')}</w:tr></w:tbl>"
    bold = "<w:p><w:r><w:rPr><w:b/></w:rPr><w:t>Bold_name *</w:t></w:r></w:p>"
    body = paragraph("Report", "Heading1") + paragraph("Rye", "Heading2") + bold + table
    found = read_docx(tiny_docx(body))
    assert found.text == "# Report\n\n## Rye\n\nBold_name *\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert found.pages is None and found.left_out == ()


def test_equations_are_counted_as_they_are_dropped():
    found = read_docx(tiny_docx(paragraph("Some text.") + EQUATION * 2))
    assert (found.text, found.left_out) == ("Some text.", ("2 equations",))


def test_pictures_are_left_out_with_their_bytes():
    body, members = picture()
    text = read_docx(tiny_docx(paragraph("Before.") + body + paragraph("After."), members)).text
    assert text == "Before.\n\nAfter."


def test_a_picture_that_is_a_link_is_not_opened(tmp_path):
    body, members = picture((tmp_path / "none.png").as_uri(), is_external=True)
    assert read_docx(tiny_docx(paragraph("Text.") + body, members)).text == "Text."


@pytest.mark.parametrize(
    ("body", "others", "message"),
    [
        (EQUATION, {}, "a DOCX document without text .pictures or equations alone.: leave it out"),
        (paragraph("Text."), {"word/styles.xml": '<!DOCTYPE a [<!ENTITY b "c">]><a/>'}, "styles.xml. in it declares"),
        (paragraph("Text."), {"word/a.xml": "<!DOCTYPE a><a/>".encode("utf-16")}, "a.xml. in it declares entities"),
    ],
)  # fmt: skip
def test_hostile_and_empty_documents_are_refused(body, others, message):
    with pytest.raises(InputError, match=message):
        read_docx(tiny_docx(body, others))


def test_xml_is_counted_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr("qrag_jax.documents.readers.docx.MAX_XML_BYTES", 5_000)
    assert archive.MAX_XML_BYTES == 16_000_000
    with pytest.raises(InputError, match="bytes of XML in them, and at most 5,000 are read: split the document"):
        read_docx(tiny_docx(paragraph("Some text.") * 200))
