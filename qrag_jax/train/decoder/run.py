"""A run of a decoder that learns: model and task are loaded, the trainer loops, the result is a model folder.

RUN holds the decoder as an ordinary model folder (config, weights, tokenizer, chat template), `results.json`, the logs,
and checkpoints that a run resumes from.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from qrag_jax.checkpoint import Checkpoint, load_checkpoint, newest_valid_step, save_checkpoint
from qrag_jax.config import config_from_dict, to_dict
from qrag_jax.data.plan_tasks import accuracies
from qrag_jax.files.whole_file import write_json
from qrag_jax.measures.aggregate import ratio_interval
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.network import init_params
from qrag_jax.models.decoder.sharding import decoder_shardings
from qrag_jax.models.decoder.weights import LoadedDecoder, load_decoder, save_decoder
from qrag_jax.search.levels.planner_runs import RECORD, planner_record
from qrag_jax.sharding import make_mesh, to_host
from qrag_jax.train.decoder.config import DecoderRun
from qrag_jax.train.decoder.data import Texts, load_task
from qrag_jax.train.decoder.learner import Batch, Drawn, LearnerConfig, LearnerState, make_learner
from qrag_jax.train.decoder.phases import RunState, Updates
from qrag_jax.train.decoder.rewards import Reward, check_records
from qrag_jax.train.decoder.roll import Actor, check_window
from qrag_jax.train.decoder.stitch import Progress
from qrag_jax.train.lora import add_lora, join_trained, merge_lora, split_trained
from qrag_jax.train.run_folder import check_same_config, open_log, open_runs, restore
from qrag_jax.train.trainer import Hooks, Layout, Plan, Report, Trainer
from qrag_jax.types import InputError, TextGenerator, UsageError, Watch

_FREE_FIELDS = (
    "log_every",
    "save_every",
    "score_every",
    "keep",
    "tensorboard",
    "mesh",
    "data.paths",
    "data.eval_paths",
)
_PROGRESS, _SECONDS = "progress.json", "seconds"
_MOST = 2**31 - 1  # updates; a run ends when its last phase is over
_ARRAYS = ("params", "opt_state", "reference")
RESULTS = "results.json"


class Job(NamedTuple):
    """Everything that a run is made of, before its first update.

    Attributes:
        decoder: shape of the model.
        fingerprint: of the model that it starts from.
        trained: parameters that are trained (`split_trained`).
    """

    decoder: DecoderConfig
    fingerprint: str
    trained: Any
    updates: Updates


def train_decoder(
    config: DecoderRun,
    out: Path,
    watch: Watch,
    *,
    resume: bool = False,
    generator: TextGenerator | None = None,
    rewards: Mapping[str, Reward] | None = None,
) -> dict[str, Any]:
    """Trains a decoder into a run folder and returns the row of its result.

    Args:
        out: run folder; it must not hold a run, unless it is resumed.
        resume: go on from the newest checkpoint, if there is one: every later update is the same, bit for bit.
        generator: of rewards that ask a language model.
        rewards: your own, by name; the config gives their weights.

    Raises:
        UsageError: the folder holds a run or is in use; prompts do not fit the decoder's window.
        InputError: a damaged or unfit record, model or checkpoint; a loss that is not finite (its batch is saved).
    """
    if jax.process_count() > 1:
        raise UsageError("decoders are trained by one process; use one machine with several devices")
    start = _newest(out, watch) if resume else None
    with open_runs([(out, start)]):
        job = prepare(config, generator, rewards)
        about = {"data_sha256": job.updates.task.sha256, "model_sha256": job.fingerprint}
        state = first_state(job, start, about)
        facts = {"train": len(job.updates.task.train), "eval": len(job.updates.task.evaluation), **about}
        first = state.progress.updates
        with open_log(out, facts, first, config.tensorboard) as log:
            begun, earlier = time.perf_counter(), float(start.metadata.get(_SECONDS, 0.0)) if start else 0.0

            def spent() -> dict[str, str]:
                return {_SECONDS: str(earlier + time.perf_counter() - begun)}

            hooks: Hooks[RunState, tuple[()]] = Hooks(
                out,
                log,
                save=lambda state, batch: _save(job, out, state, about | spent()),
                score=lambda state, done: _score(job, state),
                save_bad_batch=lambda number, values, batch: _save_bad(job, out, number, values),
            )
            plan = Plan(_MOST, config.log_every, config.save_every, config.score_every or _MOST, first)
            trainer = Trainer(
                job.updates, lambda number: (), plan, [hooks], Layout(job.updates.mesh), _report(watch),
                ends=job.updates.is_done,
            )  # fmt: skip
            if not job.updates.is_done(state):
                state, _ = trainer.run(state)
        save_decoder(
            out, LoadedDecoder(job.decoder, merged_params(job, state.learner), job.updates.texts.tokenizer, "")
        )
        if job.updates.task.names and config.data.controlled.documents == 1:
            write_json(
                out / RECORD,
                planner_record(job.updates.task.names, config.rollout.max_trace, job.updates.task.template),
            )
        row = result_row(job, state, earlier + time.perf_counter() - begun)
        write_json(out / RESULTS, row)
    return row


def prepare(
    config: DecoderRun, generator: TextGenerator | None = None, rewards: Mapping[str, Reward] | None = None
) -> Job:
    """Loads the task and the decoder, and makes the functions of the run."""
    task, mesh = load_task(config), make_mesh(config.mesh)
    own, rollout, key = config.model, config.rollout, jax.random.key(config.seed)
    if own.source == "scratch":
        assert task.tokenizer is not None  # the config refuses other tasks
        tokenizer, fingerprint = task.tokenizer, "scratch"
        shape = own.scratch
        decoder = DecoderConfig(
            "qwen3", tokenizer.vocab_size, shape.hidden_size, shape.intermediate_size, shape.num_layers,
            shape.num_heads, shape.num_heads, shape.hidden_size // shape.num_heads, shape.max_positions,
            tie_embeddings=True, qk_norm=True,
        )  # fmt: skip
        params = init_params(decoder, jax.random.fold_in(key, 0))
    else:
        loaded = load_decoder(own.source)
        tokenizer, fingerprint, decoder = loaded.tokenizer, loaded.fingerprint, loaded.config
        params = loaded.params
    if config.lora.rank:
        params = add_lora(params, config.lora.rank, config.lora.projections, jax.random.fold_in(key, 1))
    params = jax.device_put(params, decoder_shardings(mesh, decoder, params))
    trained, others = split_trained(params)
    texts = Texts(tokenizer)
    learner = make_learner(
        LearnerConfig(
            decoder, texts.end_ids, own.dtype, own.remat, config.max_norm, rollout.max_tokens, rollout.temperature,
            rollout.parts, rollout.clip_low, rollout.clip_high, 0.0 if config.method == "sft" else rollout.kl_coef,
        ),
        mesh,
    )  # fmt: skip
    actor = Actor(config, task, texts, learner, mesh, generator, rewards)
    drawn = [*task.evaluation, *(task.train if config.method != "sft" or config.imitation.only_unsolved else ())]
    check_records([one for one in (*rollout.rewards, rollout.solved_by) if one not in (rewards or {})], drawn)
    if drawn:
        check_window(actor, decoder.max_positions, config.method == "stitch" and rollout.hints)
    return Job(decoder, fingerprint, trained, Updates(config, task, texts, learner, actor, others, mesh))


def first_state(job: Job, start: Checkpoint | None, about: Mapping[str, str]) -> RunState:
    """The state before the first update, or that of a checkpoint.

    Raises:
        InputError: the checkpoint is of another config, other data or another model.
    """
    if start is None:
        return RunState(job.updates.learner.init(job.trained), Progress())
    check_same_config(start, to_dict(job.updates.config), _FREE_FIELDS)
    for name, what in (("data_sha256", "the records"), ("model_sha256", "the model to start from")):
        if start.metadata.get(name) != about[name]:
            raise InputError(
                f"{what} changed since this checkpoint; give what the run was started with, or another run folder",
                file=start.folder,
            )
    like = jax.eval_shape(job.updates.learner.init, job.trained)
    names = [name for name in _ARRAYS if jax.tree.leaves(getattr(like, name))]
    shardings = decoder_shardings(job.updates.mesh, job.decoder, like)
    arrays = restore(
        start, {name: getattr(like, name) for name in names}, {name: getattr(shardings, name) for name in names}
    )
    progress = config_from_dict(Progress, json.loads(start.files[_PROGRESS]), str(start.folder / _PROGRESS))
    return RunState(LearnerState(**{"reference": {}, **arrays}), progress)


def merged_params(job: Job, state: LearnerState) -> dict[str, Any]:
    """All parameters of the decoder, on the host, without low-rank leaves."""
    return merge_lora(to_host(join_trained(state.params, job.updates.others), job.updates.mesh))


def result_row(job: Job, state: RunState, seconds: float) -> dict[str, Any]:
    """The row of `results.json`: scores of greedy answers to the evaluation prompts, and what they cost.

    Without such prompts there are no scores. `low` and `high` are a 95% interval of `accuracy` over the prompts;
    `solve_none` is the share of prompts of the last phase that no answer without a hint solved; `tokens` are those of
    drawn answers.
    """
    progress, own = state.progress, job.updates.config
    name = f"sft+{own.method}" if own.sft_first and own.method != "sft" else own.method
    row: dict[str, Any] = {"method": name, **dict.fromkeys(("accuracy", "accuracy_macro", "low", "high"))}
    if job.updates.task.evaluation:
        correct, weights = _correct(job, state), np.array([one["weight"] for one in job.updates.task.evaluation])
        accuracy, macro = accuracies(job.updates.task.evaluation, correct.tolist())
        interval = ratio_interval(weights * correct, weights, seed=own.seed)
        row |= {"accuracy": accuracy, "accuracy_macro": macro, "low": interval.low, "high": interval.high}
    asked = progress.vanilla / own.rollout.group
    counts = ("rollouts", "tokens", "imitation_steps", "flat_groups", "unrewarded", "untaught")
    return row | {
        "traces": len(progress.taught),
        **{name: getattr(progress, name) for name in counts},
        "in_buffer": len(progress.buffer),
        "solve_none": progress.unsolved / asked if asked else None,
        "updates": progress.updates,
        "seconds": round(seconds, 1),
        "seed": own.seed,
    }


def _correct(job: Job, state: RunState) -> np.ndarray:
    return job.updates.actor.evaluate((state.learner.params, job.updates.others)).correct[:, 0].astype(float)


def _score(job: Job, state: RunState) -> dict[str, float]:
    if not job.updates.task.evaluation:
        return {}
    accuracy, macro = accuracies(job.updates.task.evaluation, _correct(job, state).tolist())
    return {"accuracy": accuracy, "accuracy_macro": macro}


def _save(job: Job, out: Path, state: RunState, about: Mapping[str, str]) -> None:
    learner, progress = state
    arrays = {name: getattr(learner, name) for name in _ARRAYS if jax.tree.leaves(getattr(learner, name))}
    files = {_PROGRESS: json.dumps(to_dict(progress))}
    save_checkpoint(out, progress.updates, arrays, to_dict(job.updates.config), files, about, job.updates.config.keep)


def _save_bad(job: Job, out: Path, number: int, values: Mapping[str, float]) -> Path:
    batches = next(batches for update, batches in job.updates.latest if update == number)
    path = out / f"bad_batch_{number}.json"
    metrics = {name: str(value) for name, value in values.items()}  # JSON has no NaN
    shown = [_shown(batch, job.updates.texts) for batch in batches]
    write_json(path, {"update": number, "metrics": metrics, "batches": shown}, indent=1)
    return path


def _shown(batch: Batch, texts: Texts) -> dict[str, Any]:
    """The texts of a batch."""

    def read(rows: Any) -> list[str]:
        return [texts.decode(row[row > 0]) for row in np.asarray(rows)]

    if not isinstance(batch, Drawn):
        return {"rows": read(batch.tokens)}
    answers = [read(group) for group in batch.answers]
    return {"prompts": read(batch.prompts), "answers": answers, "advantages": np.asarray(batch.advantages).tolist()}


def _newest(out: Path, watch: Watch) -> Checkpoint | None:
    step, skipped = newest_valid_step(out)
    for fault in skipped:
        watch.note(f"skipped a damaged checkpoint: {fault}")
    if step is None:
        watch.note(f"{out}: no checkpoint yet; starting with the first update")
        return None
    watch.note(f"{out}: continuing after update {step:,}")
    return load_checkpoint(out, step=step, groups=())


def _report(watch: Watch) -> Report:
    """Progress of a run whose number of updates is not known before it ends."""
    return lambda stage, done, of, metrics: watch.report(stage, done, min(of, done + 1), metrics)
