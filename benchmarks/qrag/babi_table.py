"""Tables and plots of the runs of benchmarks/qrag/babi.py."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import grid
from qrag_jax.eval.retrieval.compare import Comparison, holm
from qrag_jax.eval.tables import share
from qrag_jax.measures.aggregate import Summary, over_seeds, paired_difference

TOKENS = {50: "1K", 160: "4K", 1200: "32K", 4600: "128K", 40000: "1M"}
SHORT = {50: "1K", 1200: "32K"}  # lengths of the ablations
PAPER_QA3 = {50: 97.8, 160: 97.4, 1200: 97.1, 4600: 96.8, 40000: 96.5}  # fact F1 of a stopped run, table 3 of the paper
Runs = dict[tuple[str, str], list[dict[str, Any]]]


@dataclass(frozen=True)
class Entry:
    """One protocol at one length, over the seeds of one row."""

    rows: list[dict[str, Any]]

    def values(self, name: str) -> list[float]:
        return [row[name] for row in self.rows]

    def text(self, name: str) -> str:
        """Mean and its 95% interval, over the questions and, of several seeds, the seeds."""
        prefix = {"fact_em": "em", "fact_f1": "f1"}[name]
        runs = [Summary(row[name], row[f"{prefix}_low"], row[f"{prefix}_high"], row["n"]) for row in self.rows]
        found = over_seeds(runs)
        return f"{share(found.mean)} [{share(found.low)}, {share(found.high)}]"

    def per_question(self, measure: str) -> np.ndarray:
        """Mean over the seeds of one value a question."""
        found = []
        for row in self.rows:
            gold, hits, taken = (np.array([int(c) for c in row["counts"][k]]) for k in ("gold", "hits", "taken"))
            found.append((hits == gold).astype(float) if measure == "fact_em" else 2 * hits / (gold + taken))
        return np.mean(found, axis=0)


def entry(runs: Runs, task: str, variant: str, num_chunks: int, protocol: str) -> Entry | None:
    rows = [
        row
        for one in runs.get((task, variant), [])
        for row in one["lengths"]
        if row["num_chunks"] == num_chunks and row["protocol"] == protocol
    ]
    return Entry(rows) if rows else None


def write_tables(folder: Path, found: Sequence[dict[str, Any]]) -> None:
    runs: Runs = defaultdict(list)
    for one in found:
        runs[one["task"], one["variant"]].append(one)
    parts = [_HEAD, _main_tables(runs), _paper_table(runs), _rows_table(runs), _sweep_table(runs), _cost_table(found)]
    (folder / "README.md").write_text("\n\n".join(part for part in parts if part) + "\n")
    _plot_main(folder / "lengths.png", runs)
    _plot_sweeps(folder / "sweeps.png", runs)


_HEAD = """# Real bAbI tasks hidden in novels, 1K to 1M tokens

Commands: `python -m benchmarks.qrag.babi embed|run|baselines|table` (its docstring says what is read), config
`configs/qrag/babi_latent.yaml`, T = 6 picks. Latent towers on frozen MiniLM (first 2 layers), trained on contexts of
200 sentences (ablations: 100, and fewer updates), qa3 with 4,000 simulated questions beside the 185 real stories.
Reported are the valid questions in novels that training never saw. Contexts of 50 / 160 / 1,200 / 4,600 / 40,000
sentences are about 1K / 4K / 32K / 128K / 1M tokens. A cell is the mean over seeds and its [95% interval], for
other questions and, of several seeds, other seeds.

Protocols are never mixed: **fixed** takes all 6 chunks, so its F1 cannot exceed 2g / (g + 6) for g gold facts;
**threshold** stops below a Q that was fitted once, on held-out train stories in 1,200 held-out sentences; **oracle**
reads the labels and stops when all gold is found: a bound of EM, no method."""


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(grid(heads, rows))


def _cells(
    runs: Runs, task: str, variant: str, protocol: str, name: str, lengths: Collection[int] = tuple(TOKENS)
) -> list[str]:
    entries = [entry(runs, task, variant, num_chunks, protocol) for num_chunks in lengths]
    return ["not run" if e is None else e.text(name) for e in entries]


def _main_tables(runs: Runs) -> str:
    tasks = sorted({task for task, variant in runs if variant == "main"})
    parts = ["## All tasks"]
    for title, protocol, name in (
        ("Fact F1, threshold", "threshold", "fact_f1"),
        ("Fact EM, threshold", "threshold", "fact_em"),
        ("Fact EM, fixed T = 6", "fixed", "fact_em"),
        ("Fact F1, fixed T = 6", "fixed", "fact_f1"),
        ("Fact F1, oracle stop", "oracle", "fact_f1"),
    ):
        rows = [[task, *_cells(runs, task, "main", protocol, name)] for task in tasks]
        parts += [f"### {title}", _grid(["task", *TOKENS.values()], rows)]
    rows = []
    for task in tasks:
        entries = [entry(runs, task, "main", num_chunks, "threshold") for num_chunks in TOKENS]
        taken = [
            f"{np.mean(e.values('num_taken')):.2f} (n = {e.rows[0]['n']:,}, {e.rows[0]['num_left_out']} out)"
            for e in entries
            if e is not None
        ]
        rows.append([task, *taken])
    note = "Chunks taken by the threshold, questions scored, and questions left out because their story does not fit"
    parts += [f"### {note}", _grid(["task", *TOKENS.values()], rows)]
    for title, protocol, name in (
        ("fact EM, fixed T = 6", "fixed", "fact_em"),
        ("fact F1, threshold", "threshold", "fact_f1"),
    ):
        rows = [[task, *_cells(runs, task, "text", protocol, name)] for task in ("qa2", "qa3")]
        parts += [
            f"### Text mode, MiniLM's first 2 layers fine-tuned, 1 seed: {title}",
            _grid(["task", *TOKENS.values()], rows),
        ]
    parts.append("Text mode with all 6 layers of MiniLM: not run, it needs a GPU.")
    return "\n\n".join([*parts, "![fact F1 against length](lengths.png)"])


def _paper_table(runs: Runs) -> str:
    ours = _cells(runs, "qa3", "main", "threshold", "fact_f1")
    rows = [["paper, Contriever fine-tuned", *(share(v / 100) for v in PAPER_QA3.values())]]
    rows.append(["ours, latent, threshold from dev", *ours])
    note = (
        "## qa3 beside the paper\n\nThe paper's fact F1 of three facts is that of a run that stops; only the threshold "
        "row compares with it. It fine-tunes an encoder of 110M parameters for hours on an A100; ours trains a head on "
        "frozen vectors for minutes on a CPU."
    )
    return f"{note}\n\n" + _grid(["fact F1", *TOKENS.values()], rows)


def _ablations(runs: Runs) -> list[str]:
    known = [variant for _, variant in runs if not variant.startswith(("main", "text", "alpha", "lambda"))]
    order = list(dict.fromkeys(["base", *known]))
    return [v for v in order if any((task, v) in runs for task in ("qa2", "qa3"))]


_PAIRED = """Paired differences to base: the same questions, means over the seeds that both rows have; 95% bootstrap
interval, and p of a permutation test, corrected (Holm) for the rows of a task and length."""


def _rows_table(runs: Runs) -> str:
    parts = ["## Rows of table 3", _PAIRED]
    for task in ("qa2", "qa3"):
        for title, protocol, name in (
            ("fact EM, fixed T = 6", "fixed", "fact_em"),
            ("fact F1, threshold", "threshold", "fact_f1"),
        ):
            rows = []
            for variant in _ablations(runs):
                if (task, variant) in runs:
                    seeds = str(len(runs[task, variant]))
                    rows.append([variant, seeds, *_cells(runs, task, variant, protocol, name, SHORT)])
            parts += [f"### {task}: {title}", _grid(["row", "seeds", *SHORT.values()], rows)]
        parts.append(_differences(runs, task, "fact_em", "fixed"))
    stop = [[task, *_cells(runs, task, "learned STOP", "stop", "fact_f1", SHORT)] for task in ("qa2", "qa3")]
    parts += ["### Learned STOP under its own protocol: fact F1", _grid(["task", *SHORT.values()], stop)]
    return "\n\n".join(part for part in parts if part)


def _differences(runs: Runs, task: str, measure: str, protocol: str) -> str:
    rows = []
    for variant in _ablations(runs)[1:]:
        cells = [_difference(runs, task, variant, num_chunks, measure, protocol) for num_chunks in (50, 1200)]
        if all(cells):
            rows.append((variant, cells))
    if not rows:
        return ""
    corrected = [holm([cells[i] for _, cells in rows]) for i in range(2)]
    show = lambda c: f"{c.difference:+.3f} [{c.low:+.3f}, {c.high:+.3f}], p = {c.p_holm:.4f}"  # noqa: E731
    body = [[variant, show(corrected[0][i]), show(corrected[1][i])] for i, (variant, _) in enumerate(rows)]
    return f"### {task}: difference to base, fact EM, fixed T = 6\n\n" + _grid(["row", "1K", "32K"], body)


def _difference(runs: Runs, task: str, variant: str, num_chunks: int, measure: str, protocol: str) -> Comparison | None:
    seeds = {one["seed"] for one in runs.get((task, variant), [])}
    same = {k: [one for one in v if one["seed"] in seeds] for k, v in runs.items()}
    first, second = (entry(same, task, name, num_chunks, protocol) for name in (variant, "base"))
    if first is None or second is None:
        return None
    found = paired_difference(first.per_question(measure), second.per_question(measure))
    values = found.mean, found.low, found.high, found.p_value, found.p_value, found.n
    return Comparison(task, num_chunks, protocol, measure, variant, "base", *values)


def _sweep(runs: Runs, task: str, name: str, at_main: float) -> list[tuple[float, str]]:
    """(value, variant) of a sweep in rising order, the base row at its own value."""
    own = [(float(v.split()[1]), v) for t, v in runs if t == task and v.startswith(f"{name} ")]
    return sorted([*own, (at_main, "base")])


def _sweep_table(runs: Runs) -> str:
    parts = ["## Sweeps of alpha (start of its schedule) and lambda"]
    for name, at_main in (("alpha", 0.03), ("lambda", 0.5)):
        for task in ("qa2", "qa3"):
            rows = [
                [f"{value:g}", str(len(runs[task, v])), *_cells(runs, task, v, "fixed", "fact_em", SHORT)]
                for value, v in _sweep(runs, task, name, at_main)
            ]
            parts.append(
                f"### {task}, {name}: fact EM, fixed T = 6\n\n" + _grid([name, "seeds", *SHORT.values()], rows)
            )
    return "\n\n".join([*parts, "![sweeps](sweeps.png)"])


def _cost_table(found: Sequence[dict[str, Any]]) -> str:
    heads = ["task", "row", "seed", "overrides", "updates", "training s", "scoring 1M, s a question", "peak RSS GiB"]
    rows = []
    for one in sorted(found, key=lambda r: (r["task"], r["variant"], r["seed"])):
        long = [r["seconds"] / r["n"] for r in one["lengths"] if r["num_chunks"] == 40000]
        row = [one["task"], one["variant"], str(one["seed"]), " ".join(one["overrides"])]
        row += [str(one.get("updates", "")), str(one.get("train_seconds", "")), f"{long[0]:.2f}" if long else ""]
        rows.append([*row, str(one.get("peak_rss_gib", "")), one["commit"]])
    told = "One core a run of {cores}, {processor}, jax {jax}, {device}.".format_map(found[0])
    return f"## Runs\n\n{told}\n\n" + _grid([*heads, "commit"], rows)


def _figure(path: Path, num_panels: int, draw: Callable) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * num_panels, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure.subplots(1, num_panels, squeeze=False)[0])
    figure.savefig(path)


_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")


def _plot_main(path: Path, runs: Runs) -> None:
    tasks = sorted({task for task, variant in runs if variant == "main"})

    def draw(panels) -> None:
        for axes, protocol, name in zip(panels, ("threshold", "fixed"), ("fact_f1", "fact_em"), strict=True):
            for colour, marker, task in zip(_COLOURS, "os^Dv", tasks, strict=False):
                points = [(n, e) for n in TOKENS if (e := entry(runs, task, "main", n, protocol)) is not None]
                x, means = [n for n, _ in points], [np.mean(e.values(name)) for _, e in points]
                axes.plot(x, means, color=colour, marker=marker, label=task)
                low, high = ([of(e.values(name)) for _, e in points] for of in (min, max))
                axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            if protocol == "threshold":
                axes.plot(list(PAPER_QA3), [v / 100 for v in PAPER_QA3.values()], "k:", label="qa3, paper")
            axes.set(xscale="log", ylim=(0, 1.02), xlabel="context", ylabel=f"{name.replace('_', ' ')}, {protocol}")
            axes.set_xticks(list(TOKENS), list(TOKENS.values()))
            axes.minorticks_off()
            axes.grid(color="0.9")
        panels[0].legend(frameon=False, fontsize=9)

    _figure(path, 2, draw)


def _plot_sweeps(path: Path, runs: Runs) -> None:
    if not any(variant.startswith("alpha") for _, variant in runs):
        return

    def draw(panels) -> None:
        for axes, (name, at_main) in zip(panels, (("alpha", 0.03), ("lambda", 0.5)), strict=True):
            for colour, task in zip(_COLOURS, ("qa2", "qa3"), strict=False):
                for style, num_chunks in (("-", 50), ("--", 1200)):
                    points = [
                        (value, e)
                        for value, v in _sweep(runs, task, name, at_main)
                        if (e := entry(runs, task, v, num_chunks, "fixed")) is not None
                    ]
                    x, means = [v for v, _ in points], [np.mean(e.values("fact_em")) for _, e in points]
                    axes.plot(x, means, style, color=colour, marker="o", label=f"{task}, {TOKENS[num_chunks]}")
            axes.set(ylim=(0, 1.02), xlabel=name, ylabel="fact EM, fixed T = 6")
            axes.grid(color="0.9")
        panels[0].set_xscale("log")
        panels[0].legend(frameon=False, fontsize=9)

    _figure(path, 2, draw)
