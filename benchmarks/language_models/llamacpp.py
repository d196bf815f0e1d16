"""GGUF models on CPU: llama.cpp beside the decoder of another commit, in one run and by the same calls.

    git worktree add /tmp/older 'COMMIT'                 # the last one with `LocalGenerator(storage="file")`: de413408
    python -m benchmarks.language_models.llamacpp smollm2 MODEL.gguf --older /tmp/older     # about 4 minutes on 2 cores

Each engine answers in a process of its own, one after the other, model by model. A round asks two new prompts of equal
length: one answer of a single token, which is reading, and one of more, which is reading and writing. The first round
compiles and does not count. Memory is the peak of the process, minus what it held before the model was loaded.

Threads of llama.cpp wait for each other, so a busy machine slows it down most. `--cpu` measures on such a machine: one
core for each engine, and CPU seconds in place of seconds.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
RESULTS = Path(__file__).parent / "results"
# Keyword arguments of `LocalGenerator`, by the name of the engine.
ENGINES = {"older": {"storage": "file"}, "llamacpp": {"engine": "llamacpp"}}
_WORDS = "river stone light paper house green seven music train cloud table north glass bread winter salt".split()


def megabytes(field: str) -> float:
    """A field of this process's memory in MB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6


def measure(model: str, named: dict, words: int, new: int, rounds: int, by_cpu: int) -> dict:
    """Measures one engine in this process."""
    now = time.process_time if by_cpu else time.perf_counter
    if by_cpu:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    from qrag_jax.llm.local import LocalGenerator
    from qrag_jax.types import Message, Sampling

    before, start = megabytes("VmRSS"), now()
    generator = LocalGenerator(model, **named)
    load = now() - start
    rng, reads, writes = random.Random(0), [], []

    def ask(tokens: int) -> tuple[float, int, int]:
        text = " ".join(rng.choices(_WORDS, k=words)) + ". Write a long story about each of these words."
        began = now()
        (answer,) = generator.generate([(Message("user", text),)], sampling=Sampling(max_tokens=tokens))
        return now() - began, answer.prompt_tokens, answer.completion_tokens

    for _ in range(rounds + 1):
        short, prompt, _ = ask(1)
        whole, _, written = ask(new)
        reads.append(prompt / short)
        writes.append((written - 1) / max(whole - short, 1e-9))
    middle = {"read": statistics.median(reads[1:]), "write": statistics.median(writes[1:])}
    return {"load": load, **middle, "memory": megabytes("VmHWM") - before, "prompt": prompt}


def started(model: str, engine: str, tree: Path, args: list[str]) -> dict:
    """Measures one engine in a process of the code in `tree`."""
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", json.dumps(ENGINES[engine]), model, *args]
    environment = os.environ | {"PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def format_report(result: dict) -> str:
    from benchmarks.common import about_lines, grid, model_name

    lines = ["# GGUF models on CPU: llama.cpp beside the decoder before it", ""]
    lines += [f"`{result['command']}`; see the script for what is measured.", "", *about_lines(result["about"])]
    unit = "CPU s of one core" if result["by_cpu"] else "s"
    heads = ["model", "engine", f"load, {unit}", f"read, tokens/{unit}", f"write, tokens/{unit}", "peak memory, MB"]
    rows = [
        [model_name(one["model"]), engine, *(f"{one[engine][name]:,.1f}" for name in ("load", "read", "write")),
         f"{one[engine]['memory']:,.0f}"]
        for one in result["models"]
        for engine in ENGINES
    ]  # fmt: skip
    return "\n".join([*lines, *grid(heads, rows), ""])


def main() -> None:
    from benchmarks.common import about, arguments, write

    parser = arguments(__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--older", type=Path, required=True, help="a checkout of the commit to compare with")
    parser.add_argument("--words", type=int, default=240)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="measure CPU seconds of one core")
    args = parser.parse_args()
    flags = [str(args.words), str(args.new), str(args.rounds), str(int(args.cpu))]
    result = {"about": about("xllamacpp"), "by_cpu": args.cpu, "models": []}
    for model in args.models:
        row = {engine: started(model, engine, args.older if engine == "older" else ROOT, flags) for engine in ENGINES}
        result["models"].append({"model": model, **row})
        print(json.dumps(result["models"][-1]), flush=True)
    names = " ".join(Path(model).name for model in args.models)
    result["command"] = f"python -m benchmarks.language_models.llamacpp {names} --older FOLDER --rounds {args.rounds}"
    result["command"] += " --cpu" if args.cpu else ""
    write(RESULTS, "llamacpp", result, format_report(result))


if __name__ == "__main__":
    if sys.argv[1] == "--measure":
        _, _, named, model, *sizes = sys.argv
        print(json.dumps(measure(model, json.loads(named), *map(int, sizes))))
    else:
        main()
