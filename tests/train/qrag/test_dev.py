from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from support.networks import linear_network, random_params
from support.tiers import slow_but

from qrag_jax.data.questions.vector_task import make_vector_task
from qrag_jax.qrag.batching import Contexts
from qrag_jax.qrag.env import EnvConfig, PoolConfig
from qrag_jax.qrag.multi_step_search import make_action_bank
from qrag_jax.qrag.retriever import EncoderSpec, ModelConfig, QRagRetriever
from qrag_jax.qrag.tasks import PoolQuestion, pool_task, subset, vectors_task
from qrag_jax.search.pool_texts import PoolTexts
from qrag_jax.train.qrag.config import DataConfig, RunConfig
from qrag_jax.train.qrag.job import make_dev_score
from qrag_jax.train.qrag.loop import train
from qrag_jax.types import InputError

VECTOR = 6
NUM_QUERIES = 13
STOPPING = {"reward": "at_end", "stop": True}


def make_task(size=NUM_QUERIES):
    """Contexts of three to six chunks, each with one or two gold ones."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(size):
        chunks = np.sort(rng.choice(20, 3 + i % 4, replace=False))
        gold = rng.choice(chunks, 1 + i % 2, replace=False)
        rows.append((f"line {i}", {"question": i % 5, "chunks": chunks.tolist(), "gold": gold.tolist()}))
    chunks, questions = (rng.normal(size=(n, VECTOR)).astype(np.float32) for n in (20, 5))
    return vectors_task("vectors", make_vector_task(chunks, questions, rows))


def make_retriever(**options):
    constants = {"mean": np.zeros(VECTOR, np.float32), "std": np.ones(VECTOR, np.float32)}
    env = EnvConfig(num_steps=3, **options)
    params = random_params(linear_network()) | ({"stop": jnp.linspace(-0.4, 0.4, 8)} if env.stop else {})
    return QRagRetriever(ModelConfig(encoder=EncoderSpec("vectors")), env, linear_network(), params, None, constants)


def return_by_hand(picks, stopped, gold, env):
    """What an episode that takes `picks`, and then stops or has come to T, is paid."""
    gold, taken = set(gold), []
    paid = 0.0
    for pick in picks:
        was_complete = gold <= set(taken)
        taken.append(pick)
        if env.reward == "at_completion" and gold <= set(taken) and not was_complete:
            paid += 0.5 + 0.5 * len(gold) / len(taken)
    if env.reward == "at_end" and gold <= set(taken):
        paid += 0.5 + 0.5 * len(gold) / len(taken)
    assert stopped or len(taken) == env.num_steps
    return paid


def mean_return(retriever, task):
    """Greedy search over an index, one query after the other, each return by hand: no code of training."""
    index = make_action_bank(retriever, task.texts)
    contexts = task.contexts(np.arange(len(task)), np.random.default_rng(0))
    questions = index.read_questions(task.questions)
    returns = []
    for row in range(len(task)):
        one = Contexts(*(getattr(contexts, name)[row : row + 1] for name in ("questions", "chunks", "gold")))
        played = index.play(questions, one, retriever.env.num_steps)
        picks = np.asarray(played.actions)[0].tolist()
        stops = np.asarray(played.stop_q_values.sum(-1) > played.q_values.sum(-1))[0]
        end = int(stops.argmax()) if stops.any() else len(picks)
        gold = np.flatnonzero(contexts.gold[row]).tolist()
        returns.append(return_by_hand(picks[:end], bool(stops.any()), gold, retriever.env))
    return np.mean(returns)


@pytest.mark.parametrize(
    ("options", "batch_size"),
    slow_but([(STOPPING, 5)], [({}, 5), ({}, 1000), (STOPPING, 5), (STOPPING, 1000)], [({}, 5)]),
)
def test_the_score_is_the_mean_return_of_greedy_episodes(options, batch_size):
    """13 queries in batches of 5: the last batch is filled up, and what fills it does not count."""
    task, retriever = make_task(), make_retriever(**options)
    score = make_dev_score(retriever, task, batch_size, seed=0)(retriever.params)
    assert type(score) is float
    assert score == pytest.approx(mean_return(retriever, task), rel=1e-6)
    assert 0.05 < score < 0.95


@pytest.mark.slow
def test_what_fills_up_the_last_batch_does_not_count():
    """The last query of seven is the only one that is answered: 1 / 7, however often it stands in a batch."""
    retriever, task = make_retriever(), make_task(7)
    retriever = replace(retriever, env=replace(retriever.env, num_steps=2))
    drawn = task.contexts(np.arange(7), np.random.default_rng(0))
    index = make_action_bank(retriever, task.texts)
    picks = np.asarray(index.play(index.read_questions(task.questions), drawn, 2).actions)
    gold = np.zeros(drawn.chunks.shape, bool)
    for query in range(6):
        gold[query, min({0, 1, 2} - set(picks[query].tolist()))] = True
    gold[6, picks[6, 0]] = True
    task = replace(task, contexts=lambda queries, rng: Contexts(drawn.questions, drawn.chunks, gold))
    scores = [make_dev_score(retriever, task, size, seed=0)(retriever.params) for size in (2, 4, 7)]
    np.testing.assert_allclose(scores, 1 / 7, rtol=1e-6)


def test_other_parameters_have_another_score_and_compile_nothing():
    traced = []
    retriever = make_retriever()

    def states(*args):
        traced.append(1)
        return linear_network().states(*args)

    score = make_dev_score(replace(retriever, network=retriever.network._replace(states=states)), make_task(), 5, 0)
    first = score(retriever.params)
    num_traced = len(traced)
    others = {score(random_params(linear_network(), seed)) for seed in range(1, 4)}
    assert num_traced == 3 and len(traced) == 3  # one a step
    assert others != {first}
    assert score(retriever.params) == first


def test_contexts_are_drawn_once():
    """Scores of different updates compare: they are of the same contexts."""
    drawn = []

    def contexts(queries, rng):
        chunks = rng.integers(0, 20, (len(queries), 5)).astype(np.int32)
        drawn.append(Contexts(queries % 5, chunks, np.arange(5) == rng.integers(5, size=(len(queries), 1))))
        return drawn[-1]

    retriever, task, scores = make_retriever(), replace(make_task(), contexts=contexts), []
    retriever = replace(retriever, env=replace(retriever.env, num_steps=2))
    for seed in (3, 3, 4):
        score = make_dev_score(retriever, task, 4, seed)
        scores.append([score(retriever.params) for _ in range(2)])
    assert len(drawn) == 3 and all(len(batch.chunks) == NUM_QUERIES for batch in drawn)
    np.testing.assert_array_equal(drawn[0].chunks, drawn[1].chunks)
    assert (drawn[0].chunks != drawn[2].chunks).any()
    assert scores[0] == scores[1] and scores[2][0] == scores[2][1]


def test_a_context_that_cannot_be_played_is_refused():
    with pytest.raises(InputError, match="vectors: query 0 has 3 chunks, which cannot give 4 picks"):
        make_dev_score(replace(make_retriever(), env=EnvConfig(num_steps=4)), make_task(), 5, 0)


def test_a_task_without_queries_is_refused():
    """What is held out may all be in the training data too."""
    nothing = subset(make_task(), np.array([], np.int64), "mine dev")
    with pytest.raises(InputError, match="mine dev: no question is left to hold out.*raise dev.share, or set it to 0"):
        make_dev_score(make_retriever(), nothing, 5, 0)


def test_held_out_questions_of_another_task_are_refused():
    """A pool has one table of questions; numbers of another list would score other questions, silently."""
    pool = PoolTexts(["red", "blue", "green", "grey"], [""] * 4, np.arange(4))
    task, dev = (pool_task(name, pool, [PoolQuestion("a", name, (0, 1))]) for name in ("one", "two"))
    env = EnvConfig(num_steps=2, positions="none", pool=PoolConfig())
    config = RunConfig(num_updates=1, env=env, data=DataConfig(task="corpus", paths=("x",), stretch=1, batch_size=1))
    with pytest.raises(ValueError, match="must be a subset of the task that is trained on"):
        train(config, task, dev=dev)
