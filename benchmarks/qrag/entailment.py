"""EntailmentBank (task 2), train -> dev: the sentences that prove a hypothesis, each row by the stop of its own.

    python -m benchmarks.qrag.entailment run DATA [--only latent] [--seeds 0 1 2]  # keeps the runs that exist
    python -m benchmarks.qrag.entailment seen DATA  # seen.json alone, which run writes too
    python -m benchmarks.qrag.entailment table  # benchmarks/qrag/results/entailment/README.md

DATA holds entailmentbank/train.jsonl.gz and dev.jsonl.gz. The question is the hypothesis, the chunks are its 25
sentences, gold are those of the proof. All goes through the command line: `qrag train` on the train questions, of which
dev.share is held out to choose the update, then `qrag eval` on dev, where the stops of all rows are fitted on those
same held-out questions: a threshold, and of the rows without training also a number of picks. Run it with the
GLIBC_TUNABLES of the Makefile.
"""

import gzip
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import CONFIGS, arguments, grid, machine, place, qrag, tested
from benchmarks.qrag.shared_texts import gain_by_seen, seen_in_train
from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.data.questions.examples import read_examples
from qrag_jax.eval.retrieval.records import QueryRecord, read_records, read_rows
from qrag_jax.eval.retrieval.report import format_table
from qrag_jax.measures.aggregate import Difference, Summary, holm_p_values, mean_interval, over_seeds, paired_difference
from qrag_jax.qrag.tasks import examples_task

CONFIG = CONFIGS / "entailment_latent.yaml"
RESULTS = Path(__file__).parent / "results" / "entailment"
BASELINES = ("untrained", "single_step", "bm25")
NAMES = {"untrained": "untrained", "single_step": "single step", "bm25": "BM25"}
THRESHOLD = ["env.stop=false", "env.stop_head=vector", "env.reward=at_completion", "learner.losses={ranking: 1.0}"]
RUNS: dict[str, list[str]] = {
    "latent": [],
    "no coverage": ["env.coverage=false"],
    "gamma .99": ["learner.gamma=0.99"],
    "no STOP": THRESHOLD,
    "soft Q alone": ["learner.losses={}", "env.ranking_scale=null"],
    "ranking alone": ["learner.losses={soft_q: 0.0, ranking: 1.0}"],
    "no prior": ["model.latent.prior=false", "model.latent.dim=128"],
}
STOPS = ("stop", "threshold", "number of picks", "oracle")


def convert(data: Path, runs: Path, most: int | None) -> None:
    """The questions as `data.task=jsonl` reads them, `most` of a split; those of train differ, from dev's too."""
    runs.mkdir(parents=True, exist_ok=True)
    dev, train = (list(read_lines(data / "entailmentbank" / f"{split}.jsonl.gz")) for split in ("dev", "train"))
    known = {row["hypothesis"].casefold() for row in dev}
    fresh = []
    for row in train:
        if (hypothesis := row["hypothesis"].casefold()) not in known:
            known.add(hypothesis)
            fresh.append(row)
    for split, rows in (("dev", dev), ("train", fresh)):
        write_lines(runs / f"{split}.jsonl", [example(row) for row in rows[:most]])


def example(row: dict) -> dict:
    """One question; ids of the set are not its own (some tests ask twice)."""
    names = [f"sent{number}" for number in range(1, 1 + len(row["sentences"]))]
    gold = sorted(names.index(name) for name in row["gold"])
    return {"question": row["hypothesis"], "chunks": [row["sentences"][name] for name in names], "gold": gold}


def read_lines(path: Path) -> Iterator[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def write_lines(path: Path, rows: Sequence[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_held_out(run: Path, train: Path, out: Path) -> None:
    """The questions that a run held out of its training file, by the fingerprints in its checkpoint."""
    fitted_on = set(load_checkpoint(run, groups=()).metadata["dev"]["fitted_on"])
    examples = read_examples(train)
    task = examples_task("train", examples)
    lines = train.read_text(encoding="utf-8").splitlines(keepends=True)
    held = [line for query, line in enumerate(lines) if task.fingerprint(query) in fitted_on]
    out.write_text("".join(held), encoding="utf-8")


def write_seen(runs: Path, out: Path) -> None:
    """How many sentences of every dev question stand in train, of the files of `convert`."""
    dev, train = (read_examples(runs / f"{split}.jsonl") for split in ("dev", "train"))
    out.write_text(json.dumps(seen_in_train(dev, train)) + "\n")


def run(name: str, seed: int, runs: Path, results: Path, smoke: bool) -> None:
    out, held_out = runs / f"{name.replace(' ', '_')}_{seed}", runs / "held_out.jsonl"
    overrides = [*RUNS[name], f"seed={seed}", f"data.paths=[{runs / 'train.jsonl'}]"]
    overrides += ["num_updates=2", "data.batch_size=4", "dev.num_questions=8"] if smoke else []
    start = time.perf_counter()
    qrag("train", "--config_path", str(CONFIG), "--out", str(out), *overrides)
    seconds = time.perf_counter() - start
    write_held_out(out, runs / "train.jsonl", held_out)  # the same of all runs: data.seed is one
    first = name == "latent" and seed == 0  # whose baselines serve all runs
    methods = ("trained", *BASELINES) if first else ("trained",)
    stem = results / out.name
    protocols = "fixed,threshold,oracle" if name == "no STOP" else "fixed,threshold,stop,oracle"
    flags = ["--calibrate", str(held_out), "--protocol", protocols, "--methods", ",".join(methods)]
    flags += ["--json", f"{stem}.rows.json", "--per_query", str(runs / f"{out.name}.dev.jsonl")]
    qrag("eval", str(out), "--jsonl", str(runs / "dev.jsonl"), *flags)
    if first:
        flags = ["--protocol", "fixed", "--methods", ",".join(BASELINES), "--per_query", str(runs / "baselines.jsonl")]
        qrag("eval", str(out), "--jsonl", str(held_out), *flags)
    saved = load_checkpoint(out, groups=())
    dev = {key: value for key, value in saved.metadata["dev"].items() if key != "fitted_on"}
    about = {"run": name, "seed": seed, "overrides": RUNS[name], "dev": dev, "train_seconds": round(seconds, 1)}
    about |= {"f1": scores_of(runs, out.name, methods), **machine()}
    Path(f"{stem}.json").write_text(json.dumps(about, indent=1) + "\n")


def scores_of(runs: Path, stem: str, methods: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """F1 of every dev question, by method and stop."""
    records = read_records(runs / f"{stem}.dev.jsonl")
    is_first = BASELINES[0] in methods
    picks = best_number_of_picks(read_records(runs / "baselines.jsonl")) if is_first else {}
    f1: dict[str, dict[str, list[float]]] = {}
    for method in methods:
        own = {stop: of(records, method, stop) for stop in ("fixed", *STOPS)}
        f1[method] = {stop: [record.fact_f1 for record in own[stop]] for stop in STOPS if own[stop]}
        if method in picks:
            f1[method]["number of picks"] = [f1_of_first(record, picks[method]) for record in own["fixed"]]
    return f1


def of(records: Sequence[QueryRecord], method: str, protocol: str) -> list[QueryRecord]:
    return [record for record in records if (record.setting.method, record.setting.protocol) == (method, protocol)]


def f1_of_first(record: QueryRecord, num_picks: int) -> float:
    """F1 of the first picks of a record that has all of them."""
    hits = len(set(record.chosen[:num_picks]) & set(record.gold))
    return 2 * hits / (num_picks + len(record.gold))


def best_number_of_picks(held_out: Sequence[QueryRecord]) -> dict[str, int]:
    """By method the number of picks with the best mean F1 on held-out questions, the same for every question."""
    best = {}
    for method in BASELINES:
        own = of(held_out, method, "fixed")
        numbers = range(1, 1 + len(own[0].chosen))
        best[method] = max(numbers, key=lambda number: np.mean([f1_of_first(record, number) for record in own]))
    return best


def write_table(results: Path) -> None:
    abouts = [json.loads(path.read_text()) for path in sorted(results.glob("*_[0-9].json"))]
    ours = [about for about in abouts if about["run"] == "latent"]
    tests, lesser = _tests(ours), _without(abouts)
    corrected = iter(holm_p_values([one.p_value for _, _, one in (*tests, *lesser)]))
    told = _TESTS.format(family=len(tests) + len(lesser))
    parts = [_HEAD, "## Own stop", _stops(ours), "## Paired tests", told]
    parts += [_test_table("trained", tests, corrected), _TRIED]
    if (path := results / "seen.json").exists():
        own = np.mean([_f1(about) for about in ours], axis=0)
        told = gain_by_seen(json.loads(path.read_text()), own, _f1(ours[0], "single_step", "number of picks"))
        parts += ["## Gold that was gold in train", _SEEN, told]
    parts += ["## Without a part", _parts(abouts), _test_table("run", lesser, corrected)]
    parts += ["## All rows", format_table(_rows(results, ours), markdown=True), "## Runs", _runs(abouts)]
    (results / "README.md").write_text("\n\n".join(parts) + "\n")


_HEAD = """# EntailmentBank

Command: `python -m benchmarks.qrag.entailment run DATA`, then `table`. Question = hypothesis, chunks = its 25
sentences, gold = the sentences of its proof (4.4 on average), T = 8. Trained on 1,260 train questions, one a
hypothesis, none of dev's; 15% of them are held out, the same of every seed: they chose the update, the config and
every fitted stop. The own stop of a trained run is STOP, which it learned. Rows without training have three: a
threshold on their scores, a number of picks that is the same for every question, and the oracle's, which reads the
labels: no stop that loses no gold sentence of their picks has a better F1.

Sentences of the set come from one store of facts: nearly all wrong sentences of dev stand in train too, half of the
gold ones do. [95% interval over the questions]; of several seeds that of their mean, for other questions and seeds."""


_SEEN = """F1 of trained by its STOP (mean of the seeds) minus that of single step, number of picks: the best row
without training. The groups differ in their questions: bootstrap within each, permutation test."""


_TRIED = """## Tried on held-out questions

All configs that were trained to their end, each once (seed 0), on the 189 held-out train questions, where the threshold
was fitted too; none was tried on dev. The last one is the config.

| config | F1, threshold | oracle |
| --- | --- | --- |
| BM25 | .520 (best number of picks .532) | .589 |
| untrained | .569 (.597) | .658 |
| single step | .574 (.606) | .661 |
| as configs/qrag/multihop_latent.yaml, T = 8 | .638 | .721 |
| with coverage | .690 | .756 |
| state transformer of width 64, one layer; towers at .1 of the learning rate, not .03 | .687 | .750 |
| gamma 0, fact_reward .5 | .708 | .761 |
| the same, links at 3 times the learning rate | .711 | .763 |
| the same, soft Q weighs 5 | .712 | .768 |
| the same, STOP learned | .727 (its own stop .724) | .764 |"""


def _rows(results: Path, ours: Sequence[dict]) -> list:
    return [row for about in ours for row in read_rows(results / f"latent_{about['seed']}.rows.json")]


def _f1(about: dict, method: str = "trained", stop: str | None = None) -> np.ndarray:
    """F1 of every dev question, by default at the run's own stop: STOP where it has one."""
    own = about["f1"][method]
    return np.array(own[stop or ("stop" if "stop" in own else "threshold")])


def _cell(found: Summary) -> str:
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _stops(ours: Sequence[dict]) -> str:
    over = {
        stop: over_seeds([mean_interval(_f1(about, stop=stop)) for about in ours]) for stop in ours[0]["f1"]["trained"]
    }
    table = [_stops_row(f"**trained**, {len(ours)} seeds", over)]
    for about in ours:
        for method, by_stop in about["f1"].items():
            found = {stop: mean_interval(np.array(f1)) for stop, f1 in by_stop.items()}
            table.append(_stops_row(NAMES.get(method, f"trained, seed {about['seed']}"), found))
    return "\n".join(grid(["F1 on dev", "STOP", *STOPS[1:]], table))


def _stops_row(name: str, found: Mapping[str, Summary]) -> list[str]:
    return [name, *(_cell(found[stop]) if stop in found else "" for stop in STOPS)]


_TESTS = """Trained by its STOP minus each other row, question by question; sign-flip permutation test, corrected (Holm)
for the {family} comparisons of this page together, those without a part with them."""


def _tests(ours: Sequence[dict]) -> list[tuple[str, str, Difference]]:
    """The own stop of the trained runs against every stop of the others."""
    whose = [("mean of the seeds", np.mean([_f1(about) for about in ours], axis=0))]
    whose += [(f"seed {about['seed']}", _f1(about)) for about in ours]
    rows = [(method, stop) for method in BASELINES for stop in ours[0]["f1"][method]]
    others = [(f"{NAMES[method]}, {stop}", _f1(ours[0], method, stop)) for method, stop in rows]
    return [(name, label, paired_difference(own, other)) for name, own in whose for label, other in others]


def _test_table(head: str, found: Sequence[tuple[str, str, Difference]], corrected: Iterator[float]) -> str:
    """A table of comparisons; takes as many corrected p-values as it has."""
    table = [
        [first, label, *tested(d.mean, d.low, d.high, p_value, d.n)]
        for (first, label, d), p_value in zip(found, corrected, strict=False)
    ]
    return "\n".join(grid([head, "minus", "difference", "95% interval", "p (Holm)", "n"], table))


def _parts(abouts: Sequence[dict]) -> str:
    """Seed 0 of every run, and what each lacks of the whole one."""
    own = {about["run"]: about for about in abouts if about["seed"] == 0}
    table = []
    for name in (name for name in RUNS if name in own):
        dev, oracle = own[name]["dev"], _f1(own[name], stop="oracle").mean()
        f1 = _cell(mean_interval(_f1(own[name])))
        table.append([name, f"{dev['fact_f1']:.3f}", f1, f"{oracle:.3f}", str(dev["update"])])
    return "\n".join(grid(["seed 0", "F1 held out, threshold", "F1 on dev, own stop", "oracle", "update"], table))


def _without(abouts: Sequence[dict]) -> list[tuple[str, str, Difference]]:
    """The whole run of seed 0 against those that lack a part."""
    own = {about["run"]: about for about in abouts if about["seed"] == 0}
    return [
        ("latent", name, paired_difference(_f1(own["latent"]), _f1(own[name])))
        for name in RUNS
        if name in own and name != "latent"
    ]


def _runs(abouts: Sequence[dict]) -> str:
    table = []
    for about in abouts:
        dev, overrides = about["dev"], " ".join(about["overrides"])
        row = [about["run"], str(about["seed"]), overrides, str(dev["update"]), f"{dev['threshold']:.3f}"]
        table.append([*row, str(about["train_seconds"]), about["commit"], place(about)])
    heads = ["run", "seed", "overrides", "update", "threshold", "training s", "commit", "machine"]
    return "\n".join(grid(heads, table))


def main() -> None:
    parser = arguments(__doc__, smoke="tiny runs, beside the results")
    parser.add_argument("stage", choices=("run", "seen", "table"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--runs", type=Path, default=Path("runs/entailment"), help="where the trained runs go")
    parser.add_argument("--only", nargs="*", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    results = RESULTS / "smoke" if args.smoke else RESULTS
    results.mkdir(parents=True, exist_ok=True)
    if args.stage != "table":
        if args.data is None:
            parser.error("say where the data are: DATA")
        convert(args.data, args.runs, 60 if args.smoke else None)
        write_seen(args.runs, results / "seen.json")
    if args.stage == "run":
        for name in args.only:
            for seed in args.seeds if name == "latent" else args.seeds[:1]:
                if not (results / f"{name.replace(' ', '_')}_{seed}.json").exists():
                    run(name, seed, args.runs, results, args.smoke)
    if (results / "latent_0.json").exists():
        write_table(results)
    else:
        print(f"no table: {results} has no run latent, seed 0, which the others are compared with")


if __name__ == "__main__":
    main()
