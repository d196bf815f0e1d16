"""Real bAbI tasks hidden in novels, from 1K to 1M tokens: the tables of the paper, with seeds, intervals and protocols.

    python -m benchmarks.qrag.babi embed DATA [--cache DIR]         # once, about two minutes
    python -m benchmarks.qrag.babi run DATA [--part 0/2]            # resumes; --only and --seeds narrow it
    python -m benchmarks.qrag.babi baselines DATA                   # untrained, single step, BM25
    python -m benchmarks.qrag.babi table                            # benchmarks/qrag/results/babi/README.md and plots
    python -m benchmarks.qrag.babi overlap DATA                     # valid questions whose gold facts stand in train

DATA is a folder with babi/qaN_train.txt.gz, babi/qaN_valid.txt.gz, novels/train.jsonl.gz and novels/dev.jsonl.gz.
Training sees train stories in train novels, of which a tenth of the stories and a fifth of the novels are held out:
they choose the update and fit the threshold. What is reported are the valid stories in the dev novels. Latent towers
read frozen vectors, so that every sentence is embedded once for all runs. Parts share the work between cores. A run is
one file in results/babi/runs, and is not repeated while it is there. Run it with the GLIBC_TUNABLES of the Makefile.
"""

import json
import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import CONFIGS, arguments, machine, read_json, write_json
from qrag_jax.config import load_config
from qrag_jax.data.stories.babi import read_babi
from qrag_jax.data.stories.haystack import load_haystack
from qrag_jax.data.stories.stories import Stories
from qrag_jax.eval.retrieval.calibration import calibrate
from qrag_jax.eval.retrieval.harness import Labels, Scoring, Threshold, evaluate
from qrag_jax.eval.retrieval.pickers import (
    Picker,
    bm25_picker,
    multi_step_picker,
    single_step_picker,
    untrained_retriever,
)
from qrag_jax.eval.retrieval.records import QueryRecord
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.weights import load_encoder
from qrag_jax.qrag.env import EnvConfig
from qrag_jax.qrag.multi_step_search import make_action_bank
from qrag_jax.qrag.retriever import ModelConfig
from qrag_jax.qrag.tasks import Task, hidden_stories_tasks
from qrag_jax.train.qrag.config import RunConfig, training_tasks
from qrag_jax.train.qrag.loop import train

RESULTS = Path(__file__).parent / "results" / "babi"
# chunks of a context -> (about as many tokens, questions)
LENGTHS = {50: ("1K", 1000), 160: ("4K", 1000), 1200: ("32K", 1000), 4600: ("128K", 200), 40000: ("1M", 200)}
PROTOCOLS = ("fixed", "threshold", "stop", "oracle")
STEPS = 6  # T of every evaluation
# qa3 has 185 train stories: simulated ones come with them. Questions of one fact are learned sooner.
PER_TASK = {3: ["data.num_simulated=4000", "data.num_facts=3"]} | {qa: ["num_updates=1000"] for qa in (1, 4, 5)}
# Ablations have a smaller budget, and `base` is what they are compared with.
SHORT = ["data.num_chunks=100", "data.stretch=400"]
SHORT_UPDATES = {2: ["num_updates=500"], 3: ["num_updates=1200"]}
SHORT_LENGTHS = (50, 1200)
VARIANTS: dict[str, list[str]] = {
    "main": [],
    "base": [],
    "without target network": ["learner.target_network=false"],
    "hard value": ["learner.value=hard"],
    "expected value": ["learner.value=expected"],
    "SFT": ["learner.objective=sft"],
    "absolute positions": ["env.positions=absolute"],
    "no positions": ["env.positions=none"],
    "sparse reward": ["env.fact_reward=0"],
    "learned STOP": ["env.stop=true", "env.reward=at_end"],
}
ALPHAS, LAMBDAS = (0.003, 0.01, 0.1, 0.3), (0.0, 0.25, 0.75, 1.0)  # beside 0.03 and 0.5 of base
VARIANTS |= {f"alpha {a:g}": [f"learner.temperature.start={a}", f"learner.temperature.end={a / 30}"] for a in ALPHAS}
VARIANTS |= {f"lambda {x:g}": [f"learner.lambda_={x}"] for x in LAMBDAS}
TEXT = {2: ["num_updates=200"], 3: ["num_updates=200", "env.num_steps=5", "data.num_chunks=60"]}
SMOKE = ["num_updates=6", "data.batch_size=8", "dev.num_questions=8", "data.shared_haystack=100"]


def all_runs(seeds: Sequence[int], only: Sequence[str] | None) -> list[tuple[int, str, int]]:
    """(task, variant, seed): all tasks of the main row first, then the ablations on qa2 and qa3."""
    rows = [(qa, "main", seed) for seed in seeds for qa in (2, 3, 1, 4, 5)]
    rows += [(qa, name, seed) for seed in seeds for name in VARIANTS if name != "main" for qa in (2, 3)]
    rows += [(qa, "text", 0) for qa in TEXT]
    return [row for row in rows if only is None or row[1] in only]


def overrides_of(qa: int, variant: str) -> list[str]:
    """What a run changes of its config file."""
    if variant == "text":
        return [*PER_TASK.get(qa, []), *TEXT[qa]]
    short = [] if variant == "main" else SHORT + SHORT_UPDATES[qa]
    return [*PER_TASK.get(qa, []), *short, *VARIANTS[variant]]


class VectorCache:
    """Vectors of frozen MiniLM (window 64) by text, kept in a folder."""

    def __init__(self, folder: Path, num_layers: int | None):
        self._folder, self._num_layers, self._embed = folder, num_layers, None
        texts = folder / "texts.json"
        self._texts: list[str] = []
        self._vectors = np.zeros((0, 384), np.float32)
        if texts.exists():
            self._texts = json.loads(texts.read_text())
            self._vectors = np.load(folder / "vectors.npy", allow_pickle=False)
        self._row = {text: row for row, text in enumerate(self._texts)}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in self._row]
        if new:
            # Whole, the encoder is as it was published; its first layers are what the latent towers read.
            normalize = None if self._num_layers is None else False
            loaded = load_encoder("minilm", num_layers=self._num_layers, normalize=normalize)
            self._embed = self._embed or make_embedder(loaded, window=64)
            self._row |= {text: row for row, text in enumerate(new, start=len(self._texts))}
            self._texts += new
            self._vectors = np.concatenate([self._vectors, self._embed(new)])
        return self._vectors[[self._row[text] for text in texts]]

    def save(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        np.save(self._folder / "vectors.npy", self._vectors)
        (self._folder / "texts.json").write_text(json.dumps(self._texts))

    def task(self, task: Task) -> Task:
        """The task with vectors in place of texts."""
        return replace(task, texts=self(task.texts), questions=self(task.questions))


def embed(data: Path, cache: VectorCache) -> None:
    for name in ("train", "dev"):
        cache(load_haystack(data / "novels" / f"{name}.jsonl.gz", "all").sentences)
    embed_stories(data, cache)


def embed_stories(data: Path, cache: VectorCache) -> None:
    """All stories, and writes the cache."""
    for path in sorted((data / "babi").glob("qa*.txt.gz")):
        stories = read_babi(path)
        cache(stories.texts)
        cache(stories.questions)
    cache.save()


def report_tasks(data: Path, qa: int, lengths: Sequence[int]) -> list[Task]:
    """Valid stories in the dev novels, over one pool of texts."""
    stories = read_babi(data / "babi" / f"qa{qa}_valid.txt.gz")
    haystack = load_haystack(data / "novels" / "dev.jsonl.gz", "all")
    return hidden_stories_tasks(f"qa{qa}", stories, haystack, lengths)


def run(data: Path, cache: VectorCache, qa: int, variant: str, seed: int, smoke: bool) -> dict[str, Any]:
    """Trains one retriever and scores it at all lengths."""
    paths = [f"data.paths=[{data}/babi/qa{qa}_train.txt.gz]", f"data.haystack={data}/novels/train.jsonl.gz"]
    own, text = overrides_of(qa, variant), variant == "text"
    file = CONFIGS / ("babi_text.yaml" if text else "babi_latent.yaml")
    source = [] if text else ["model.encoder.source=vectors"]
    config = load_config(RunConfig, file, [*paths, *own, f"seed={seed}", *source, *(SMOKE if smoke else [])])
    read = (lambda t: t) if text else cache.task
    task, dev = (read(t) for t in training_tasks(config) if t is not None)
    start = time.perf_counter()
    retriever = train(config, task, dev=dev)
    seconds = time.perf_counter() - start
    threshold, fitted = calibrate(dev, multi_step_picker(make_action_bank(retriever, dev.texts), dev.questions), STEPS)
    tasks = report_tasks(data, qa, tuple(LENGTHS) if variant in ("main", "text") else SHORT_LENGTHS)
    first = read(tasks[0])
    picker = multi_step_picker(make_action_bank(retriever, first.texts), first.questions)
    labels = Labels(config.model.mode, config.env.positions, seed, config.data.num_chunks)
    tasks = [replace(task, texts=first.texts, questions=first.questions) for task in tasks]
    scored = score(tasks, "trained", picker, labels, STEPS, threshold, smoke)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    dev_facts = {"threshold": threshold.value, "fact_f1": fitted.fact_f1, "fact_em": fitted.fact_em, "n": fitted.n}
    about = {"task": f"qa{qa}", "variant": variant, "seed": seed, "overrides": own}
    about |= {"updates": config.num_updates, "train_seconds": round(seconds, 1), "dev": dev_facts}
    return about | {"num_questions": len(task), "peak_rss_gib": round(peak, 2), **machine(), "lengths": scored}


def score(
    tasks: Sequence[Task],
    method: str,
    picker: Picker,
    labels: Labels,
    steps: int,
    threshold: Threshold | None,
    smoke: bool,
) -> list[dict[str, Any]]:
    """Rows of every length and protocol, each with gold, hits and picks of every question: paired tests need these."""
    found = []
    for task in tasks:
        num_chunks = int(task.sizes[0])
        if smoke and num_chunks > 160:
            continue
        most = 10 if smoke else LENGTHS[num_chunks][1]
        fitted = {} if threshold is None else {method: threshold}
        how = Scoring(steps, most, protocols=PROTOCOLS, thresholds=fitted)
        rows, records = evaluate(task, {method: picker}, labels, how)
        for row in rows:
            protocol = row.setting.protocol
            own = [record for record in records if record.setting.protocol == protocol]
            values = {"protocol": protocol, "num_chunks": num_chunks, "n": row.n, "num_left_out": row.num_left_out}
            values |= {name: round(getattr(row, name), 4) for name in _NUMBERS}
            found.append(values | {"seconds": round(row.seconds, 2), "counts": counts(own)})
    return found


_NUMBERS = ("fact_em", "em_low", "em_high", "fact_f1", "f1_low", "f1_high", "f1_ceiling", "num_taken")


def counts(records: Sequence[QueryRecord]) -> dict[str, str]:
    """Gold chunks, hits and picks of every question, a digit each, in the order of the questions."""
    assert max(len(r.gold) for r in records) < 10
    return {
        "gold": "".join(str(len(r.gold)) for r in records),
        "hits": "".join(str(len({*r.gold} & {*r.chosen})) for r in records),
        "taken": "".join(str(len(r.chosen)) for r in records),
    }


def baselines(data: Path, cache: VectorCache, qa: int, smoke: bool) -> list[dict[str, Any]]:
    """Rows without training: MiniLM as published in the same multi-step search and in one step, and BM25; no dev split
    chooses anything, so there is no threshold. Up to 32K tokens: the pool is embedded by all six layers here."""
    tasks = report_tasks(data, qa, (50, 160, 1200))
    loaded, model, env = load_encoder("minilm"), ModelConfig(), EnvConfig(num_steps=STEPS)
    vectors = cache(tasks[0].texts)
    untrained = untrained_retriever(loaded, model, env)
    ask = make_embedder(loaded, window=64, long_texts="error")
    texts, questions = tasks[0].texts, tasks[0].questions
    pickers = {
        "untrained": multi_step_picker(make_action_bank(untrained, texts, vectors=vectors), questions),
        "single_step": single_step_picker(vectors, ask(questions)),
        "bm25": bm25_picker(texts, questions),
    }
    labels = Labels("text", "none", 0, 50)
    found = []
    for name, picker in pickers.items():
        scored = score(tasks, name, picker, labels, STEPS, None, smoke)
        found.append({"task": f"qa{qa}", "variant": name, "seed": 0, "overrides": [], **machine(), "lengths": scored})
    return found


def overlap(data: Path, qa: int) -> str:
    """How many valid questions share their text and gold facts, and how many the whole story, with one of train."""
    stories = [read_babi(data / f"babi/qa{qa}_{part}.txt.gz") for part in ("train", "valid")]
    counts = []
    for is_whole in (False, True):
        known, asked = ([_asked(own, i, is_whole) for i in range(len(own.query_ids))] for own in stories)
        seen = set(known)
        counts.append(sum(one in seen for one in asked) / len(asked))
    gold, whole = counts
    return f"qa{qa}: {len(asked)} valid questions; in train with the gold facts {gold:.1%}, with the story {whole:.1%}"


def _asked(stories: Stories, i: int, is_whole: bool) -> tuple[str, ...]:
    facts = stories.fact_texts(i)
    return (stories.question(i), *(facts if is_whole else [facts[place] for place in stories.gold[i]]))


def write(folder: Path, found: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = file_of(folder, found["task"], found["variant"], found["seed"])
    write_json(path, found)
    shown = [f"{r['num_chunks']} {r['protocol']} {r['fact_em']:.3f}/{r['fact_f1']:.3f}" for r in found["lengths"]]
    print(path.name, found.get("train_seconds"), "; ".join(shown), flush=True)


def file_of(folder: Path, task: str, variant: str, seed: int) -> Path:
    return folder / f"{task}_{variant.replace(' ', '_')}_{seed}.json.gz"


def main() -> None:
    parser = arguments(__doc__, smoke="tiny runs into results/babi/smoke")
    parser.add_argument("stage", choices=("embed", "run", "baselines", "table", "overlap"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--cache", type=Path, default=Path("runs/babi_cache"))
    parser.add_argument("--only", nargs="*", choices=[*VARIANTS, "text"])
    parser.add_argument("--tasks", nargs="*", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--part", default="0/1", help="I/N: every N-th run, from the I-th")
    args = parser.parse_args()
    folder = RESULTS / ("smoke" if args.smoke else "runs")
    if args.stage == "table":
        from benchmarks.qrag.babi_table import write_tables

        write_tables(RESULTS, [read_json(path) for path in sorted(folder.glob("*.json.gz"))])
        return
    if args.data is None:
        parser.error("say where the data are: DATA")
    if args.stage == "overlap":
        print(*(overlap(args.data, qa) for qa in args.tasks), sep="\n")
        return
    cache = VectorCache(args.cache, 2)
    if args.stage == "embed":
        embed(args.data, cache)
        return
    if args.stage == "baselines":
        cache = VectorCache(args.cache / "whole", None)
        for qa in args.tasks:
            for found in baselines(args.data, cache, qa, args.smoke):
                write(folder, found)
        cache.save()
        return
    part, parts = (int(number) for number in args.part.split("/"))
    for qa, variant, seed in all_runs(args.seeds, args.only)[part::parts]:
        if qa in args.tasks and not file_of(folder, f"qa{qa}", variant, seed).exists():
            write(folder, run(args.data, cache, qa, variant, seed, args.smoke))


if __name__ == "__main__":
    main()
