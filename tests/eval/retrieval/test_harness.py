from dataclasses import replace

import numpy as np
import pytest
from support.answers import evaluate
from support.facts_slowly import fact_em, fact_f1

from qrag_jax.eval.retrieval import harness
from qrag_jax.eval.retrieval.harness import Labels, Threshold, draw_contexts, pick_all
from qrag_jax.eval.retrieval.pickers import Picked
from qrag_jax.measures.facts import NOT_TAKEN
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.tasks import examples_task
from qrag_jax.types import Example, InputError, UsageError

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
    return Picked(picks, -picks.astype(float))


def gold_first(contexts, num_steps):
    """Takes the gold chunks first."""
    order = np.argsort(~contexts.gold, axis=1, kind="stable")[:, :num_steps]
    return Picked(order, np.ones(order.shape))


def test_rows_and_records_by_hand():
    task = make_task(3)  # gold {1}, {0, 2}, {0, 2}; chunks 4, 3, 4
    rows, records = evaluate(task, {"trained": first_chunks, "bm25": gold_first}, 2, LABELS, keep_texts=True)
    trained, best = rows
    # Picks 0 and 1: EM 1, 0, 0; F1 2/3, 1/2, 1/2. Gold first: EM 1, 1, 1; F1 2/3, 1, 1, which is the ceiling.
    assert trained.fact_em == pytest.approx(1 / 3) and trained.fact_f1 == pytest.approx(5 / 9)
    assert best.fact_em == 1 and best.fact_f1 == pytest.approx(8 / 9) == pytest.approx(best.f1_ceiling)
    assert (trained.task, trained.setting.method, trained.setting.mode, trained.setting.positions) == (
        "mine",
        "trained",
        "latent",
        "relative",
    )
    assert (best.setting.method, best.setting.mode, best.setting.positions) == ("bm25", "none", "none")
    for row in rows:
        assert (row.setting.num_chunks, row.length_factor, row.n, row.setting.seed, row.num_left_out) == (
            4,
            2.0,
            3,
            3,
            0,
        )
        assert row.em_low <= row.fact_em <= row.em_high and row.seconds >= 0
    assert [r.setting.method for r in records] == ["trained"] * 3 + ["bm25"] * 3
    second = records[1]
    assert (second.query_id, second.question, second.setting.num_chunks) == ("q1", "question 1", 4)
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
    shuffled = replace(task, contexts=random_contexts)
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
        scores = contexts.chunks[:, :num_steps].astype(np.float32)
        return Picked(picks.astype(np.int32), scores, contexts.chunks[:, 0] % 3)

    contexts = random_contexts(total)
    found, gold = pick_all(picker, contexts, 2)
    assert set(shapes) == {(min(total, 4), 6)} and len(shapes) == -(-total // 4)
    expected = picker(contexts, 2)
    for name, values in expected._asdict().items():
        np.testing.assert_array_equal(getattr(found, name), values, err_msg=name)
    assert found.chosen.dtype == np.int64 and found.scores.dtype == np.float64
    np.testing.assert_array_equal(gold, np.concatenate([contexts.gold, np.zeros((total, 2), bool)], axis=1))


def test_a_context_beyond_the_chunks_of_a_call_goes_alone(monkeypatch):
    monkeypatch.setattr(harness, "CHUNKS_PER_CALL", 3)
    contexts = random_contexts(3)
    np.testing.assert_array_equal(pick_all(first_chunks, contexts, 2)[0].chosen, np.tile([0, 1], (3, 1)))


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
    assert [row.setting.mode for row in rows] == ["latent", "text", "text", "none"]
    assert [row.setting.positions for row in rows] == ["relative", "none", "none", "none"]


def test_vectors_have_no_texts():
    task = make_task()
    vectors = replace(task, texts=np.ones((11, 2)), questions=np.ones((2, 2)), num_left_out=4)
    rows, records = evaluate(
        vectors, {"trained": first_chunks, "single_step": first_chunks}, 2, LABELS, keep_texts=True
    )
    assert [r.question for r in records[:3]] == ["question 0", "question 1", "question 0"]
    assert records[0].texts is None and rows[0].num_left_out == 4
    assert rows[1].setting.mode == "none"


def test_progress_names_task_method_and_length():
    said = []
    evaluate(make_task(), {"trained": first_chunks, "bm25": gold_first}, 2, LABELS, report=said.append)
    assert said == ["mine: trained at 4 chunks", "mine: bm25 at 4 chunks"]


def test_a_picker_that_takes_a_chunk_twice_is_refused():
    with pytest.raises(InputError, match="occurs twice in the prediction"):
        evaluate(
            make_task(),
            {"trained": lambda c, t: Picked(np.zeros((len(c.chunks), t), int), np.zeros((len(c.chunks), t)))},
            2,
            LABELS,
        )


# --- protocols

# Four questions over six chunks, three picks each; two of them need two facts.
GOLD = [(0, 1), (4,), (2, 3), (5,)]
CHOSEN = np.array([[0, 5, 1], [4, 0, 1], [2, 0, 1], [0, 5, 1]])
SCORES = np.array([[0.9, 0.5, 0.8], [0.7, 0.2, 0.1], [0.6, 0.6, 0.6], [0.3, 0.95, 0.9]])
BEFORE_STOP = np.array([3, 1, 2, 2])


def protocol_task(name="four", noise=""):
    """One noise word tells two of these apart; question and gold are the same."""
    examples = [
        Example(f"q{i}", f"question {i}", tuple(f"c{i}_{j}" + noise * (j not in gold) for j in range(6)), gold)
        for i, gold in enumerate(GOLD)
    ]
    return examples_task(name, examples)


def table_picker(chosen=CHOSEN, scores=SCORES, before=BEFORE_STOP):
    """Picks by question id, whatever the slice is."""

    def pick(contexts, num_steps):
        rows = contexts.questions
        stop = None if before is None else before[rows]
        return Picked(chosen[rows, :num_steps], scores[rows, :num_steps], stop)

    return pick


def rows_by_protocol(**options):
    labels = Labels("latent", "relative", 0, 6)
    thresholds = {"trained": Threshold(0.55, frozenset({"elsewhere"}))}
    options = {"protocols": ("fixed", "threshold", "stop", "oracle"), "thresholds": thresholds} | options
    rows, records = evaluate(protocol_task(), {"trained": table_picker()}, 3, labels, **options)
    return {row.setting.protocol: row for row in rows}, records


def test_rows_of_every_protocol_by_hand():
    """Kept: fixed 3 3 3 3; Q >= 0.55 keeps 1 1 3 and of the last, below it at once, 1; STOP 3 1 2 2; oracle 3 1 3 2."""
    rows, _ = rows_by_protocol()
    assert list(rows) == ["fixed", "threshold", "stop", "oracle"]
    expected = {
        #            hits of the picks / (picks + gold), EM, picks
        "fixed": ([4 / 5, 2 / 4, 2 / 5, 2 / 4], [1, 1, 0, 1], [3, 3, 3, 3]),
        "threshold": ([2 / 3, 1, 2 / 5, 0], [0, 1, 0, 0], [1, 1, 3, 1]),
        "stop": ([4 / 5, 1, 2 / 4, 2 / 3], [1, 1, 0, 1], [3, 1, 2, 2]),
        "oracle": ([4 / 5, 1, 2 / 5, 2 / 3], [1, 1, 0, 1], [3, 1, 3, 2]),
    }
    for protocol, (f1, em, taken) in expected.items():
        row = rows[protocol]
        assert row.fact_f1 == pytest.approx(np.mean(f1)), protocol
        assert row.fact_em == pytest.approx(np.mean(em)), protocol
        assert row.num_taken == np.mean(taken), protocol
        assert row.f1_low <= row.fact_f1 <= row.f1_high
    # Ceilings 2 min(g, k) / (g + k) of k picks: of the threshold 2/3, 1, 4/5, 1.
    assert rows["threshold"].f1_ceiling == pytest.approx((2 / 3 + 1 + 4 / 5 + 1) / 4)
    assert rows["fixed"].f1_ceiling == pytest.approx((4 / 5 + 1 / 2) / 2)
    assert {p: row.threshold for p, row in rows.items()} == {
        "fixed": None, "threshold": 0.55, "stop": None, "oracle": None
    }  # fmt: skip
    assert len({row.seconds for row in rows.values()}) == 1  # picked once


def test_records_say_their_protocol_and_hold_what_it_kept():
    rows, records = rows_by_protocol(beam_width=4, keep_texts=True)
    assert {row.setting.beam_width for row in rows.values()} == {record.setting.beam_width for record in records} == {4}
    found = {(r.setting.protocol, r.query_id): r for r in records}
    assert len(found) == len(records) == 16
    assert found["threshold", "q0"].chosen == (0,) and found["threshold", "q0"].q_values == (0.9,)
    assert found["stop", "q3"].chosen == (0, 5) and found["stop", "q3"].texts == ("c3_0", "c3_5")
    assert found["fixed", "q3"].chosen == (0, 5, 1)
    for record in records:
        assert record.fact_em == fact_em(record.chosen, record.gold)
        assert record.fact_f1 == pytest.approx(fact_f1(record.chosen, record.gold))
    for protocol, row in rows.items():  # a row is the mean of its records, of no other protocol's
        own = [r for r in records if r.setting.protocol == protocol]
        assert row.fact_f1 == pytest.approx(np.mean([r.fact_f1 for r in own]))
        assert row.num_taken == np.mean([len(r.chosen) for r in own])


def test_a_method_without_threshold_or_stop_has_no_row_of_that_protocol():
    pickers = {"trained": table_picker(), "bm25": table_picker(before=None)}
    thresholds = {"trained": Threshold(0.55, frozenset({"elsewhere"}))}
    rows, _ = evaluate(
        protocol_task(), pickers, 3, LABELS, protocols=("stop", "threshold", "fixed"), thresholds=thresholds
    )
    assert [(row.setting.method, row.setting.protocol) for row in rows] == [
        ("trained", "stop"), ("trained", "threshold"), ("trained", "fixed"), ("bm25", "fixed")
    ]  # fmt: skip
    rows, records = evaluate(protocol_task(), {"bm25": pickers["bm25"]}, 3, LABELS, protocols=("stop", "threshold"))
    assert rows == records == []


def test_protocols_do_not_change_each_other():
    alone = {p: rows_by_protocol(protocols=(p,))[0][p] for p in ("fixed", "threshold", "stop", "oracle")}
    together, _ = rows_by_protocol()
    for protocol, row in alone.items():
        assert replace(row, seconds=0.0) == replace(together[protocol], seconds=0.0)


def test_a_threshold_is_not_reported_on_the_questions_it_was_fitted_on():
    task = protocol_task()
    asked = [task.fingerprint(i) for i in range(4)]
    thresholds = {"trained": Threshold(0.5, frozenset({asked[2], "elsewhere"}))}
    options = {"protocols": ("fixed", "threshold"), "thresholds": thresholds}
    pickers = {"trained": table_picker()}
    for same in (task, protocol_task("other name", noise=" and more")):  # other distractors, the same question
        with pytest.raises(UsageError, match="fitted on 1 of the 4 questions to report"):
            evaluate(same, pickers, 3, LABELS, **options)
    # Of a subset only the questions that are scored count.
    queries, _ = draw_contexts(task, 2, seed=0)
    fitted_on = frozenset(set(asked) - {asked[int(i)] for i in queries})
    rows, _ = evaluate(
        task, pickers, 3, LABELS, 2, protocols=("threshold",), thresholds={"trained": Threshold(0.5, fitted_on)}
    )
    assert rows[0].n == 2
    # Other protocols use no threshold; one that says nothing of its questions is refused.
    assert len(evaluate(task, pickers, 3, LABELS, protocols=("fixed",), thresholds=thresholds)[0]) == 1
    with pytest.raises(UsageError, match="does not say which questions it was fitted on"):
        evaluate(task, pickers, 3, LABELS, protocols=("threshold",), thresholds={"trained": Threshold(0.5)})


def test_nothing_is_picked_before_a_threshold_is_refused():
    task, called = protocol_task(), []
    threshold = Threshold(0.5, frozenset({task.fingerprint(0)}))
    with pytest.raises(UsageError):
        evaluate(
            task, {"trained": lambda c, t: called.append(1)}, 3, LABELS, protocols=("threshold",),
            thresholds={"trained": threshold},
        )  # fmt: skip
    assert not called


# --- contexts with fewer chunks than picks


def short_task():
    """Contexts of 2, 4 and 1 chunks, to be played with three picks."""
    examples = [
        Example("two", "question 0", ("a", "b"), (1,)),
        Example("four", "question 1", ("c", "d", "e", "f"), (0, 2)),
        Example("one", "question 2", ("g",), (0,)),
    ]
    return examples_task("short", examples)


def short_scores(contexts, num_steps):
    """Takes chunks 0, 1, .. at scores 0.5, 0.4, ..; a picker never sees fewer chunks than picks."""
    assert ((contexts.chunks >= 0).sum(1) >= num_steps).all()
    picks = np.tile(np.arange(num_steps), (len(contexts.chunks), 1))
    return Picked(picks, 0.5 - picks / 10, np.full(len(picks), num_steps))


def test_short_contexts_are_picked_empty():
    contexts = draw_contexts(short_task())[1]
    picked, gold = pick_all(short_scores, contexts, 3)
    # What is missing points behind the four slots of the widest context, where no chunk and no gold is.
    assert picked.chosen.tolist() == [[0, 1, 6], [0, 1, 2], [0, 5, 6]]
    np.testing.assert_allclose(picked.scores, [[0.5, 0.4, -0.7], [0.5, 0.4, 0.3], [0.5, -0.7, -0.7]])
    assert picked.num_before_stop.tolist() == [2, 3, 1]
    assert gold.shape == (3, 7) and not gold[:, 4:].any()


def test_rows_of_short_contexts_by_hand():
    """Picks 2, 3 and 1 are all there is, and gold {1}, {0, 2}, {0} are all found."""
    thresholds = {"trained": Threshold(0.45, frozenset({"elsewhere"})), "bm25": Threshold(-9.0, frozenset({"x"}))}
    pickers = {"trained": short_scores, "bm25": short_scores}
    rows, records = evaluate(
        short_task(), pickers, 3, LABELS, protocols=("fixed", "threshold", "stop", "oracle"), thresholds=thresholds,
        keep_texts=True,
    )  # fmt: skip
    found = {(row.setting.method, row.setting.protocol): row for row in rows}
    every = np.mean([2 / 3, 4 / 5, 1])
    for key, f1, em, taken in (
        (("trained", "fixed"), every, 1, 2),
        (("trained", "stop"), every, 1, 2),
        (("trained", "oracle"), every, 1, 2),
        (("trained", "threshold"), np.mean([0, 2 / 3, 1]), 1 / 3, 1),  # one pick each
        (("bm25", "threshold"), every, 1, 2),  # below all scores: everything, yet no padding
    ):
        assert found[key].fact_f1 == pytest.approx(f1), key
        assert found[key].fact_em == pytest.approx(em) and found[key].num_taken == taken, key
    by_query = {(r.setting.method, r.setting.protocol, r.query_id): r for r in records}
    assert by_query["trained", "fixed", "two"].texts == ("a", "b")
    assert by_query["trained", "fixed", "one"].chosen == (0,)
    assert NOT_TAKEN not in {chunk for record in records for chunk in record.chosen}


def test_the_oracle_of_a_short_context_that_misses_a_fact_keeps_all_its_chunks():
    task = examples_task("t", [Example("q", "question 0", ("a", "b", "c"), (2,)), Example("r", "x", ("d", "e"), (0,))])
    rows, _ = evaluate(task, {"trained": first_chunks}, 2, LABELS, protocols=("oracle",))
    assert (rows[0].fact_em, rows[0].num_taken) == (0.5, 1.5)
    assert rows[0].fact_f1 == pytest.approx((0 + 1) / 2)
