"""Q-RAG at ten million tokens: bAbI facts hidden among 400,000 sentences of novels, in blocks of mapped rows.

    python -m benchmarks.qrag.ten_million eval DATA --runs qa2=runs/qa2/seed_0 qa2=runs/qa2/seed_1 qa3=runs/qa3
    python -m benchmarks.qrag.ten_million rows --runs qa2=runs/qa2/seed_0    # under a minute
    python -m benchmarks.qrag.ten_million table                              # results/ten_million.md

eval    `qrag eval RUN --babi ... --haystack DEV_NOVELS --num_chunks 40000` and `400000`, each in a process of its own:
        F1 of STOP and of an oracle stop, seconds to embed, ms a pick, peak memory, and how often the novels repeat.
        Both lengths use all sentences of the novels and ask the same questions, so differences are paired. It takes
        about 4 minutes a run; a run replaces the lines of an earlier one with the same task, training data and seed
rows    400,000 rows that all differ (random vectors; what is retrieved does not matter), for the novels have fewer
        sentences: time and memory beside the mapped rows, the memory of the process without files sampled meanwhile

DATA and runs are those of ranking.py: a run of configs/qrag/babi_ranking.yaml, trained on train stories in the train
novels, and asked valid stories in the dev novels, which it never saw. A part writes its lines into
results/ten_million.json; `table` makes the page.
"""

import json
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import about, about_lines, arguments, grid, interval, peak_mib, qrag, read_json, spread, tested
from benchmarks.common import shown as shown_spread

RESULTS = Path(__file__).parent / "results"
FILE = RESULTS / "ten_million.json"
ORDINARY, LONG = 40_000, 400_000  # chunks: 1M and 10M tokens
HAYSTACK = "novels/dev.jsonl.gz"
SMOKE = 3  # questions
NUM_ROWS_QUESTIONS = 5
NUM_PAIRS = 64  # of a vector of 128 components
# Of one component pair in one position: the angle 1; its reduction 8, two polynomials 18 and the quadrant 6 of
# `cos_sin`; the four products, three sums and two weights of `rotary_scores` 9, and the sum over pairs 1.
FLOPS_PER_PAIR = 43


def evaluate(data: Path, name: str, run: Path, num_questions: int) -> dict[str, Any]:
    """Rows and per-question F1 of STOP at both lengths."""
    found: dict[str, Any] = {"name": name, "about": about(), "trained": trained_on(run), "rows": {}}
    f1: dict[int, dict[str, float]] = {}
    for num_chunks in (ORDINARY, LONG):
        with tempfile.TemporaryDirectory() as folder:
            out, each = Path(folder) / "rows.json", Path(folder) / "each.jsonl"
            flags = ["--babi", data / f"babi/{name}_valid.txt.gz", "--haystack", data / HAYSTACK]
            flags += ["--num_chunks", str(num_chunks), "--max_haystack_sentences", str(LONG), "--methods", "trained"]
            flags += ["--num_questions", str(num_questions), "--protocol", "stop,oracle"]
            qrag("eval", run, *flags, "--json", out, "--per_query", each)
            found["rows"][str(num_chunks)] = json.loads(out.read_text())
            records = [json.loads(line) for line in each.read_text().splitlines()]
        f1[num_chunks] = {one["query_id"]: one["fact_f1"] for one in records if one["protocol"] == "stop"}
    return found | {"difference": difference(f1[LONG], f1[ORDINARY]), "tokens": tokens(data, run)}


def trained_on(run: Path) -> dict[str, Any]:
    """The training of a run, as far as runs of this page differ in it, and its seed."""
    from qrag_jax.checkpoint import load_checkpoint

    config = load_checkpoint(run, groups=()).config
    data = config["data"]
    return {
        "chunks": round(data["num_chunks"] * data["stretch"]),
        "sentences": data["max_haystack_sentences"],
        "simulated": data["num_simulated"],
        "updates": f"{config['num_updates']:,}" + (" more" if config["init"] else ""),
        "seed": config["seed"],
    }


def difference(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """Mean of first - second over the same questions, with its interval."""
    from qrag_jax.measures.aggregate import paired_difference

    names = sorted(first)
    found = paired_difference(*(np.array([of[name] for name in names]) for of in (first, second)))
    return {"mean": found.mean, "low": found.low, "high": found.high, "p_value": found.p_value, "n": found.n}


def tokens(data: Path, run: Path) -> float:
    """Mean tokens of a sentence of the novels, without special ones and before the window cuts."""
    from qrag_jax.data.stories.haystack import load_haystack
    from qrag_jax.qrag.retriever import load_retriever

    encoder = load_retriever(run).encoder
    assert encoder is not None
    sentences = load_haystack(data / HAYSTACK, "all").sentences[::20]
    return float(np.mean([len(ids) for ids in encoder.tokenizer.ids(sentences)]))


def measure_rows(run: Path, num_chunks: int) -> dict[str, Any]:
    """Time and memory of contexts whose rows all differ."""
    from qrag_jax.files.mapped import mapped_array
    from qrag_jax.qrag.batching import Contexts
    from qrag_jax.qrag.multi_step_search import make_action_bank
    from qrag_jax.qrag.retriever import load_retriever

    retriever, rng = load_retriever(run), np.random.default_rng(0)
    width, before = len(retriever.constants["mean"]), anonymous_mib()
    vectors = mapped_array((num_chunks, width))
    for first in range(0, num_chunks, 10_000):
        size = min(10_000, num_chunks - first)
        vectors[first : first + size] = rng.standard_normal((size, width), np.float32)
    steps = retriever.env.num_steps
    ids = np.arange(num_chunks, dtype=np.int32)[None]
    contexts = Contexts(np.zeros(1, np.int32), ids, np.zeros(ids.shape, bool))
    with Sampled() as memory:
        start = time.perf_counter()
        bank = make_action_bank(retriever, vectors, mapped=True)
        index_s, taken = time.perf_counter() - start, []
        for _ in range(1 + NUM_ROWS_QUESTIONS):  # the first compiles
            asked = bank.read_questions(rng.standard_normal((1, width), np.float32))
            start = time.perf_counter()
            bank.play(asked, contexts, steps)
            taken.append(1e3 * (time.perf_counter() - start) / steps)
    mapped = num_chunks * (width + retriever.network.dim) * 4 / 2**20
    return {
        "about": about(), "chunks": num_chunks, "mapped_mib": mapped, "index_s": index_s,
        "step_ms": spread(taken[1:]), "before_mib": before, "anonymous_mib": memory.most, "peak_mib": peak_mib(),
    }  # fmt: skip


def anonymous_mib() -> float:
    """Memory of this process that belongs to no file."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, "Linux"
    return int(found[1]) / 1024


class Sampled:
    """The most `anonymous_mib` while its block runs, looked at every 20 ms."""

    def __enter__(self) -> "Sampled":
        self.most, self._done = anonymous_mib(), threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._done.wait(0.02):
            self.most = max(self.most, anonymous_mib())

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


# --- the page --------------------------------------------------------------------------------------------------------


def format_page(result: dict[str, Any]) -> str:
    lines = ["# Q-RAG at ten million tokens", "", "`python -m benchmarks.qrag.ten_million`; see its docstring.", ""]
    lines += ["## Counted before measured", "", *count_lines(), ""]
    lines += [result["note"], ""] if "note" in result else []
    if runs := [result["runs"][key] for key in sorted(result.get("runs", {}))]:
        for each in {run["about"]["commit"]: run["about"] for run in runs}.values():
            lines += about_lines(each)
        lines += ["## bAbI in novels", "", *eval_table(runs), "", *notes(runs), "", *LOSSES, ""]
    if rows := result.get("rows"):
        lines += ["## Rows that all differ", "", *rows_table(rows), ""]
    return "\n".join(lines)


# Counted once from the picks of the first run of the table and of runs that were not kept.
LOSSES = """
## Where qa2 loses

The first run of the table, the same 100 questions. A relative position is a share of the document's length, so
positions are alike at both lengths: only the number of sentences differs.

| counted until the last right pick | 40,000 chunks | 400,000 chunks |
| --- | --- | --- |
| picks of sentences of the novels (questions) | 13 (7) | 38 (19) |
| picks of other facts of the story (questions) | 7 (6) | 12 (11) |
| questions whose gold 6 picks do not find | 3 | 9 |
| questions where STOP comes later / earlier than the last gold | 1 / 1 | 3 / 0 |

The ranking loses, not STOP: short sentences of novels ("Catherine herself opened it.") outrank the second fact, mostly
at the second pick. qa3 does not lose so (6 and 6 picks of novels); it trains on 4,000 simulated questions besides.

## Attempts for qa2

- The first run continued for 200 updates with data.stretch=4000 (of 4 picks, the same 100 questions): .977 at 40,000
  chunks and .945 at 400,000.
- Trained anew with data.stretch=4000, all 59,480 train sentences in place of 30,000, and 4,000 simulated questions: the
  rows "trained for 400,000 chunks" above. The counts above suggested these three; they were not chosen by a score.
  Short contexts lose little, seed 0, 300 questions: .993 at 50 chunks and .985 at 1,200, the first run .994 and .989.
  On 100 other valid questions seed 0 has .971 at 40,000 chunks and .958 at 400,000 (3 picks).
- That run continued for 300 updates with data.stretch=40000. On these other questions it has .944 at 400,000 chunks
  with STOP and .964 with an oracle stop; before it had .958 and .956. STOP comes later (2.20 picks, 2.12 before), so
  it was not kept. The differences are within what 100 questions can show.

The aim was a difference of at most .02. Both seeds miss it on the questions of the table, by .007 and .006.

Not tried: 16,384 negatives a batch and mined sentences, which did not help at 1M (ranking.md); each of the three
changes alone; a third seed; qa3 with the new values.
""".strip().splitlines()


def count_lines() -> list[str]:
    """Work of one pick, from the sizes alone."""
    flops = LONG * NUM_PAIRS * FLOPS_PER_PAIR
    row, read = 2 * NUM_PAIRS * 4, LONG * 2 * NUM_PAIRS * 4
    product, megabytes = LONG * NUM_PAIRS * 4, read / 1e6
    return [
        f"A pick in {LONG:,} chunks copies {LONG:,} rows of {row} bytes, {megabytes:,.0f} MB, from the mapped file",
        f"into blocks, and reads them once more. It turns {NUM_PAIRS} component pairs of each to a position of its",
        f"own, which takes {FLOPS_PER_PAIR} floating-point operations a pair: {flops / 1e9:.2f} GFLOP. The products",
        f"are {product / 1e9:.2f}. A core that computes 15 GFLOP/s and copies 4 GB/s needs "
        f"{1e3 * flops / 15e9:.0f} + {1e3 * read / 4e9:.0f} ms;",
        "a second core can copy one block while the first one scores another.",
        "",
        "Memory beside the mapped files: the process, JAX and the encoder, two blocks of 8 MiB, and what XLA needs to",
        "score one block (cosines, sines and products of 16,384 x 64 floats, 4 MiB each).",
    ]


TRAINED = ["task", "trained for chunks", "novel sentences", "simulated questions", "updates", "seed"]


def training_cells(run: dict[str, Any]) -> list[str]:
    """Cells of `TRAINED`."""
    trained = run["trained"]
    counts = [f"{trained[key]:,}" for key in ("chunks", "sentences", "simulated")]
    return [run["name"], *counts, trained["updates"], str(trained["seed"])]


def eval_table(runs: Iterable[dict[str, Any]]) -> list[str]:
    heads = [*TRAINED, "chunks", "F1 of STOP", "EM of STOP", "F1, oracle stop", "taken"]
    heads += ["embed, s", "ms a pick", "peak memory, GiB"]
    rows = []
    for run in runs:
        for num_chunks, both in run["rows"].items():
            stop, oracle = (next(row for row in both if row["protocol"] == p) for p in ("stop", "oracle"))
            cost = stop["seconds"] * 1e3 / stop["n"] / run.get("steps", 6)
            peak = f"{stop['peak_gib']:.2f}" if "peak_gib" in stop else "-"
            embed = f"{stop['embed_seconds']:.0f}" if "embed_seconds" in stop else "-"
            rows.append(
                [*training_cells(run), f"{int(num_chunks):,}", interval(stop, names=("fact_f1", "f1_low", "f1_high")),
                 f"{stop['fact_em']:.3f}", f"{oracle['fact_f1']:.3f}", f"{stop['num_taken']:.2f}", embed,
                 f"{cost:.1f}", peak]
            )  # fmt: skip
    return grid(heads, rows)


def notes(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Differences between the lengths, and how often the novels repeat."""
    lines = ["F1 of STOP at 10M less that at 1M, paired over the same questions, each hidden anew:", ""]
    rows = [[*training_cells(run), *tested(**run["difference"])] for run in runs]
    lines += [*grid([*TRAINED, "difference", "95% interval", "p", "questions"], rows), ""]
    for same in grouped(runs):
        if len(same) > 1:
            mean = statistics.mean(run["difference"]["mean"] for run in same)
            task, chunks = training_cells(same[0])[:2]
            lines.append(f"- Mean of {len(same)} seeds of {task} trained for {chunks} chunks: {mean:+.3f}.")
    row, tokens = runs[0]["rows"][str(LONG)][0], runs[0]["tokens"]
    lines.append(
        f"- A context of {LONG:,} chunks has {row['noise_texts']:,.0f} different sentences of the novels, each "
        f"{row['noise_repeats']:.1f} times on average and up to {row['most_repeats']:,} times. A sentence has "
        f"{tokens:.1f} tokens on average, so that a context has {LONG * tokens / 1e6:.1f}M."
    )
    return lines


def grouped(runs: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Runs that differ in their seed only."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(training_cells(run)[:-1]), []).append(run)
    return list(groups.values())


def rows_table(rows: dict[str, Any]) -> list[str]:
    heads = ["chunks", "mapped rows, MiB", "action vectors, s", "ms a pick", "memory without files, MiB", "peak, MiB"]
    cells = [f"{rows['chunks']:,}", f"{rows['mapped_mib']:,.0f}", f"{rows['index_s']:.1f}"]
    cells += [shown_spread(rows["step_ms"], ".1f"), f"{rows['anonymous_mib']:,.0f} ({rows['before_mib']:,.0f} before)"]
    return grid(heads, [[*cells, f"{rows['peak_mib']:,.0f}"]])


def named(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    return name, Path(folder)


def main(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, smoke=f"{SMOKE} questions, 20,000 rows, into a folder beside the results")
    parser.add_argument("stage", choices=("eval", "rows", "table"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--runs", type=named, nargs="+", metavar="NAME=RUN", default=[])
    parser.add_argument("--questions", type=int, default=100)
    args = parser.parse_args(given)
    file = FILE.parent / "smoke" / FILE.name if args.smoke else FILE
    result = read_json(file)
    if args.stage == "eval":
        if args.data is None:
            parser.error("say where the data are: DATA")
        for name, run in args.runs:
            found = evaluate(args.data, name, run, SMOKE if args.smoke else args.questions)
            result.setdefault("runs", {})[" ".join(training_cells(found))] = found
            result.pop("note", None)  # of numbers that were not measured by this command
    if args.stage == "rows":
        result["rows"] = measure_rows(args.runs[0][1], 20_000 if args.smoke else LONG)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result) + "\n")
    page = format_page(result)
    file.with_suffix(".md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
