import json

import jax
import numpy as np
import pytest
from support.answers import evaluate
from support.networks import LATENT, VECTOR, random_params

from qrag_jax.data.questions.vector_task import make_vector_task
from qrag_jax.data.stories.haystack import make_haystack
from qrag_jax.data.stories.worlds import simulate_stories
from qrag_jax.eval.retrieval.calibration import calibrate, fit_on_dev, stored_threshold
from qrag_jax.eval.retrieval.harness import Labels, Threshold, pick_all
from qrag_jax.eval.retrieval.pickers import Picked, multi_step_picker
from qrag_jax.eval.retrieval.protocols import keep
from qrag_jax.measures.facts import score_facts
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.multi_step_search import make_action_bank
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, QRagRetriever, new_retriever
from qrag_jax.qrag.tasks import examples_task, hidden_stories_tasks, subset, vectors_task
from qrag_jax.types import Document, Example, UsageError

LABELS = Labels("latent", "relative", 0, 4)
# Q of chunks 0, 1, 2 of every question; chunk 0 is gold, of the second question chunk 1 too.
Q = np.array([[0.9, 0.2, 0.1], [0.8, 0.6, 0.3], [0.7, 0.3, 0.2]])


def held_out(name="dev", noise="noise"):
    """Three questions; other noise around the same question and gold makes no other question of it."""
    chunks = lambda i, gold: tuple(f"fact {i} {j}" if j in gold else f"{noise} {i} {j}" for j in range(4))  # noqa: E731
    golds = [(0,), (0, 1), (0,)]
    return examples_task(name, [Example(f"q{i}", f"question {i}", chunks(i, g), g) for i, g in enumerate(golds)])


def q_picker(contexts, num_steps):
    order = np.tile(np.arange(num_steps), (len(contexts.chunks), 1))
    return Picked(order, Q[contexts.questions, :num_steps])


# --- calibrate


def test_calibrate_by_hand():
    """Picks that pay: Q .9, .8, .7 and .6; the next one, .3, is wrong: the threshold lies midway between .6 and .3."""
    threshold, fitted = calibrate(held_out(), q_picker, 3)
    assert threshold.value == pytest.approx(0.45) and fitted.threshold == threshold.value
    assert (fitted.fact_em, fitted.fact_f1, fitted.n) == (1.0, 1.0, 3)
    task = held_out()
    assert threshold.fitted_on == {task.fingerprint(i) for i in range(3)}


def test_calibrate_on_a_subset_knows_that_subset_only():
    examples = [Example(f"q{i}", f"question {i}", ("a", "b", "c"), (0,)) for i in range(20)]
    task = examples_task("many", examples)
    scores = np.random.default_rng(0).random((20, 2))

    def picker(contexts, num_steps):
        return Picked(np.tile(np.arange(num_steps), (len(contexts.chunks), 1)), scores[contexts.questions])

    one, again, other = (calibrate(task, picker, 2, 8, seed)[0] for seed in (0, 0, 1))
    assert len(one.fitted_on) == 8 and one.fitted_on < {task.fingerprint(i) for i in range(20)}
    assert one == again and one.fitted_on != other.fitted_on
    assert calibrate(task, picker, 2, 8)[1].n == 8


def test_short_contexts_are_calibrated_on_what_they_have():
    """One question has a single chunk: what it cannot pick is neither right nor wrong at any sensible threshold."""
    examples = [Example("a", "question 0", ("x",), (0,)), Example("b", "question 1", ("x", "y", "z"), (0, 1))]
    threshold, fitted = calibrate(examples_task("short", examples), q_picker, 2)
    # Both picks of the second (.8, .6) and the only one of the first (.9): all of them are right.
    assert fitted.fact_f1 == fitted.fact_em == 1.0
    assert threshold.value <= 0.6


# --- apart


def test_no_threshold_is_reported_on_its_own_questions():
    threshold, _ = calibrate(held_out(), q_picker, 3)
    options = {"protocols": ("threshold",), "thresholds": {"trained": threshold}}
    for task in (held_out(), held_out("test", noise="other words"), subset(held_out(), np.array([2]))):
        with pytest.raises(UsageError, match="fitted on .* questions to report.*calibrate on the dev split"):
            evaluate(task, {"trained": q_picker}, 3, LABELS, **options)
    others = examples_task("test", [Example("t", "question 9", ("a", "b", "c", "d"), (1,))])
    pick = lambda contexts, t: Picked(np.arange(t)[None], np.array([[0.9, 0.5, 0.4]]))  # noqa: E731
    (row,), _ = evaluate(others, {"trained": pick}, 3, LABELS, **options)
    assert (row.threshold, row.num_taken, row.fact_em) == (threshold.value, 2.0, 1.0)


def test_the_same_story_in_another_haystack_and_at_another_length_is_the_same_question():
    """Every evaluation hides the facts anew, among other sentences: that makes no fresh question of them."""
    stories = simulate_stories(2, 6, 0, "valid", max_facts=12)
    texts = [" ".join(f"The {word} of number {i} stands here." for i in range(60)) for word in ("oak", "elm")]
    hay = [make_haystack([Document(text[:7], text)], "trees") for text in texts]
    short, long = hidden_stories_tasks("dev", stories, hay[0], (15, 40))
    (elsewhere,) = hidden_stories_tasks("test", stories, hay[1], (20,))
    prints = [[task.fingerprint(i) for i in range(len(task))] for task in (short, long, elsewhere)]
    assert prints[0] == prints[1] == prints[2] and len(set(prints[0])) > 1

    def picker(contexts, num_steps):
        picks = np.tile(np.arange(num_steps), (len(contexts.chunks), 1))
        return Picked(picks, np.random.default_rng(0).random(picks.shape))

    threshold, _ = calibrate(short, picker, 2)
    for task in (long, elsewhere):
        with pytest.raises(UsageError, match="fitted on 6 of the 6 questions to report"):
            evaluate(task, {"trained": picker}, 2, LABELS, protocols=("threshold",), thresholds={"trained": threshold})


# --- what a run keeps


@pytest.fixture(scope="module")
def run():
    """A retriever of vectors and twelve held-out episodes over 20 chunks."""
    rng = np.random.default_rng(0)
    chunks, questions = (rng.normal(size=(n, VECTOR)).astype(np.float32) for n in (20, 12))
    rows = [(f"row {i}", {"question": i, "range": [i % 4, i % 4 + 8], "gold": [i % 4 + 2]}) for i in range(12)]
    dev = vectors_task("vectors dev", make_vector_task(chunks, questions, rows))
    env = EnvConfig(num_steps=3)
    model = ModelConfig(encoder=EncoderSpec("vectors"), latent=LATENT)
    retriever, _, _ = new_retriever(model, env, chunks, jax.random.key(0))
    params = random_params(retriever.network)
    return QRagRetriever(model, env, retriever.network, params, None, retriever.constants), dev


@pytest.mark.slow
def test_fit_on_dev_survives_the_metadata_of_a_checkpoint(run):
    retriever, dev = run
    values = fit_on_dev(retriever, dev)
    assert (values["num_questions"], values["num_chunks"]) == (12, 8)
    assert values["fitted_on"] == sorted(dev.fingerprint(i) for i in range(12))
    metadata = json.loads(json.dumps({"dev": {"update": 4, "return": 0.5, **values}}, allow_nan=False))
    threshold = stored_threshold(metadata)
    assert threshold == Threshold(values["threshold"], frozenset(values["fitted_on"]))
    with pytest.raises(UsageError, match="fitted on 12 of the 12 questions"):
        picker = multi_step_picker(make_action_bank(retriever, dev.texts), dev.questions)
        evaluate(dev, {"trained": picker}, 3, LABELS, protocols=("threshold",), thresholds={"trained": threshold})


def test_fit_on_dev_has_the_best_f1_of_a_slow_search(run):
    """Against every threshold between two neighbouring Q values, one by one."""
    retriever, dev = run
    picker = multi_step_picker(make_action_bank(retriever, dev.texts), dev.questions)
    picked, gold = pick_all(picker, dev.contexts(np.arange(12), np.random.default_rng(0)), 3)
    values = np.unique(picked.scores)
    f1 = []
    for border in [values[0] - 1, *((values[1:] + values[:-1]) / 2), values[-1] + 1]:
        kept = [max(1, next((t for t in range(3) if row[t] < border), 3)) for row in picked.scores]
        f1.append(score_facts(keep(picked.chosen, np.array(kept)), gold).f1.mean())
    fitted = fit_on_dev(retriever, dev)
    assert fitted["fact_f1"] == pytest.approx(max(f1)) and max(f1) > min(f1)


@pytest.mark.slow
def test_the_beam_width_is_chosen_on_held_out_questions(run):
    """Width 1 is the greedy search with its threshold; of equally good widths the narrowest is taken."""
    retriever, dev = run
    plain, values = fit_on_dev(retriever, dev), fit_on_dev(retriever, dev, (2, 1))
    assert "beam_width" not in plain and {name: values[name] for name in plain} == plain
    assert list(values["beam_f1"]) == ["1", "2"]  # keys that JSON keeps
    assert values["beam_f1"]["1"] == pytest.approx(values["fact_f1"])
    best = max(values["beam_f1"].values())
    assert values["beam_width"] == min(int(width) for width, f1 in values["beam_f1"].items() if f1 == best)


@pytest.mark.parametrize("metadata", [{}, {"num_chunks": 20}, {"dev": {"update": 3, "return": 0.1}}])
def test_a_run_that_held_nothing_out_has_no_threshold(metadata):
    assert stored_threshold(metadata) is None
