"""What is saved where prompts begin alike: 40 questions about one passage of 512 tokens, with and without sharing.

    python benchmarks/prefixes.py ARTICLES smollm2              # about 5 minutes on 2 cores
    python benchmarks/prefixes.py ARTICLES smollm2 MODEL.gguf   # any decoder that `load_decoder` reads

ARTICLES is SQuAD as lines {title, paragraphs: [{context, qas: [{question}]}]}. The passage is the beginning of an
article that has 40 questions about it, the prompts are chats: what to do, passage, question. In turns: a decoder that
keeps nothing and one that keeps what it has read, each new for every round and compiled before the first; greedy, 16
new tokens at most; matrices are kept as is best on the machine. Wall and CPU time of all 40, their ratio a round, and
how many answers are the same tokens.
"""

import argparse
import gzip
import json
import statistics
import time
from pathlib import Path

import numpy as np
from embed import about, about_lines, write

from qrag_jax.llm.local import LocalGenerator
from qrag_jax.models.decoder.generation import Decoded, make_decoder
from qrag_jax.models.decoder.weights import LoadedDecoder, best_storage, load_decoder
from qrag_jax.types import Message, Sampling

RESULTS = Path(__file__).parent / "results" / "speed"
ASK = "Answer in a few words, from the passage alone."
PASSAGE, QUESTIONS, NEW = 512, 40, 16


def read_prompts(articles: Path, loaded: LoadedDecoder) -> list[list[int]]:
    """Of the first article that has enough questions about its first tokens."""
    with gzip.open(articles, "rt") as file:
        for article in map(json.loads, file):
            passage, questions = "", []
            for paragraph in article["paragraphs"]:
                passage += paragraph["context"] + "\n"
                questions += [each["question"] for each in paragraph["qas"]]
                ids = loaded.tokenizer.encode(passage, special=False)
                if len(ids) >= PASSAGE and len(questions) >= QUESTIONS:
                    text = loaded.tokenizer.decode(ids[:PASSAGE])
                    chats = [[Message("system", ASK), Message("user", f"{text}\n\n{q}")] for q in questions[:QUESTIONS]]
                    return list(map(LocalGenerator(loaded).prompt_ids, chats))
    raise SystemExit(f"{articles}: no article has {QUESTIONS} questions about its first {PASSAGE} tokens")


def answer(loaded: LoadedDecoder, prompts: list[list[int]], shared: bool) -> tuple[float, float, list[Decoded]]:
    """Seconds of wall and CPU, and the answers of a decoder that has read nothing before."""
    decoder = make_decoder(loaded) if shared else make_decoder(loaded, prefix_bytes=0)
    start, cpu = time.perf_counter(), time.process_time()
    answers = decoder.generate_ids(prompts, Sampling(max_tokens=NEW))
    return time.perf_counter() - start, time.process_time() - cpu, answers


def measure(loaded: LoadedDecoder, prompts: list[list[int]], rounds: int) -> dict:
    for shared in (True, False):  # compiles
        answer(loaded, prompts[:9], shared)
    found: dict[bool, list] = {True: [], False: []}
    for _ in range(rounds):
        for shared in (False, True):
            found[shared].append(answer(loaded, prompts, shared))
    alone, together = found[False], found[True]
    ratios = [[one[i] / other[i] for one, other in zip(alone, together, strict=True)] for i in (0, 1)]
    pairs = list(zip(alone[0][2], together[0][2], strict=True))
    same = [one.ids == other.ids for one, other in pairs]
    equal = (pair for pair, is_same in zip(pairs, same, strict=True) if is_same)
    differences = [np.abs(np.subtract(one.logprobs, other.logprobs)).max() for one, other in equal]
    return {
        "tokens": (min(map(len, prompts)), max(map(len, prompts))),
        "seconds": [statistics.median(one[0] for one in runs) for runs in (alone, together)],
        "cpu_seconds": [statistics.median(one[1] for one in runs) for runs in (alone, together)],
        "ratio": [(statistics.median(of), min(of), max(of)) for of in ratios],
        "same": sum(same),
        "largest_difference": float(max(differences)),
    }


def format_report(result: dict) -> str:
    lines = ["# Prompts that begin alike", "", f"`{result['command']}`; see the script for what is measured.", ""]
    lines += about_lines(result["about"])
    about_each = f"{QUESTIONS} questions about one passage of {PASSAGE} tokens, at most {NEW} new tokens each"
    lines += [f"{about_each}; ratios: median (range).", ""]
    heads = ["model", "tokens of a prompt", "s, each read whole", "s, beginnings shared", "wall", "CPU", "same answers"]
    heads.append("log-probabilities differ by at most")
    lines += ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row in result["models"]:
        wall, cpu = ("{:.1f} ({:.1f} to {:.1f})".format(*of) for of in row["ratio"])
        tokens, (alone, together) = " to ".join(map(str, row["tokens"])), row["seconds"]
        lines.append(
            f"| {row['model']} | {tokens} | {alone:.1f} | {together:.1f} | {wall} | {cpu} "
            f"| {row['same']} of {QUESTIONS} | {row['largest_difference']:.0e} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("articles", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    names = " ".join(Path(model).name for model in args.models)
    command = f"python benchmarks/prefixes.py ARTICLES {names} --rounds {args.rounds}"
    result: dict = {"about": about(), "command": command}
    result["models"] = []
    for model in args.models:
        loaded = load_decoder(model, storage=best_storage(model))
        row = measure(loaded, read_prompts(args.articles, loaded), args.rounds)
        result["models"].append({"model": Path(model).name} | row)
        print(json.dumps(result["models"][-1]), flush=True)
    write(RESULTS, "prefixes", result, format_report(result))


if __name__ == "__main__":
    main()
