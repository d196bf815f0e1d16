import pytest
from support.documents import encrypted_pdf, pdf_of_objects, silent_pdf, tiny_pdf

from qrag_jax.types import InputError

pytest.importorskip("pypdfium2")

from qrag_jax.documents.readers.pdf import read_pdf, with_headings  # noqa: E402

SCAN = "a scanned PDF: 2 pages without a character; give what a text recognition .OCR. makes of it"


def test_pages_begin_where_they_say():
    found = read_pdf(tiny_pdf([["One.", "Two."], ["Three (3)."], ["Four."]]))
    assert found.text == "One.\nTwo.\n\nThree (3).\n\nFour."
    assert found.pages == (0, 11, 23) and [found.text[start] for start in found.pages] == ["O", "T", "F"]
    assert found.left_out == ()


def test_line_ends_are_newlines_and_divided_words_are_whole():
    text = read_pdf(tiny_pdf([["An exam-", "ple, as other ex-", "amples. The example"], ["is known."]])).text
    assert text == "An example, as other examples. The example\n\nis known."


def test_pages_without_text_are_counted_and_a_document_of_them_is_a_scan():
    found = read_pdf(tiny_pdf([[], ["Text."], []]))
    assert found.text == "\n\nText.\n\n" and found.pages == (0, 2, 9)
    assert found.left_out == ("2 pages without a character (pictures or blank)",)
    with pytest.raises(InputError, match=SCAN):
        read_pdf(tiny_pdf([[], []]))


def test_letters_that_are_not_told_are_left_out_with_a_word():
    found = read_pdf(silent_pdf())
    if "\u5173" in found.text:
        pytest.skip("this machine has a font for them")
    assert (found.text, found.left_out) == ("A", ("most letters of 1 page (fonts that are not in it)",))


def test_the_outline_makes_headings_of_its_lines():
    pages = [["1. Rye", "Rye is a grass.", "Rye"], ["Text.", "Oats & barley"]]
    text = read_pdf(tiny_pdf(pages, [("Rye", 0), ("Oats & Barley", 1), ("Wheat", 1)])).text
    assert text == "# 1. Rye\nRye is a grass.\nRye\n\nText.\n# Oats & barley"


def test_headings_are_looked_for_in_their_order_and_have_at_most_six_levels():
    page = "Results\nText\nRESULTS\n"
    assert with_headings(page, [(2, "results"), (9, "Results"), (1, "---"), (1, "Absent")]) == (
        "## Results\nText\n###### RESULTS\n"
    )


def test_encrypted_and_damaged_files_are_told_apart():
    with pytest.raises(InputError, match="a PDF that is encrypted: save it without a password"):
        read_pdf(encrypted_pdf())
    with pytest.raises(InputError, match="a PDF that cannot be read .*: is it whole. Save it anew"):
        read_pdf(tiny_pdf([["Text."]] * 20)[:500])


def test_pages_that_cannot_be_read_are_refused_where_no_other_is_there():
    pages = b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 5 /Parent 2 0 R >>"
    with pytest.raises(InputError, match="a PDF none of whose 5 pages can be read"):
        read_pdf(pdf_of_objects([b"<< /Type /Catalog /Pages 2 0 R >>", pages]))
