"""Training that tagger and compressor share: documents in groups and parts, and the loop of updates."""

import hashlib
import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Int

from qrag_jax.data.corpora.headed_documents import HeadedDocument
from qrag_jax.train.trainer import Hooks, Plan, Report, Trainer, jit_update

_EMBED_AT_A_TIME = 2_000  # sentences between two reports


def embedded_groups(documents: Sequence[HeadedDocument], report: Report) -> Iterator[range]:
    """Numbers of documents that are embedded together; reports when the next ones are asked for."""
    total = sum(len(one.text) for one in documents)
    first, done, waiting = 0, 0, 0
    for number, last in enumerate(documents):
        waiting += len(last.text)
        if waiting >= _EMBED_AT_A_TIME or number == len(documents) - 1:
            yield range(first, number + 1)
            done, first, waiting = done + waiting, number + 1, 0
            report("embed", done, total, {})


def documents_sha256(documents: Sequence[HeadedDocument]) -> str:
    """A digest of ids, texts and points, hexadecimal."""
    digest = hashlib.sha256()
    for one in documents:
        digest.update(json.dumps([one.id, one.text.texts(), [list(point) for point in one.points]]).encode())
    return digest.hexdigest()


def deal_parts(ids: Sequence[Hashable], num_parts: int, seed: int) -> Int[np.ndarray, " documents"]:
    """The part of each document, at random, parts as equal as can be; what has one id shares one."""
    distinct = list(dict.fromkeys(ids))
    dealt = np.random.default_rng([seed, 1]).permutation(len(distinct)) % min(num_parts, len(distinct))
    part_of = dict(zip(distinct, dealt.tolist(), strict=True))
    return np.array([part_of[one] for one in ids])


def run_updates(
    params: Any,
    optimiser: optax.GradientTransformation,
    loss: Callable[[Any, Any, Any], tuple[jax.Array, dict[str, jax.Array]]],
    batch: Callable[[int], Any],
    plan: Plan,
    hooks: Hooks,
    report: Report,
    pool: Any = (),
) -> Any:
    """The parameters after all updates, on the host.

    Args:
        loss: (parameters, pool, batch) -> (loss, metrics).
        batch: number of an update -> its batch.
        pool: what all batches are drawn from, on the device.
    """

    def update(state: Any, pool: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        params, opt_state = state
        gradient, metrics = jax.grad(loss, has_aux=True)(params, pool, batch)
        step, opt_state = optimiser.update(gradient, opt_state, params)
        return (optax.apply_updates(params, step), opt_state), metrics

    jitted = jit_update(update)
    trainer = Trainer(lambda state, batch: jitted(state, pool, batch), batch, plan, [hooks], report=report)
    state, _ = trainer.run((params, optimiser.init(params)))
    return jax.tree.map(np.asarray, state[0])
