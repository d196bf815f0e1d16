"""Runs of Q-RAG that are trained together: checked, embedded, and their first state.

Scores of held-out questions during training: they say which update's parameters are kept.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from qrag_jax.checkpoint import Checkpoint, load_checkpoint
from qrag_jax.models.towers.q_network import PyTree, VectorRows
from qrag_jax.qrag.batching import Link, Packer, Sample, make_linker, materialise
from qrag_jax.qrag.env import rollout
from qrag_jax.qrag.heads import HEADS
from qrag_jax.qrag.policy import make_greedy
from qrag_jax.qrag.pool import PoolBatch, pool_rollout
from qrag_jax.qrag.pool_search import check_encoder
from qrag_jax.qrag.pool_tables import PoolReader
from qrag_jax.qrag.retriever import (
    QRagRetriever,
    drawn_encoder,
    new_retriever,
    retriever_files,
    with_constants,
    with_fresh_params,
)
from qrag_jax.qrag.tasks import Task
from qrag_jax.sharding import (
    MeshConfig,
    check_same_everywhere,
    make_mesh,
    place,
    replicated,
    split_rows,
    state_shardings,
)
from qrag_jax.train.answer_rewards import AnswerReward
from qrag_jax.train.optimise import describe_source, take_params
from qrag_jax.train.qrag.config import RunConfig
from qrag_jax.train.qrag.label_losses import check_negatives
from qrag_jax.train.qrag.learner import Learner, LearnerState, make_learner
from qrag_jax.train.qrag.mining import Miner, check_minable
from qrag_jax.train.qrag.paying import Payer, Reader, check_rewarded, with_queries
from qrag_jax.train.qrag.saving import (
    Member,
    check_resumable,
    check_same_encoder,
    describe_task,
    load_init,
    mined_ids,
    restore_state,
    saved_rows,
)
from qrag_jax.train.trainer import KeepBest, Layout, Report
from qrag_jax.types import InputError, UsageError

_ROWS_MULTIPLE = 128
DevScore = Callable[[PyTree], float]


def make_dev_score(
    retriever: QRagRetriever,
    task: Task,
    batch_size: int,
    seed: int,
    mesh: Mesh | None = None,
    pools: PyTree = None,
    payer: Payer | None = None,
) -> DevScore:
    """Parameters -> mean return of a greedy episode over all queries of a task: completion, and how early.

    The contexts are drawn once, so that scores of different updates compare; one shape, compiled once.

    Args:
        retriever: whose towers are scored; its own parameters are not used.
        mesh: devices that the parameters live on; None is the first one.
        pools: of the texts and the questions, on these devices; None makes them.
        payer: pays for episodes of this task; the score is the mean of those that it paid, at least half of them.
            None: gold pays.
    """
    if not len(task):
        raise InputError(
            f"{task.name}: no question is left to hold out: those that were drawn are all in the training data too; "
            "raise dev.share, or set it to 0"
        )
    task.check_steps(retriever.env.num_steps)
    mesh = make_mesh(MeshConfig()) if mesh is None else mesh
    if pools is None:
        rows, _ = retriever.rows(task.texts, "chunk")
        questions, _ = retriever.rows(task.questions, "question")
        pools = place((rows, questions), replicated(mesh))
    link = make_linker(retriever.env, task.texts, task.questions)
    samples = _samples(task, link, min(batch_size, len(task)), seed, mesh)

    @partial(jax.jit, out_shardings=replicated(mesh))
    def play(params: PyTree, pools: PyTree, sample: Sample) -> tuple[jax.Array, jax.Array]:
        batch = materialise(pools[0], pools[1], sample)
        how = retriever.network, params, batch, jax.random.key(0), make_greedy(), retriever.env
        played = pool_rollout(*how)[0] if isinstance(batch, PoolBatch) else rollout(*how)
        return played.rewards.sum(1), played.actions

    def score(params: PyTree) -> float:
        returns, counts = [], []
        with jax.set_mesh(mesh):
            for sample in samples:
                own, actions = map(np.asarray, play(params, pools, sample))
                paid = None if payer is None else payer(sample, actions)
                returns.append(own if paid is None else np.where(paid.by_answer, paid.values, own))
                counts.append(np.ones(len(own), bool) if paid is None else paid.is_known)
        every, known = (np.concatenate(rows)[: len(task)] for rows in (returns, counts))
        if 2 * known.sum() < len(task):
            assert payer is not None
            raise InputError(
                f"{task.name}: only {known.sum():,} of {len(task):,} held-out questions were paid, which are too few "
                f"to choose an update{payer.reader.fault}; repair the language model, or set dev.share to 0"
            )
        return float(every[known].mean())

    return score


def rows_multiple(mesh: Mesh) -> int:
    """The multiple that the distinct chunks of a batch are rounded up to, so every device has equally many."""
    return math.lcm(_ROWS_MULTIPLE, mesh.size)


def _samples(task: Task, link: Link, size: int, seed: int, mesh: Mesh) -> Sequence[Sample]:
    """All queries in batches of one shape, the last one filled up with the last query."""
    every = np.arange(len(task))
    contexts = link(task.contexts(every, np.random.default_rng([seed, 6])))
    parts = [np.minimum(np.arange(first, first + size), len(task) - 1) for first in range(0, len(task), size)]
    cut = [jax.tree.map(lambda x, part=part: x[part], contexts) for part in parts]
    packer = Packer(rows_multiple(mesh))
    for part in cut:  # until the shape holds every batch
        packer(part)
    sharding = replicated(mesh) if size % mesh.size else split_rows(mesh)
    return [place(with_queries(packer(part), every[own]), sharding) for part, own in zip(cut, parts, strict=True)]


@dataclass(frozen=True)
class Towers:
    """Inputs that all runs of a job share.

    Attributes:
        retriever: with the parameters of a warm start, or any.
        chunks, questions: inputs of the towers for every text, on the devices.
        files: of the retriever.
        facts: about the data, for the log.
        init: description of the warm start; empty without one.
    """

    retriever: QRagRetriever
    chunks: PyTree
    questions: PyTree
    files: Mapping[str, bytes]
    facts: dict[str, Any]
    init: Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """Runs that are trained together, checked and made.

    Attributes:
        about: metadata of every checkpoint.
        rows: that a batch was padded to when the runs were saved.
        bests: of each run, empty without held-out queries.
        miner: of the one run that mines its haystack.
        payer: pays for its episodes, if a language model does.
    """

    members: Sequence[Member]
    task: Task
    dev: Task | None
    report: Report
    about: dict[str, Any]
    rows: int
    layout: Layout
    towers: Towers
    learner: Learner
    bests: Sequence[KeepBest | None]
    miner: Miner | None
    payer: Payer | None

    @property
    def config(self) -> RunConfig:
        """Config of the first run; those of the others differ only in the seed."""
        return self.members[0].config


def prepare(
    members: Sequence[Member], task: Task, dev: Task | None, report: Report, reward: AnswerReward | None = None
) -> Job:
    """Refuses all that can be refused, and embeds."""
    config = members[0].config
    about = describe_task(task, dev, config.learner.reward != "gold")
    check_same_everywhere("the training data", about["data_sha256"])
    for member in members:
        if member.start is not None:
            check_resumable(member.start, member.config, about)
    if dev is not None and dev.pool is not None and dev.questions is not task.questions:  # read from one table
        raise ValueError("held-out questions to a pool must be a subset of the task that is trained on (tasks.subset)")
    task.check_steps(config.env.num_steps)
    if config.learner.reward != "answers":
        task.warn_of_steps(config.env.num_steps)
    mesh = make_mesh(config.mesh)
    check_minable(task, config.mining, len(members), mesh.size)
    check_negatives(task, config.data.num_negatives, mesh.size)
    payer, dev_payer = _make_payers(config, task, dev, reward, members[0].start)
    towers = _make_towers(members[0], task, mesh, report)
    for member in members:
        if member.start is not None:
            check_same_encoder(member.start, towers.files)
    bests: list[KeepBest | None] = [None] * len(members)
    if dev is not None and dev.pool is not None:
        dev = replace(dev, pool=replace(dev.pool, vectors=np.asarray(towers.chunks.rows.vectors)))
    if dev is not None:
        part_size = config.data.batch_size // config.learner.accumulate  # environments that are played at a time
        pools = None if dev.pool is None else (towers.chunks, towers.questions)
        score = make_dev_score(towers.retriever, dev, part_size, config.data_seed, mesh, pools, dev_payer)
        bests = [KeepBest(score, config.dev.margin) for _ in members]
    learner = make_learner(towers.retriever.network, config.env, config.learner, config.num_updates)
    layout = Layout(mesh, len(members), config.learner.accumulate)
    about |= {"init": dict(towers.init)} if towers.init else {}
    miner = _make_miner(members[0], task, towers)
    rows = saved_rows(members)
    return Job(members, task, dev, report, about, rows, layout, towers, learner, bests, miner, payer)


def _make_payers(
    config: RunConfig, task: Task, dev: Task | None, reward: AnswerReward | None, start: Checkpoint | None
) -> tuple[Payer | None, Payer | None]:
    """The payers of the training and the held-out questions, which share a language model."""
    source = config.learner.reward
    tasks = [task] if dev is None else [task, dev]
    for one in tasks:
        check_rewarded(one, source)
    if source == "gold":
        if reward is not None:
            raise UsageError("a reward of answers works only with learner.reward=answers or mixed")
        return None, None
    if jax.process_count() > 1:
        raise UsageError(f"learner.reward={source}: a language model pays a run of one process; start it in one")
    reader = Reader.of(config.answers.measure, config.answers.load()) if reward is None else Reader(reward)
    if start is not None:
        reader.resume(start.metadata.get("reader"))
    payers = [Payer(one, reader, source) for one in tasks]
    return payers[0], payers[1] if dev is not None else None


def _make_miner(member: Member, task: Task, towers: Towers) -> Miner | None:
    """The miner of a run's haystack; for a resumed run with the sentences that it had mined when it was saved."""
    config = member.config
    if config.mining.every is None:
        return None
    earlier = None if member.start is None else mined_ids(member.start)
    pools = towers.chunks, towers.questions
    network, stretch = towers.retriever.network, config.data.stretch
    return Miner(network, config.env, config.mining, task, pools, config.seed, stretch, earlier)


def _make_towers(first: Member, task: Task, mesh: Mesh, report: Report) -> Towers:
    """Embeds the texts, and takes the parameters of a warm start."""
    config = first.config
    key, _ = _keys(config)
    own = None if first.start is None else drawn_encoder(config.model, first.start.folder)
    embedded = lambda done, of: report("embed", done, of, {})  # noqa: E731
    known = None if task.pool is None else task.pool.vectors
    retriever, rows, num_cut = new_retriever(
        config.model, config.env, task.texts, key, embedded, task.questions, own, known
    )
    questions, num_questions_cut = retriever.rows(task.questions, "question")
    files, init = retriever_files(retriever), {}
    if config.init:
        retriever, init = _start_warm(first, retriever, files)
    facts = {
        "num_texts": len(task.texts),
        "num_texts_cut": num_cut,
        "num_questions_cut": num_questions_cut,
        "num_left_out": task.num_left_out,
    }
    pools: PyTree = rows, questions
    if task.pool is not None and config.env.pool is not None:
        check_encoder(retriever, task.pool)
        reader = PoolReader(task.pool, config.env.pool.links, config.env.pool.words)
        assert isinstance(rows, VectorRows) and isinstance(questions, VectorRows)  # of latent towers
        scored = np.asarray(rows.vectors) if config.env.pool.base == "hybrid" else None
        asked = reader.questions(list(map(str, task.questions)), np.asarray(questions.vectors), scored)
        pools = reader.table(rows.vectors), asked
    chunk_pool, question_pool = place(pools, replicated(mesh))
    return Towers(retriever, chunk_pool, question_pool, files, facts, init)


def _start_warm(
    first: Member, retriever: QRagRetriever, files: Mapping[str, bytes]
) -> tuple[QRagRetriever, Mapping[str, Any]]:
    """The retriever with the parameters and the standardisation of another run, and metadata about that.

    A resumed run has them in its checkpoint and does not read the other run again.
    """
    if first.start is not None:
        own = load_checkpoint(first.start.folder, groups=("constants",))
        return with_constants(retriever, own.arrays["constants"], str(own.folder)), first.start.metadata["init"]
    saved, group = load_init(first.config)
    check_same_encoder(saved, files)
    params = take_params(saved, group, retriever.params, optional=HEADS)
    constants = saved.arrays["constants"]
    retriever = replace(with_constants(retriever, constants, f"init: {saved.folder}"), params=params)
    return retriever, describe_source(first.config.init, saved, group)


def _keys(config: RunConfig) -> jax.Array:
    """Keys of the parameters and of the run."""
    return jax.random.split(jax.random.key(config.seed))


def first_state(job: Job) -> tuple[LearnerState, LearnerState]:
    """(joined state of all runs, its shardings)."""
    states, shardings = zip(
        *[_member_state(job, *one) for one in zip(job.members, job.bests, strict=True)], strict=True
    )
    return job.layout.join(states), job.layout.shardings(shardings[0])


def _member_state(job: Job, member: Member, best: KeepBest | None) -> tuple[LearnerState, LearnerState]:
    """(state of one run, its shardings): fresh, or of a checkpoint."""
    params_key, run_key = _keys(member.config)
    retriever = job.towers.retriever
    if not job.towers.init and member.config.seed != job.config.seed:  # the first run's were drawn with the retriever
        retriever = with_fresh_params(retriever, params_key)
    params = retriever.params
    shapes = jax.eval_shape(job.learner.init, params, run_key)
    shardings = state_shardings(job.layout.mesh, shapes)
    if member.start is not None:
        return restore_state(member.start, shapes, shardings, best), shardings
    # Keys travel as numbers: of several processes each makes the whole state, and keeps its share.
    init = lambda params, data: job.learner.init(params, jax.random.wrap_key_data(data))  # noqa: E731
    host = jax.tree.map(np.asarray, (params, jax.random.key_data(run_key)))
    return jax.jit(init, out_shardings=shardings)(*host), shardings
