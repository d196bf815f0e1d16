import zipfile
from io import BytesIO

import pytest
from support.documents import tiny_epub, tiny_zip

from qrag_jax.types import InputError

pytest.importorskip("lxml")

from qrag_jax.documents.readers.epub import read_epub  # noqa: E402

KEY = '<encryption xmlns:e="x"><e:CipherReference URI="{}"/></encryption>'


def page(body):
    head = '<head><title>Not text</title><script src="a.js"/></head>'
    return f'<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml">{head}<body>{body}</body></html>'


BOOK = {
    "a.xhtml": page("<h1>Rye</h1><p>A <i>grass</i>.</p>"),
    "sub/b%20c.xhtml": page("<h2>Öats</h2><ul><li>One</li></ul>"),
}


def test_chapters_stand_in_the_order_of_reading():
    found = read_epub(tiny_epub({**BOOK, "sub/b c.xhtml": BOOK["sub/b%20c.xhtml"]}, ["sub/b%20c.xhtml", "a.xhtml"]))
    assert found.text == "## Öats\n\n- One\n\n# Rye\n\nA grass."
    assert found.pages is None and found.left_out == {}


def test_words_in_pictures_and_forms_are_words_of_a_book():
    svg = "<svg><style>a {}</style><text>One</text><text><tspan>Two</tspan></text></svg>"
    body = f"{svg}<object data='a.swf'><p>Three.</p></object><form><button>Four</button></form>"
    assert read_epub(tiny_epub({"a.xhtml": page(body)})).text.split() == ["One", "Two", "Three.", "Four"]


def test_a_chapter_that_is_named_again_is_read_once():
    assert read_epub(tiny_epub({"a.xhtml": page("Text.")}, ["a.xhtml"] * 9)).text == "Text."


def test_fonts_may_be_encrypted_and_chapters_may_not():
    book = {"a.xhtml": page("Text.")}
    where = "META-INF/encryption.xml"
    assert read_epub(tiny_epub(book, others={where: KEY.format("OEBPS/font.otf")})).text == "Text."
    with pytest.raises(InputError, match=r"an EPUB book with copy protection \(DRM\)"):
        read_epub(tiny_epub(book, others={where: KEY.format("OEBPS/a.xhtml")}))


@pytest.mark.parametrize(
    ("book", "message"),
    [
        (tiny_epub({"a.xhtml": page("")}), "an EPUB book without text"),
        (tiny_epub({}), "without a chapter in its reading order"),
        (tiny_epub({"a.xhtml": page("x")}, ["../../../../etc/passwd"]), "without a chapter .* .1 missing chapters."),
        (tiny_epub({"a.xhtml": page("x")}, ["gone.xhtml"]), "without a chapter .* .1 missing chapters.; get the file"),
        (tiny_zip({"META-INF/container.xml": "<a/>"}), "whose list of files .*opf. is missing"),
        (tiny_zip({"META-INF/container.xml": "<a"}), "whose list of files .*opf. is missing"),
        (tiny_zip({"META-INF/container.xml": " "}), "'META-INF/container.xml' in it is not XML"),
    ],
)
def test_bad_books_are_refused(book, message):
    with pytest.raises(InputError, match=message):
        read_epub(book)


def book_of(chapters, manifest, spine, metadata="", container="OEBPS/book.opf", package="OEBPS/book.opf", doctype=""):
    """A book whose list of files is given: (id, href, further attributes)."""
    items = "".join(f'<item id="{id}" href="{href}" {more or PAGE_TYPE}/>' for id, href, more in manifest)
    order = "".join(f"<itemref idref='{id}'/>" for id in spine)
    opf = f'{doctype}<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="d">{metadata}</metadata>'
    return tiny_zip({
        "META-INF/container.xml": f'<container><rootfiles><rootfile full-path="{container}"/></rootfiles></container>',
        package: f"{opf}<manifest>{items}</manifest><spine>{order}</spine></package>",
        **chapters,
    })  # fmt: skip


PAGE_TYPE = 'media-type="application/xhtml+xml"'
ONE, TWO = page("<h1>One</h1><p>The lamp burns oil.</p>"), page("<h1>Two</h1><p>The bell is brass.</p>")
BOTH = "# One\n\nThe lamp burns oil.\n\n# Two\n\nThe bell is brass."
CHAPTERS = {"OEBPS/one.xhtml": ONE, "OEBPS/two.xhtml": TWO}
LISTED = [("a", "one.xhtml", ""), ("b", "two.xhtml", "")]


@pytest.mark.parametrize(
    ("book", "left_out"),
    [
        (book_of(CHAPTERS, LISTED, "ab"), {}),
        (book_of(CHAPTERS, [*LISTED, ("c", "three.xhtml", "")], "acb"), {"missing chapters": 1}),
        (book_of(CHAPTERS, [*LISTED, ("c", "http://a.example/three.xhtml", "")], "abc"), {"missing chapters": 1}),
        (book_of(CHAPTERS, LISTED, ["cover", "a", "b", "cover", "end"]), {"missing chapters": 2}),
        (book_of(CHAPTERS, [("a", "One.xhtml", ""), ("b", "TWO.XHTML", "")], "ab"), {}),
        (book_of(CHAPTERS, [("a", "../oebps/one.xhtml#start", ""), ("b", "./two%2Exhtml", "")], "ab"), {}),
        (book_of(CHAPTERS, [("a", "one.xhtml#a", ""), ("x", "one.xhtml#b", ""), ("b", "two.xhtml", "")], "axb"), {}),
        (book_of(CHAPTERS, [("a", "one.xhtml", 'media-type="text/xml"'), LISTED[1]], "ab"), {}),
        (
            book_of({**CHAPTERS, "OEBPS/c.jpg": b"x"}, [*LISTED, ("c", "c.jpg", 'media-type="image/jpeg"')], "cab"),
            {"pictures": 1},
        ),
        (
            book_of(CHAPTERS, [("x", "a.pdf", 'media-type="application/pdf" fallback="a"'), *LISTED], "xab"),
            {},
        ),
        (
            book_of({**CHAPTERS, "OEBPS/a.js": b"x"}, [*LISTED, ("c", "a.js", 'media-type="text/javascript"')], "abc"),
            {"chapters in other formats": 1},
        ),
        (
            book_of({**CHAPTERS, "OEBPS/notes.xhtml": ONE}, [*LISTED, ("c", "notes.xhtml", "")], "ab"),
            {"pages outside of the reading order": 1},
        ),
        (book_of({**CHAPTERS, "OEBPS/c.xhtml": page("<p>" + "<b>" * 1_100)}, [*LISTED, ("c", "c.xhtml", "")], "abc"),
         {"damaged chapters": 1}),
        (book_of(CHAPTERS, LISTED, "ab", container="oebps/Book.opf"), {}),
        (book_of(CHAPTERS, LISTED, "ab", container="gone.opf"), {}),
        (book_of(CHAPTERS, LISTED, "ab", metadata="<!-- a --> Salt & pepper"), {}),
    ],
)  # fmt: skip
def test_chapters_that_are_there_are_read_and_the_others_counted(book, left_out):
    found = read_epub(book)
    assert found.text == BOTH and found.left_out == left_out


def test_a_name_in_the_other_form_of_unicode_is_found():
    listed = [("a", "Gro\u0308ße.xhtml", ""), ("b", "%C3%9Cbersicht.xhtml", "")]
    book = book_of({"OEBPS/Größe.xhtml": ONE, "OEBPS/U\u0308bersicht.xhtml": TWO}, listed, "ab")
    assert read_epub(book).text == BOTH


def test_names_that_differ_in_case_are_different_members():
    book = book_of(
        {"OEBPS/one.xhtml": ONE, "OEBPS/One.xhtml": TWO}, [("a", "one.xhtml", ""), ("b", "One.xhtml", "")], "ab"
    )
    assert read_epub(book).text == BOTH


def damaged(book, name):
    """A book in which the bytes of a member are changed."""
    with zipfile.ZipFile(BytesIO(book)) as archive:
        member = archive.getinfo(name)
    start = member.header_offset + 30 + len(name)
    return book[:start] + bytes(member.compress_size) + book[start + member.compress_size :]


def with_password(book, name):
    """A book in which a member is marked as encrypted."""
    at = book.rindex(name.encode()) - 46
    return book[: at + 8] + b"\x01" + book[at + 9 :]


def test_damaged_and_encrypted_chapters_are_counted():
    book = book_of(CHAPTERS, LISTED, "ab")
    for changed, kind in (
        (damaged(book, "OEBPS/two.xhtml"), "damaged"),
        (with_password(book, "OEBPS/two.xhtml"), "encrypted"),
    ):
        found = read_epub(changed)
        assert found.text == "# One\n\nThe lamp burns oil." and found.left_out == {f"{kind} chapters": 1}
    protected = {"META-INF/encryption.xml": KEY.format("OEBPS/one.xhtml")}
    assert read_epub(book_of(CHAPTERS | protected, LISTED, "ab")).left_out == {"encrypted chapters": 1}


def test_the_title_stands_first_unless_the_first_heading_has_it():
    book = book_of(CHAPTERS, LISTED, "ab", metadata="<dc:title>The\n harbour</dc:title>")
    assert read_epub(book).text == f"# The harbour\n\n{BOTH}"
    assert read_epub(book_of(CHAPTERS, LISTED, "ab", metadata="<dc:title>One</dc:title>")).text == BOTH


def test_a_table_of_contents_is_left_out_and_the_rest_of_its_page_kept():
    nav = '<nav><ol><li><a href="one.xhtml">One of two</a></li></ol></nav>'
    for body, text, number in (nav, BOTH, 4), (f"<p>For Ada.</p>{nav}", f"For Ada.\n\n{BOTH}", 3):
        chapters, listed = (
            {**CHAPTERS, "OEBPS/n.xhtml": page(body)},
            [*LISTED, ("n", "n.xhtml", f'{PAGE_TYPE} properties="nav"')],
        )
        found = read_epub(book_of(chapters, listed, "nab"))
        assert found.text == text and found.left_out == {"words of navigation": number}
    assert read_epub(book_of(chapters, listed, "ab")).left_out == {}


def xhtml(body, head="", doctype=""):
    return f"<?xml version='1.0'?>{doctype}<html xmlns='http://www.w3.org/1999/xhtml'><head>{head}</head><body>{body}</body></html>"


@pytest.mark.parametrize(
    ("chapter", "text"),
    [
        (xhtml("<p>Two words.</p>", "<title/><script src='a'/><style/>"), "Two words."),
        (xhtml("<p>A &amp; B & two words.</p><div/><p><i/>Not raised.</p>", "<title/>"), None),
        (xhtml("<a id='p1'/><p><span id='x'/>Two words.</p><td/>" * 2), "Two words.\n\nTwo words."),
        (xhtml("<a id='x'/>" * 2_000 + "<p>Two words.</p>"), "Two words."),
        (xhtml("<p>A&nbsp;B &mdash; &eacute;&#8364; &lt;b&gt; &amp;amp;</p>"), "A B — é€ <b> &amp;"),
        (xhtml("<p>By &writer;.</p>", doctype="<!DOCTYPE html [<!ENTITY writer 'Jane'>]>"), "By Jane."),
        (xhtml("<p>A<!-- no --><![CDATA[ < B]]></p>"), "A < B"),
        (xhtml("<p>One<br/>two</p><hr/><p>three</p>"), "One\ntwo\n\nthree"),
        (xhtml("<ruby>水<rp>(</rp><rt>みず</rt><rp>)</rp></ruby>"), "水(みず)"),
        ("<a:svg xmlns:a='http://www.w3.org/2000/svg'><a:title>No</a:title><a:text>Two words.</a:text></a:svg>",
         "Two words."),
        (xhtml("<p><m:math xmlns:m='m'><m:msup><m:mi>x</m:mi><m:mn>2</m:mn></m:msup></m:math></p>"), "x^2"),
        (xhtml("<p>Möwe</p>").encode("utf-16"), "Möwe"),
        ("<?xml version='1.0' encoding='windows-1251'?><html><p>Мельница</p></html>".encode("cp1251"), "Мельница"),
        ("<html><head><meta charset='latin1'/></head><body><p>Möwe</p></body></html>".encode(), "Möwe"),
        (b"<html><head><meta charset='latin1'/></head><body><p>M\xf6we</p></body></html>", "Möwe"),
    ],
)  # fmt: skip
def test_pages_of_xhtml(chapter, text):
    found = read_epub(book_of({"OEBPS/one.xhtml": chapter}, LISTED[:1], "a"))
    assert found.text == (text or "A & B & two words.\n\nNot raised.") and found.left_out == {}


def test_entities_of_entities_do_not_grow():
    entities = "".join(f"<!ENTITY e{n + 1} '{f'&e{n};' * 10}'>" for n in range(9))
    bomb = xhtml("<p>&e9;</p>", doctype=f"<!DOCTYPE html [<!ENTITY e0 'rye'>{entities}]>")
    found = read_epub(book_of({**CHAPTERS, "OEBPS/c.xhtml": bomb}, [*LISTED, ("c", "c.xhtml", "")], "abc"))
    assert found.text.startswith(BOTH) and len(found.text) < 2_000


def test_a_list_of_files_may_have_a_document_type_but_no_entities():
    doctype = '<!DOCTYPE package PUBLIC "+//ISBN 0-9673008-1-9//DTD OEB 1.2 Package//EN" "a.dtd">'
    assert read_epub(book_of(CHAPTERS, LISTED, "ab", doctype=doctype)).text == BOTH
    with pytest.raises(InputError, match=r"'OEBPS/book.opf' in it declares entities, so it may be hostile"):
        read_epub(book_of(CHAPTERS, LISTED, "ab", doctype="<!DOCTYPE package [<!ENTITY a 'b'>]>"))
