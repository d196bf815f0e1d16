"""Saves and resumes runs: a checkpoint contains everything that later updates depend on.

Also checks what runs must share to be trained together.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from qrag_jax.checkpoint import Checkpoint, load_checkpoint, require_same_config, save_checkpoint
from qrag_jax.config import to_dict
from qrag_jax.files.whole_file import write_json
from qrag_jax.models.encoder.hf_config import read_fields
from qrag_jax.qrag.batching import Sample
from qrag_jax.qrag.retriever import params_group
from qrag_jax.qrag.tasks import Task
from qrag_jax.train.qrag.config import RunConfig
from qrag_jax.train.qrag.learner import LearnerState
from qrag_jax.train.run_folder import check_same_config, restore
from qrag_jax.train.trainer import KeepBest
from qrag_jax.types import InputError, UsageError


@dataclass(frozen=True)
class Member:
    """One of the runs that are trained together: its config, its folder or None, and the checkpoint that it resumes
    from."""

    config: RunConfig
    out: Path | None = None
    start: Checkpoint | None = None


def check_members(members: Sequence[Member]) -> None:
    """Refuses runs that cannot share one update."""
    if len(members) == 1:
        return
    config = members[0].config
    if config.learner.reward != "gold":
        reason = f"learner.reward={config.learner.reward}: a language model pays one run"
        raise UsageError(f"{reason}; start each seed alone")
    if any(replace(member.config, seed=config.seed) != config for member in members) or config.data.seed is None:
        raise UsageError("runs that are trained together must differ only in seed, and must share data.seed")
    if config.model.mode != "latent" or config.model.encoder.source == "scratch":
        raise UsageError("only latent towers on a frozen encoder train several seeds together: start each seed alone")
    if len(members) % config.mesh.size:
        raise UsageError(f"{len(members)} runs cannot be spread evenly over the {config.mesh.size} devices of mesh")
    if config.keep < 2:
        raise UsageError("keep=1 could leave runs that are trained together without a common checkpoint: set keep=2")
    steps = sorted({0 if member.start is None else member.start.step for member in members})
    if len(steps) > 1:
        raise UsageError(f"runs that are resumed together must be at the same update, but these are at {steps}")


def saved_rows(members: Sequence[Member]) -> int:
    """Rows that a batch was padded to when the runs were saved; 0 for fresh ones."""
    return max(0 if member.start is None else member.start.metadata["rows"] for member in members)


# What may change when a run is resumed: it alters no update. Paths may move; the digest of the data says what they are.
_FREE_FIELDS = (
    "log_every", "save_every", "keep", "tensorboard", "mesh", "data.paths", "data.haystack", "answers.journal",
    "answers.max_llm_tokens", "answers.base_url",
)  # fmt: skip
# What leaves no trace in the shapes of parameters, and makes other towers of them.
_SAME_TOWERS = (
    "model.mode",
    "model.latent.num_heads",
    "model.latent.residual",
    "model.scale",
    "env.num_q_heads",
    "env.theta",
)
_SHAPE_FILE = "encoder/config.json"  # of `retriever_files`
_QUERIES_AT_A_TIME = 256
_GROUPS = tuple(field.name for field in fields(LearnerState))


def save_run(
    out: Path,
    config: RunConfig,
    state: LearnerState,
    constants: Mapping[str, np.ndarray],
    files: Mapping[str, bytes],
    about: Mapping[str, Any],
    best: KeepBest | None = None,
    fitted: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a complete checkpoint: arrays, config, encoder or tokenizer, and a description of the training data.

    With held-out queries, `load_retriever` takes `best_params`; the metadata contain under `dev` their update, their
    mean return and the fitted values.

    Args:
        state: after an update; sharded or not.
        files: of the retriever (`retriever_files`).
        about: metadata: the task, and the state of the sampler (`describe_task`, `rows`).
        fitted: on held-out queries, at the end of the run.
    """
    arrays = {name: getattr(state, name) for name in _GROUPS} | {"constants": dict(constants)}
    about = dict(about)
    if best is not None and best.params is not None:
        arrays["best_params"] = best.params
        about["dev"] = {"update": best.update, "return": best.value, **(fitted or {})}
        about |= {"fitted": sorted(fitted)} if fitted else {}
    return save_checkpoint(out, int(state.step), arrays, to_dict(config), files, about, config.keep)


def describe_task(task: Task, dev: Task | None = None, with_answers: bool = False) -> dict[str, Any]:
    """Metadata about a training task, with a digest that tells whether a resumed run sees the same data.

    The digest covers every text, question and id, the chunks of each question and which of them are gold, also of
    held-out questions.

    Args:
        with_answers: the digest covers the right answers too, for a run that learns from them.
    """
    digest = hashlib.sha256()
    for part in chain.from_iterable(_parts(one, with_answers) for one in ((task,) if dev is None else (task, dev))):
        digest.update(len(part).to_bytes(8, "little") + part)
    return {
        "task": task.name,
        "num_questions": len(task),
        "num_left_out": task.num_left_out,
        "num_chunks": int(task.sizes.max()),  # of the longest context
        "data_sha256": digest.hexdigest(),
    }


def _parts(task: Task, with_answers: bool) -> Iterator[bytes]:
    """All that a task is made of, piece by piece."""
    if with_answers:
        yield repr(task.answers and [tuple(row) for row in task.answers]).encode("utf-8", "surrogatepass")
    for texts in (task.texts, task.questions, task.query_ids):
        if isinstance(texts, np.ndarray):
            yield np.ascontiguousarray(texts).tobytes()
        else:
            yield from (text.encode("utf-8", "surrogatepass") for text in texts)
    rng = np.random.default_rng(0)
    for first in range(0, len(task), _QUERIES_AT_A_TIME):  # contexts may be long
        contexts = task.contexts(np.arange(first, min(first + _QUERIES_AT_A_TIME, len(task))), rng)
        yield from (np.asarray(x).tobytes() for x in (contexts.questions, contexts.chunks, contexts.gold))


def check_resumable(saved: Checkpoint, config: RunConfig, about: Mapping[str, Any]) -> None:
    """Refuses to go on with another config or other data than those of the checkpoint."""
    check_same_config(saved, to_dict(config), _FREE_FIELDS, to_dict(RunConfig()))
    for name in ("data_sha256", "rows"):
        if name not in saved.metadata:
            raise InputError(f"{saved.folder}: metadata.json has no {name}: this run cannot be resumed; train it again")
    if saved.metadata["data_sha256"] != about["data_sha256"]:
        raise InputError(
            f"{saved.folder}: trained on other data: {saved.metadata['num_questions']} questions of "
            f"{saved.metadata['task']} there, {about['num_questions']} of {about['task']} here, or other texts among "
            "them, or other gold or answers. Give the same files, or another run folder"
        )


def mined_ids(saved: Checkpoint) -> list[int]:
    """The mined sentences of a resumed run (`mining.Miner.ids`)."""
    ids = saved.metadata.get("mined")
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 2**31 for i in ids):
        raise InputError(f"{saved.folder}: metadata.json has no mined sentences: copy the run again")
    return ids


def load_init(config: RunConfig) -> tuple[Checkpoint, str]:
    """The source of a warm start (`init`): a checkpoint with the result of its run, and the name of its group."""
    try:
        saved = load_checkpoint(config.init, groups=lambda about: (params_group(about), "constants"))
    except UsageError as error:
        raise UsageError(f"init={config.init}: {error}") from error
    require_same_config(saved.config, to_dict(config), _SAME_TOWERS, source=f"init={config.init}")
    return saved, params_group(saved.metadata)


def check_same_encoder(saved: Checkpoint, files: Mapping[str, bytes]) -> None:
    """Refuses to go on with another encoder or tokenizer than the checkpoint's.

    Another release of transformers may have written the checkpoint's `config.json`, so only the fields that define
    the encoder are compared.
    """
    there, here = _compared(saved.files), _compared(files)
    differing = sorted(name for name in {*there, *here} if there.get(name) != here.get(name))
    if differing:
        raise InputError(
            f"{saved.folder}: files/{differing[0]} is not what model.encoder.source gives now: the encoder has "
            "changed, or is a scratch one that another seed, device or XLA drew. Give the one that the run was started "
            "with, or another run folder"
        )


def _compared(files: Mapping[str, bytes]) -> dict[str, Any]:
    shape = {_SHAPE_FILE: read_fields(json.loads(files[_SHAPE_FILE]))} if _SHAPE_FILE in files else {}
    return {**files, **shape}


def is_calibrated(member: Member) -> bool:
    """True if a finished run is resumed and its checkpoint has the values fitted on held-out queries."""
    start = member.start
    return start is not None and start.step == member.config.num_updates and "fitted" in start.metadata


def restore_state(
    saved: Checkpoint, shapes: LearnerState, shardings: LearnerState, best: KeepBest | None
) -> LearnerState:
    """The state of a checkpoint on the devices of this run, whatever it was saved on.

    Args:
        saved: the checkpoint, of which the metadata were read.
        best: takes over what held-out queries have chosen so far, if anything.
    """
    like, where = ({name: getattr(tree, name) for name in _GROUPS} for tree in (shapes, shardings))
    known = saved.metadata.get("dev")
    if best is None or known is None:
        return LearnerState(**restore(saved, like, where))
    like["best_params"], where["best_params"] = like["params"], where["params"]
    arrays = restore(saved, like, where)
    best.params, best.update, best.value = arrays["best_params"], known["update"], known["return"]
    return LearnerState(**{name: arrays[name] for name in _GROUPS})


def save_batch(out: Path, update: int, metrics: Mapping[str, float], task: Task, sample: Sample) -> Path:
    """Writes the environments of an update whose loss is not finite, with their texts, as JSON; returns the file."""
    named = not isinstance(task.texts, np.ndarray)
    chunk_ids = np.take_along_axis(sample.distinct[..., None, :], np.asarray(sample.chunks), axis=-1)
    flat = lambda x: np.asarray(x).reshape(-1, *np.shape(x)[sample.chunks.ndim - 1 :])  # noqa: E731
    rows = zip(flat(sample.questions), flat(chunk_ids), flat(sample.valid), flat(sample.gold), strict=True)
    environments = [
        {
            "question": task.questions[question] if named else int(question),
            "chunks": [task.texts[i] if named else int(i) for i in ids[valid]],
            "gold": np.flatnonzero(gold[valid]).tolist(),
        }
        for question, ids, valid, gold in rows
    ]
    path = out / f"bad_batch_{update}.json"
    values = {name: str(value) for name, value in metrics.items()}  # JSON has no NaN
    write_json(path, {"update": update, "metrics": values, "environments": environments}, indent=1)
    return path
