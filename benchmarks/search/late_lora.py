"""Trains token vectors for MaxSim on pairs, by low-rank changes of MiniLM; writes an encoder folder.

    python -m benchmarks.search.late_lora pairs.jsonl OUT
    python -m benchmarks.search.fresh_questions rank COLLECTIONS RESULTS --late --late_model OUT --late_weight 1 \\
        --label lora1

    L = mean over questions q of  -log softmax_c(SCALE * late(q, c))_positive

Passages c are the positive ones of all questions of a batch, and one negative of each question that has any. `late` is
that of `search/late.py`, over exact vectors instead of int8 codes.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from benchmarks.common import arguments
from qrag_jax.data.questions.pairs import PairGroup, read_pairs
from qrag_jax.models.encoder.config import EncoderConfig
from qrag_jax.models.encoder.text_encoder import encode_tokens
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.models.encoder.weights import load_encoder, save_encoder
from qrag_jax.train.learners.fitting import run_updates
from qrag_jax.train.learners.reranker import add_lora
from qrag_jax.train.lora import join_trained, merge_lora
from qrag_jax.train.optimise import ScheduleConfig, make_schedule
from qrag_jax.train.trainer import Hooks, Plan

QUESTIONS, QUESTION_TOKENS, PASSAGE_TOKENS = 8, 48, 192  # of a batch, of a row
RANK, SCALE, LEARNING_RATE = 8, 25.0, 4e-4


class Rows(NamedTuple):
    """Token ids int32 [n, L] and lengths int32 [n] of texts with [CLS] and [SEP]."""

    tokens: np.ndarray
    lengths: np.ndarray


class Batch(NamedTuple):
    """Questions [b], passages [m]; `wrong` bool [b, m] are the passages that a question is compared with."""

    questions: Rows
    passages: Rows
    wrong: np.ndarray


def max_sim(
    questions: Float[Array, "b n d"],
    asked: Bool[Array, "b n"],
    passages: Float[Array, "m L d"],
    said: Bool[Array, "m L"],
) -> Float[Array, "b m"]:
    """`late` of every question and passage, for vectors of length 1."""
    cosines = jnp.einsum("bnd,mld->bmnl", questions, passages)
    best = jnp.where(said[None, :, None, :], cosines, -1.0).max(axis=-1)
    return (best * asked[:, None, :]).sum(axis=-1) / asked.sum(axis=-1)[:, None]


def token_vectors(config: EncoderConfig, params: Any, rows: Rows) -> tuple[Array, Array]:
    """Vectors of length 1, and which of them are tokens of the text."""
    hidden = encode_tokens(config, params, rows.tokens, rows.lengths)
    places = jnp.arange(rows.tokens.shape[1])
    inside = (places > 0) & (places < rows.lengths[:, None] - 1)
    return hidden / jnp.maximum(jnp.linalg.norm(hidden, axis=-1, keepdims=True), 1e-6), inside


def rows_of(tokenizer: TextTokenizer, texts: list[str], size: int) -> Rows:
    table = tokenizer.encode(texts, size, length=size)
    return Rows(table.tokens, table.lengths)


def batch_of(groups: list[PairGroup], tokenizer: TextTokenizer, seed: int, number: int) -> Batch:
    """The groups of an update; every epoch has its own order."""
    steps = len(groups) // QUESTIONS
    order = np.random.default_rng([seed, number // steps]).permutation(len(groups))
    chosen = [groups[place] for place in order[number % steps * QUESTIONS :][:QUESTIONS]]
    rng = np.random.default_rng([seed, 1, number])
    others = [one.negatives[rng.integers(len(one.negatives))] if one.negatives else "" for one in chosen]
    texts = [one.positive for one in chosen] + others
    wrong = np.array([[bool(text) and text != one.positive for text in texts] for one in chosen])
    return Batch(
        rows_of(tokenizer, [one.question for one in chosen], QUESTION_TOKENS),
        rows_of(tokenizer, texts, PASSAGE_TOKENS),
        wrong,
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("pairs", help="questions with passages, as `qrag train reranker` takes them")
    parser.add_argument("out", type=Path, help="folder of the encoder")
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    groups, loaded = read_pairs([args.pairs]), load_encoder("minilm")
    config, frozen = loaded.config, loaded.params
    lora = add_lora(frozen, RANK, jax.random.key(args.seed))

    def loss(lora: Any, frozen: Any, batch: Batch) -> tuple[Array, dict[str, Array]]:
        params = merge_lora(join_trained(lora, frozen))
        scores = max_sim(
            *token_vectors(config, params, batch.questions), *token_vectors(config, params, batch.passages)
        )
        own = jnp.diagonal(scores)
        logits = SCALE * jnp.where(batch.wrong, scores, -jnp.inf)
        chosen = SCALE * own - jax.nn.logsumexp(jnp.concatenate([SCALE * own[:, None], logits], axis=1), axis=1)
        first = (own > jnp.where(batch.wrong, scores, -1.0).max(axis=1)).mean()
        return -chosen.mean(), {"loss": -chosen.mean(), "first": first}

    schedule = make_schedule(ScheduleConfig(LEARNING_RATE, 0.0, "cosine", warmup=0.1), args.updates)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01))

    def report(stage: str, done: int, of: int, metrics: Any) -> None:
        print(f"{stage} {done} of {of}: {dict(metrics)}", flush=True)

    start = time.process_time()
    plan = Plan(args.updates, 20, args.updates)
    trained = run_updates(
        lora, optimiser, loss, lambda n: batch_of(groups, loaded.tokenizer, args.seed, n), plan, Hooks(), report, frozen
    )
    params = jax.tree.map(np.asarray, merge_lora(join_trained(trained, frozen)))
    save_encoder(args.out, config, params, loaded.tokenizer, pooler=loaded.pooler, max_seq_length=loaded.max_seq_length)
    size = sum(leaf.size for leaf in jax.tree.leaves(lora))
    print(f"{len(groups):,} pairs, {size:,} parameters, {time.process_time() - start:.0f} CPU s")


if __name__ == "__main__":
    main()
