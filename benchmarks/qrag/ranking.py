"""What helps Q-RAG rank among a million tokens and stop by itself: bAbI facts in novels, variant by variant.

    python -m benchmarks.qrag.ranking embed DATA [--cache DIR]  # once: the sentences of the novels, several minutes
    python -m benchmarks.qrag.ranking run DATA [--tasks 2 3] [--seeds 0 1 2] [--variants base ranking ...] [--smoke]
    python -m benchmarks.qrag.ranking mined --keep DIR               # what runs that kept their folders mined last
    python -m benchmarks.qrag.ranking table                          # the rows of benchmarks/qrag/results/ranking.md

DATA and the splits are those of babi.py: a tenth of the train stories, in a fifth of the train novels, choose the
update and fit the threshold; reported are the valid stories in the dev novels. All variants have the same questions,
contexts and number of updates. A run is one line of results/ranking.jsonl, written when it is done, and is not repeated
while it is there. The own stop of a run is STOP where it is learned, else the threshold.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import CONFIGS, arguments, grid, machine
from benchmarks.qrag.babi import STEPS, VectorCache, embed_stories, report_tasks
from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.config import config_from_dict, load_config
from qrag_jax.data.stories.haystack import load_haystack
from qrag_jax.eval.retrieval.calibration import calibrate
from qrag_jax.eval.retrieval.harness import draw_contexts, num_kept_by, pick_all
from qrag_jax.eval.retrieval.pickers import multi_step_picker
from qrag_jax.eval.retrieval.protocols import keep
from qrag_jax.measures.facts import score_facts
from qrag_jax.qrag.multi_step_search import make_action_bank
from qrag_jax.qrag.tasks import Task
from qrag_jax.train.qrag.config import RunConfig, training_tasks
from qrag_jax.train.qrag.loop import train

RESULTS = Path(__file__).parent / "results"

LINES = RESULTS / "ranking.jsonl"
# chunks of a context -> (about as many tokens, questions)
LENGTHS = {50: ("1K", 500), 1200: ("32K", 300), 40000: ("1M", 100)}
COLUMNS = ["task", "variant", "seeds", "tokens", "F1, own stop", "F1, threshold", "F1, oracle stop"]
COLUMNS += ["gold are the first picks", "taken", "training, CPU s"]
# The temperature of the ranking learns faster than the towers: in 500 updates it would hardly move.
SCALE = ["env.ranking_scale=20", 'learner.groups={"ranking/*": {learning_rate_factor: 10}}']
RANKING = [*SCALE, "learner.losses={ranking: 1.0}"]
AT_END = ["env.stop=true", "env.reward=at_end", "env.stop_head=affine"]
STOP = [*SCALE, *AT_END, "learner.losses={ranking: 1.0, stop: 1.0}"]
MINED = ["mining.every=100"]
NEGATIVES = ["data.num_negatives=4096"]
RECOMMENDED = "recommended"  # configs/qrag/babi_ranking.yaml as it is
VARIANTS: dict[str, list[str]] = {
    "update 0": ["num_updates=1", "learner.learning_rate.start=0"],
    "base": [],
    "SFT": ["learner.objective=sft"],
    "SFT, temperature": ["learner.objective=sft", *SCALE],
    "SFT, temperature, STOP": ["learner.objective=sft", *SCALE, *AT_END],
    "learned STOP": ["env.stop=true", "env.reward=at_end"],
    "STOP regressed": [*AT_END, "learner.losses={stop: 1.0}"],
    "ranking": RANKING,
    "ranking, mined": [*RANKING, *MINED],
    "ranking, STOP": STOP,
    "ranking, STOP, mined": [*STOP, *MINED],
    "ranking, STOP, negatives": [*STOP, *NEGATIVES],
    "ranking, STOP, negatives, mined": [*STOP, *NEGATIVES, *MINED],
    RECOMMENDED: [],
    "prior, ranking, STOP, mined": [*STOP, *MINED, "model.latent.prior=true", "model.latent.dim=64"],
    "base, mined": MINED,
    "ranking, negatives": [*RANKING, *NEGATIVES],
    "ranking alone": [*SCALE, "learner.losses={soft_q: 0, ranking: 1}"],
    "ranking alone, negatives": [*SCALE, "learner.losses={soft_q: 0, ranking: 1}", *NEGATIVES],
    "without target network": ["learner.target_network=false"],
    "without target network, mined": ["learner.target_network=false", *MINED],
    "hard value": ["learner.value=hard"],
    "hard value, mined": ["learner.value=hard", *MINED],
    "SFT, temperature, mined": ["learner.objective=sft", *SCALE, *MINED],
    "SFT, temperature, STOP, mined": ["learner.objective=sft", *SCALE, *AT_END, *MINED],
}
COMMON = [
    "num_updates=500",
    "data.num_chunks=100",
    "data.stretch=400",
    "data.max_haystack_sentences=30000",
]
# qa3 has 185 train stories: simulated ones come with them.
PER_TASK = {3: ["data.num_simulated=4000", "data.num_facts=3"]}
SMOKE = ["num_updates=6", "data.batch_size=8", "dev.num_questions=8", "dev.num_chunks=120", "mining.num_questions=2"]


def config_of(data: Path, qa: int, variant: str, seed: int, more: Sequence[str], smoke: bool) -> RunConfig:
    """The run: a file of configs/, what all variants but the recommended one share, the variant, the command line."""
    paths = [f"data.paths=[{data}/babi/qa{qa}_train.txt.gz]", f"data.haystack={data}/novels/train.jsonl.gz"]
    file, common = ("babi_ranking", []) if variant == RECOMMENDED else ("babi_latent", COMMON)
    own = [*common, *PER_TASK.get(qa, []), f"seed={seed}", "data.seed=0", "model.encoder.source=vectors"]
    small = SMOKE if smoke and "update 0" not in variant else []
    return load_config(RunConfig, CONFIGS / f"{file}.yaml", [*paths, *own, *VARIANTS[variant], *more, *small])


def run(
    data: Path,
    cache: VectorCache,
    qa: int,
    variant: str,
    seed: int,
    more: Sequence[str],
    smoke: bool,
    out: Path | None = None,
) -> dict[str, Any]:
    """Trains one retriever and scores it at all lengths; `out` keeps its folder."""
    config = config_of(data, qa, variant, seed, more, smoke)
    task, dev = (cache.task(t) for t in training_tasks(config) if t is not None)
    start, cpu_start = time.perf_counter(), time.process_time()
    retriever = train(config, task, out, dev=dev)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    threshold, fitted = calibrate(dev, multi_step_picker(make_action_bank(retriever, dev.texts), dev.questions), STEPS)
    lengths = [n for n in LENGTHS if not smoke or n < 1200]
    tasks = report_tasks(data, qa, lengths)
    first = cache.task(tasks[0])
    picker = multi_step_picker(make_action_bank(retriever, first.texts), first.questions)
    rows = []
    for told in tasks:
        shown = replace(told, texts=first.texts, questions=first.questions)
        rows.append(score(shown, picker, threshold, 10 if smoke else LENGTHS[int(told.sizes[0])][1]))
    dev_facts = {"threshold": threshold.value, "fact_f1": round(fitted.fact_f1, 4), "n": fitted.n}
    about = {"task": f"qa{qa}", "variant": variant, "seed": seed, "overrides": [*VARIANTS[variant], *more]}
    about |= {"updates": config.num_updates, "train_seconds": round(seconds, 1)}
    about |= {"train_cpu_seconds": round(cpu_seconds, 1), "dev": dev_facts}
    return about | {**machine(), "lengths": rows}


def score(task: Task, picker: Any, threshold: Any, most: int) -> dict[str, Any]:
    """F1 of every protocol, and how often the gold are the first picks, on the same searches."""
    start = time.perf_counter()
    _, contexts = draw_contexts(task, most)
    picked, gold = pick_all(picker, contexts, STEPS)
    found: dict[str, Any] = {"num_chunks": int(task.sizes[0]), "n": len(gold)}
    for protocol in ("threshold", "stop", "oracle", "fixed"):
        num_kept = num_kept_by(protocol, picked, gold, threshold)
        if num_kept is not None:
            scores = score_facts(keep(picked.chosen, np.minimum(num_kept, STEPS)), gold)
            found[protocol] = {"f1": mean(scores.f1), "em": mean(scores.em), "taken": mean(num_kept)}
    hits, num_gold = np.take_along_axis(gold, picked.chosen, axis=1).cumsum(axis=1), gold.sum(axis=1)
    first = hits[np.arange(len(gold)), np.minimum(num_gold, STEPS) - 1] == num_gold
    return found | {"gold_first": mean(first), "seconds": round(time.perf_counter() - start, 1)}


def mean(x: np.ndarray) -> float:
    return round(float(np.mean(x)), 4)


def own_stop(row: dict[str, Any]) -> dict[str, float]:
    """What a run would answer with: its STOP where it has one."""
    return row.get("stop", row["threshold"])


def write_table(runs: Sequence[dict[str, Any]]) -> str:
    """One row a task, variant and length: means over the seeds, [smallest, largest] where there are several."""
    table = []
    for qa, variant in sorted(dict.fromkeys(map(name_of, runs)), key=lambda name: name[0]):
        same = [r for r in runs if name_of(r) == (qa, variant)]
        for i, row in enumerate(same[0]["lengths"]):
            rows = [r["lengths"][i] for r in same]
            values = [[own_stop(r)["f1"] for r in rows], [r["threshold"]["f1"] for r in rows]]
            values += [[r["oracle"]["f1"] for r in rows], [r["gold_first"] for r in rows]]
            shown = [*map(spread, values), f"{np.mean([own_stop(r)['taken'] for r in rows]):.2f}"]
            tokens = LENGTHS[row["num_chunks"]][0]
            spent = [r["train_cpu_seconds"] for r in same if "train_cpu_seconds" in r]  # older lines have none
            seconds = f"{np.mean(spent):.0f}" if spent else "-"
            table.append([qa, variant, str(len(same)), tokens, *shown, seconds])
    return "\n".join(grid(COLUMNS, table))


def name_of(run: dict[str, Any]) -> tuple[str, str]:
    """Task and variant, with what `--set` changed of it; what comes to the recommended config is called so."""
    more = [o for o in run["overrides"] if o not in VARIANTS[run["variant"]]]
    qa = int(run["task"].removeprefix("qa"))
    own, recommended = (
        config_of(Path(), qa, variant, 0, overrides, smoke=False)
        for variant, overrides in ((run["variant"], more), (RECOMMENDED, []))
    )
    name = RECOMMENDED if own == recommended else ", ".join([run["variant"], *more])
    return run["task"], name


def spread(values: Sequence[float]) -> str:
    shown = [f"{value:.3f}".removeprefix("0") for value in (np.mean(values), min(values), max(values))]
    return shown[0] if len(values) == 1 else f"{shown[0]} [{shown[1]}, {shown[2]}]"


def print_mined(folder: Path) -> None:
    """The sentences of the last rounds of mining of every run in a folder, so that somebody may read them."""
    for run_folder in sorted(folder.iterdir()):
        saved = load_checkpoint(run_folder, groups=())
        if "mined" in saved.metadata:
            texts = training_tasks(config_from_dict(RunConfig, saved.config, str(run_folder)))[0].texts
            print(f"# {run_folder.name}, update {saved.step}", *(texts[i] for i in saved.metadata["mined"]), sep="\n")


def read_runs(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def embed(data: Path, cache: VectorCache) -> None:
    """The haystacks and stories of all tasks; what else a run reads it embeds itself."""
    config = config_of(data, 2, "base", 0, (), smoke=False)
    (task, dev) = training_tasks(config)
    cache(load_haystack(data / "novels" / "dev.jsonl.gz", "all").sentences)
    for told in (task, dev):
        assert told is not None
        cache([str(text) for text in told.texts])
    embed_stories(data, cache)


def main() -> None:
    parser = arguments(__doc__, smoke="tiny runs, printed and not kept")
    parser.add_argument("stage", choices=("embed", "run", "mined", "table"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--cache", type=Path, default=Path("runs/ranking_cache"))
    parser.add_argument("--tasks", nargs="*", type=int, default=[2])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--set", nargs="*", default=[], help="more overrides, of all runs")
    parser.add_argument("--out", type=Path, default=LINES)
    parser.add_argument("--keep", type=Path, help="keep the folders of runs here, or look for them here")
    args = parser.parse_args()
    if args.stage == "table":
        print(write_table(read_runs(args.out)))
        return
    if args.stage == "mined":
        print_mined(args.keep or parser.error("say where the runs are: --keep DIR"))
        return
    if args.data is None:
        parser.error("say where the data are: DATA")
    cache = VectorCache(args.cache, 2)
    if args.stage == "embed":
        embed(args.data, cache)
        return
    done = {(r["task"], r["variant"], r["seed"], tuple(r["overrides"])) for r in read_runs(args.out)}
    for seed in args.seeds:
        for qa in args.tasks:
            for variant in args.variants:
                if (f"qa{qa}", variant, seed, (*VARIANTS[variant], *args.set)) in done:
                    continue
                told = "+".join([variant.replace(", ", "+").replace(" ", "_"), *args.set])
                name = f"qa{qa}_{told}_{seed}".replace("/", "_")
                out = args.keep and args.keep / name
                found = run(args.data, cache, qa, variant, seed, args.set, args.smoke, out)
                if not args.smoke:
                    with args.out.open("a") as file:
                        file.write(json.dumps(found) + "\n")
                shown = [
                    f"{r['num_chunks']}: own {own_stop(r)['f1']} oracle {r['oracle']['f1']} first {r['gold_first']}"
                    for r in found["lengths"]
                ]
                print(f"qa{qa} {variant} {seed} {found['train_seconds']} s; {'; '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
