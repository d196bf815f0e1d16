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
from qrag_jax.types import InputError, Span

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
        warnings: to show below the form.
    """

    indexes: Sequence[str] = ()
    question: str = ""
    index: str | None = None
    mode: Mode = "search"
    warnings: Sequence[str] = ()


@cache
def style() -> str:
    """The stylesheet of all pages."""
    return files("qrag_jax.page").joinpath("style.css").read_text(encoding="utf-8")


def begin(title: str, *header: str, own_style: bool = False) -> Html:
    """The beginning of a page, up to the first content of `<main>`.

    Args:
        title: of the page.
        header: what stands in `<header>`.
        own_style: contain the style, with a policy that allows nothing else; else link to `STYLE_PATH`.
    """
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="same-origin"),
        element("title", title),
    ]
    if own_style:
        digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
        allowed = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        head.insert(1, element("meta", http_equiv="Content-Security-Policy", content=allowed))
        head.append(element("style", Html(style())))
    else:
        head.append(element("link", rel="stylesheet", href=STYLE_PATH))
    skip = element("a", "Skip to the content", class_="skip", href="#main")
    lines = [Html("<!DOCTYPE html>"), start_tag("html", lang="en"), element("head", join(head, "\n"))]
    lines += [start_tag("body"), skip, element("header", *header), start_tag("main", id="main", tabindex=-1), ""]
    return join(lines, "\n")


def end() -> Html:
    """The end of a page: the rest of `<main>`."""
    return Html("\n</main>\n</body>\n</html>\n")


def brand() -> Html:
    """The name of the program, which leads to the empty form."""
    return element("a", "qrag", href="/", class_="brand")


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
    label = element("label", "Question", for_="question")
    asked = element("div", field, element("button", "Ask"), class_="ask")
    choices = element("fieldset", element("legend", "Find", class_="unseen"), *modes, choice, class_="choices")
    return element("form", label, asked, choices, method="get", action="/", role="search")


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
