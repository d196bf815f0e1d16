"""What a cell of a notebook shows: the text, escaped, without scripts, ids, or colours of its own."""

import json
from dataclasses import replace

import pytest
from support.pages import PAYLOADS, Read, as_shown, hostile_answer, hostile_document, hostile_found
from support.trees import int64

from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.types import Document, Hits, Step, Trajectory


def shown(value):
    page = Read(value._repr_html_())
    assert page.elements <= {"div", "strong", "bdi", "mark", "table", "tr", "th", "td", "svg", "rect", "title"}
    assert page.attributes <= {"style", "viewbox", "width", "height", "x", "y", "fill", "fill-opacity"}
    return page


@pytest.mark.parametrize("payload", PAYLOADS)
def test_markup_is_shown_and_not_obeyed(payload):
    document = hostile_document(payload)
    chunk = make_chunk(document, [(0, 4)], 1, len)
    found, _ = hostile_found(payload, of_run=True)
    picks = Trajectory(payload, (Step(0, 1.0, 0.5, ((2, 0.5),), 0.25),), payload)
    tree = ChunkTree(payload, *map(int64, (0, 9, 0, -1, 0)))
    for value in (document, chunk, found.hits, found.hits[0], picks, hostile_answer(payload)[0], tree):
        assert as_shown(payload) in shown(value).text


def test_hits_are_a_list_that_is_shown():
    found, _ = hostile_found("the key")
    hits = found.hits
    assert hits == list(hits) and isinstance(hits, list)
    assert json.dumps(Hits()) == "[]"
    page = shown(Hits([*hits, replace(hits[0], rank=2)]))
    assert page.marks == ["the key is here."] * 2 and "2. the key.txt:2 (1.5)" in page.text


def test_a_long_document_says_what_it_does_not_show():
    assert "and 3,000 more characters" in shown(Document("a", "x" * 5_000)).text
    assert "more" not in shown(Document("a", "x" * 2_000)).text


def test_picks_are_a_table():
    page = shown(Trajectory("", (Step(3, 1.25, 0.5, ((2, 0.5), (1, -1.0))),), "num_steps"))
    assert "31.2500.52 (0.500), 1 (-1.000)" in page.text and "ended by num_steps" in page.text
