"""Questions that are asked together find what each finds alone, with one reading of the vectors for 32 of them."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.encoders import random_encoder
from support.indices import write_notes
from support.tiers import slow_but

from qrag_jax import open_index
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.data.questions.asked import Asked
from qrag_jax.index.build import build_index, index_settings
from qrag_jax.index.index import Index
from qrag_jax.index.options import SearchOptions
from qrag_jax.index.parts import make
from qrag_jax.models.encoder.embedder import TextEmbedder
from qrag_jax.models.encoder.weights import save_encoder
from qrag_jax.search.rows import RowPart
from qrag_jax.service.search import find_all
from qrag_jax.types import InputError

NAMES = ("Ann Lee", "Up Down", "Red Wine", "Tom Park", "Blue Lake", "Old Mill", "Night Train")
LINES = [f"{one} was seen with {other} in the year {number}." for number, one in enumerate(NAMES) for other in NAMES]
QUESTIONS = [f"Who was seen with {one} in {number}?" for number in (1, 4, 6) for one in NAMES[:5]]
CUT = ChunkConfig("fixed", max_tokens=24)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    loaded = random_encoder("bert", [*LINES, *QUESTIONS])
    save_encoder(folder, loaded.config, loaded.params, loaded.tokenizer)
    return str(folder)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def index(place, monkeypatch, encoder):
    """Makes an index with notes in several search files, some rows of which are no longer there."""
    monkeypatch.setattr(make, "_MERGED", 0)  # each update writes a file of its own

    def made(vectors="float32"):
        texts = {name.replace(" ", "_").lower(): f"# {name}\n{name} is a place." for name in NAMES}
        write_notes("notes", **{f"n{place}": "\n".join(LINES[place::7]) for place in range(7)}, **texts)
        settings = index_settings(model=encoder, chunking=CUT, vectors=vectors)
        for paths in (["notes/n1.md", "notes/n2.md"], ["notes"]):
            build_index("i", paths, settings)
        opened = open_index("i")
        opened.remove("notes/n3.md")
        return opened

    return made


@pytest.fixture
def readings(monkeypatch):
    """The numbers of questions in each reading of rows."""
    found, products = [], RowPart.products

    def counted(self, questions):
        found.append(len(questions))
        return products(self, questions)

    monkeypatch.setattr(RowPart, "products", counted)
    return found


def same(mine, theirs):
    assert [(hit.node, hit.place, hit.notes, hit.copies) for hit in mine.hits] == [
        (hit.node, hit.place, hit.notes, hit.copies) for hit in theirs.hits
    ]
    assert [hit.score for hit in mine.hits] == pytest.approx([hit.score for hit in theirs.hits], abs=1e-6)
    assert replace(mine, hits=[], cost=None, late=None) == replace(theirs, hits=[], cost=None, late=None)


def check(index, options, questions=QUESTIONS):
    alone = [index.find(question, options) for question in questions]
    together = list(index.find_all(questions, options))
    for mine, theirs in zip(together, alone, strict=True):
        same(mine, theirs)
    assert any(one.hits for one in alone)


OPTIONS = [
    SearchOptions(3),
    SearchOptions(3, retriever="dense", only=("notes/n*",)),
    SearchOptions(3, retriever="bm25"),
    SearchOptions(3, notes="none"),
    SearchOptions(None),
    SearchOptions(3, retriever="dense", notes="walk"),
]


@pytest.mark.parametrize(
    ("vectors", "options"), [("int8", OPTIONS[:2]), pytest.param("float32", OPTIONS, marks=pytest.mark.slow)]
)
def test_an_index_with_notes_in_several_files(index, vectors, options):
    with index(vectors) as opened:
        assert len(opened.notes) > 5 and len(opened.corpus.parts.placed) == 2
        for one in options:
            check(opened, one, QUESTIONS[:3])


@pytest.mark.parametrize("retriever", slow_but(["hybrid"], ["hybrid", "dense", "bm25"]))
def test_files_in_memory(place, encoder, retriever):
    write_notes("notes", a="\n".join(LINES))
    with open_index("notes", encoder=encoder, chunking=CUT) as files:
        check(files, SearchOptions(3, retriever=retriever, late=retriever == "dense"), QUESTIONS[:4])


@pytest.mark.slow
def test_levels(place, encoder):
    write_notes("notes", a="\n".join(LINES))
    build_index("l", "notes", index_settings(model=encoder, chunking=ChunkConfig("levels")))
    with open_index("l") as levels:
        check(levels, SearchOptions(3, levels="all"), QUESTIONS[:3])


def test_rows_are_read_once_for_32_questions_and_questions_embedded_in_one_call(index, readings, monkeypatch):
    with index() as opened:
        options = SearchOptions(3, retriever="dense", notes="none")
        opened.find("warm", options)
        num_parts = len(opened.corpus.parts.placed)
        questions, calls = [*QUESTIONS, *(f"Who was seen in the year {number}?" for number in range(18))], []
        embed = TextEmbedder.questions
        monkeypatch.setattr(
            TextEmbedder, "questions", lambda self, texts: calls.append(len(texts)) or embed(self, texts)
        )
        readings.clear()
        found = list(opened.find_all(questions, options))
        assert len(found) == 33 and readings == [32] * num_parts + [1] * num_parts and calls == [32, 1]
        assert opened.corpus.asked == {} == opened.corpus.unit_vectors._known
        readings.clear()
        again = list(opened.find_all([QUESTIONS[0], QUESTIONS[1], QUESTIONS[0]], options))
        assert readings == [2] * num_parts
    same(again[0], found[0])
    same(again[2], found[0])


def test_the_cost_of_32_questions_counts_for_the_first(index):
    with index() as opened:
        options = SearchOptions(2, retriever="dense", notes="none")
        alone = [opened.find(question, options).cost.embedder_tokens for question in QUESTIONS]
        costs = [one.cost for one in opened.find_all(QUESTIONS, options)]
    assert [cost.embedder_tokens for cost in costs] == [sum(alone)] + [0] * (len(QUESTIONS) - 1)
    assert all("search" in cost.seconds for cost in costs)


def test_all_questions_are_checked_before_the_first_search(index, readings):
    with index() as opened:
        with pytest.raises(InputError, match="blank"):
            opened.find_all([*QUESTIONS, " "])
        with pytest.raises(InputError, match=r"q\.txt:7"):
            next(find_all(opened, [Asked(QUESTIONS[0]), Asked("", where="q.txt:7")], SearchOptions()))
        assert readings == []


def test_an_index_that_changes_meanwhile_is_read_again(index):
    with index() as opened:
        options = SearchOptions(5, retriever="dense", notes="none")
        found = opened.find_all(QUESTIONS, options)
        first, before = next(found), [*opened._views.values()]
        for path in Path("notes").iterdir():
            path.write_text(f"{path.read_text()}\nOne more line.\n")
        with open_index("i") as other:
            other.add("notes")
            after = list(found)
            assert [*opened._views.values()] != before and {len(one.hits) for one in (first, *after)} == {5}
            assert len(after) == len(QUESTIONS) - 1
            same(after[-1], other.find(QUESTIONS[-1], options))


def test_questions_of_a_stream_are_searched_as_they_come(index, monkeypatch):
    monkeypatch.setattr(Index, "find_all", None)
    come = []

    def typed():
        for question in QUESTIONS[:3]:
            come.append(question)
            yield Asked(question)

    with index() as opened:
        for number, (asked, found) in enumerate(find_all(opened, typed(), SearchOptions(2)), 1):
            assert len(come) == number and found.question == asked.question


@pytest.mark.slow
def test_threads_that_ask_together_find_the_same(index):
    with index() as opened:
        options = SearchOptions(3)
        alone = [opened.find(question, options) for question in QUESTIONS]
        found: dict[int, list] = {}
        threads = [
            threading.Thread(target=lambda one=one: found.update({one: list(opened.find_all(QUESTIONS, options))}))
            for one in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for results in found.values():
            for mine, theirs in zip(results, alone, strict=True):
                same(mine, theirs)
        assert len(found) == 2 and opened.corpus.asked == {} and np.isfinite(found[0][0].hits[0].score)
