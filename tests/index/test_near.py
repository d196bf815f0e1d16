"""How many rows of a large search file must be compared, and when all are."""

import numpy as np
import pytest

from qrag_jax.files.array_file import ArrayFile
from qrag_jax.index.parts import near, part
from qrag_jax.index.parts.near import Near, open_near, try_near
from qrag_jax.index.parts.part import Part, StoredPart, write_part
from qrag_jax.search.postings import count_words
from qrag_jax.search.signs import Signs, signs_of
from qrag_jax.unit_rows import unit_rows


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A file of 4,000 vectors, four of each document."""
    monkeypatch.setattr(part, "LEAST_SIGNS", 4000)
    vectors = unit_rows(np.random.default_rng(0).standard_normal((4000, 48)).astype(np.float32))
    each = np.ones(1000, np.int64)
    words = count_words([""] * 1000)
    made = Part(np.arange(1000), np.arange(1000, dtype=np.uint64), 4 * each, vectors, words, each, {}, {})
    write_part(tmp_path / "a.documents", [made], [np.arange(1000)], with_signs=True)
    return StoredPart(tmp_path / "a.documents")


@pytest.fixture
def questions():
    return unit_rows(np.random.default_rng(1).standard_normal((100, 48)).astype(np.float32))


def test_as_many_are_tried_as_993_of_1000_nearest_need(stored, questions, monkeypatch):
    monkeypatch.setattr(near, "_MOST_TRIED", 0.5)
    recall = try_near(stored, questions)
    signs, needed = Signs(stored.signs()), []
    for question in questions:
        distances = signs.distances(question)
        nearest = np.argsort(-(stored.vectors @ question))[:10]
        needed += [int(np.sum(distances <= distances[row])) for row in nearest]
    about = ArrayFile(stored.path.with_suffix(".near")).about
    assert about == {"recall": recall, "tried": sorted(needed)[993]} and recall >= 0.99
    opened = open_near(stored, np.arange(1000))
    assert opened.tried == about["tried"] and opened.most == 2000 * 10 // opened.tried
    some = open_near(stored, np.arange(1, 1000))
    rows = some.find(stored.vectors[0], 10)  # the document of this vector is not in the pool
    assert rows.min() >= 4 and len(rows) >= some.tried


def test_too_many_are_not_tried(stored, questions):
    recall = try_near(stored, questions)
    assert 0 < recall < 0.99 and open_near(stored, np.arange(1000)) is None
    assert ArrayFile(stored.path.with_suffix(".near")).about["tried"] == 200  # a twentieth


def test_more_are_tried_where_more_are_wanted(monkeypatch):
    made = Near(Signs(signs_of(np.eye(4000, 32, dtype=np.float32))), 300)
    asked = []
    monkeypatch.setattr(Signs, "first", lambda self, question, number: asked.append(number) or np.arange(number))
    assert [len(made.find(np.ones(32), k)) for k in (1, 10, 20, 100)] == asked == [300, 300, 600, 3000]
