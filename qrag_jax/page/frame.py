"""The frame of every page: head, form, landmarks, and the style."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from qrag_jax.markup import Html, element, join, start_tag
from qrag_jax.types import InputError, Place, Span

Mode = Literal["search", "ask"]
STYLE_PATH = "/style.css"  # where the server serves `style`
DOCUMENT_PATH, LOGIN_PATH = "/document", "/login"
ANCHOR = "hit"  # of the passage on the page of a document


@dataclass(frozen=True)
class Form:
    """The question form above a page of the server.

    Attributes:
        indexes: names of the indexes that are served.
        question: as asked; empty before.
        index: the one to search; None is all.
        mode: search for passages, or ask for an answer.
    """

    indexes: Sequence[str] = ()
    question: str = ""
    index: str | None = None
    mode: Mode = "search"


@cache
def style() -> str:
    """The stylesheet of all pages."""
    return files("qrag_jax.page").joinpath("style.css").read_text(encoding="utf-8")


def begin(title: str, header: str, *, own_style: bool = False) -> Html:
    """The beginning of a page, up to the first content of `<main>`.

    Args:
        title: of the page.
        header: content of `<header>`.
        own_style: contain the style, with a policy that allows nothing else; else link to `STYLE_PATH`.
    """
    policy, link = (), element("link", rel="stylesheet", href=STYLE_PATH)
    if own_style:
        digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
        allowed = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        policy = (element("meta", http_equiv="Content-Security-Policy", content=allowed), "\n")
        link = element("style", Html(style()))
    head = element(
        "head",
        *("\n", element("meta", charset="utf-8"), "\n", *policy),
        *(element("meta", name="viewport", content="width=device-width, initial-scale=1"), "\n"),
        *(element("meta", name="referrer", content="no-referrer"), "\n"),
        *(element("title", title), "\n", link, "\n"),
    )
    skip = element("a", "Skip to the content", class_="skip", href="#main")
    return join(
        [
            *(Html("<!DOCTYPE html>\n"), start_tag("html", lang="en"), "\n", head, "\n", start_tag("body"), "\n"),
            *(skip, "\n", element("header", header), "\n", start_tag("main", id="main", tabindex=-1), "\n"),
        ]
    )


def end(footer: str = "") -> Html:
    """The end of a page: the rest of `<main>`, and a footer."""
    foot = element("footer", footer) if footer else ""
    return join([Html("</main>\n"), foot, Html("\n</body>\n</html>\n")])


def question_form(form: Form) -> Html:
    """The form that asks a question with GET, as `/?question=...&index=...&mode=...`."""
    choice = ""
    if len(form.indexes) > 1:
        names = [element("option", "all indexes", value="", selected=form.index is None)]
        names += [element("option", name, value=name, selected=name == form.index) for name in form.indexes]
        choice = element("label", "in ", element("select", *names, name="index"))
    modes = [
        element("label", element("input", type="radio", name="mode", value=mode, checked=mode == form.mode), f" {text}")
        for mode, text in (("search", "passages"), ("ask", "an answer"))
    ]
    field = element(
        "input",
        type="search",
        id="question",
        name="question",
        value=form.question,
        required=True,
        autocomplete="off",
        autofocus=not form.question,
    )
    return element(
        "form",
        *(element("label", "Question", for_="question"), element("div", field, element("button", "Ask"), class_="ask")),
        element("fieldset", element("legend", "Find", class_="unseen"), *modes, choice, class_="choices"),
        method="get",
        action="/",
        role="search",
    )


def place_text(place: Place) -> Html:
    """A place as text: the name of the document, and its page or line."""
    if place.page is not None:
        label = f" ({place.page_label})" if place.page_label else ""
        where = f"page {place.page}{label}"
    else:
        where = f"line {place.line:,}{'' if place.converted is None else ' of the text'}"
    return join([element("bdi", place.document, class_="name"), ", ", where])


def spans_text(spans: Sequence[Span]) -> str:
    """Spans as a query writes them: `0-12,20-31`."""
    return ",".join(f"{start}-{stop}" for start, stop in spans)


def read_spans(text: str) -> tuple[Span, ...]:
    """Reads what `spans_text` writes; an empty text gives none.

    Raises:
        InputError: it is something else.
    """
    if not re.fullmatch(r"(\d{1,18}-\d{1,18}(,\d{1,18}-\d{1,18}){0,999})?", text, re.ASCII):
        raise InputError("give characters as START-END, or several with commas between", field="spans", value=text)
    return tuple((int(start), int(stop)) for start, stop in re.findall(r"(\d+)-(\d+)", text))
