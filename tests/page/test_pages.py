"""Pages of the server: what documents and models write stays text, links lead somewhere, marks are at their place."""

import re
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import hypothesis.strategies as st
import pytest
from hypothesis import given
from support.pages import PAYLOADS, as_shown, hostile_answer, hostile_found, read, server_pages

from qrag_jax.page import (
    Form,
    ask_end,
    ask_passages,
    ask_start,
    document_page,
    read_spans,
    search_page,
    start_page,
    style,
)
from qrag_jax.page.documents import document_lines, make_marks, parts_around
from qrag_jax.types import Document, InputError


def pages_of(*args, **more):
    return read("".join(document_page(*args, **more)))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_markup_is_shown_and_not_obeyed(payload):
    for name, page in server_pages(payload).items():
        found = read(page)
        assert as_shown(payload) in found.text + "".join(found.values), name
        assert "style" not in found.attributes and "style" not in found.elements  # the policy of the server allows none


def test_the_sentence_is_marked_and_leads_to_its_place_in_the_document():
    found, document = hostile_found("the <b>key</b>")
    page = read("".join(search_page(Form(question="where?"), {"notes": found})))
    assert page.marks[0] == "the <b>key</b> is here."
    (link, *_) = [link for link in page.links if link.startswith("/document")]
    address = urlsplit(link)
    query = {name: values[0] for name, values in parse_qs(address.query).items()}
    assert (query["index"], query["id"], address.fragment) == ("notes", document.id, "hit")
    (sentence,) = read_spans(query["at"])
    there = pages_of(document, read_spans(query["spans"]), sentence, index="notes")
    assert there.marks == page.marks[:1] and "hit" in there.ids


def test_an_answer_cites_its_passages_and_says_what_does_not_exist():
    answer, _ = hostile_answer("It <i>rained</i>")
    page = read(ask_start(Form()) + ask_passages(answer, "notes") + ask_end(answer))
    assert "It <i>rained</i> [1] and [7: no such passage]." in page.text
    assert page.links.count("#passage-1") == 1 and {"passage-1", "passage-2"} <= set(page.ids)
    assert "was cut" in page.text and "do not exist: 7" in page.text


def test_states_without_passages():
    found, _ = hostile_found("x")
    empty = replace(found, hits=type(found.hits)())
    assert "None of 9 passages shares a word" in read("".join(search_page(Form(), {"notes": empty}))).text
    answer, _ = hostile_answer("x")
    failed = replace(answer, generation=replace(answer.generation, text="", error="server <down>"))
    page = read(ask_start(Form()) + ask_passages(failed) + ask_end(failed))
    assert "gave no answer: server <down>" in page.text
    assert "busy" in read(start_page(Form(), "The server is busy.")).text


def test_steps_show_q_beside_the_runners_up_and_the_stop():
    run, _ = hostile_found("x", of_run=True)
    page = "".join(search_page(Form(), {"notes": run}))
    rows = re.findall(r'<td class="number">(-?[\d.]+)</td>', page)
    assert rows == ["1.500", "0.500", "-1.000"] * 2  # of the step, and of the pick that the stop prevented
    bars = re.findall(r'<rect x="([\d.]+)" width="([\d.]+)"', page)
    assert bars[:3] == [("40.00", "60.00"), ("40.00", "20.00"), ("0.00", "40.00")]  # from -1 to 1.5, zero at 40 %
    assert "Q fell below its threshold" in page and "would be next" in page


def test_the_form_keeps_what_was_asked():
    page = start_page(Form(("a", "b"), 'x"<y', "b", "ask"))
    assert read(page).values[:1] == ['x"<y']
    assert '<option value="b" selected>' in page and 'value="ask" checked' in page
    assert "<select" not in start_page(Form(("a",)))


def test_lines_and_pages_are_numbered():
    document = Document("a.pdf", "one\r\ntwo\rthree\n\nfive", {"pages": (0, 9), "page_labels": ("i", "ii")})
    page = pages_of(document, [(5, 14)], (5, 8))
    assert [name for name in page.ids if "=" in name] == [
        *("page=1", "line=1", "line=2", "page=2", "line=3", "line=4", "line=5"),
    ]
    assert page.marks == ["two"] and "Page 2 (ii)" in page.text


@given(st.data())
def test_every_character_is_shown_once_and_marked_if_it_is_in_a_span(data):
    text = data.draw(st.text("ab<&\n\r ", max_size=40))
    span = st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).filter(lambda one: one[0] < one[1])
    spans = data.draw(st.lists(span, max_size=4)) if text else []
    pages = tuple(sorted({0, *data.draw(st.lists(st.integers(0, max(0, len(text) - 1)), max_size=2))}))
    document = Document("a", text, {"pages": pages} if data.draw(st.booleans()) else {})
    ids = {start: f"at-{start}" for start, _ in spans if text[start] not in "\r\n"}
    lines = "".join(document_lines(document, [(0, len(text))] if text else [], make_marks([], spans, ids)))
    found = read(re.sub(r"</li>\n", "</li>", lines))
    flat = lambda some: re.sub(r"[\r\n]", "", some)  # noqa: E731
    shown = re.sub(r"Page \d(, continued)?", "", found.text.replace("\n", ""))
    assert shown == flat(text)
    assert "".join(found.marks) == flat("".join(x for at, x in enumerate(text) if any(a <= at < b for a, b in spans)))
    assert set(ids.values()) <= set(found.ids)


def test_a_long_document_is_shown_around_its_passage_and_says_what_is_left_out():
    lines = [f"line {number} of the text" for number in range(200_000)]
    document = Document("long.txt", "\n".join(lines))
    start = document.text.index(lines[100_000])
    span = (start, start + len(lines[100_000]))
    page = pages_of(document, [span], span, index="notes")
    assert page.marks == [lines[100_000]] and "line=100001" in page.ids
    assert len(page.text) < 400_000 and len(re.findall(r"[\d,]+ characters are not shown here", page.text)) == 2
    earlier, later = (link for link in page.links if link.startswith("/document"))
    at = read_spans(parse_qs(urlsplit(later).query)["at"][0])[0]
    following = pages_of(document, [], at)
    assert set(following.ids) - set(page.ids) and "Earlier part" in following.text
    assert "id=long.txt" in earlier
    assert "Earlier part" not in pages_of(document).text


def test_one_line_of_a_megabyte_is_shown_in_part():
    document = Document("line.txt", "word " * 200_000)
    page = pages_of(document, [(500_000, 500_004)], (500_000, 500_004))
    assert page.marks == ["word"] and len(page.text) < 310_000


def test_a_link_to_a_document_that_has_changed_says_so():
    page = pages_of(Document("a.txt", "short"), [(3, 90)], (80, 90))
    assert "has changed since the link was made" in page.text and "short" in page.text


def test_parts_end_at_lines():
    text = "one\ntwo\nthree\nfour\n"
    assert parts_around(text, [(4, 7)], 6) == [(0, 8)]
    assert parts_around(text, [(8, 13)], 3) == [(8, 14)]
    assert parts_around("x" * 100, [(50, 51), (53, 54)], 5) == [(45, 59)]


def test_spans_of_an_address():
    assert read_spans("") == () and read_spans("0-12,20-31") == ((0, 12), (20, 31))
    for wrong in ("1", "a-b", "1-2,", "-1-2", "\u0661-\u0662", "1-2" * 9):
        with pytest.raises(InputError, match="START-END"):
            read_spans(wrong)


def test_one_style_for_light_and_dark_with_a_visible_focus():
    assert "prefers-color-scheme: dark" in style() and ":focus-visible" in style()
    assert "color-scheme: light dark" in style() and "url(" not in style() and "@import" not in style()
