"""What a reader is given: questions with the chunks that a method chose for them, or with the bounds of any choice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qrag_jax.eval.picks.harness import draw_contexts
from qrag_jax.eval.picks.records import QueryRecord
from qrag_jax.eval.setting import Setting
from qrag_jax.retrieval.mdp.tasks import Task
from qrag_jax.types import InputError

# Chunks that no retriever chose, as methods: all gold chunks and no other, and none. What a reader is worth without
# the search: no choice of chunks should be better than the first; the second is what the model knows by itself.
BOUNDS = ("gold_chunks", "no_chunks")


@dataclass(frozen=True)
class Reading:
    """One question and the chunks that it is to be answered from.

    Attributes:
        query_id, question, setting, fact_em, fact_f1: as of the `QueryRecord`; the method may also be one of `BOUNDS`.
        chosen: places of the chunks in the context, in document order.
        texts: of the chunks, in that order.
    """

    query_id: str
    question: str
    setting: Setting
    fact_em: float
    fact_f1: float
    chosen: tuple[int, ...]
    texts: tuple[str, ...]


def make_readings(records: Sequence[QueryRecord]) -> list[Reading]:
    """The chosen chunks of every record, in document order whatever the order of retrieval: a story has an order."""
    return [_reading(record) for record in records]


def bound_readings(
    task: Task, records: Sequence[QueryRecord], num_questions: int | None = None, seed: int = 0
) -> list[Reading]:
    """The same questions with all their gold chunks and nothing else, then without any chunk (`BOUNDS`).

    Args:
        records: of one method under one protocol, as an evaluation gives them.
    """
    queries, contexts = draw_contexts(task, num_questions, seed)
    same = [task.query_ids[int(i)] for i in queries] == [record.query_id for record in records]
    if not same or any(np.flatnonzero(g).tolist() != list(r.gold) for g, r in zip(contexts.gold, records, strict=True)):
        raise InputError(f"{task.name}: the records are of other contexts than the task gives with seed {seed}")
    readings = []
    for method, share in zip(BOUNDS, (1.0, 0.0), strict=True):
        for record, chunks in zip(records, contexts.chunks, strict=True):
            chosen = record.gold if method == "gold_chunks" else ()
            readings.append(
                Reading(
                    query_id=record.query_id,
                    question=record.question,
                    setting=_bound(method, record.setting),
                    fact_em=share,
                    fact_f1=share,
                    chosen=chosen,
                    texts=tuple(str(task.texts[int(chunks[place])]) for place in chosen),
                )
            )
    return readings


def _bound(method: str, of: Setting) -> Setting:
    """That of a bound beside the rows of a method."""
    return replace(of, method=method, mode="none", positions="none", protocol="none", beam_width=1)


def _reading(record: QueryRecord) -> Reading:
    if record.texts is None:
        raise InputError(
            f"query {record.query_id}, {record.setting.method}: its record has no texts of the chosen chunks: answers "
            "are read from texts, not from vectors"
        )
    order = sorted(range(len(record.chosen)), key=record.chosen.__getitem__)
    return Reading(
        query_id=record.query_id,
        question=record.question,
        setting=record.setting,
        fact_em=record.fact_em,
        fact_f1=record.fact_f1,
        chosen=tuple(record.chosen[place] for place in order),
        texts=tuple(record.texts[place] for place in order),
    )
