"""Q-RAG's training: it prepares a `trainer.Trainer` and turns the final state into a retriever."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qrag_jax.checkpoint import Checkpoint
from qrag_jax.models.towers.q_network import PyTree
from qrag_jax.qrag.batching import Packer, Sample, materialise, with_mined
from qrag_jax.qrag.retriever import QRagRetriever
from qrag_jax.qrag.tasks import Task
from qrag_jax.sharding import to_host
from qrag_jax.train.answer_rewards import AnswerReward
from qrag_jax.train.log import RunLog
from qrag_jax.train.qrag.config import RunConfig, make_sampler
from qrag_jax.train.qrag.job import Job, first_state, prepare, rows_multiple
from qrag_jax.train.qrag.learner import Learner, LearnerState, Paid
from qrag_jax.train.qrag.saving import Member, check_members, is_calibrated, save_batch, save_run
from qrag_jax.train.run_folder import check_room, open_log, open_runs
from qrag_jax.train.trainer import Hooks, Plan, Report, Trainer, jit_update

_ADVICE = "Lower learner.learning_rate or raise learner.temperature"
Calibrate = Callable[[QRagRetriever, Task], dict[str, Any]]  # what was fitted on held-out queries, as JSON values


def train(
    config: RunConfig,
    task: Task,
    out: Path | None = None,
    report: Report | None = None,
    dev: Task | None = None,
    calibrate: Calibrate | None = None,
    start: Checkpoint | None = None,
    stop: Callable[[], bool] | None = None,
    reward: AnswerReward | None = None,
) -> QRagRetriever:
    """Trains a retriever.

    All processes of a run on several call it alike; the first one writes.

    Args:
        config: the run.
        task: its training data (`config.training_tasks`).
        out: run folder for checkpoints and logs, which must not hold a run yet unless `start` is of it; None writes
            nothing.
        report: called with progress.
        dev: held-out queries; the parameters with the best mean return on them are the result, the later ones among
            equals. None takes the last parameters.
        calibrate: called at the end with the result and the held-out queries; the checkpoint stores its return value.
        start: a checkpoint of the same run (`checkpoint.load_checkpoint(out, groups=())`) to resume from: every later
            update is the same as without the stop, bit for bit on the same devices.
        stop: asked after every update; where it says True the run is saved and ends.
        reward: your own, with learner.reward=answers or mixed; None is that of `config.answers`.

    Returns:
        The trained retriever.

    Raises:
        UsageError: the config does not fit itself, the data or the devices, or `out` holds a run or is in use.
        InputError: a context that cannot be played, a question that nothing rewards, calls that all fail, a loss that
            is not finite (its batch is saved), or a `start` of another run.
        Stopped: `stop` said so; the run is saved.
    """
    return train_together([Member(config, out, start)], task, report, dev, calibrate, stop, reward)[0]


def train_together(
    members: Sequence[Member],
    task: Task,
    report: Report | None = None,
    dev: Task | None = None,
    calibrate: Calibrate | None = None,
    stop: Callable[[], bool] | None = None,
    reward: AnswerReward | None = None,
) -> list[QRagRetriever]:
    """Trains runs that differ in their seed only, in one update that is `vmap`ped over them; `train` for the rest.

    Each run equals a single run except for rounding. The runs are spread over the devices if their number divides
    evenly.

    Raises:
        UsageError: as `train`; several members whose configs differ in more than the seed, that are text towers
            (their encoder skips empty parts of a batch, which `vmap` cannot), or that start after different updates.
    """
    check_members(members)
    with open_runs([(member.out, member.start) for member in members]), ExitStack() as opened:
        job = prepare(members, task, dev, (lambda *_: None) if report is None else report, reward)
        state, shardings = first_state(job)
        _check_room(job, state)
        _offer_untrained(job, state)
        logs = [opened.enter_context(_open_log(job, member)) for member in members]
        state, batch = _make_trainer(job, logs, shardings, stop).run(state)
        return _results(job, state, batch, calibrate)


def _offer_untrained(job: Job, state: LearnerState) -> None:
    """Makes the initial parameters a candidate for the result, if the config asks for it."""
    for i, (member, best) in enumerate(zip(job.members, job.bests, strict=True)):
        if member.config.dev.untrained and best is not None and member.start is None:
            best.offer(job.layout.part(state, i).params, 0)


def _check_room(job: Job, state: LearnerState) -> None:
    """Refuses a disk that the runs do not fit on, before their first update."""
    config, members, start = job.config, job.members, job.members[0].start
    groups = (state.params, state.target_params, state.opt_state, *([] if job.dev is None else [state.params]))
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(groups)) // len(members)
    num_bytes += sum(map(len, job.towers.files.values()))
    left = config.num_updates - (0 if start is None else start.step)
    check_room([member.out for member in members], num_bytes, -(-left // config.save_interval), config.keep)


def _open_log(job: Job, member: Member) -> AbstractContextManager[RunLog | None]:
    first = 0 if member.start is None else member.start.step
    return open_log(member.out, job.towers.facts, first, member.config.tensorboard)


def _make_trainer(
    job: Job, logs: Sequence[RunLog | None], shardings: LearnerState, stop: Callable[[], bool] | None
) -> Trainer[LearnerState, Sample]:
    """The loop: batches from the task, the update over the pools, the hooks of each run."""
    config, start = job.config, job.members[0].start
    packer = Packer(rows_multiple(job.layout.mesh), job.rows)
    samplers = [make_sampler(job.task, packer, member.config) for member in job.members]
    update = jitted_update(job.learner, config.learner.accumulate, shardings, len(job.members))
    return Trainer(
        update=_with_pools(job, update, 0 if start is None else start.step),
        batch=job.layout.sampler(samplers),
        plan=Plan(
            num_updates=config.num_updates,
            log_every=config.log_every,
            save_every=config.save_interval,
            score_every=None if job.dev is None else config.score_interval,
            first=0 if start is None else start.step,
        ),
        hooks=[_hooks(job, i, log) for i, log in enumerate(logs)],
        layout=job.layout,
        report=job.report,
        stop=stop,
        advice=_ADVICE,
    )


def _with_pools(
    job: Job, update: Callable[..., tuple[LearnerState, dict]], first: int
) -> Callable[[LearnerState, Sample], tuple[LearnerState, dict]]:
    """The update over the resident pools, with the sentences mined so far or what a language model pays.

    `first` is the first update.
    """
    pools, numbers, miner, payer = (job.towers.chunks, job.towers.questions), count(first), job.miner, job.payer
    if payer is not None:
        play = jax.jit(lambda state, *inputs: job.learner.play(state, materialise(*inputs)))

        def with_answers(state: LearnerState, sample: Sample) -> tuple[LearnerState, dict]:
            paid = payer(sample, np.asarray(play(state, *pools, sample)))
            payer.reader.heard(paid)
            return update(state, *pools, sample, None, paid)

        return with_answers
    if miner is None:
        return lambda state, sample: update(state, *pools, sample)
    return lambda state, sample: update(state, *pools, sample, miner.before(state.params, next(numbers)))


def _hooks(job: Job, i: int, log: RunLog | None) -> Hooks[LearnerState, Sample]:
    """Log, checkpoints and scores of run i."""
    out, best = job.members[i].out, job.bests[i]
    score = None if best is None else lambda state, done: {"dev_return": best.offer(state.params, done)}
    if out is None:
        return Hooks(score=score)
    return Hooks(
        out=out,
        log=log,
        save=lambda state, sample: _save(job, i, state, sample.distinct.shape[-1]),
        score=score,
        save_bad_batch=lambda update, values, sample: save_batch(
            out, update, values, job.task, _as_played(job, update, sample)
        ),
    )


def _as_played(job: Job, update: int, sample: Sample) -> Sample:
    """A sample with the mined sentences in place; `update` counts from 1."""
    return sample if job.miner is None else with_mined(sample, job.miner.ids_of(update - 1))


def _save(job: Job, i: int, state: LearnerState, rows: int, fitted: Mapping[str, Any] | None = None) -> None:
    """Saves run i, at the end with the values fitted on held-out queries."""
    member, towers, known = job.members[i], job.towers, job.about | {"rows": rows}
    known |= {} if job.miner is None else {"mined": job.miner.ids.tolist()}
    known |= {} if job.payer is None else {"reader": job.payer.reader.totals()}
    if member.out is not None:
        save_run(
            member.out, member.config, state, towers.retriever.constants, towers.files, known, job.bests[i], fitted
        )


def _results(job: Job, state: LearnerState, batch: Sample | None, calibrate: Calibrate | None) -> list[QRagRetriever]:
    """The retrievers; values calibrated on held-out queries are saved with them."""
    trained = []
    for i, best in enumerate(job.bests):
        params = job.layout.part(state.params, i) if best is None else best.params
        params = jax.tree.map(jnp.asarray, to_host(params, job.layout.mesh))
        trained.append(replace(job.towers.retriever, params=params))
    if job.config.learner.reward != "gold":  # a threshold is fitted to gold
        return trained
    if job.dev is not None and calibrate is not None and not all(map(is_calibrated, job.members)):
        rows = job.rows if batch is None else batch.distinct.shape[-1]
        fitted = [calibrate(retriever, job.dev) for retriever in trained]
        for i, own in enumerate(fitted):
            _save(job, i, job.layout.part(state, i), rows, own)
    return trained


def jitted_update(
    learner: Learner, num_parts: int = 1, shardings: LearnerState | None = None, num_members: int = 1
) -> Callable[..., tuple[LearnerState, dict]]:
    """(state, chunk pool, question pool, sample) -> (state, metrics), compiled, with the old state's buffers reused.

    A sample with places for mined texts comes with their ids, then what a language model paid for its episodes.

    Args:
        num_parts: `learner.accumulate`; above 1 the sample has one more axis in front.
        shardings: of the new state; None leaves them to XLA. Metrics are on every device.
        num_members: runs that are trained together; above 1 state, sample and metrics have one more axis in front.
    """
    gather = materialise if num_parts == 1 else jax.vmap(materialise, in_axes=(None, None, 0, None))

    def one(
        state: LearnerState, chunks: PyTree, questions: PyTree, sample: Sample, mined: jax.Array | None = None,
        paid: Paid | None = None,
    ) -> tuple[LearnerState, dict]:  # fmt: skip
        return learner.update(state, gather(chunks, questions, sample, mined), paid)

    return jit_update(one if num_members == 1 else jax.vmap(one, in_axes=(0, None, None, 0)), shardings)
