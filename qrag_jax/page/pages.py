"""The pages of the server. None has a script, an inline style or an address of another site.

Their content security policy may be `default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none';
frame-ancestors 'none'`. The server serves `style()` at `/style.css` and answers these paths:

    /                question=, index= (empty: all), mode= (search or ask); without a question the form alone
    /document        index=, id=, at=START-END (the sentence), spans=START-END,... (the passage)
    /login           POST with token= and next= (the address to return to)
"""

from collections.abc import Iterator, Mapping, Sequence

from qrag_jax.index.options import Found
from qrag_jax.markup import Html, element, join
from qrag_jax.page.answers import answer_section, passages_section
from qrag_jax.page.documents import document_lines, make_marks, parts_around
from qrag_jax.page.frame import ANCHOR, LOGIN_PATH, Form, begin, end, question_form
from qrag_jax.page.passages import hits_section, server_link
from qrag_jax.search.answer import Answer
from qrag_jax.types import Document, Span

_AROUND = 200_000  # characters shown before and after a passage


def start_page(form: Form, message: str = "") -> str:
    """The form alone, or with a message: what is wrong with a question, or that the server is busy."""
    told = element("p", message, class_="message", role="alert") if message else ""
    return join([begin("qrag", question_form(form)), told, end()])


def search_page(form: Form, found: Mapping[str, Found]) -> Iterator[str]:
    """The passages that each index found, as `Library.find` gives them, in parts to send one after another."""
    yield begin(f"{form.question} - qrag", question_form(form))
    for number, (name, one) in enumerate(found.items(), start=1):
        several = len(found) > 1
        link = server_link(name)
        prefix = f"index-{number}-" if several else ""
        yield hits_section(one, link, name=name if several else "", prefix=prefix)
    yield end()


def ask_start(form: Form) -> str:
    """The first part of the page of an answer, sent before the search; then `ask_passages`, then `ask_end`.

    The answer is sent after the passages, and the style shows it above them.
    """
    waiting = element("p", "Reading the passages...", class_="message waiting", role="status")
    return join([begin(f"{form.question} - qrag", question_form(form)), Html('<div class="asked">\n'), waiting])


def ask_passages(answer: Answer, index: str | None = None) -> str:
    """The passages that were found, as `Index.ask` gives them to its `found`."""
    return passages_section(answer, server_link(index))


def ask_end(answer: Answer | None, message: str = "") -> str:
    """The answer, and the end of the page.

    Args:
        answer: None if there is none.
        message: why there is none.
    """
    told = element("section", element("p", message, class_="message", role="alert"), class_="answer")
    return join([told if answer is None else answer_section(answer), Html("</div>\n"), end()])


def document_page(
    document: Document, spans: Sequence[Span] = (), sentence: Span | None = None, *, index: str | None = None
) -> Iterator[str]:
    """A document with a passage and its sentence marked, in parts to send one after another.

    Args:
        document: from an index.
        spans: of the passage; half-open characters.
        sentence: of the passage; `#hit` leads to it, or without one to the passage.
        index: name of the index that the document is from.
    """
    text = document.text
    at = sentence or (spans[0] if spans else (0, 0))
    yield begin(f"{document.id} - qrag", element("h1", element("bdi", document.id, class_="name")))
    marks = make_marks(spans, [at], {at[0]: ANCHOR})
    yield from document_lines(document, parts_around(text, [at], _AROUND), marks)
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
