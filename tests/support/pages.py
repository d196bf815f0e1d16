"""Markup that must stay text, results that contain it everywhere, and a reader of pages."""

import re
from html.parser import HTMLParser

from qrag_jax.index.options import Found
from qrag_jax.page import Form, ask_end, ask_passages, ask_start, document_page, login_page, search_page, start_page
from qrag_jax.page import style as page_style
from qrag_jax.search.answer import Answer
from qrag_jax.search.citations import Citation, Cited
from qrag_jax.search.context.pack import Context
from qrag_jax.types import Cost, Document, Generation, Hit, Hits, NoteHit, Place, RunnerUp, Sentence

PAYLOADS = [
    "<script>alert(1)</script>", "</p></div><script>alert(1)</script>", "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>", "<svg><script>alert&#40;1)</script>", "<iframe src=javascript:alert(1)>",
    "<a href=javascript:alert(1)>x</a>", "\" onmouseover=\"alert(1)", "' onmouseover='alert(1)", "\"><b>bold</b>",
    "'><b>bold</b>", "<!-- --><script>alert(1)</script>", "--><script>alert(1)</script>",
    "]]><script>alert(1)</script>", "</title><script>alert(1)</script>",
    "</style><script>alert(1)</script>", "<style>*{display:none}</style>",
    "<base href=//evil.example/>", "<meta http-equiv=refresh content=0;url=//evil.example>", "&lt;script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;", "<form action=//evil.example><input name=q></form>",
    "<object data=//evil.example>", "<embed src=//evil.example>", "<link rel=stylesheet href=//evil.example>",
    "<details open ontoggle=alert(1)>", "<video><source onerror=alert(1)>", "<math href=javascript:alert(1)>x</math>",
    "<plaintext>", "<textarea><script>alert(1)</script>", "\u202e<tpircs>", "<scr\u0131pt>alert(1)</scr\u0131pt>",
    "\x1b[31m<b>", "\ud800<script>", "{{constructor.constructor('alert(1)')()}}", "<%= 1 %>", "<?php ?>",
]  # fmt: skip

# What pages are made of; anything else came from a document.
ELEMENTS = {
    *("html", "head", "meta", "title", "link", "style", "body", "header", "main", "nav", "section", "article"),
    *("h1", "h2", "h3", "h4", "p", "a", "bdi", "span", "strong", "mark", "ul", "ol", "li", "details", "summary", "div"),
    *("form", "fieldset", "legend", "label", "input", "select", "option", "button"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "svg", "rect"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "name", "content", "rel", "href", "class", "id", "tabindex", "dir", "role"),
    *("aria-label", "aria-hidden", "start", "scope", "method", "action", "type", "value", "for", "required"),
    *(
        "autocomplete",
        "autofocus",
        "checked",
        "selected",
        "viewbox",
        "preserveaspectratio",
        "x",
        "y",
        "width",
        "height",
    ),
}
_WITHOUT_END = {"meta", "link", "input"}


def as_shown(text):
    return re.sub(r"[\x1b\ud800\u202e]", "\ufffd", text)


class Read(HTMLParser):
    """What a browser would see.

    Attributes:
        elements, attributes: names of those on the page.
        ids, links: in their order.
        text: all text, without the style.
        marks: text of every mark.
        policy: of the page itself, if it has one.
    """

    def __init__(self, page):
        super().__init__()
        self.elements, self.attributes, self.ids, self.links, self.values = set(), set(), [], [], []
        self.text, self.marks, self.policy, self.style, self._open = "", [], "", "", []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.elements.add(tag)
        self.attributes |= set(attrs)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.links += [attrs["href"]] if "href" in attrs else []
        self.values += [attrs["value"]] if "value" in attrs else []
        self.policy = attrs["content"] if "http-equiv" in attrs else self.policy
        self.marks += [""] if tag == "mark" else []
        self._open += [] if tag in _WITHOUT_END else [tag]

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_comment(self, data):
        raise AssertionError(data)

    def handle_data(self, data):
        if self._open and self._open[-1] == "style":
            self.style += data
            return
        self.text += data
        if "mark" in self._open:
            self.marks[-1] += data

    @property
    def broken(self):
        """Links inside the page that lead nowhere."""
        return {link for link in self.links if link.startswith("#") and link[1:] not in self.ids}


def read(page):
    """Checks that a page contains its own elements only, and reads it."""
    found = Read(page)
    assert found.elements <= ELEMENTS and found.attributes <= ATTRIBUTES
    assert len(set(found.ids)) == len(found.ids)
    assert not found.broken
    return found


def hostile_document(payload):
    return Document(f"{payload}.txt", f"Before.\n{payload} is here. After {payload}\nEnd.")


def hostile_hit(payload, document, *, of_run=False):
    text = document.text
    start, end = text.index(payload), text.index(" After")
    place = Place(document.id, start, end, 2)
    note = NoteHit(payload, payload, place, place, payload, payload, payload)
    sentence = Sentence(text[start:end], place)
    more = {"runners_up": (RunnerUp(place, payload, -1.0),), "stop_score": 0.5, "position": 1.0} if of_run else {}
    return Hit(
        *(1, place, ((start, len(text)),), text[start:], 1.5, sentence, (note,)),
        copies=(place, Place(payload, 0, 1, 1, 3, None, payload)),
        left_out={payload: 2},
        context=payload,
        **more,
    )


def hostile_found(payload, *, of_run=False):
    """A search whose every text is a payload, and its document."""
    document = hostile_document(payload)
    hit = hostile_hit(payload, document, of_run=of_run)
    stop = {"stop_reason": "threshold", "prevented": hit} if of_run else {}
    return Found(payload, Hits([hit]), payload, "none", 9, 2, Cost(), **stop), document


def hostile_answer(payload):
    """An answer of a language model that cites a passage and a made-up one, all of payloads."""
    document = hostile_document(payload)
    hit = hostile_hit(payload, document)
    given = Citation(1, document.id, hit.spans, hit.text, hit.sentence, None, hit.copies, hit.left_out, payload)
    note = Citation(2, document.id, hit.spans, hit.text, hit.sentence, payload)
    cited = Cited((given,), (7,))
    generation = Generation(f"{payload} [1] and [7].", "length")
    context = Context((), 0, 10, 0)
    return Answer(
        payload, context, (given,), (note,), 9, Cost(), cited=cited, generation=generation, model=payload
    ), document


def server_pages(payload):
    """Every page of the server, of payloads."""
    form = Form((payload, "b"), payload, payload)
    found, document = hostile_found(payload)
    run, _ = hostile_found(payload, of_run=True)
    answer, _ = hostile_answer(payload)
    place = found.hits[0].place
    return {
        "start": start_page(form, payload),
        "search": "".join(search_page(form, {payload: found, "b": run})),
        "ask": ask_start(form) + ask_passages(answer, payload) + ask_end(answer),
        "failed": ask_start(form) + ask_passages(answer, payload) + ask_end(None, payload),
        "document": "".join(document_page(document, found.hits[0].spans, (place.start, place.end), index=payload)),
        "login": login_page(payload, payload),
    }


def with_style(page):
    """A page of the server as one file."""
    return page.replace('<link rel="stylesheet" href="/style.css">', f"<style>{page_style()}</style>")
