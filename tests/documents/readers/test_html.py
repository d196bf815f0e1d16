import pytest

from qrag_jax.types import InputError

pytest.importorskip("trafilatura")

from qrag_jax.documents.readers.html import decoded, read_html  # noqa: E402

PROSE = "Rye is a grass that is grown as a grain, and it is closely related to wheat and to barley. " * 3
MENU = "<nav><ul><li><a href='/'>Home</a></li><li><a href='/shop'>Shop</a></li></ul></nav>"


def page(body, head=""):
    return f"<!doctype html><html><head><title>Title</title>{head}</head><body>{body}</body></html>".encode()


def test_the_main_part_is_kept_without_navigation_scripts_and_marks():
    article = (
        f"<article><h1>Rye</h1><p>{PROSE}</p><h2>Its <em>uses</em></h2><p>{PROSE}</p><pre>a_b = *c</pre></article>"
    )
    text = read_html(page(f"{MENU}{article}<script>var Shop = 1</script><footer>Imprint</footer>")).text
    assert "# Rye" in text and "## Its uses" in text and "a_b = *c" in text and PROSE.strip() in text
    assert not any(word in text for word in ("Shop", "Imprint", "Home", "*uses*", "var"))


def test_a_page_whose_main_part_misses_too_much_is_kept_but_for_its_navigation():
    cards = "".join(f"<div class='share-{n}'><span>Fact {n} of the harvest</span></div>" for n in range(40))
    text = read_html(page(f"{MENU}<p>Hello.</p>{cards}")).text
    assert "Fact 0 of the harvest" in text and "Fact 39 of the harvest" in text and "Shop" not in text


def test_paragraphs_without_ends_do_not_nest():
    assert read_html(page("<p>One more line of text." * 2_000)).text.count("One more line") == 2_000


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xef\xbb\xbfA\xc3\xb6", "Aö"),
        ("Aö".encode("utf-16"), "Aö"),
        (b"<meta charset=latin1>A\xf6 \x93", "<meta charset=latin1>Aö “"),  # as browsers: cp1252
        (b"<meta charset='gb2312'>\xc4\xe3", "<meta charset='gb2312'>你"),
        (b'<?xml version="1.0" encoding="UTF-8"?>\xc3\xb6', '<?xml version="1.0" encoding="UTF-8"?>ö'),
        (b"A\xc3\xb6", "Aö"),
    ],
)
def test_encodings(raw, text):
    assert decoded(raw) == (text, 0)


def test_an_encoding_that_is_given_counts_where_a_page_says_none():
    assert decoded(b"A\xf6", "latin-1") == ("Aö", 0)


def test_few_wrong_characters_are_counted_and_many_refused():
    found = read_html(page(f"<p>{PROSE * 30}</p>").replace(b"</p>", b"\xff</p>"))
    assert found.left_out == {"undecodable characters": 1}
    with pytest.raises(InputError, match="an HTML page that is not utf-8 at byte 3 and elsewhere; save it as UTF-8"):
        decoded(b"<p>\xff\xfe")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"<meta charset=klingon>Text", "declares the unknown encoding b'klingon'"),
        (b"<meta charset=hex>Text", "declares the unknown encoding b'hex'"),
        (page("<script>write('Text')</script>"), "an HTML page without text"),
        (b"", "an HTML page without text"),
        (page("<div>" * 1_100 + "Text"), "HTML with more than 1,000 nested elements"),
    ],
)
def test_bad_pages_are_refused(raw, message):
    with pytest.raises(InputError, match=message):
        read_html(raw)
