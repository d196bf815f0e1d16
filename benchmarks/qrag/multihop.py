"""HotpotQA + MuSiQue + 2WikiMultihopQA, train -> dev: every protocol, beams 1, 2, 4, 8, intervals and paired tests.

    python -m benchmarks.qrag.multihop run DATA [--only latent] [--seeds 0 1 2]  # resumes: a run that is there is kept
    python -m benchmarks.qrag.multihop table  # benchmarks/qrag/results/multihop/README.md

DATA holds hotpotqa/, musique/ and 2wiki/, each with train.jsonl.gz and dev.jsonl.gz. All goes through the command line:
`qrag train` on the three train files mixed, of which dev.share is held out to choose the update, the threshold and the
beam width, then `qrag eval` on each dev file. Run it with the GLIBC_TUNABLES of the Makefile.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import CONFIGS, arguments, grid, machine, place, qrag, tested
from qrag_jax.checkpoint import load_checkpoint
from qrag_jax.eval.retrieval.records import read_rows
from qrag_jax.eval.retrieval.report import format_table
from qrag_jax.measures.aggregate import holm_p_values

RESULTS = Path(__file__).parent / "results" / "multihop"
SETS = {"hotpot": "hotpotqa", "musique": "musique", "2wiki": "2wiki"}
CLAIMED = ("fixed", "fact_em")  # protocol and measure of the comparisons that the page claims
STOP = ["env.stop=true", "env.reward=at_end"]
# What the config was before links: Q reads vectors alone, and nothing is learned beside it.
VECTORS = ["num_updates=300", "dev.every=30", "env.links=false", "learner.losses={}", "env.ranking_scale=null"]
VECTORS += ["model.latent.prior=false", "model.latent.residual=true", "model.latent.dim=384"]
VECTORS += ["learner.learning_rate={start: 0.001, end: 0.0, warmup: 0.05}", "learner.groups={}"]
# name -> (config, overrides, protocols, beam widths)
RUNS = {
    "latent": ("multihop_latent.yaml", [], "fixed,threshold,oracle", "1"),
    "latent_no_links": ("multihop_latent.yaml", ["env.links=false"], "fixed,threshold,oracle", "1"),
    "latent_no_ranking": ("multihop_latent.yaml", ["learner.losses={}"], "fixed,threshold,oracle", "1"),
    "vectors": ("multihop_latent.yaml", VECTORS, "fixed,threshold,oracle", "1,2,4,8"),
    "vectors_stop": ("multihop_latent.yaml", [*VECTORS, *STOP], "stop", "1,2,4,8"),
    "vectors_sft": ("multihop_latent.yaml", [*VECTORS, "learner.objective=sft"], "fixed,threshold,oracle", "1"),
    "text2": ("multihop_text.yaml", [], "fixed,threshold,oracle", "1,2,4,8"),
}


def run(data: Path, name: str, seed: int, runs: Path, results: Path, smoke: bool) -> None:
    config, overrides, protocols, beams = RUNS[name]
    out = runs / f"{name}_{seed}"
    paths = ", ".join(f"{kind}:{data}/{folder}/train.jsonl.gz" for kind, folder in SETS.items())
    overrides = [*overrides, f"seed={seed}", f"data.paths=[{paths}]", f"dev.beam_widths=[{beams}]"]
    if smoke:
        overrides += ["num_updates=2", "data.batch_size=4", "dev.num_questions=4", "dev.beam_widths=[1]"]
    start = time.perf_counter()
    qrag("train", "--config_path", str(CONFIGS / config), "--out", str(out), *overrides)
    seconds = time.perf_counter() - start
    first = name == "latent" and seed == 0  # whose baselines serve all runs
    for kind, folder in SETS.items():
        flags = ["--protocol", protocols, "--beam_width", beams, "--json", str(results / f"{name}_{seed}_{kind}.json")]
        flags += ["--methods", "trained,untrained,single_step,bm25" if first else "trained"]
        flags += ["--tests", str(results / f"{name}_{seed}_{kind}_tests.json")] if first or beams != "1" else []
        flags += ["--stopping", str(results / "stopping" / f"{name}_{seed}")] if first else []
        qrag("eval", str(out), f"--{kind}", f"{data}/{folder}/dev.jsonl.gz", *flags)
    if name.startswith("latent"):  # as many picks as HotpotQA has gold, as in the paper
        flags = ["--num_steps", "2", "--protocol", "fixed", "--json", str(results / f"{name}_{seed}_hotpot_2.json")]
        flags += ["--methods", "trained,untrained,single_step,bm25" if first else "trained"]
        qrag("eval", str(out), "--hotpot", f"{data}/hotpotqa/dev.jsonl.gz", *flags)
    saved = load_checkpoint(out, groups=())
    dev = {key: value for key, value in saved.metadata["dev"].items() if key != "fitted_on"}
    own = [one for one in overrides if not one.startswith("data.paths")]
    about = {"run": name, "seed": seed, "config": config, "overrides": own, "dev": dev}
    about |= {"updates": saved.step, "train_seconds": round(seconds, 1), **machine()}
    (results / f"{name}_{seed}.json").write_text(json.dumps(about, indent=1) + "\n")


def write_table(results: Path) -> None:
    abouts = [json.loads(path.read_text()) for name in RUNS for path in sorted(results.glob(f"{name}_[0-9].json"))]
    parts = [_HEAD]
    for name in RUNS:
        seeds = [about["seed"] for about in abouts if about["run"] == name]
        rows = [row for seed in seeds for kind in SETS for row in read_rows(results / f"{name}_{seed}_{kind}.json")]
        parts.append(f"## {name}\n\n" + (format_table(rows, markdown=True) if rows else "not run"))
        two = [results / f"{name}_{seed}_hotpot_2.json" for seed in seeds]
        rows = [row for path in two if path.exists() for row in read_rows(path)]
        parts += [f"### {name}, HotpotQA with 2 picks\n\n" + format_table(rows, markdown=True)] if rows else []
    parts.append("## Chosen on held-out train questions\n\n" + _choices(abouts))
    parts.append("## Paired tests\n\n" + _tests(results, abouts))
    parts.append(_runs(abouts))
    (results / "README.md").write_text("\n\n".join(parts) + "\n")


_HEAD = """# HotpotQA, MuSiQue and 2WikiMultihopQA

Command: `python -m benchmarks.qrag.multihop run DATA`, then `table`. Trained on the three train sets mixed (100 + 100 +
500 questions, 15% of them held out), T = 4. Rows `vectors` are what the config was before links; their hold-out was not
of each set its share. HotpotQA and 2WikiMultihopQA were made along names that lead from page to page, which links read,
MuSiQue was not. Training seconds of `latent` 0 are without the embedding of the paragraphs, which came from a cache;
the others are of a machine that did other work beside.

The sets are small: intervals are wide, and no row is called better than another without a paired test below. In
brackets 95% intervals over the questions; of several seeds that of their mean, for other questions and other seeds.
Controls (a regression on the links, training without dev's paragraphs): [controls.md](controls.md)."""


def _choices(abouts: list[dict]) -> str:
    table = []
    for about in abouts:
        dev = about["dev"]
        beams = ", ".join(f"{width}: {f1:.3f}" for width, f1 in dev.get("beam_f1", {}).items())
        row = [about["run"], str(about["seed"]), str(dev["update"]), f"{dev['threshold']:.3f}", f"{dev['fact_f1']:.3f}"]
        table.append([*row, beams, str(dev.get("beam_width", ""))])
    heads = ["run", "seed", "update", "threshold", "F1 held out", "beam F1 held out", "width"]
    return "\n".join(grid(heads, table))


def _tests(results: Path, abouts: list[dict]) -> str:
    """Differences of seed 0: those that the page claims, as one family of Holm's correction, then all others."""
    paths = [(about["run"], kind, results / f"{about['run']}_0_{kind}_tests.json") for about in abouts for kind in SETS]
    kept = dict.fromkeys(one for one in paths if one[2].exists())
    rows = [(run, kind, row) for run, kind, path in kept for row in json.loads(path.read_text())]
    family = [one for one in rows if one[0] == "latent" and (one[2]["protocol"], one[2]["measure"]) == CLAIMED]
    others = [one for one in rows if one not in family]
    corrected = holm_p_values([row["p_value"] for *_, row in family])
    told = "The family of this page: fact EM of the fixed picks of `latent` against each untrained row on each set,\n"
    told += f"{len(family)} comparisons, corrected for each other (Holm)."
    rest = f"The other {len(others)}, not corrected: nothing is claimed of them."
    return "\n\n".join([told, _test_table("p (Holm)", family, corrected),
                        rest, _test_table("p", others, [row["p_value"] for *_, row in others])])  # fmt: skip


def _test_table(head: str, rows: Sequence[tuple[str, str, dict]], p_values: Sequence[float]) -> str:
    table = []
    for (run, kind, row), p_value in zip(rows, p_values, strict=True):
        pair = f"{row['first']} - {row['second']}"
        told = tested(row["difference"], row["low"], row["high"], p_value, row["n"])
        table.append([run, kind, row["protocol"], row["measure"], pair, *told])
    heads = ["run", "set", "protocol", "measure", "pair", "difference", "95% interval", head, "n"]
    return "\n".join(grid(heads, table))


def _runs(abouts: list[dict]) -> str:
    table = []
    for a in abouts:
        told = [a["run"], str(a["seed"]), a["config"], " ".join(a["overrides"]), str(a["updates"])]
        table.append([*told, str(a["train_seconds"]), a["commit"], place(a)])
    heads = ["run", "seed", "config", "overrides", "updates", "training s", "commit", "machine"]
    return "\n".join(["## Runs", "", *grid(heads, table)])


def main() -> None:
    parser = arguments(__doc__, smoke="tiny runs, beside the results")
    parser.add_argument("stage", choices=("run", "table"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--runs", type=Path, default=Path("runs/multihop"), help="where the trained runs go")
    parser.add_argument("--only", nargs="*", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    results = RESULTS / "smoke" if args.smoke else RESULTS
    results.mkdir(parents=True, exist_ok=True)
    if args.stage == "run":
        if args.data is None:
            parser.error("say where the data are: DATA")
        for name in args.only:
            for seed in args.seeds:
                if not (results / f"{name}_{seed}.json").exists():
                    run(args.data, name, seed, args.runs, results, args.smoke)
    write_table(results)


if __name__ == "__main__":
    main()
