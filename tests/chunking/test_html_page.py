import base64
import hashlib
import re
from html.parser import HTMLParser

import hypothesis.strategies as st
import pytest
from hypothesis import given
from support.pages import PAYLOADS, as_shown

from qrag_jax.chunking.html_page import html_page, segments
from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.chunking.text.html_tags import find_tags, masked, without
from qrag_jax.types import Document

ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "section", "bdi", "details", "summary", "table",
    "tr", "th", "td", "code", "a", "div", "span",
}  # fmt: skip
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "id", "title", "dir", "href", "open"}


class Reader(HTMLParser):
    """What a browser would see: elements with their attributes, blocks with their text, and the policy."""

    def __init__(self, page):
        super().__init__()
        self.stack, self.blocks, self.tags, self.attributes, self.style, self.bare = [], [], set(), set(), "", []
        self.links, self.ids, self.heading = [], [], ""
        self.feed(page)
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.add(tag)
        self.attributes |= set(attrs)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if "href" in attrs:
            self.links.append(attrs["href"])
        if attrs.get("http-equiv"):
            self.policy = attrs["content"]
        if tag != "meta":
            self.stack.append((tag, attrs))

    def handle_endtag(self, tag):
        assert self.stack.pop()[0] == tag

    def handle_comment(self, data):
        raise AssertionError(data)

    def handle_data(self, data):
        tag = self.stack[-1][0] if self.stack else ""
        if tag == "style":
            self.style += data
        if tag == "bdi":
            self.heading += data
        if tag == "p" and self.stack[-1][1].get("dir"):
            around = [attrs["title"].split(":")[0] for tag, attrs in self.stack if tag == "div"]
            self.blocks.append((around, data))


def page_of(text, *chunks, name="a.txt"):
    """A page, and the chunks that were made of (level, span, ...) each."""
    document = Document(name, text)
    made = [make_chunk(document, spans, level, len) for level, *spans in chunks]
    return Reader("".join(html_page([(document, made)]))), made


def test_a_block_a_chunk():
    page, (one, two) = page_of("One here.\n\nTwo there.", (1, (0, 9)), (1, (11, 21)))
    assert page.blocks == [([one.id], "One here."), ([two.id], "Two there.")]


def test_a_chunk_inside_another_is_a_block_inside_its_block():
    text = "# A\nintro\n## B\nbody\n# C\nend"
    page, (a, b, c) = page_of(text, (1, (0, 19)), (2, (10, 19)), (1, (20, 27)))
    assert page.blocks == [([a.id], "# A\nintro"), ([a.id, b.id], "## B\nbody"), ([c.id], "# C\nend")]


def test_what_two_chunks_share_stands_in_both():
    page, (a, b) = page_of("One. Two. Three.", (1, (0, 9)), (1, (5, 16)))
    assert page.blocks == [([a.id], "One."), ([a.id, b.id], "Two."), ([b.id], "Three.")]
    assert page.ids == ["d0c0s0", "d0c1s0"]  # the second block of b goes on and has no anchor of its own


def test_all_spans_of_a_chunk_have_its_colour_and_are_linked_in_a_ring():
    document = Document("a.txt", "One. Two. Three. Four.")
    chunks = [make_chunk(document, spans, 1, len) for spans in ([(0, 4), (10, 16)], [(5, 9), (17, 22)])]
    page = "".join(html_page([(document, chunks)]))
    for chunk in chunks:
        colours = re.findall(rf'class="chunk (h\d+)[^>]*title="{chunk.id}', page)
        assert len(colours) == 2 and len(set(colours)) == 1
    assert Reader(page).links == ["#d0c0s0", "#d0c1s0", "#d0c0s1", "#d0c1s1", "#d0c0s0", "#d0c1s0"]


def test_neighbours_differ_in_colour():
    text = "x " * 100
    document = Document("a.txt", text)
    chunks = [make_chunk(document, [(2 * i, 2 * i + 1)], 1, len) for i in range(100)]
    page = "".join(html_page([(document, chunks)]))
    hues = {name: int(hue) for name, hue in re.findall(r"\.(h\d+) \{ --hue: (\d+); \}", page)}
    drawn = [hues[name] for name in re.findall(r'class="chunk (h\d+)', page)]
    assert len(drawn) == 100
    assert all(60 <= abs(a - b) <= 300 for a, b in zip(drawn, drawn[1:], strict=False))


def test_levels_without_a_block_around_them_are_indented():
    document = Document("a.md", "One. Two. Three.")
    flat = [make_chunk(document, [span], level, len) for level, span in ((1, (0, 4)), (3, (5, 9)), (2, (10, 16)))]
    page = "".join(html_page([(document, flat)]))
    assert re.findall(r'<div class="chunk h\d+ ?(d?\d*)"', page) == ["", "d2", "d1"]
    nested = [make_chunk(document, [span], level, len) for level, span in ((0, (0, 16)), (1, (0, 9)), (2, (5, 9)))]
    page = "".join(html_page([(document, nested)]))
    assert re.findall(r'<div class="chunk h\d+ ?(d?\d*)"', page) == ["", "", "d1"]


def test_text_in_no_chunk_is_shown_and_blank_space_is_not():
    page, (chunk,) = page_of("Noise.  \n Chunk. \n\n Rest.", (1, (10, 16)))
    assert page.blocks == [([], "Noise."), ([chunk.id], "Chunk."), ([], "Rest.")]


def test_the_legend_says_id_level_tokens_and_places():
    document = Document("a.txt", "One. Two. Three.")
    chunk = make_chunk(document, [(0, 4), (10, 16)], 2, lambda text: 7)
    page = "".join(html_page([(document, [chunk])]))
    (row,) = re.findall(r"<tr><td>.*?</tr>", page)
    assert re.findall(r">([^<>]+)<", row) == [chunk.id, "2", "7", "0-4, 10-16"]
    assert f'title="{chunk.id}: level 2, 7 tokens"' in page
    assert "<summary>1 chunk of 7 tokens</summary>" in page and "<details open>" in page


@pytest.mark.parametrize("payload", PAYLOADS)
def test_markup_in_texts_and_file_names_is_shown_and_not_obeyed(payload):
    text = f"Before {payload} after"
    page, (chunk,) = page_of(text, (1, (0, len(text))), name=payload)
    assert page.tags == ALLOWED and page.attributes <= ATTRIBUTES
    assert page.blocks == [([chunk.id], as_shown(text))]
    assert page.heading == as_shown(payload)


def test_a_payload_that_is_cut_at_every_character_stays_text():
    text = "".join(PAYLOADS)
    page, _ = page_of(text, *((1, (i, i + 1)) for i in range(len(text))))
    assert page.tags == ALLOWED and page.attributes <= ATTRIBUTES
    assert "".join(data for _, data in page.blocks).replace(" ", "") == as_shown(text).replace(" ", "")


def test_the_policy_allows_the_style_of_the_page_and_nothing_else():
    page, _ = page_of("One.", (1, (0, 4)))
    allowed = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert page.policy == f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    assert not {"src", "style", "onclick"} & page.attributes and "script" not in page.tags


def test_what_utf8_cannot_hold_is_replaced():
    "".join(html_page([(Document("\udcff.txt", "x\ud800"), [])])).encode("utf-8")


def test_deep_nests_show_the_innermost_and_count_the_rest():
    text = "x" * 20
    page, chunks = page_of(text, *((1, (i, 20)) for i in range(20)))
    around, _ = page.blocks[-1]
    assert around == [chunk.id for chunk in chunks[-8:]]


def test_several_documents_have_anchors_of_their_own():
    documents = [Document(name, "One. Two.") for name in ("a", "b")]
    pairs = [(document, [make_chunk(document, [(0, 4)], 1, len)]) for document in documents]
    page = Reader("".join(html_page(pairs)))
    assert page.ids == ["d0c0s0", "d1c0s0"] and set(page.links) == {"#d0c0s0", "#d1c0s0"}


spans = st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda pair: (pair[0], min(pair[0] + pair[1], 31)))
levelled = st.tuples(st.integers(0, 3), spans)


@given(st.text(alphabet="ab <&.\n", min_size=31, max_size=31), st.lists(levelled, max_size=8))
def test_every_character_is_shown_once_inside_the_chunks_that_have_it(text, drawn):
    page, chunks = page_of(text, *drawn)
    pieces = list(segments(chunks))
    for (start, end), around in pieces:
        slow = {(i, 0) for i, (_, (a, b)) in enumerate(drawn) if a <= start and end <= b}
        assert set(around) == slow
        assert [chunks[i].level for i, _ in around] == sorted(chunks[i].level for i, _ in around)
    assert all(a[0][1] == b[0][0] for a, b in zip(pieces, pieces[1:], strict=False))
    shown = "".join(data for _, data in page.blocks)
    assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", text)
    assert len(set(page.ids)) == len(page.ids) and {link[1:] for link in page.links} <= set(page.ids)


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
