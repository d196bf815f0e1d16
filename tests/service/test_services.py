"""What the verbs do, called as functions: results in place of printed lines, and what is refused, by field."""

from dataclasses import fields

import pytest
from support.encoders import random_encoder

from qrag_jax.annotate.ask_chunks import Estimated
from qrag_jax.annotate.boundary_sources import PointsRequest, PointTools
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.llm.config import LlmConfig
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.service.chunking import ChunkRequest, make_cutter
from qrag_jax.service.cutting import CutOptions
from qrag_jax.service.headed import BoundaryRow, ScoreRequest, estimate_sources, score_sources
from qrag_jax.service.indexing import NotesRequest, NotesWatch, UpdateRequest, remove, update
from qrag_jax.types import Document, UsageError

BOOK = "# Book\n\nAbout it.\n\n# Mill\n\nIt was built. It is old.\n\n# Bridge\n\nIt is new.\n"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", [BOOK])
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    return str(folder)


@pytest.fixture
def book(tmp_path):
    (tmp_path / "book.md").write_text(BOOK)
    return str(tmp_path / "book.md")


def test_documents_are_cut_into_chunks_and_trees(encoder):
    document = Document("book.md", BOOK)
    request = ChunkRequest(ChunkConfig("headings"), make_splitter("sentencex", "en"), encoder)
    cut = make_cutter(request, [document], PointTools(PointsRequest(encoder))).cut(document)
    assert [BOOK[chunk.spans[0][0] :].split("\n")[0] for chunk in cut.chunks] == ["# Book", "# Mill", "# Bridge"]
    assert cut.tree is None and cut.vectors is None and cut.warnings == ()
    request = ChunkRequest(ChunkConfig("levels"), request.split, encoder)
    assert request.makes_trees and request.points == "headings"
    cut = make_cutter(request, [document], PointTools(PointsRequest(encoder))).cut(document)
    assert cut.tree is not None and len(cut.chunks) == len(cut.tree.leaves)


def test_sources_are_scored_and_estimated(book, tmp_path):
    rows = score_sources(ScoreRequest((book,), ("headings", "none"), "kept"), PointTools(PointsRequest()))
    assert [(row.method, row.view) for row in rows] == [
        ("headings", "kept"), ("headings", "removed"), ("none", "kept"), ("none", "removed"),
    ]  # fmt: skip
    assert [row.f1_any for row in rows] == [1, 0, 0, 0] and fields(rows[0]) == fields(BoundaryRow)
    (tmp_path / "script.jsonl").write_text('{"answer": "none"}\n')
    llm = LlmConfig("scripted", str(tmp_path / "script.jsonl"), no_journal=True)
    request = ScoreRequest((book,), ("none", "llm"))
    tools = PointTools(PointsRequest(llm=llm, window_tokens=100, estimates=True))
    tools.__dict__["count"] = len  # in place of an encoder's tokenizer
    ((view, one),) = estimate_sources(request, tools)
    assert isinstance(one, Estimated) and (view, one.name, one.estimate.num_calls) == ("removed", "llm", 1)


def test_an_index_is_brought_up_to_date(book, tmp_path, encoder):
    notes: list[str] = []
    folder = tmp_path / "index"
    request = UpdateRequest(folder, (str(tmp_path),), mirror=True, encoder=encoder)
    updated = update(request, NotesWatch(note=notes.append))
    assert updated.is_complete and updated.changes is not None and updated.changes.num_read == 1
    (tmp_path / "empty.md").write_text("")
    updated = update(UpdateRequest(folder, (str(tmp_path / "empty.md"),)), NotesWatch(note=notes.append))
    assert not updated.is_complete  # it was named itself
    assert update(UpdateRequest(folder, (str(tmp_path),))).is_complete
    assert remove(folder, [book]) == (book,)
    assert len(notes) == 1 and str(folder) in notes[0]  # it lies in what was read last


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"retriever": "run", "encoder": "minilm"}, "encoder"),
        ({"retriever": "run", "cut": CutOptions("fixed")}, "strategy"),
        ({"cut": CutOptions("fixed", sizes=(8, 4))}, "sizes"),
        ({"cut": CutOptions("hierarchy", parents="mean")}, "parents"),
        ({"cut": CutOptions(sizes=(9, 3), points="rule")}, "points"),
        ({"cut": CutOptions(points="rule", tagger="run")}, "tagger"),
        ({"notes": NotesRequest(given=("estimate",))}, "estimate"),
        ({"notes": NotesRequest("mentions", given=("most_relevant",))}, "most_relevant"),
    ],
)
def test_what_does_not_belong_together_is_refused_by_its_field(more, field, book, tmp_path):
    with pytest.raises(UsageError) as caught:
        update(UpdateRequest(tmp_path / "index", (book,), mirror=True, **more))
    assert caught.value.field == field
    assert not (tmp_path / "index").exists()
