"""Contexts that are scored in blocks: the same scores, and what they cost."""

import json

import numpy as np
import pytest
from support.runs import save_run

from qrag_jax.data.stories.haystack import Haystack
from qrag_jax.data.stories.stories import StoriesBuilder
from qrag_jax.eval.retrieval.long_contexts import count_repeats, draw_long
from qrag_jax.eval.retrieval.pickers import single_step_picker
from qrag_jax.eval.retrieval.records import read_rows, row_values, write_rows
from qrag_jax.eval.retrieval.score import Options, open_run, score
from qrag_jax.qrag import long_contexts
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.tasks import examples_task, hidden_stories_tasks
from qrag_jax.service.evaluating import QuestionSource, _most_sentences
from qrag_jax.types import Example, UsageError, Watch

COSTS = {"step_ms", "embed_seconds", "peak_gib", "noise_texts", "noise_repeats", "most_repeats"}


def stories_task(num_chunks=12):
    """Three questions over the same two facts, in a haystack of which one sentence stands twice."""
    builder = StoriesBuilder()
    facts = np.asarray([builder.intern(text) for text in ("Ada is in Rome.", "Ben is in Oslo.")], np.int32)
    for number, name in enumerate(("Ada", "Ben", "Cy")):
        builder.add(f"q{number}", facts, f"Where is {name}?", "there", [number % 2])
    sentences = ("it rained", "it snowed", "it rained", "the end came")
    haystack = Haystack(sentences, np.zeros(4, np.int32), "weather")
    return hidden_stories_tasks("weather", builder.build(), haystack, (num_chunks,))[0]


def test_repeats_by_hand():
    """The texts: two facts, then the haystack. Sentences that read the same count as one."""
    chunks = np.array([[0, 2, 4, 2, 1, 3], [1, 5, 5, 0, 3, 2]], np.int32)
    contexts = Contexts(np.zeros(2, np.int32), chunks, chunks < 2)
    found = count_repeats(stories_task(), contexts)
    # First "it rained" 3 times and "it snowed" once, then "the end came" twice and the two others once.
    assert found == (2.5, pytest.approx((4 / 2 + 4 / 3) / 2), 3)
    assert count_repeats(examples_task("mine", [Example("a", "Who?", ("x", "y"), (1,))]), contexts) is None


def test_contexts_are_drawn_one_after_the_other():
    task, queries = stories_task(), np.array([2, 0, 1])
    found, rng = draw_long(task, queries, np.random.default_rng(5)), np.random.default_rng(5)
    for row, query in enumerate(queries):
        one = task.contexts(np.array([query]), rng)
        for name in ("questions", "chunks", "gold"):
            np.testing.assert_array_equal(getattr(found, name)[row], getattr(one, name)[0])


@pytest.mark.slow
def test_rows_of_fixed_contexts_are_those_of_ordinary_length(tmp_path, monkeypatch):
    run = open_run(save_run(tmp_path / "run", ("Ada is in Rome.", "Where is Ada?", "a story of a river")))
    chunks = [("Ada is in Rome.", "a story", "of a river", "it rained"), ("it rained", "Where is Ada?", "a river")]
    task = examples_task("mine", [Example(str(i), "Where is Ada?", own, (i,)) for i, own in enumerate(chunks)])
    whole = score(run, [task], Options(("trained", "bm25")))
    assert not COSTS & {name for row in row_values(whole.rows) for name in row}
    monkeypatch.setattr(long_contexts, "LONG", 2)
    found, again = score(run, [task], Options(("trained", "bm25"))), tmp_path / "rows.json"
    for row, other in zip(row_values(found.rows), row_values(whole.rows), strict=True):
        assert all(row[name] == other[name] for name in other if name != "seconds")
        assert row["step_ms"] == pytest.approx(1e3 * row["seconds"] / 4)
    write_rows(again, found.rows)
    assert read_rows(again) == found.rows
    assert [("embed_seconds" in row) for row in json.loads(again.read_text())] == [True, False]


def test_what_a_long_task_costs_and_how_often_its_noise_repeats_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(long_contexts, "LONG", 11)
    run = open_run(save_run(tmp_path / "run", ("Ada is in Rome.", "it rained", "Where is Ada?")))
    noted = []
    (row,) = score(run, [stories_task()], Options(("trained",), num_questions=2), watch=Watch(noted.append)).rows
    assert row.noise_texts is not None and 1 <= row.noise_texts <= 3
    assert row.noise_repeats == pytest.approx(10 / 3, rel=0.7)
    assert row.embed_seconds is not None and row.embed_seconds > 0
    assert row.peak_gib is None or row.peak_gib > 0
    assert "ms a pick" in noted[-1] and "different sentences of the haystack, each" in noted[-1]


def test_beams_are_refused_before_anything_is_embedded(tmp_path, monkeypatch):
    monkeypatch.setattr(long_contexts, "LONG", 11)
    run = open_run(save_run(tmp_path / "run", ("Ada is in Rome.", "it rained", "Where is Ada?")))
    with pytest.raises(UsageError, match="contexts of 12 chunks are searched greedily only"):
        score(run, [stories_task()], Options(("trained",), beam_widths=(1, 4)))


def test_nearest_vectors_of_a_long_context(monkeypatch):
    rng = np.random.default_rng(0)
    chunks = rng.integers(6, size=(2, 9)).astype(np.int32)
    chunks[1, 7:] = -1
    contexts = Contexts(np.array([1, 0], np.int32), chunks, np.zeros(chunks.shape, bool))
    pick = single_step_picker(*(rng.normal(size=(n, 4)).astype(np.float32) for n in (6, 2)))
    whole = pick(contexts, 3)
    monkeypatch.setattr(long_contexts, "LONG", 5)
    found = pick(contexts, 3)
    np.testing.assert_array_equal(found.chosen, whole.chosen)
    np.testing.assert_allclose(found.scores, whole.scores, rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "lengths", "most"),
    [(None, None, 20_000), (None, (50, 40_000), 20_000), (None, (40_000, 400_000), 400_000), (70, (400_000,), 70)],
)
def test_a_haystack_grows_with_contexts_beyond_ordinary_length(given, lengths, most):
    source = QuestionSource("babi", "qa2.txt", max_haystack_sentences=given, num_chunks=lengths)
    assert _most_sentences(source) == most
