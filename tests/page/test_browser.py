"""Pages in a real browser: payloads do nothing, the keyboard is enough, and axe finds no serious fault."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
from support.pages import PAYLOADS, hostile_answer, hostile_found, server_pages, with_style

from qrag_jax.page import trace_page
from qrag_jax.types import Document

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIZES, COLOURS = (1280, 390), ("light", "dark")
_AXE = importlib.util.find_spec("axe_playwright_python")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs the program chromium (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (the extra dev)")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, tmp_path):
    """(HTML, **options of a context) -> (the page, what it did that no page of ours does)."""
    contexts = []

    def open_page(html, name="page", **options):
        path = tmp_path / f"{name}.html"
        path.write_text(html, encoding="utf-8")
        context = browser.new_context(**options)
        contexts.append(context)
        page, did = context.new_page(), []
        page.on("dialog", lambda dialog: (did.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("console", lambda message: did.append(f"console {message.text}"))
        page.on("pageerror", lambda error: did.append(f"error {error}"))
        page.on("request", lambda request: did.append(f"request {request.url}") if request.url != path.as_uri() else 0)
        page.goto(path.as_uri())
        return page, did

    yield open_page
    for context in contexts:
        context.close()


def trace_of(*payloads):
    """The trace of a search, a run and an answer for each payload."""
    made = [one for x in payloads for one in (hostile_found(x), hostile_found(x, of_run=True), hostile_answer(x))]
    documents = {document.id: document for _, document in made}
    return trace_page([result for result, _ in made], documents.__getitem__, "qrag find")


def example():
    """A trace as a user sees one."""
    found, document = hostile_found("Mary has the key to the garden, and never lends it. Ask her aunt")
    run, _ = hostile_found("Mary has the key to the garden, and never lends it. Ask her aunt", of_run=True)
    long = Document(document.id, document.text + "\n".join(f"Line {number} is about rain." for number in range(300)))
    return trace_page([found, run], lambda name: long, "qrag find")


def test_payloads_do_nothing(visit):
    """They make no element, run nothing and load nothing; each one alone in a trace, all of them in the others."""
    names = "[...new Set([...document.querySelectorAll('*')].map(x => x.localName))]"
    attributes = "[...new Set([...document.querySelectorAll('*')].flatMap(x => [...x.attributes].map(y => y.name)))]"
    known = {"trace": trace_of("harmless")} | server_pages("harmless")
    for name, html in ({"trace": trace_of(*PAYLOADS)} | server_pages(" ".join(PAYLOADS))).items():
        expected, _ = visit(with_style(known[name]), name)
        page, did = visit(with_style(html), name)
        assert did == [], name
        for wanted in (names, attributes):
            assert set(page.evaluate(wanted)) <= set(expected.evaluate(wanted)), name
        assert "<script>alert(1)</script>" in page.content().replace("&lt;", "<").replace("&gt;", ">")


def test_a_document_cannot_change_the_direction_of_what_is_around_it(visit):
    page, _ = visit(trace_of("\u202e<tpircs>"))
    assert "\u202e" not in page.content()


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("colours", COLOURS)
def test_a_screen_fits_and_has_its_colours(visit, width, colours):
    """`QRAG_JAX_SCREENSHOTS=FOLDER` keeps pictures of the pages."""
    size = {"width": width, "height": 900}
    pages = {"trace": example(), "narrow words": trace_of("x" * 300)}
    pages |= {name: with_style(html) for name, html in server_pages("Who has the key to the garden?").items()}
    for name, html in pages.items():
        page, did = visit(html, name, viewport=size, color_scheme=colours)
        assert did == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        red = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]")
        assert (int(red) < 60) == (colours == "dark")
        if folder := os.environ.get("QRAG_JAX_SCREENSHOTS"):
            page.screenshot(path=str(Path(folder, f"{name}-{width}-{colours}.png")))


def test_the_keyboard_leads_from_the_question_to_the_document(visit):
    page, _ = visit(example(), viewport={"width": 1280, "height": 900})
    focused = "document.activeElement.innerText"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "2 questions"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**#q1")  # a jump may end after the key press
    page.keyboard.press("Tab")
    assert ", line 2" in page.evaluate(focused)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**#doc-1-at-*")
    place = page.evaluate("document.querySelector(':target').getBoundingClientRect().top")
    assert 0 <= place < 900 and page.evaluate("document.querySelector(':target').localName") == "mark"


def test_the_answer_stands_above_the_passages_that_were_sent_before_it(visit):
    page, _ = visit(with_style(server_pages("key")["ask"]))
    top = "document.querySelector('{}').getBoundingClientRect().top"
    assert page.evaluate(top.format(".answer")) < page.evaluate(top.format(".passages"))
    assert not page.is_visible(".waiting")
    begun = server_pages("key")["ask"].split('<section class="answer">')[0]
    assert visit(with_style(begun))[0].is_visible(".waiting")


def test_steps_and_passages_are_there_without_the_style(visit):
    page, _ = visit(server_pages("key")["search"].replace('<link rel="stylesheet" href="/style.css">', ""))
    assert "STOP" in page.inner_text("main")


@pytest.mark.skipif(_AXE is None, reason="needs axe-playwright-python, which contains axe.min.js")
@pytest.mark.parametrize("colours", [COLOURS[0], pytest.param(COLOURS[1], marks=pytest.mark.full)])
def test_axe_finds_nothing_serious(visit, colours):
    assert _AXE is not None and _AXE.origin is not None
    axe = Path(_AXE.origin).with_name("axe.min.js").read_text(encoding="utf-8")
    pages = {"trace": example()}
    pages |= {name: with_style(html) for name, html in server_pages("Who has the key to the garden?").items()}
    for width in SIZES:
        for name, html in pages.items():
            size = {"width": width, "height": 900}
            page, _ = visit(html, name, viewport=size, color_scheme=colours, bypass_csp=True)
            page.evaluate(axe)
            found = page.evaluate("axe.run()")
            assert len(found["passes"]) > 10
            faults = [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]]
            assert faults == [], (name, width)
