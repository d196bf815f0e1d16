import pytest
from support.documents import tiny_epub, tiny_zip

from qrag_jax.types import InputError

pytest.importorskip("markdownify")

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
    assert found.pages is None and found.left_out == ()


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
        (tiny_epub({}), "without a chapter in its order of reading"),
        (
            tiny_epub({"a.xhtml": page("x")}, ["../../../../etc/passwd"]),
            "it has no '../../../etc/passwd', which it should",
        ),
        (tiny_epub({"a.xhtml": page("x")}, ["gone.xhtml"]), "it has no 'OEBPS/gone.xhtml', which it should have"),
        (tiny_zip({"META-INF/container.xml": "<a/>"}), "it has no ''"),
        (tiny_zip({"META-INF/container.xml": "<a"}), "'META-INF/container.xml' in it is no XML"),
    ],
)
def test_bad_books_are_refused(book, message):
    with pytest.raises(InputError, match=message):
        read_epub(book)
