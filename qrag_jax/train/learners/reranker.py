"""Training of a reranker: a classifier with one output learns to put the passage that answers before others.

    L = mean over questions of  -log softmax_c(s(q, c))_positive,    c: the positive and K others

The others are the question's own negatives; where it has too few, passages of other questions of the file fill up.
With a rank, low-rank changes of all layers' kernels are trained (LoRA, Hu et al. 2021): W + A B, with B = 0 at first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float

from qrag_jax.data.questions.pairs import PairGroup
from qrag_jax.models.encoder.classifier import Classifier, PairScorer, score_rows
from qrag_jax.models.encoder.embedder import BUCKETS
from qrag_jax.train.learners.fitting import deal_parts, run_updates
from qrag_jax.train.lora import join_trained, merge_lora
from qrag_jax.train.optimise import ScheduleConfig, make_schedule
from qrag_jax.train.trainer import Hooks, Plan, Report
from qrag_jax.types import InputError, check_fields

_LEAST = 10  # questions: fewer leave none to hold out
_HELD_OUT = 10  # one of so many parts is held out
_MAX_HELD_OUT = 500


@dataclass(frozen=True)
class RerankerConfig:
    """How a reranker is trained.

    Attributes:
        seed: of parts, parameters and batches.
        epochs: times that every question is seen.
        learning_rate: of AdamW after the warm-up; it falls to 0 along a cosine. LoRA wants about ten times as much.
        questions: of a batch.
        others: passages of a question beside the positive one.
        max_tokens: of question and passage; at most the window of the model. Longer passages are cut.
        lora_rank: of low-rank changes; 0 trains all parameters.
        log_every: updates between two lines of metrics.jsonl.
    """

    seed: int = 0
    epochs: int = 2
    learning_rate: float = 5e-5
    questions: int = 8
    others: int = 3
    max_tokens: int = 256
    lora_rank: int = 0
    log_every: int = 20

    def __post_init__(self) -> None:
        positive = ("epochs", "questions", "others", "log_every")
        at_least = {"lora_rank": 0, "max_tokens": 16}
        check_fields(self, positive=positive, at_least=at_least, within={"learning_rate": "(0, inf)"})


@dataclass(frozen=True)
class FittedReranker:
    """A trained reranker and its quality on questions that it was not trained on.

    Attributes:
        first: of each held-out question 1.0 if the positive passage stands first among its passages, else 0.0.
        first_before: the same before training.
        num_groups: questions that were trained on.
        num_cut: passages of theirs that were cut.
    """

    classifier: Classifier
    first: np.ndarray
    first_before: np.ndarray
    num_groups: int
    num_cut: int


class _Batch(NamedTuple):
    """Rows of questions with their passages, the positive one first."""

    tokens: np.ndarray  # int32 [questions, 1 + others, L]
    lengths: np.ndarray  # int32 [questions, 1 + others]
    types: np.ndarray  # int32 [questions, 1 + others, L]


def fit_reranker(
    groups: Sequence[PairGroup], start: Classifier, config: RerankerConfig, hooks: Hooks, report: Report
) -> FittedReranker:
    """Trains a classifier on questions with passages.

    Args:
        groups: at least ten questions; a tenth of them, or about 500 if that is less, is held out.
        start: a reranker to go on with, or one with a new head.

    Raises:
        InputError: too few questions, or numbers that are not finite.
    """
    questions = [group.question for group in groups]
    if (number := len(set(questions))) < _LEAST:
        raise InputError(f"{number} questions with passages; give at least {_LEAST}")
    part = deal_parts(questions, max(_HELD_OUT, -(-len(groups) // _MAX_HELD_OUT)), config.seed)
    training, held_out = (
        [group for group, its in zip(groups, part, strict=True) if bool(its) == trains] for trains in (True, False)
    )
    start = replace(start, window=min(start.window, config.max_tokens))
    steps = -(-len(training) // config.questions)
    num_updates = config.epochs * steps
    sampler = _Sampler(training, start, config)
    params, frozen = start.params, None
    if config.lora_rank:
        frozen = start.params["encoder"]
        lora = add_lora(frozen, config.lora_rank, jax.random.key(config.seed))
        params = {"lora": lora, "head": start.params["head"]}
    params = jax.tree.map(jnp.array, params)  # an update takes the buffers of its state

    def whole(params: Any, frozen: Any) -> Any:
        if not config.lora_rank:
            return params
        return {"encoder": merge_lora(join_trained(params["lora"], frozen)), "head": params["head"]}

    def loss(params: Any, frozen: Any, batch: _Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        scores = group_scores(start, whole(params, frozen), batch)
        chosen = jax.nn.log_softmax(scores, axis=1)[:, 0]
        is_first = (scores.argmax(axis=1) == 0).mean()
        return -chosen.mean(), {"loss": -chosen.mean(), "first": is_first}

    schedule = make_schedule(ScheduleConfig(config.learning_rate, 0.0, "cosine", warmup=0.1), num_updates)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01))
    plan = Plan(num_updates, config.log_every, num_updates)
    before = first_places(held_out, training, start, config)
    trained = run_updates(params, optimiser, loss, sampler.batch, plan, hooks, report, pool=frozen)
    final = jax.tree.map(np.asarray, jax.jit(whole)(trained, frozen))
    made = replace(start, params=jax.device_put(final))
    return FittedReranker(made, first_places(held_out, training, made, config), before, len(training), sampler.num_cut)


def group_scores(start: Classifier, params: Any, batch: Any) -> Float[Array, "questions passages"]:
    """Scores of all passages of a batch."""
    shape = batch.lengths.shape
    tokens, types = (each.reshape(shape[0] * shape[1], -1) for each in (batch.tokens, batch.types))
    return score_rows(start.config, params, tokens, batch.lengths.reshape(-1), types).reshape(shape)


class _Sampler:
    """Batches of training questions; every epoch has its own order."""

    def __init__(self, groups: Sequence[PairGroup], start: Classifier, config: RerankerConfig) -> None:
        self._groups, self._start, self._config = groups, start, config
        self._steps = -(-len(groups) // config.questions)
        tables = (
            start.tokenizer.pairs(one.question, [one.positive, *one.negatives], start.window)[0] for one in groups
        )
        self.num_cut = sum(table.num_texts_cut for table in tables)
        # An update is compiled for few widths.
        self._widths = (*[size for size in BUCKETS if 64 <= size < start.window][-3:], start.window)

    def batch(self, number: int) -> _Batch:
        """The batch of an update."""
        config, count = self._config, self._config.questions
        rng = np.random.default_rng([config.seed, 2, number // self._steps])
        order = rng.permutation(len(self._groups))
        first = number % self._steps * count
        chosen = [self._groups[order[(first + place) % len(order)]] for place in range(count)]
        rows = [passages_of(group, self._groups, config.others, [config.seed, 3, number]) for group in chosen]
        pairs = [
            self._start.tokenizer.pairs(group.question, passages, self._start.window)
            for group, passages in zip(chosen, rows, strict=True)
        ]
        longest = max(int(table.lengths.max()) for table, _ in pairs)
        width = next(size for size in self._widths if size >= longest)
        fill = lambda each: np.stack([np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in each])  # noqa: E731
        return _Batch(
            fill([table.tokens for table, _ in pairs]),
            np.stack([table.lengths for table, _ in pairs]),
            fill([types for _, types in pairs]),
        )


def passages_of(group: PairGroup, pool: Sequence[PairGroup], others: int, seed: Sequence[int]) -> list[str]:
    """The positive passage, then negatives: the question's own in a random order, filled up with those of others."""
    rng = np.random.default_rng([*seed, len(group.question)])
    own = [group.negatives[place] for place in rng.permutation(len(group.negatives))[:others]]
    while len(own) < others:
        other = pool[int(rng.integers(len(pool)))]
        if other.positive != group.positive and other.question != group.question:
            own.append(other.positive)
        elif all(one.positive == group.positive or one.question == group.question for one in pool):
            raise InputError(f"question {group.question[:60]!r}: no other passage to compare with; add negatives")
    return [group.positive, *own]


def first_places(
    held_out: Sequence[PairGroup], pool: Sequence[PairGroup], classifier: Classifier, config: RerankerConfig
) -> np.ndarray:
    """1.0 where the positive passage of a question stands first, float64 [questions]."""
    score = PairScorer(classifier)
    found = []
    for number, group in enumerate(held_out):
        passages = passages_of(group, pool, max(config.others, len(group.negatives)), [config.seed, 4, number])
        scores = score(group.question, passages)
        found.append(float(scores[0] > scores[1:].max()))
    return np.array(found)


def add_lora(encoder: Mapping[str, Any], rank: int, key: Array) -> dict[str, Any]:
    """Low-rank leaves for the kernels of all layers: A normal with variance 1 / inputs, B zero."""
    flat: Any = flatten_dict(dict(encoder))
    kernels = {path: leaf for path, leaf in flat.items() if path[-1] == "kernel"}
    leaves: dict[tuple[str, ...], Array] = {}
    for own, (path, kernel) in zip(jax.random.split(key, len(kernels)), kernels.items(), strict=True):
        inputs, outputs = kernel.shape
        leaves[*path[:-1], "lora_a"] = jax.random.normal(own, (inputs, rank)) / math.sqrt(inputs)
        leaves[*path[:-1], "lora_b"] = jnp.zeros((rank, outputs))
    return unflatten_dict(leaves)
