"""The pages of the server. None has a script, an inline style or an address of another site.

The server gives `style()` at `/style.css` and answers these addresses:

    /                question=, index= (empty: all), mode= (search or ask); without a question the form alone
    /document        index=, id=, at=START-END (the sentence), spans=START-END,... (the passage)
    /login           POST with token= and next= (the address to return to)
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from qrag_jax.documents.converted import counted
from qrag_jax.documents.read import CONVERTED, left_out
from qrag_jax.index.options import Found
from qrag_jax.markup import Html, element, join
from qrag_jax.page.answers import answer_section, message_section, passages_section
from qrag_jax.page.documents import document_lines, make_marks, parts_around
from qrag_jax.page.frame import ANCHOR, LOGIN_PATH, Form, begin, brand, end, question_form
from qrag_jax.page.passages import document_address, server_view
from qrag_jax.page.steps import found_section
from qrag_jax.search.answer import Answer
from qrag_jax.types import Document, Span

_LINES_SENT = 500  # lines of a document in one part of its page
_AROUND = 150_000  # characters of a document before and after a passage on one page


def start_page(form: Form, message: str = "") -> str:
    """The form alone, or with a message: what is wrong with a question, or that the server is busy."""
    told = element("p", message, class_="message", role="alert") if message else ""
    return join([_begin(form), told, end()])


def search_page(form: Form, found: Mapping[str, Found]) -> Iterator[str]:
    """Renders the results of each index, as `Library.find` gives them, in parts to send one after another."""
    yield _begin(form)
    for number, (name, one) in enumerate(found.items(), start=1):
        view = server_view(name, name, f"index-{number}-") if len(found) > 1 else server_view(name)
        yield found_section(one, view)
    yield end()


def ask_start(form: Form) -> str:
    """The first part of the page of an answer, to send before the search; then `ask_passages`, then `ask_end`.

    The answer is sent after the passages, and the style shows it above them.
    """
    waiting = element("p", "Reading the passages...", class_="message waiting", role="status")
    return join([_begin(form), Html('<div class="asked">'), waiting])


def ask_passages(answer: Answer, index: str | None = None) -> str:
    """The passages that were found, as `Index.ask` gives them to its `found`."""
    return passages_section(answer, server_view(index))


def ask_end(answer: Answer | None, message: str = "") -> str:
    """The answer, and the end of the page.

    Args:
        answer: None if there is none.
        message: why there is none.
    """
    view = server_view(None)
    told = message_section(message, view) if answer is None else answer_section(answer, view)
    return join([told, Html("</div>"), end()])


def document_page(
    document: Document, spans: Sequence[Span] = (), sentence: Span | None = None, *, index: str | None = None
) -> Iterator[str]:
    """A document with a passage and its sentence marked, in parts to send one after another.

    A long document is shown around the passage, with links to what stands before and after.

    Args:
        document: from an index.
        spans: of the passage; half-open characters.
        sentence: of the passage; `#hit` leads to it, or without one to the passage.
        index: name of the index that the document is from.
    """
    at = sentence or (spans[0] if spans else (0, 0))
    size = len(document.text)
    title = element("h1", element("bdi", document.id, class_="name"))
    yield begin(f"{document.id} - qrag", brand(), title, element("p", _about(document), class_="about"))
    if any(end > size for _, end in (*spans, at)):
        told = "This document has changed since the link was made, so the passage may be elsewhere."
        yield element("p", told, class_="message", role="alert")
    parts = parts_around(document.text, [(min(at[0], size), min(at[1], size))], _AROUND)
    start, stop = parts[0] if parts else (0, 0)
    if start:
        yield _part_link("Earlier part", document, max(0, start - _AROUND), index)
    lines = document_lines(document, parts, make_marks(spans, [at], {at[0]: ANCHOR}))
    while some := join(islice(lines, _LINES_SENT)):
        yield some
    if stop < size:
        yield _part_link("Later part", document, min(size, stop + _AROUND), index)
    yield end()


def login_page(reason: str = "", next_: str = "/") -> str:
    """A form that asks for the token of the server; it posts `token` and `next` to `/login`.

    Args:
        reason: why the last token was refused; empty at first.
        next_: the address to return to.
    """
    told = [element("p", reason, class_="message", role="alert")] if reason else []
    token = element(
        "input",
        type="password",
        id="token",
        name="token",
        autocomplete="current-password",
        required=True,
        autofocus=True,
    )
    form = element(
        "form",
        element("label", "Token of this server", for_="token"),
        element("div", token, element("button", "Open"), class_="ask"),
        element("input", type="hidden", name="next", value=next_),
        method="post",
        action=LOGIN_PATH,
    )
    return join([begin("Token - qrag", element("h1", "qrag")), *told, form, end()])


def _begin(form: Form) -> Html:
    title = f"{form.question} - qrag" if form.question else "qrag"
    told = [element("p", one, class_="message", role="status") for one in form.warnings]
    return join([begin(title, element("h1", brand()), question_form(form)), *told])


def _about(document: Document) -> str:
    parts = [f"{len(document.text):,} characters"]
    pages, kind, missing = (document.metadata.get("pages"), document.metadata.get(CONVERTED), left_out(document))
    parts += [f"{len(pages):,} pages"] if isinstance(pages, list | tuple) and pages else []
    parts += [f"text of a {kind} file"] if kind else []
    parts += [f"left out: {counted(missing)}"] if missing else []
    return "; ".join(parts)


def _part_link(text: str, document: Document, at: int, index: str | None) -> Html:
    return element("p", element("a", text, href=document_address(index, document.id, (at, at))), class_="more")
