"""One file: its own policy, every link inside it, and a limit that it says."""

import base64
import hashlib
from dataclasses import replace

import pytest
from support.pages import PAYLOADS, as_shown, hostile_answer, hostile_found, read

from qrag_jax.page import trace, trace_page
from qrag_jax.types import Cost, Document, Hit, Hits, Place, Sentence


def hit_at(document, start, end, rank=1):
    place = Place(document.id, start, end, 1)
    return Hit(rank, place, ((start, end),), document.text[start:end], 1.0, Sentence(document.text[start:end], place))


def found_in(document, *spans):
    found, _ = hostile_found("x")
    return replace(found, hits=Hits(hit_at(document, *span, rank) for rank, span in enumerate(spans, start=1)))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_markup_is_shown_and_not_obeyed(payload):
    found, document = hostile_found(payload)
    results = [found, hostile_found(payload, of_run=True)[0], hostile_answer(payload)[0]]
    page = read(trace_page(results, lambda name: document, payload))
    assert page.text.count(as_shown(payload)) > 20 and "style" not in page.attributes
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert page.policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_links_lead_to_the_marked_sentence_of_the_document_in_the_file():
    document = Document("a.txt", "One is here. Two is there.\nThree.")
    page = read(trace_page([found_in(document, (0, 12), (13, 26)), found_in(document, (0, 12))], lambda name: document))
    assert page.links.count("#doc-1-at-0") == 2 and page.links.count("#doc-1-at-13") == 1
    assert page.marks[-2:] == ["One is here.", "Two is there."]
    assert {"q1", "q2", "q1-passage-2", "q2-passage-1", "doc-1-line=2"} <= set(page.ids)


def test_a_large_document_is_shown_around_its_passages(monkeypatch):
    monkeypatch.setattr(trace, "_MAX_DOCUMENTS", 60_000)
    document = Document("a.txt", "\n".join(f"line {number}" for number in range(50_000)))
    start = document.text.index("line 25000")
    page = read(trace_page([found_in(document, (start, start + 10))], lambda name: document))
    assert page.marks[-1] == "line 25000" and "doc-1-line=25001" in page.ids
    assert len(page.text) < 60_000 and page.text.count("characters are not shown here") == 2


def test_what_does_not_fit_is_left_out_and_said(monkeypatch):
    monkeypatch.setattr(trace, "_MAX_DOCUMENTS", 5_000)
    documents = {name: Document(name, "word. " * 600) for name in ("a", "b", "c")}
    results = [found_in(documents[name], (0, 5)) for name in documents]
    page = read(trace_page(results, documents.__getitem__))
    assert "doc-1-at-0" in page.ids and "too large: 1 document." in page.text
    assert sum(link.startswith("#doc") for link in page.links) == 2
    monkeypatch.setattr(trace, "_MAX_QUESTIONS", 600)
    page = read(trace_page(results, documents.__getitem__))
    assert "q1" in page.ids and "q3" not in page.ids and "too large: 2 questions." in page.text


def test_a_question_without_an_answer_or_passages():
    answer, document = hostile_answer("x")
    nothing = replace(answer, given=(), given_notes=(), generation=None, model=None, cost=Cost())
    assert "None of 9 passages" in read(trace_page([nothing], lambda name: document)).text
