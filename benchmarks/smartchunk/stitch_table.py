"""Does STITCH help? Rows of training methods on a controlled task, with equal rollouts, traces and imitation steps.

Every row starts from the same policy of its seed, which imitated examples that are right for half of the classes of
questions (the row `start`). Rows that ask for traces are run for each limit of traces. A row is a run of `qrag train`
with the overrides of `ROWS`; all run in one process, so that each function is compiled once.

    python -m benchmarks.smartchunk.stitch_table --out ROWS.jsonl --seeds 0,1,2,3,4 --traces 50,100,200
    python -m benchmarks.smartchunk.stitch_table --out THREE.jsonl --config configs/planner/three_documents.yaml
    python -m benchmarks.smartchunk.stitch_table --out ROWS.jsonl --table    the table of the rows that are there
    python -m benchmarks.smartchunk.stitch_table --out ROWS.jsonl --table --page stitch     the same as a page

Rows that the file has are not run again. Each takes less than a minute on one core, two with three documents.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np

from benchmarks.common import arguments, machine, write
from qrag_jax.config import load_config
from qrag_jax.eval.tables import dress, new_figure, share, write_png
from qrag_jax.train.decoder.config import DecoderRun
from qrag_jax.train.decoder.phases import RunState
from qrag_jax.train.decoder.run import first_state, prepare, result_row

_SFT = "sft_first=true"
_PRINTED = ("method=stitch", "rollout.imitate_hinted=false", "imitation.rehearse=none")  # Algorithm 2; configs differ
ROWS: dict[str, tuple[str, ...]] = {
    "start": (),
    "GRPO": ("method=grpo",),
    "DAPO": (
        "method=grpo", "rollout.clip_high=0.28", "rollout.mean=token", "rollout.kl_coef=0.0", "rollout.overlong=mask",
    ),
    "SFT": ("method=sft",),
    "SFT, then GRPO": ("method=grpo", _SFT),
    "SFT where the start fails, then GRPO": ("method=grpo", _SFT, "imitation.only_unsolved=true"),
    "STITCH": _PRINTED,
    "STITCH, 1 epoch": (*_PRINTED, "imitation.epochs=1"),
    "STITCH, 6 epochs": (*_PRINTED, "imitation.epochs=6"),
    "STITCH, rehearses what it solved": (*_PRINTED, "imitation.rehearse=solved"),
    "STITCH, rehearses traces": (*_PRINTED, "imitation.rehearse=traces"),
    "STITCH without hints": (*_PRINTED, "rollout.hints=false"),
    "STITCH without hints, rehearses traces": (
        *_PRINTED, "rollout.hints=false", "imitation.rehearse=traces",
    ),
    "STITCH without imitation": (*_PRINTED, "imitation.from_buffer=false"),
    "STITCH, imitates hinted answers": (*_PRINTED, "rollout.imitate_hinted=true", "imitation.rehearse=traces"),
    "STITCH, reference renewed": (*_PRINTED, "rollout.reference=imitation"),
    "SFT, then STITCH": (*_PRINTED, _SFT),
    "SFT of 40 epochs, then GRPO": ("method=grpo", _SFT, "imitation.epochs=40"),
}  # fmt: skip
TRACELESS, RIVAL = ("start", "GRPO", "DAPO"), "SFT, then GRPO"
RESULTS = Path(__file__).parent / "results"
COLUMNS = ("accuracy", "accuracy_macro", "rollouts", "traces", "imitation_steps", "tokens", "solve_none", "seconds")


def run_seed(config_path: str, overrides: Sequence[str], wanted: Sequence[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """Rows of one seed: the start policy is trained once, and every other row begins from it.

    Args:
        overrides: of all rows, the seed among them.
        wanted: (name of a row, limit of traces).
    """
    begun = time.perf_counter()
    config = load_config(DecoderRun, config_path, [*overrides, "method=grpo"])
    job = prepare(config)
    state = first_state(job, None, {})
    while state.progress.phase < config.phases.index("start") + 1:
        state, _ = job.updates(state, ())
    start = jax.device_get(state.learner.params)
    for name, traces in wanted:
        chex.clear_trace_counter()  # rows share their compiled update, whose limit is meant for one run
        if name == "start":
            row = result_row(job, state, time.perf_counter() - begun)
        else:
            limit = (f"imitation.traces={traces}",) if traces else ()
            begun = time.perf_counter()
            own = prepare(load_config(DecoderRun, config_path, [*overrides, *limit, *ROWS[name]]))
            at = RunState(own.updates.learner.init(start), state.progress)
            while not own.updates.is_done(at):
                at, _ = own.updates(at, ())
            row = result_row(own, at, time.perf_counter() - begun)
        yield {"row": name, "traces_limit": traces, **row, "overrides": list(overrides), "commit": machine()["commit"]}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: a line for each row and limit of traces, means over seeds with their range.

    The difference of a row is that to SFT, then GRPO with the same seed and limit of traces.
    """
    lines = [
        "| row | traces at most | accuracy (range over seeds) | difference | mean over kinds | rollouts | traces "
        "| imitation steps | solve none | seeds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    known = {(one["traces_limit"], one["seed"]): one["accuracy"] for one in rows if one["row"] == RIVAL}
    for traces in sorted({one["traces_limit"] for one in rows}):
        for name in ROWS:
            own = [one for one in rows if (one["row"], one["traces_limit"]) == (name, traces)]
            if not own:
                continue
            mean = {column: float(np.mean([one[column] or 0.0 for one in own])) for column in COLUMNS}
            values = [one["accuracy"] for one in own]
            spread = f"{share(mean['accuracy'])} [{share(min(values))}, {share(max(values))}]"
            pairs = [(one["accuracy"], known.get((traces, one["seed"]))) for one in own]
            gains = [value - rival for value, rival in pairs if rival is not None]
            ends = (float(np.mean(gains)), min(gains), max(gains)) if gains and name != RIVAL else ()
            gain = "{} [{}, {}]".format(*(share(one, 3, "+") for one in ends)) if ends else ""
            counts = " | ".join(f"{mean[column]:,.0f}" for column in ("rollouts", "traces", "imitation_steps"))
            none = share(mean["solve_none"]) if own[0]["solve_none"] is not None else "-"
            lines.append(
                f"| {name} | {traces or '-'} | {spread} | {gain} | {share(mean['accuracy_macro'])} | {counts} | "
                f"{none} | {len(own)} |"
            )
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A plot of accuracy by traces: means over seeds with their range, of the rows that were run with all limits."""
    limits = sorted({one["traces_limit"] for one in rows} - {0})
    figure = new_figure(7.0, 4.2)
    axes = figure.subplots()
    for name in ROWS:
        own = [[one["accuracy"] for one in rows if (one["row"], one["traces_limit"]) == (name, at)] for at in limits]
        flat = [one["accuracy"] for one in rows if one["row"] == name and not one["traces_limit"]]
        if all(own):
            means = [float(np.mean(values)) for values in own]
            ends = [[mean - min(values), max(values) - mean] for mean, values in zip(means, own, strict=True)]
            axes.errorbar(limits, means, yerr=np.transpose(ends), marker="o", capsize=3, label=name)
        elif name in ("start", "GRPO") and flat:
            axes.axhline(float(np.mean(flat)), color="0.4", linestyle="--" if name == "GRPO" else ":", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(limits, [str(limit) for limit in limits])
    dress(axes, "Mean and range over seeds", "traces of the teacher, at most", "accuracy on held-out questions")
    figure.legend(fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    write_png(path, figure)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = arguments(__doc__, smoke="a few rollouts of two rows")
    parser.add_argument("--out", required=True, type=Path, help="JSON Lines file of rows, appended to")
    parser.add_argument("--config", default="configs/planner/controlled.yaml")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--traces", default="50,100,200")
    parser.add_argument("--rows", default=",".join(map(str, range(len(ROWS)))), help="numbers of rows, see --list")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true", help="print the table of the rows that are there, and stop")
    parser.add_argument("--page", metavar="NAME", help="also write the table as a page of results/")
    parser.add_argument("overrides", nargs="*", help="changes of the config in all rows")
    args = parser.parse_args()
    if args.list:
        print("\n".join(f"{number} {name}" for number, name in enumerate(ROWS)))
    names = [list(ROWS)[int(number)] for number in args.rows.split(",")]
    seeds, limits = ([int(one) for one in text.split(",")] for text in (args.seeds, args.traces))
    overrides = list(args.overrides)
    if args.smoke:
        names, seeds, limits = ["start", "STITCH"], [0], [10]
        overrides += ["rollout.rollouts=600", "start.examples=100", "start.epochs=1"]
    if not (args.table or args.list):
        for seed in seeds:
            done = {(one["row"], one["traces_limit"]) for one in read(args.out) if one["seed"] == seed}
            wanted = [(name, traces) for name in names for traces in ([0] if name in TRACELESS else limits)]
            left = [one for one in wanted if one not in done]
            for row in run_seed(args.config, [*overrides, f"seed={seed}"], left) if left else ():
                with args.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row["row"], row["traces_limit"], seed, share(row["accuracy"]), row["seconds"], file=sys.stderr)
    rows = read(args.out)
    if args.page:
        settings = sorted({" ".join(one for one in row["overrides"] if not one.startswith("seed=")) for row in rows})
        told = [
            f"# {Path(args.config).stem}: methods of training a planner", "",
            f"`python -m benchmarks.smartchunk.stitch_table --config {args.config} --out ROWS.jsonl {settings[0]}`", "",
            f"Commits of the rows: {', '.join(sorted({row['commit'] for row in rows}))}. One core of a CPU.", "",
        ]  # fmt: skip
        if len({one["traces_limit"] for one in rows} - {0}) > 1:
            draw(rows, RESULTS / f"{args.page}.png")
            told += [f"![accuracy by traces]({args.page}.png)", ""]
        write(RESULTS, args.page, {"rows": rows}, "\n".join([*told, table(rows)]))
    else:
        sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
