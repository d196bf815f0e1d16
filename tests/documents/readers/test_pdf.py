import pytest
from support.documents import (
    encrypted_pdf,
    marked_pdf,
    pdf_of_objects,
    silent_pdf,
    tiny_pdf,
)

from qrag_jax.cli.output import place_to_json
from qrag_jax.documents.converted import Converted, ReadOptions
from qrag_jax.documents.readers.pdf import DIVIDED, divided_at_ends, joined, words_of
from qrag_jax.search.sentences import make_place
from qrag_jax.types import Document, InputError

pytest.importorskip("pypdfium2")

from qrag_jax.documents.readers.pdf import read_pdf, with_headings  # noqa: E402

SCAN = "a scanned PDF: 2 pages without a character; run text recognition"


def test_pages_begin_where_they_say():
    found = read_pdf(tiny_pdf([["One.", "Two."], ["Three (3)."], ["Four."]]))
    assert found.text == "One.\nTwo.\n\nThree (3).\n\nFour."
    assert found.pages == (0, 11, 23) and [found.text[start] for start in found.pages] == ["O", "T", "F"]
    assert found.left_out == {}


def test_line_ends_are_newlines_and_divided_words_are_whole():
    text = read_pdf(tiny_pdf([["An exam-", "ple, as other ex-", "amples. The example"], ["is known."]])).text
    assert text == "An example, as other examples. The example\n\nis known."


def test_pages_without_text_are_counted_and_a_document_of_them_is_a_scan():
    found = read_pdf(tiny_pdf([[], ["Text."], []]))
    assert found.text == "\n\nText.\n\n" and found.pages == (0, 2, 9)
    assert found.left_out == {"pages without a character (pictures or blank)": 2}
    with pytest.raises(InputError, match=SCAN):
        read_pdf(tiny_pdf([[], []]))


def test_letters_that_are_not_told_are_left_out_with_a_word():
    found = read_pdf(silent_pdf())
    if "\u5173" in found.text:
        pytest.skip("this machine has a font for them")
    assert (found.text, found.left_out) == ("A", {"pages without most letters (fonts that are not in it)": 1})


def test_the_outline_makes_headings_of_its_lines():
    pages = [["1. Rye", "Rye is a grass.", "Rye"], ["Text.", "Oats & barley"]]
    text = read_pdf(tiny_pdf(pages, [("Rye", 0), ("Oats & Barley", 1), ("Wheat", 1)])).text
    assert text == "# 1. Rye\nRye is a grass.\nRye\n\nText.\n# Oats & barley"


def test_headings_are_looked_for_in_their_order_and_have_at_most_six_levels():
    page = "Results\nText\nRESULTS\n"
    assert with_headings(page, [(2, "results"), (9, "Results"), (1, "---"), (1, "Absent")]) == (
        "## Results\nText\n###### RESULTS\n"
    )


def field(kind, place, more):
    return b"/Subtype /Widget /FT /%b /T (%d) /Rect [%d %d %d %d] %b" % (kind, place[0], *place, more)


LEFT, RIGHT, BELOW = (130, 697, 230, 715), (300, 697, 400, 715), (70, 660, 170, 678)
BUTTON = b"/AS /%b /AP << /N << /Yes 8 0 R >> >> /TU (Agreed)"
CHOICE = b"/Opt [[(b) (Bern)] [(g) (Geneva)] [(l) (Lyon)]]"
NOTE = b"/Subtype /%b /Rect [72 500 162 520] /Contents (Seen)"


@pytest.mark.parametrize(
    ("marks", "text"),
    [
        ([field(b"Tx", LEFT, b"/V (Lindqvist)")], "Surname: Lindqvist Berth:\nTown"),
        (
            [field(b"Tx", LEFT, b"/V (Lindqvist)"), field(b"Tx", RIGHT, b"/V (17)")],
            "Surname: Lindqvist Berth: 17\nTown",
        ),
        ([field(b"Tx", BELOW, b"/V <FEFF004F006200690020043F>")], "Surname: Berth:\nTown Obi \u043f"),
        ([field(b"Tx", LEFT, b"/V (one\\nline)")], "Surname: one\nline Berth:\nTown"),
        ([field(b"Tx", LEFT, b"/V (a)"), field(b"Tx", (180, 697, 220, 715), b"/V (b)")], "Surname: a b Berth:\nTown"),
        ([field(b"Tx", LEFT, b"/V (secret) /Ff 8192")], "Surname: Berth:\nTown"),  # a password
        ([field(b"Ch", LEFT, b"/V (g) /Ff 131072" + CHOICE)], "Surname: Geneva Berth:\nTown"),
        (
            [field(b"Ch", LEFT, b"/V [(b) (l)] /Ff 2097152" + CHOICE)],
            "Surname: [x] Bern, Geneva, [x] Lyon Berth:\nTown",
        ),
        ([field(b"Ch", LEFT, b"/V (Paris) /Ff 393216" + CHOICE)], "Surname: Paris Berth:\nTown"),  # typed
        ([field(b"Btn", (220, 697, 236, 713), BUTTON % b"Yes")], "Surname: [x] Berth:\nTown"),
        ([field(b"Btn", (130, 678, 142, 690), BUTTON % b"Yes")], "Surname: Berth:\nTown [x]"),
        ([field(b"Btn", (50, 697, 66, 713), BUTTON % b"Yes")], "[x] Surname: Berth:\nTown"),
        ([field(b"Btn", (220, 697, 236, 713), BUTTON % b"Off")], "Surname: Berth:\nTown"),
        ([field(b"Btn", LEFT, b"/Ff 65536 /AP << /N 8 0 R >>")], "Surname: Drawn Berth:\nTown"),
        ([NOTE % b"FreeText"], "Surname: Berth:\nTown\nSeen"),
        ([b"/Subtype /Stamp /Rect [72 500 162 520] /AP << /N 8 0 R >>"], "Surname: Berth:\nTown\nDrawn"),
        ([b"/Subtype /FreeText /Rect [72 500 162 520] /AP << /N 8 0 R >>"], "Surname: Berth:\nTown\nDrawn"),
        ([NOTE % b"Link"], "Surname: Berth:\nTown"),
    ],
)
def test_what_is_typed_and_stamped_on_a_page_stands_at_its_place(marks, text):
    found = read_pdf(marked_pdf([(72, 700, "Surname:"), (240, 700, "Berth:"), (72, 680, "Town")], marks))
    assert (found.text, found.left_out) == (text, {})


@pytest.mark.parametrize("kind", [b"Text", b"Highlight", b"Underline", b"StrikeOut", b"Ink", b"Caret", b"Square"])
def test_remarks_are_read_if_asked_for_and_else_counted(kind):
    remark = marked_pdf([(72, 700, "Rye.")], [NOTE % kind + b" /T (Ann)", NOTE % kind + b" /Contents ()"])
    assert read_pdf(remark) == Converted("Rye.", (0,), {"comments": 1})
    assert read_pdf(remark, ReadOptions(comments=True)) == Converted("Rye.\n[Ann: Seen]", (0,))


@pytest.mark.parametrize(
    ("mark", "left_out"),
    [
        (b"/Subtype /FileAttachment /Rect [0 0 9 9]", {"attachments": 1}),
        (b"/Subtype /Sound /Rect [0 0 9 9]", {"sounds and films": 1}),
        (b"/F 2 " + NOTE % b"FreeText", {"hidden words": 1}),
        (b"/F 32 " + field(b"Tx", LEFT, b"/V (two words)"), {"hidden words": 2}),
        (b"/Subtype /Popup /Rect [0 0 9 9] /Contents (x)", {}),
    ],
)
def test_what_a_page_does_not_show_is_counted(mark, left_out):
    assert read_pdf(marked_pdf([(72, 700, "Rye.")], [mark])) == Converted("Rye.", (0,), left_out)


def test_a_field_without_a_form_is_read():
    marked = marked_pdf(
        [(72, 700, "Surname:")], [field(b"Tx", LEFT, b"/V (Lindqvist)"), field(b"Btn", RIGHT, b"/V /On")]
    )
    assert read_pdf(marked.replace(b"/AcroForm", b"/XcroForm")).text == "Surname: Lindqvist"


def test_a_form_alone_is_no_scan():
    value, empty = field(b"Tx", LEFT, b"/V (Berth 17)"), field(b"Tx", LEFT, b"")
    checked = field(b"Btn", RIGHT, BUTTON % b"Yes")
    assert read_pdf(marked_pdf([], [value, checked])).text == "Berth 17\n[x] Agreed"
    with pytest.raises(InputError, match="a PDF form of 1 page with empty fields and no other character; fill it in"):
        read_pdf(marked_pdf([], [empty]))
    with pytest.raises(InputError, match="a PDF of 1 page without a character but 1 comment; read the comments too"):
        read_pdf(marked_pdf([], [NOTE % b"Text"]))


def test_pages_that_are_numbered_otherwise_say_so():
    labels = b"/PageLabels << /Nums [0 << /S /r /St 4 >>] >>"
    found = read_pdf(marked_pdf([(72, 700, "Rye.")], [], labels))
    assert found.page_labels == ("iv",) and read_pdf(tiny_pdf([["Rye."]])).page_labels is None
    document = Document("a.pdf", found.text, {"pages": found.pages, "page_labels": found.page_labels})
    assert place_to_json(make_place(document, (0, 3))) == {"file": "a.pdf", "line": 1, "page": 1, "page_label": "iv"}


@pytest.mark.parametrize("hyphen", ["-", "\u00ad", "\u2010", "\u058a"])
def test_every_hyphen_at_the_end_of_a_line_divides(hyphen):
    assert divided_at_ends(f"the docu{hyphen}\r\nments of 1911{hyphen}\r\n2, and a {hyphen}\r\nb") == (
        f"the docu{DIVIDED}ments of 1911{hyphen}\r\n2, and a {hyphen}\r\nb"
    )


def test_encrypted_and_damaged_files_are_told_apart():
    with pytest.raises(InputError, match="an encrypted PDF; save it without a password"):
        read_pdf(encrypted_pdf())
    with pytest.raises(InputError, match="a PDF that cannot be read .*; check it and save it again"):
        read_pdf(tiny_pdf([["Text."]] * 20)[:500])


def test_pages_that_cannot_be_read_are_refused_where_no_other_is_there():
    pages = b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 5 /Parent 2 0 R >>"
    with pytest.raises(InputError, match="a PDF of 5 pages, none readable"):
        read_pdf(pdf_of_objects([b"<< /Type /Catalog /Pages 2 0 R >>", pages]))


@pytest.mark.parametrize(
    ("divided", "elsewhere", "whole"),
    [
        ("exam|ple", "an example", "example"),
        ("Exam|ple", "an example", "Example"),
        ("chat|optimized", "a chat-optimized model", "chat-optimized"),
        ("multi|agent", "multi-agent, not multiagent: both", "multiagent"),  # the whole word comes first
        ("conversation|centric", "a conversation that is centric", "conversation-centric"),
        ("conversation|centric", "a conversation", "conversation-centric"),
        ("develop|ment", "to develop", "development"),  # a second part as short as this is an ending
        ("under|standing", "to stand under, standing", "understanding"),
        ("well-kno|wn", "known", "well-known"),
        ("state-of-the|art", "the art", "state-of-the-art"),
        ("hypo|tenuse", "", "hypotenuse"),  # nothing tells: 39 of 41 were divided
        ("2019|2020", "", "2019-2020"),
        ("GPT|4", "", "GPT-4"),
        ("Jean|Paul", "", "Jean-Paul"),
        ("ABBRE|VIATION", "", "ABBREVIATION"),
        ("Öko|nomie", "", "Ökonomie"),
        ("one | two", "", "one - two"),
        ("end|", "", "end-"),
        ("|start", "", "- start"),
    ],
)
def test_the_words_of_a_document_tell_what_a_hyphen_at_the_end_of_a_line_is(divided, elsewhere, whole):
    text = divided.replace("|", DIVIDED)
    assert joined(text, words_of([text, elsewhere])) == whole


def test_divided_words_are_no_words_of_the_document():
    assert words_of([f"exam{DIVIDED}ple of a well-known One"]) == {"of", "a", "well-known", "well", "known", "one"}


def test_a_text_without_divided_words_stays_as_it_is():
    text = "A well-known text.\n- a list\n"
    assert joined(text, words_of([text])) == text
