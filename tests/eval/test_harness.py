import numpy as np
import pytest

from qrag_jax.eval import harness
from qrag_jax.eval.harness import Labels, evaluate, pick_all
from qrag_jax.retrieval.batching import Contexts
from qrag_jax.retrieval.tasks import Task, examples_task
from qrag_jax.types import Example, InputError

LABELS = Labels(mode="latent", positions="relative", seed=3, training_chunks=2)


def make_task(num_examples=3):
    """Examples of 4 or 3 chunks with one or two gold ones."""
    examples = [
        Example(f"q{i}", f"question {i % 2}", tuple(f"c{i}_{j}" for j in range(4 - i % 2)), (0, 2) if i % 3 else (1,))
        for i in range(num_examples)
    ]
    return examples_task("mine", examples)


def first_chunks(contexts, num_steps):
    """Takes chunks 0, 1, .. of every context."""
    picks = np.tile(np.arange(num_steps), (len(contexts.chunks), 1))
    return picks, -picks.astype(float)


def gold_first(contexts, num_steps):
    """Takes the gold chunks first."""
    order = np.argsort(~contexts.gold, axis=1, kind="stable")[:, :num_steps]
    return order, np.ones(order.shape)


def test_rows_and_records_by_hand():
    task = make_task(3)  # gold {1}, {0, 2}, {0, 2}; chunks 4, 3, 4
    rows, records = evaluate(task, {"trained": first_chunks, "bm25": gold_first}, 2, LABELS, keep_texts=True)
    trained, best = rows
    # Picks 0 and 1: EM 1, 0, 0; F1 2/3, 1/2, 1/2. Gold first: EM 1, 1, 1; F1 2/3, 1, 1, which is the ceiling.
    assert trained.fact_em == pytest.approx(1 / 3) and trained.fact_f1 == pytest.approx(5 / 9)
    assert best.fact_em == 1 and best.fact_f1 == pytest.approx(8 / 9) == pytest.approx(best.f1_ceiling)
    assert (trained.task, trained.method, trained.mode, trained.positions) == ("mine", "trained", "latent", "relative")
    assert (best.method, best.mode, best.positions) == ("bm25", "none", "none")
    for row in rows:
        assert (row.num_chunks, row.length_factor, row.n, row.seed, row.num_left_out) == (4, 2.0, 3, 3, 0)
        assert row.em_low <= row.fact_em <= row.em_high and row.seconds >= 0
    assert [r.method for r in records] == ["trained"] * 3 + ["bm25"] * 3
    second = records[1]
    assert (second.query_id, second.question, second.num_chunks) == ("q1", "question 1", 4)
    assert (second.chosen, second.q_values, second.gold) == ((0, 1), (0.0, -1.0), (0, 2))
    assert second.texts == ("c1_0", "c1_1")
    assert (second.fact_em, second.fact_f1) == (0.0, 0.5)
    assert evaluate(task, {"trained": first_chunks}, 2, LABELS)[1][0].texts is None


def test_every_method_sees_the_same_contexts():
    seen = []

    def looking(contexts, num_steps):
        seen.append(np.concatenate([contexts.chunks, contexts.questions[:, None]], axis=1))
        return first_chunks(contexts, num_steps)

    task = make_task(9)
    random_contexts = lambda queries, rng: task.contexts(rng.permutation(queries), rng)  # noqa: E731
    shuffled = Task("mine", task.texts, task.questions, task.query_ids, task.sizes, random_contexts)
    evaluate(shuffled, {"trained": looking, "single_step": looking}, 2, LABELS)
    evaluate(shuffled, {"trained": looking}, 2, LABELS)
    evaluate(shuffled, {"trained": looking}, 2, LABELS, seed=1)
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(seen[0], seen[2])  # same seed, same contexts
    assert (seen[0] != seen[3]).any()


def test_a_subset_of_the_questions():
    task = make_task(20)
    ids = [[r.query_id for r in evaluate(task, {"trained": first_chunks}, 2, LABELS, 6, seed)[1]] for seed in (0, 0, 1)]
    assert len(ids[0]) == len(set(ids[0])) == 6
    assert ids[0] == ids[1] != ids[2]
    assert ids[0] == sorted(ids[0], key=lambda name: int(name[1:]))
    rows, records = evaluate(task, {"trained": first_chunks}, 2, LABELS, 50)
    assert rows[0].n == len(records) == 20
    # Records belong to their questions.
    for record in records:
        number = int(record.query_id[1:])
        assert record.gold == ((0, 2) if number % 3 else (1,)) and record.question == f"question {number % 2}"


def random_contexts(total, num_chunks=6):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 99, (total, num_chunks)).astype(np.int32)
    return Contexts(rng.integers(0, 9, total).astype(np.int32), ids, rng.random(ids.shape) < 0.3)


@pytest.mark.parametrize("total", [1, 3, 4, 9, 12])
def test_slices_have_one_shape_and_change_nothing(total, monkeypatch):
    """The last slice is filled up with repeats, whose results are cut off again."""
    monkeypatch.setattr(harness, "CHUNKS_PER_CALL", 29)  # 4 contexts of 6 chunks
    shapes = []

    def picker(contexts, num_steps):
        shapes.append(contexts.chunks.shape)
        assert contexts.gold.shape == contexts.chunks.shape and len(contexts.questions) == len(contexts.chunks)
        picks = np.argsort(contexts.chunks + contexts.questions[:, None] * contexts.gold, axis=1)[:, :num_steps]
        return picks.astype(np.int32), contexts.chunks[:, :num_steps].astype(np.float32)

    contexts = random_contexts(total)
    found = pick_all(picker, contexts, 2)
    assert set(shapes) == {(min(total, 4), 6)} and len(shapes) == -(-total // 4)
    expected = picker(contexts, 2)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    assert found[0].dtype == np.int64 and found[1].dtype == np.float64


def test_a_context_beyond_the_chunks_of_a_call_goes_alone(monkeypatch):
    monkeypatch.setattr(harness, "CHUNKS_PER_CALL", 3)
    contexts = random_contexts(3)
    np.testing.assert_array_equal(pick_all(first_chunks, contexts, 2)[0], np.tile([0, 1], (3, 1)))


def test_most_contexts_of_a_call(monkeypatch):
    monkeypatch.setattr(harness, "MOST_PER_CALL", 2)
    sizes = []

    def picker(contexts, num_steps):
        sizes.append(len(contexts.chunks))
        return first_chunks(contexts, num_steps)

    pick_all(picker, random_contexts(5), 2)
    assert sizes == [2, 2, 2]


def test_modes_of_methods():
    pickers = dict.fromkeys(("trained", "untrained", "single_step", "bm25"), first_chunks)
    rows, _ = evaluate(make_task(), pickers, 2, LABELS)
    assert [row.mode for row in rows] == ["latent", "text", "text", "none"]
    assert [row.positions for row in rows] == ["relative", "none", "none", "none"]


def test_vectors_have_no_texts():
    task = make_task()
    vectors = Task("v", np.ones((11, 2)), np.ones((2, 2)), task.query_ids, task.sizes, task.contexts, num_left_out=4)
    rows, records = evaluate(
        vectors, {"trained": first_chunks, "single_step": first_chunks}, 2, LABELS, keep_texts=True
    )
    assert [r.question for r in records[:3]] == ["question 0", "question 1", "question 0"]
    assert records[0].texts is None and rows[0].num_left_out == 4
    assert rows[1].mode == "none"


def test_progress_names_task_method_and_length():
    said = []
    evaluate(make_task(), {"trained": first_chunks, "bm25": gold_first}, 2, LABELS, report=said.append)
    assert said == ["mine: trained at 4 chunks", "mine: bm25 at 4 chunks"]


def test_fewer_chunks_than_picks_are_refused():
    """Before anything is picked, also when the short context is not in the subset."""
    with pytest.raises(InputError, match="mine: query q1 has 3 chunks, which cannot give 4 picks"):
        evaluate(make_task(), {"trained": first_chunks}, 4, LABELS, num_questions=1)


def test_a_picker_that_takes_a_chunk_twice_is_refused():
    with pytest.raises(InputError, match="occurs twice in the prediction"):
        evaluate(
            make_task(),
            {"trained": lambda c, t: (np.zeros((len(c.chunks), t), int), np.zeros((len(c.chunks), t)))},
            2,
            LABELS,
        )
