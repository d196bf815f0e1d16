import pytest

from qrag_jax.chunking.text.html_tags import find_tags, masked, without


def tags_of(text, code=()):
    return [text[start:end] for start, end in find_tags(text, code)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain < text > 3", []),
        ("<b>bold</b> and <br/>", ["<b>", "</b>", "<br/>"]),
        ('<a href="x"\n title="y">z</A>', ['<a href="x"\n title="y">', "</A>"]),
        ("<key>, List<String>, <a@b.org>, <https://a.b>, <bold>", []),
        ("a <!-- b\n\nc --> d <!-- e", ["<!-- b\n\nc -->"]),
        ("<script>var a = '<b>';</script>c", ["<script>var a = '<b>';</script>"]),
        ("<STYLE type='x'>p {}</style >c<style>d<i>", ["<STYLE type='x'>p {}</style >", "<i>"]),
        ("`<div>` and ``a ` <b>`` but ` <i>", ["<i>"]),
        ("` <b>\n\n` <i>", ["<b>", "<i>"]),  # backticks of two paragraphs are no pair
        ("<div", []),
    ],
)
def test_what_is_a_tag(text, found):
    assert tags_of(text) == found


def test_code_is_text_and_a_comment_around_code_is_none():
    text = "<b>\n<i>\n</b>"
    assert tags_of(text, [(4, 7)]) == ["<b>", "</b>"]
    text = "<!-- <i> -->"
    assert tags_of(text, [(5, 8)]) == [text]


def test_what_is_read_in_their_place_has_the_length_of_the_text():
    text = "<div>\r\n<p>Some <b>text</b>\n\n> <i>\n"
    tags = find_tags(text)
    assert without(text, tags) == "     \r\n   Some    text    \n\n>    \n"
    fill = "\ufffd"
    assert masked(text, tags) == f"     \r\n{fill * 3}Some {fill * 3}text{fill * 4}\n\n> {fill * 3}\n"


def test_many_marks_without_an_end_take_no_time_without_an_end():
    for piece in ("<!--", "<script>", "`<b", "<div ", "``` ` "):
        text = piece * 20_000
        assert find_tags(text) == ([] if piece != "<script>" else [])
