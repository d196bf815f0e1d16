"""Trains retrievers on simulated worlds and measures them at 1, 4, 16 and 64 times the training length.

    python -m benchmarks.qrag.worlds  # all experiments, 3 seeds: about an hour and a half on 2 cores
    python -m benchmarks.qrag.worlds --only three_facts --seeds 0
    python -m benchmarks.qrag.worlds --smoke                # a minute: shows that the script runs

Rows go to results/worlds.json as each run ends; a run that is there is not repeated, so the script can be
stopped and started. The table and the plot beside it are made of all rows. Worlds and speeches that are scored are held
back from training. Run it with the GLIBC_TUNABLES of the Makefile.
"""

import json
import time
from pathlib import Path

from benchmarks.common import CONFIGS, arguments, grid, machine
from qrag_jax.config import load_config
from qrag_jax.data.stories.haystack import held_back_haystack
from qrag_jax.data.stories.worlds import simulate_stories
from qrag_jax.eval.retrieval.harness import Labels, Scoring, evaluate
from qrag_jax.eval.retrieval.pickers import make_pickers
from qrag_jax.eval.retrieval.records import Row, read_rows, write_rows
from qrag_jax.eval.retrieval.report import format_table, plot_rows
from qrag_jax.qrag.tasks import hidden_stories_tasks
from qrag_jax.train.qrag.config import RunConfig, training_tasks
from qrag_jax.train.qrag.loop import train

RESULTS = Path(__file__).parent / "results"

LENGTH_FACTORS = (1, 4, 16, 64)
VALID_SEED = 1_000_003

# name -> (config file, overrides)
EXPERIMENTS = {
    "two_facts": ("worlds2_soft_q.yaml", ["num_updates=3000"]),  # soft Q alone
    "two_facts_absolute": ("worlds2_soft_q.yaml", ["num_updates=3000", "env.positions=absolute"]),
    "two_facts_none": ("worlds2_soft_q.yaml", ["num_updates=3000", "env.positions=none"]),
    "two_facts_sparse": ("worlds2_soft_q.yaml", ["num_updates=3000", "env.fact_reward=0"]),  # the paper's reward
    "three_facts": ("worlds3_latent.yaml", []),
    "two_facts_text": ("worlds2_text.yaml", []),
}
SMOKE = ["num_updates=4", "log_every=2", "data.num_questions=200", "data.max_haystack_sentences=200"]
SMOKE += ["data.batch_size=8"]


def run(name: str, seed: int, smoke: bool) -> tuple[list[Row], dict]:
    """Trains one retriever and scores it; baselines are scored with the first seed of a task's first experiment."""
    file, overrides = EXPERIMENTS[name]
    config = load_config(RunConfig, CONFIGS / file, [*overrides, f"seed={seed}", *(SMOKE if smoke else [])])
    start = time.perf_counter()
    retriever = train(config, training_tasks(config)[0], None, _say(name, seed))
    seconds = time.perf_counter() - start
    worlds = simulate_stories(
        config.data.num_facts, 50 if smoke else 1000, VALID_SEED, "valid", max_facts=config.data.num_chunks
    )
    haystack = held_back_haystack(config.data.haystack, 300 if smoke else 6000, {"haystack": config.data.haystack})
    lengths = [factor * config.data.num_chunks for factor in LENGTH_FACTORS]
    baselines = ("untrained", "single_step", "bm25") if seed == 0 and name in ("two_facts", "three_facts") else ()
    rows: list[Row] = []
    pickers = None
    sparse = "" if config.env.fact_reward else " sparse reward"
    for task in hidden_stories_tasks(f"worlds{config.data.num_facts}{sparse}", worlds, haystack, lengths):
        pickers = pickers or make_pickers(retriever, task.texts, task.questions, ("trained", *baselines))
        labels = Labels(config.model.mode, config.env.positions, seed, config.data.num_chunks)
        rows += evaluate(task, pickers, labels, Scoring(config.env.num_steps))[0]
    about = {"experiment": name, "seed": seed, "train_seconds": round(seconds, 1), "updates": config.num_updates}
    return rows, about | {"transitions": config.num_updates * config.data.batch_size * config.env.num_steps}


def _say(name: str, seed: int):
    def report(stage: str, done: int, of: int, metrics: dict[str, float]) -> None:
        if stage == "train" and done % max(1, of // 5) == 0:
            print(f"{name} seed {seed}: {done}/{of} complete {metrics['complete']:.3f}", flush=True)

    return report


def main() -> None:
    parser = arguments(__doc__, smoke="tiny runs into a temporary folder beside the results")
    parser.add_argument("--only", nargs="*", choices=list(EXPERIMENTS), default=list(EXPERIMENTS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    out = RESULTS / "smoke" if args.smoke else RESULTS
    rows_path, runs_path = out / "worlds.json", out / "worlds_runs.json"
    rows = read_rows(rows_path) if rows_path.exists() else []
    runs = json.loads(runs_path.read_text()) if runs_path.exists() else []
    done = {(r["experiment"], r["seed"]) for r in runs}
    for seed in args.seeds:
        for name in args.only:
            if (name, seed) in done:
                continue
            new_rows, about = run(name, seed, args.smoke)
            rows += new_rows
            runs.append(about | machine())
            write_rows(rows_path, rows)
            runs_path.write_text(json.dumps(runs, indent=1) + "\n")
            print(about, [round(row.fact_em, 3) for row in new_rows if row.setting.method == "trained"], flush=True)
    write_table(out / "worlds.md", rows, runs)
    plot_rows(out / "worlds.png", rows)
    print(format_table(rows))


def write_table(path: Path, rows: list[Row], runs: list[dict]) -> None:
    """The table of all rows, and of what every run cost."""
    names, table = ["experiment", "seed", "updates", "transitions"], []
    for r in runs:
        place = f"{r['cores']} cores {r['device']}, Python {r['python']}, jax {r['jax']}"
        table.append([*(str(r[name]) for name in (*names, "train_seconds", "commit")), place])
    lines = [
        "# Worlds: trained retrievers against length",
        "",
        f"`python -m benchmarks.qrag.worlds`, config files of `configs/qrag/`; n = {max(row.n for row in rows)} "
        "held-back questions for each length, hidden in held-back speeches.",
        "",
        format_table(rows, markdown=True),
        "",
        "![fact EM against length](worlds.png)",
        "",
        *grid([*names, "training seconds, embedding included", "commit", "machine"], table),
    ]
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
