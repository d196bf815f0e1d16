"""A logistic regression on what Q reads of links: the least that could use them, for `multihop_controls.py`."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, special

from qrag_jax.eval.retrieval.harness import draw_contexts, pick_all
from qrag_jax.eval.retrieval.pickers import Picked, Picker
from qrag_jax.measures.facts import score_facts
from qrag_jax.models.towers.prior import unit
from qrag_jax.models.towers.q_network import VectorRows
from qrag_jax.qrag.batching import Contexts, Link, make_linker
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.heads import link_inputs
from qrag_jax.qrag.retriever import Kind, QRagRetriever, Texts
from qrag_jax.qrag.tasks import Task

NUM_STEPS = 4
STRENGTHS = 10.0 ** np.arange(-4, 1)  # of the L2 penalty
KINDS = ("links", "links_products", "links_cosines")  # the inputs of a regression

# (contexts with links, slots taken int [batch, taken]) -> float [batch, chunks, inputs]
Inputs = Callable[[Contexts, np.ndarray], np.ndarray]


class Linked(NamedTuple):
    """A task, and what gives its contexts their links, each once."""

    task: Task
    link: Link


class Fitted(NamedTuple):
    """A logistic regression: z = <x, weights> + a constant, which no ranking needs."""

    weights: np.ndarray
    strength: float
    held_out_em: float


class States(NamedTuple):
    """One row a chunk that may be picked in a state: float [n, inputs], whether it is gold, and what the row counts."""

    x: np.ndarray
    is_gold: np.ndarray
    counts: np.ndarray


def gold_states(contexts: Contexts, inputs: Inputs) -> States:
    """Every state of a question in which some of its gold is taken and some is not; each question counts alike."""
    golds = [np.flatnonzero(row) for row in contexts.gold]
    parts = []
    for size in range(max(map(len, golds))):
        states = [(row, c) for row, gold in enumerate(golds) if len(gold) > size for c in combinations(gold, size)]
        rows = np.array([row for row, _ in states])
        taken = np.array([chosen for _, chosen in states], np.int64).reshape(len(states), size)
        own = jax.tree.map(lambda x, rows=rows: x[rows], contexts)
        open_ = own.chunks >= 0
        np.put_along_axis(open_, taken, False, axis=1)
        num_states = np.array([2 ** len(golds[row]) - 1 for row in rows])
        counts = np.broadcast_to(1 / (num_states * open_.sum(axis=1))[:, None], open_.shape)
        parts.append((inputs(own, taken)[open_], own.gold[open_], counts[open_]))
    return States(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def fit(states: States, strength: float) -> np.ndarray:
    """Weights of a logistic regression on standardised inputs, in units of the inputs as they are; float [inputs].

    min_b  sum_i c_i log(1 + exp(-s_i (<u_i, b> + b_0))) / sum_i c_i + strength / 2 |b|^2,   s_i = 1 where gold, else -1
    """
    counts = states.counts / states.counts.sum()
    mean = counts @ states.x
    std = np.sqrt(counts @ (states.x - mean) ** 2)
    std = np.where(std > 0, std, 1)
    u = np.column_stack([(states.x - mean) / std, np.ones(len(states.x))])
    sign = np.where(states.is_gold, 1.0, -1.0)

    def loss(b: np.ndarray) -> tuple[float, np.ndarray]:
        margin = sign * (u @ b)
        slope = -(counts * sign * special.expit(-margin)) @ u
        penalised = np.append(b[:-1], 0)
        value = counts @ np.logaddexp(0, -margin) + strength / 2 * penalised @ penalised
        return float(value), slope + strength * penalised

    found = optimize.minimize(loss, np.zeros(u.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 400})
    return found.x[:-1] / std


def regression_picker(link: Link, inputs: Inputs, weights: np.ndarray) -> Picker:
    """Picks the chunk with the highest score, time after time."""

    def pick(contexts: Contexts, num_steps: int) -> Picked:
        linked = link(contexts)
        closed = linked.chunks < 0
        taken, scores = np.zeros((len(closed), 0), np.int64), np.zeros((len(closed), 0))
        for _ in range(num_steps):
            score = np.where(closed, -np.inf, inputs(linked, taken) @ weights)
            best = score.argmax(axis=1)[:, None]
            np.put_along_axis(closed, best, True, axis=1)
            taken = np.concatenate([taken, best], axis=1)
            scores = np.concatenate([scores, np.take_along_axis(score, best, axis=1)], axis=1)
        return Picked(taken, scores)

    return pick


def of_links(contexts: Contexts, taken: np.ndarray) -> np.ndarray:
    """What Q reads of links."""
    return np.asarray(link_inputs(contexts.links, jnp.asarray(taken)))


def of_links_and_cosines(
    asked: np.ndarray, texts: np.ndarray, beta: float, contexts: Contexts, taken: np.ndarray
) -> np.ndarray:
    """Links, and what the run starts from (`models.towers.prior`): <q, a> and <unit(q + beta sum_taken c), a>.

    Args:
        asked: vectors of the questions at length 1, from the mean of the training chunks; float32 [questions, dim].
        texts: likewise of the chunks.
        beta: what a taken chunk counts beside the question.
    """
    question, chunks = asked[contexts.questions], texts[np.maximum(contexts.chunks, 0)]
    own = np.take_along_axis(chunks, taken[:, :, None], axis=1).sum(axis=1)
    state = np.asarray(unit(question + beta * own))
    cosines = [np.einsum("bd,bnd->bn", vector, chunks) for vector in (question, state)]
    return np.concatenate([of_links(contexts, taken), np.stack(cosines, axis=-1)], axis=-1)


def of_products(contexts: Contexts, taken: np.ndarray) -> np.ndarray:
    """Links, their squares and the products of every two, so that one may count by what another says."""
    x = of_links(contexts, taken)
    first, second = np.triu_indices(x.shape[-1])
    return np.concatenate([x, x[..., first] * x[..., second]], axis=-1)


class Regression:
    """The inputs of one kind of regression (`KINDS`) for any task, and its fit.

    Cosines are those that a trained run started from: of its frozen encoder, from the mean of its training chunks.
    """

    def __init__(self, kind: str, retriever: QRagRetriever) -> None:
        self._kind = kind
        self._retriever = retriever

    def inputs(self, task: Task) -> Inputs:
        """What the regression reads of the contexts of a task."""
        if self._kind != "links_cosines":
            return of_links if self._kind == "links" else of_products
        asked, texts = self._vectors(task.questions, "question"), self._vectors(task.texts, "chunk")
        return partial(of_links_and_cosines, asked, texts, self._retriever.model.latent.prior_beta)

    def _vectors(self, texts: Texts, kind: Kind) -> np.ndarray:
        rows, _ = self._retriever.rows(texts, kind)
        assert isinstance(rows, VectorRows)  # the run is latent
        return np.asarray(unit(rows.vectors - self._retriever.constants["mean"]))

    def fitted(self, train: Linked, held_out: Linked) -> Fitted:
        """Fitted on `train`; the penalty with the best EM on `held_out`, the strongest among equals."""
        states = gold_states(train.link(draw_contexts(train.task)[1]), self.inputs(train.task))
        all_weights = [fit(states, strength) for strength in STRENGTHS.tolist()]
        held_out_em = [float(em.mean()) for em in self.em(all_weights, held_out)]
        tried = map(Fitted, all_weights, STRENGTHS.tolist(), held_out_em)
        return max(tried, key=lambda one: (one.held_out_em, one.strength))

    def em(self, all_weights: Sequence[np.ndarray], on: Linked) -> Iterator[np.ndarray]:
        """Fact EM of every question of a task, by each of several weights."""
        inputs = self.inputs(on.task)
        for weights in all_weights:
            yield em_of(regression_picker(on.link, inputs, weights), on.task)


def linked(task: Task) -> Linked:
    """A task whose contexts have links."""
    return Linked(task, make_linker(EnvConfig(links=True), task.texts, task.questions))


def em_of(picker: Picker, task: Task) -> np.ndarray:
    """Fact EM of every question, by its first `NUM_STEPS` picks."""
    picked, gold = pick_all(picker, draw_contexts(task)[1], NUM_STEPS)
    return score_facts(picked.chosen, gold).em
