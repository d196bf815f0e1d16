"""The chunks of a row in the catalogue, decoded one by one or together."""

from dataclasses import replace

import numpy as np
import pytest

from qrag_jax.index.stores.sqlite.entries import Entry, Origin, PackedNodes, pack
from qrag_jax.types import Chunk, Document

DOCUMENT = Document("d", "One two three.")
CHUNKS = (
    Chunk("a", "d", ((0, 7), (8, 14)), 0, 4),
    Chunk("b", "d", ((0, 3),), 1, 1),
    Chunk("c", "d", ((4, 14),), 1, 3),
)


def row_of(chunks=CHUNKS, document=DOCUMENT):
    vectors = np.zeros((len(chunks), 2), np.float32)
    return pack(Entry(document, chunks, vectors, np.array([False, True, False])[: len(chunks)], Origin("", "")))


def test_each_chunk_is_that_of_all():
    nodes = PackedNodes("d", row_of())
    assert (tuple(nodes), len(nodes), nodes.is_cut.tolist()) == (CHUNKS, 3, [False, True, False])
    assert [nodes[number] for number in (0, 1, 2, -1)] == [*CHUNKS, CHUNKS[-1]] and nodes[1:] == [*CHUNKS[1:]]
    with pytest.raises(IndexError):
        nodes[3]
    assert not len(PackedNodes("d", row_of(())))


@pytest.mark.parametrize(
    ("spans", "are_in"),
    [
        (((0, 7), (8, 14)), True),
        (((8, 14), (0, 7)), False),
        (((0, 8), (7, 14)), False),
        (((0, 15),), False),
        (((3, 3),), False),
        (((-1, 3),), False),
        ((), False),
    ],
)
def test_chunks_are_in_their_document(spans, are_in):
    chunks = (CHUNKS[1], replace(CHUNKS[0], spans=spans), CHUNKS[2])
    assert PackedNodes("d", row_of(chunks)).are_in(DOCUMENT) == are_in
    assert PackedNodes("d", row_of(())).are_in(DOCUMENT)


@pytest.mark.parametrize("cut", [16, 32, 48])
def test_fewer_spans_than_a_row_says_are_refused(cut):
    row = row_of()
    with pytest.raises(ValueError, match="not as many as they say"):
        PackedNodes("d", replace(row, nodes=row.nodes[:-cut]))
