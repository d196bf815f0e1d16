"""Transitions per second of one update, its parts, and its share of the matmul peak, beside two PyTorch loops.

    python benchmarks/train_step.py                 # all modes: under 10 minutes on 2 quiet cores
    python benchmarks/train_step.py --smoke         # shows that the script runs
    python benchmarks/train_step.py --modes minilm6 --set model.compute.dtype=bfloat16 data.batch_size=1024

PyTorch's loops are in `torch_loops.py`, our engine in `jax_loop.py`; the ratio to claim is ours to `batched`, the
well-written one. Every engine lives in a process of its own with all cores; they take turns, round after round, on
the same contexts, token ids, number of distinct chunks, T and batch, from the same parameters. Each turn begins with an
update that does not count: virtual machines take back memory that lies idle. Before anything is
timed, all must give the same loss, Q values and gradient norm for the same actions, or the script fails. Host work
(drawing contexts) is left out of all: our loop does it in a thread.

Without PyTorch, or on an accelerator that PyTorch does not see, ours is measured alone. Parts: jitted functions of
their own, which nest (towers in rollout in update); a part is what it adds. Model FLOPs: 2 a weight and
token that is no padding, attention's two products, backward twice the forward; what the backward pass recomputes does
not count.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "speed"
# glibc keeps freed memory and backs it with huge pages, as in the Makefile; for all engines.
MALLOC = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184:"
    "glibc.malloc.top_pad=268435456"
)
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Mode:
    """A shape of the update.

    Attributes:
        about: for the table.
        config: file of `configs/qrag`.
        overrides: of both haystacks.
        haystacks: name -> overrides; `shared` contexts share a pool of noise, `free` ones draw it freely. Chosen pairs
            are encoded again where that is less work.
        steps: updates of our engine in a round; a torch loop makes a share of it.
    """

    about: str
    config: str
    overrides: tuple[str, ...]
    haystacks: dict[str, tuple[str, ...]]
    steps: int


TEXT = {
    "shared": ("data.shared_haystack=64", "learner.reencode=false"),
    "free": ("data.shared_haystack=null", "learner.reencode=true"),
}
MODES = {
    "latent": Mode(
        "latent towers, 20 chunks",
        "worlds2_soft_q.yaml",
        (),
        {"shared": ("data.shared_haystack=64",), "free": ("data.shared_haystack=null",)},
        30,
    ),
    "latent200": Mode(
        "latent towers, 200 chunks (shape of babi_latent.yaml)",
        "worlds2_soft_q.yaml",
        ("data.num_chunks=200", "data.batch_size=64", "env.num_steps=6", "learner.reencode=true"),
        {"shared": ("data.shared_haystack=1024",), "free": ("data.shared_haystack=null",)},
        20,
    ),
    "minilm2": Mode("text, MiniLM's first 2 layers", "worlds2_text.yaml", (), TEXT, 3),
    "minilm6": Mode(
        "text, MiniLM's 6 layers",
        "worlds2_text.yaml",
        ("model.encoder.num_layers=null", "data.batch_size=16"),
        {"shared": ("data.shared_haystack=64", "learner.reencode=true"), "free": TEXT["free"]},
        3,
    ),
}
# engine -> (kind of process, does it use bf16, share of our steps, haystacks)
TORCH = {
    "torch batched": ("batched", False, 1.0, ("shared", "free")),
    "torch batched bf16": ("batched", True, 1.0, ("shared",)),
    "torch episodes": ("episodes", False, 0.0, ("shared",)),  # one update: a batch takes seconds
}
PARTS = {
    "chunk tower, online": "forward over the distinct chunks",
    "chunk tower, target": "the same by the target network",
    "state tower, online": "forward over the states of all steps",
    "state tower, target": "the same but the first step's",
    "scores and rollout": "positions, rotations, scores, draws, rewards, values",
    "backward": "the rest: gradients, what they compute again, returns, loss, gather of the batch",
    "optimiser": "clipping, AdamW, target step",
}


class Engine:
    """A process that answers one JSON line with another."""

    def __init__(self, command: list[str]):
        env = os.environ | {"GLIBC_TUNABLES": MALLOC, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT
        )

    def ask(self, **request: Any) -> dict:
        """Sends a request and waits.

        Raises:
            SystemExit: the process ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"an engine ended while it was asked for {request}: see its message above")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run_mode(mode: str, args: argparse.Namespace) -> dict:
    """All measurements of a mode."""
    with tempfile.TemporaryDirectory() as folder:
        smoke = ["--smoke"] if args.smoke else []
        ours = Engine([str(ROOT / "benchmarks" / "jax_loop.py"), folder, mode, *smoke, "--set", *args.set])
        about = ours.ask(do="machine")
        engines = {"ours": ours}
        if usable_torch(about["device"]):
            kinds = {kind for kind, *_ in TORCH.values()}
            engines |= {kind: Engine([str(ROOT / "benchmarks" / "torch_loops.py"), folder, kind]) for kind in kinds}
        try:
            return _measure(mode, args, engines, about)
        finally:
            for engine in engines.values():
                engine.close()


def usable_torch(device: str) -> bool:
    """Whether PyTorch is here and runs where JAX does."""
    if importlib.util.find_spec("torch") is None:
        return False
    if device == "cpu":
        return True
    import torch

    return torch.cuda.is_available()


def _measure(mode: str, args: argparse.Namespace, engines: dict[str, Engine], about: dict) -> dict:
    ours, haystacks = engines["ours"], MODES[mode].haystacks
    shapes = {case: ours.ask(do="shape", case=case) for case in haystacks}
    checks = {}
    for case in haystacks:
        for kind in set(engines) - {"ours"}:
            request = {"do": "check", "case": case}
            checks[f"{case} {kind}"] = compare(
                ours.ask(**request), engines[kind].ask(**request), f"{mode} {case} {kind}"
            )
    turns = [("ours", "ours", False, 1.0, case) for case in haystacks]
    for name, (kind, bf16, share, cases) in TORCH.items():
        if kind in engines and not (bf16 and mode.startswith("latent")):
            turns += [(name, kind, bf16, share, case) for case in cases]
    seconds: dict[tuple[str, str], list[float]] = {}
    for turn in range(args.rounds):
        for name, kind, bf16, share, case in turns:
            steps = max(1, round(share * (2 if args.smoke else MODES[mode].steps)))
            time.sleep(0.3)  # threads of the engine before fall asleep
            answer = engines[kind].ask(do="measure", case=case, steps=steps, bf16=bf16)
            seconds.setdefault((name, case), []).append(answer["seconds"])
            print(f"{mode} round {turn} {case:6s} {name:20s} {answer['seconds'] * 1e3:9.1f} ms", flush=True)
    peak_shapes = shapes["shared"].pop("peak_shapes")
    peaks = {
        kind: engine.ask(do="peak", shapes=peak_shapes)["peak"]
        for kind, engine in engines.items()
        if kind != "episodes"
    }
    print(f"{mode}: parts", flush=True)
    parts = {case: ours.ask(do="parts", case=case, repeats=2 if args.smoke else 5) for case in ("shared",)}
    rows = [_row(mode, name, case, times, shapes[case], peaks["ours"]) for (name, case), times in seconds.items()]
    return {"rows": rows, "shapes": shapes, "checks": checks, "peaks": peaks, "parts": parts, "machine": about}


def _row(mode: str, engine: str, case: str, seconds: list[float], shape: dict, peak: dict[str, float]) -> dict:
    """Transitions per second over the rounds, and the share of our matmul peak."""
    rates = sorted(shape["batch"] * shape["steps"] / s for s in seconds)
    median = statistics.median(rates)
    flops = sum(shape["flops"].values()) * median / (shape["batch"] * shape["steps"])
    share = flops / 1e9 / list(peak.values())[-1]
    tower = flops / 1e9 / max(list(peak.values())[:-1])
    row = {"mode": mode, "haystack": case, "engine": engine, "transitions_per_s": round(median, 1)}
    row |= {"min": round(rates[0], 1), "max": round(rates[-1], 1), "rounds": len(rates)}
    return row | {"share_of_square_peak": round(share, 4), "share_of_tower_peak": round(tower, 4)}


def compare(a: dict, b: dict, what: str) -> dict[str, float]:
    """Largest differences between two engines at the same parameters and actions.

    Raises:
        SystemExit: they do not do the same work.
    """
    gaps = {
        "loss": abs(a["loss"] - b["loss"]),
        "q": float(np.abs(np.array(a["q"]) - np.array(b["q"])).max()),
        "grad_norm": abs(a["grad_norm"] - b["grad_norm"]) / a["grad_norm"],
    }
    bad = {name: gap for name, gap in gaps.items() if not gap <= TOLERANCE * (10 if name == "grad_norm" else 1)}
    if bad:
        sys.exit(f"{what}: the engines do not compute the same: {bad}, loss {a['loss']} and {b['loss']}")
    return gaps


def report(results: dict[str, dict], command: str) -> str:
    """Markdown of all results."""
    about = next(iter(results.values()))["machine"]
    lines = [
        "# One update: transitions per second",
        "",
        f"`{command}`, commit {about['commit']}: {about['cores']} cores, {about['processor']}, {about['device_kind']}, "
        f"Python {about['python']}, jax {about['jax']}"
        + (f", torch {about['torch']}" if about.get("torch") else "")
        + ". Medians and ranges over rounds in which the engines take turns, each in a process of its own with all "
        "cores, fp32 unless said, on the same contexts and parameters. `torch batched` is the well-written loop that a "
        "ratio is claimed to; `torch episodes` has the shape of the published code. Share of peak: model FLOPs (no "
        "padding, no recomputation) over our own 2,048-cubed product / over the fastest of the towers' own shapes.",
        "",
        "| mode | haystack | engine | transitions/s | min - max | ours is faster by | share of peak |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for mode, result in results.items():
        ours = {row["haystack"]: row["transitions_per_s"] for row in result["rows"] if row["engine"] == "ours"}
        for row in sorted(result["rows"], key=lambda row: row["haystack"] != "shared"):
            ratio = "" if row["engine"] == "ours" else f"{ours[row['haystack']] / row['transitions_per_s']:.2f}"
            rate = f"{row['transitions_per_s']:,.0f} | {row['min']:,.0f} - {row['max']:,.0f}"
            share = f"{row['share_of_square_peak']:.0%} / {row['share_of_tower_peak']:.0%}"
            lines.append(f"| {mode} | {row['haystack']} | {row['engine']} | {rate} | {ratio} | {share} |")
    lines += ["", "## The work", "", *_shape_lines(results), "", "## Parts of our update", "", *_part_lines(results)]
    lines += ["", "## Matmul peaks, GFLOP/s", ""]
    for mode, result in results.items():
        for kind, rates in result["peaks"].items():
            name = "JAX" if kind == "ours" else "torch"
            lines.append(f"- {mode}, {name}: " + ", ".join(f"{shape} {rate:,.0f}" for shape, rate in rates.items()))
    lines += ["", "## Same work", "", "Largest differences between ours and each loop, given the actions:", ""]
    for mode, result in results.items():
        for name, gaps in result["checks"].items():
            lines.append(f"- {mode}, {name}: " + ", ".join(f"{what} {gap:.1e}" for what, gap in gaps.items()))
    return "\n".join(lines) + "\n"


def _shape_lines(results: dict[str, dict]) -> list[str]:
    lines = [
        "| mode | haystack | batch x T | chunks | distinct chunks (rows that we encode) | their tokens | state tokens "
        "| chosen pairs | GFLOP |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for mode, result in results.items():
        for case, s in result["shapes"].items():
            pairs = "encoded again" if s["reencode"] else "of the rollout"
            lines.append(
                f"| {mode} | {case} | {s['batch']} x {s['steps']} | {s['chunks']} | {s['distinct']:.0f} "
                f"({s['rows_encoded']}) | {s['chunk_tokens']:,.0f} | {s['state_tokens']:,.0f} | {pairs} | "
                f"{sum(s['flops'].values()) / 1e9:,.1f} |"
            )
    return lines


def _part_lines(results: dict[str, dict]) -> list[str]:
    """Milliseconds, share of the update, share of the 2,048-cubed peak."""
    columns = [(mode, case) for mode, result in results.items() for case in result["parts"]]
    lines = [
        "Milliseconds, share of the update, and share of the 2,048-cubed peak of the parts that have model FLOPs; "
        "medians of functions jitted alone, which nest, so a part is what it adds: where XLA fuses across a border, "
        "small ones can come out below 0.",
        "",
        "| part | " + " | ".join(f"{mode}, {case}" for mode, case in columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for part, what in PARTS.items():
        cells = []
        for mode, case in columns:
            result = results[mode]
            seconds, whole = result["parts"][case][part], result["parts"][case]["update"]
            flops = result["shapes"][case]["flops"].get(part)
            cell = f"{seconds * 1e3:.1f} ({seconds / whole:.0%}"
            if flops and seconds > 0:
                cell += f"; {flops / seconds / 1e9 / list(result['peaks']['ours'].values())[-1]:.0%} of peak"
            cells.append(cell + ")")
        lines.append(f"| {part}: {what} | " + " | ".join(cells) + " |")
    whole = [f"{results[mode]['parts'][case]['update'] * 1e3:.1f}" for mode, case in columns]
    return [*lines, "| update | " + " | ".join(whole) + " |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="*", choices=list(MODES), default=list(MODES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the run's config, for every mode")
    parser.add_argument("--device", help="JAX's platform (cpu, cuda, tpu); by default what JAX finds")
    parser.add_argument("--smoke", action="store_true", help="batches of 4, two rounds, into results/smoke")
    args = parser.parse_args()
    if args.device:
        os.environ["JAX_PLATFORMS"] = args.device
    if args.smoke:
        args.rounds = min(args.rounds, 2)
    out = RESULTS.parent / "smoke" / "speed" if args.smoke else RESULTS
    command = " ".join(["python benchmarks/train_step.py", *sys.argv[1:]])
    results = {}
    for mode in args.modes:
        results[mode] = run_mode(mode, args)
        out.mkdir(parents=True, exist_ok=True)
        (out / "train_step.json").write_text(json.dumps({"command": command, "modes": results}, indent=1) + "\n")
        (out / "train_step.md").write_text(report(results, command))
    print(report(results, command))


if __name__ == "__main__":
    main()
