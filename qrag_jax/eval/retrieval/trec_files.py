"""Picks as TREC files, which trec_eval, ir_measures and other tools read."""

from collections.abc import Sequence
from pathlib import Path

from qrag_jax.eval.retrieval.records import QueryRecord
from qrag_jax.eval.setting import Setting
from qrag_jax.measures.trec import falling_scores, write_qrels, write_run
from qrag_jax.qrag.tasks import Task


def write_trec(folder: str | Path, task: Task, records: Sequence[QueryRecord]) -> None:
    """Writes `TASK_CHUNKS.qrels` and a file `TASK_CHUNKS.METHOD.PROTOCOL.run` for every row, with `.beamN` for beams.

    Chunks rank in the order of their picks. Their ids are those of the task (`Task.chunk_ids`), else their numbers.

    Args:
        folder: made if it is not there.
        task: that the records are of.
        records: of `evaluate`, of any number of rows.
    """
    if not records:
        return
    place = {name: number for number, name in enumerate(task.query_ids)}
    judged, runs = {}, {}
    for record in records:
        query, name = place[record.query_id], record.query_id
        picks = zip(_ids(task, query, record.chosen), record.q_values, strict=True)
        runs.setdefault(_row(record.setting), {})[name] = falling_scores(picks)
        judged[name] = task.judged[query] if task.judged else dict.fromkeys(_ids(task, query, record.gold), 1)
    stem = Path(folder) / f"{task.name}_{records[0].setting.num_chunks}".replace(" ", "_")
    write_qrels(Path(f"{stem}.qrels"), judged)
    for row, run in runs.items():
        write_run(Path(f"{stem}.{row}.run"), run, row)


def _ids(task: Task, query: int, numbers: Sequence[int]) -> Sequence[str]:
    return [str(number) for number in numbers] if task.chunk_ids is None else task.chunk_ids(query, numbers)


def _row(setting: Setting) -> str:
    beams = "" if setting.beam_width == 1 else f".beam{setting.beam_width}"
    return f"{setting.method}.{setting.protocol}{beams}"
