"""What holding answers to a grammar costs and gives: tables, a decode step, well-formed answers. One process, no rival.

    python -m benchmarks.language_models.grammar smollm2                # about 3 minutes on 2 cores
    python -m benchmarks.language_models.grammar smollm2 MODEL.gguf     # any decoder that `load_decoder` reads

* Tables: CPU seconds from a grammar to the tables of one vocabulary, the first time; their sizes.
* A step: the same prompts in turns without a grammar, under one that admits every text (so that all tokens are the
  same, which is checked) and under one of JSON; CPU time a token of the batch, first tokens counted, and the median
  over rounds of the ratio to the turn without.
* Answers: a planner's JSON about the questions of examples/questions.jsonl, greedy, parsed strictly, with and without
  the grammar; nobody is asked again. What is counted is the form alone.
"""

import json
import statistics
import time
from functools import partial
from pathlib import Path

from benchmarks.common import ROOT, about, about_lines, arguments, grid, write
from qrag_jax.llm.json_answers import Integer, ListOf, Number, OneOf, Record, Text, parse_json, schema_grammar
from qrag_jax.llm.local import LocalGenerator
from qrag_jax.llm.structured import ask_structured
from qrag_jax.models.decoder.generation import Decoding, make_decoder
from qrag_jax.models.decoder.weights import LoadedDecoder, load_decoder
from qrag_jax.models.grammar.compile import compile_grammar
from qrag_jax.models.grammar.tokens import TokenAutomaton, token_automaton
from qrag_jax.types import Choice, Grammar, Message, Regex, Sampling

RESULTS = Path(__file__).parent / "results"

PLAN = Record({"query": Text(1, 200), "level": Integer(0, 3), "confidence": Number(0, 1)})
TEXTS = Record({"claims": ListOf(Text(1, 1_000), 0, 60)})
GRAMMARS: dict[str, Grammar] = {
    "three words": Choice(("yes", "no", "maybe")),
    "rows of numbers, 1 to 40": Regex(r"([1-9][0-9]{0,2}, [1-3]\n){1,40}"),
    "10 verdicts": schema_grammar(Record({"verdicts": ListOf(OneOf(("entailed", "contradicted", "neither")), 10, 10)})),
    "a plan: text, integer, number": schema_grammar(PLAN),
    "60 texts of 1,000 characters": schema_grammar(TEXTS),
}
ANYTHING = Regex(r"(.|\n)*")
ROWS, NEW = 4, 48
ASK = """Plan a search that answers a question. Reply with JSON and nothing around it, with these fields:
{"query": words to search for, "level": 0, 1, 2 or 3 for how much context is needed, "confidence": 0 to 1}"""


def tables(loaded: LoadedDecoder) -> list[dict]:
    """Of every grammar."""
    spellings, rows = loaded.tokenizer.spellings(), []
    for name, grammar in GRAMMARS.items():
        compile_grammar.cache_clear()
        start = time.process_time()
        built = token_automaton(compile_grammar(grammar), spellings, loaded.tokenizer.eos_ids, loaded.config.vocab_size)
        states, classes = built.next_state.shape
        row = {"grammar": name, "cpu_seconds": time.process_time() - start, "bytes": num_bytes(built)}
        rows.append(row | {"states": states, "classes": classes, "shortest": int(built.distance[0])})
    return rows


def num_bytes(automaton: TokenAutomaton) -> int:
    """The size of its tables."""
    return sum(getattr(table, "nbytes", 0) for table in vars(automaton).values())


def step(decoding: Decoding, prompts: list[list[int]], grammar: Grammar | None) -> tuple[float, list]:
    """CPU milliseconds a new token of the batch, and the answers."""
    start = time.process_time()
    answers = decoding.generate_ids(prompts, Sampling(max_tokens=NEW, grammar=grammar))
    return 1e3 * (time.process_time() - start) / max(len(answer.ids) for answer in answers), answers


def steps(loaded: LoadedDecoder, rounds: int) -> dict:
    """Without a grammar, under one that admits anything, under JSON; in turns."""
    decoding = make_decoder(loaded, batch_size=ROWS)
    prompts = [
        loaded.tokenizer.encode(f"A long story about the number {n} begins like this:", special=False)
        for n in range(ROWS)
    ]
    kinds = {"none": None, "anything": ANYTHING, "json": schema_grammar(Record({"claims": ListOf(Text(1, 200), 8, 8)}))}
    for grammar in kinds.values():
        step(decoding, prompts, grammar)
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        said = {}
        for kind, grammar in kinds.items():
            milliseconds, said[kind] = step(decoding, prompts, grammar)
            times[kind].append(milliseconds)
        if [answer.ids for answer in said["none"]] != [answer.ids for answer in said["anything"]]:
            raise SystemExit("a grammar that admits every text has changed an answer")
    ratios = {kind: [own / free for own, free in zip(of, times["none"], strict=True)] for kind, of in times.items()}
    return {"cpu_ms": {kind: statistics.median(of) for kind, of in times.items()},
            "ratio": {kind: (statistics.median(of), min(of), max(of)) for kind, of in ratios.items()}}  # fmt: skip


def answers(loaded: LoadedDecoder, count: int) -> dict:
    """How many answers can be read as they are, of the same prompts."""
    lines = (ROOT / "examples" / "questions.jsonl").read_text().splitlines()
    questions = [json.loads(line)["question"] for line in lines][:count]
    prompts = [[Message("system", ASK), Message("user", question)] for question in questions]
    generator, found = LocalGenerator(loaded), {}
    for kind, grammar in (("without", None), ("with", schema_grammar(PLAN))):
        parse = partial(parse_json, schema=PLAN)
        outcomes = ask_structured(
            generator, prompts, parse, sampling=Sampling(max_tokens=80), max_asks=1, grammar=grammar
        )
        found[kind] = {
            "asked": len(prompts),
            "read": sum(one.error is None and not one.was_repaired for one in outcomes),
            "mended": sum(one.was_repaired for one in outcomes),
            "all_tokens": sum(one.generations[-1].finish_reason == "length" for one in outcomes),
        }
    return found


def cells(row: dict) -> list[str]:
    sizes = [f"{row['states']:,}", f"{row['classes']:,}", f"{row['bytes'] / 1e3:,.0f}"]
    return [row["grammar"], *sizes, f"{row['cpu_seconds']:.2f}", str(row["shortest"])]


def format_report(result: dict) -> str:
    lines = ["# Answers under a grammar", "", f"`{result['command']}`; see the script for what is measured.", ""]
    lines += about_lines(result["about"])
    for model in result["models"]:
        heads = ["grammar", "states", "classes of tokens", "KB", "CPU seconds", "shortest answer, tokens"]
        lines += [f"## {model['model']}: {model['vocabulary']:,} tokens", "", *grid(heads, map(cells, model["tables"]))]
        cpu, ratio = model["steps"]["cpu_ms"], model["steps"]["ratio"]
        lines += ["", f"CPU ms a token of {ROWS} rows, and over that without a grammar (range):"]
        lines += ["; ".join(f"{kind} {cpu[kind]:.1f}, {mid:.3f} ({low:.3f} to {high:.3f})"
                            for kind, (mid, low, high) in ratio.items()) + ".", ""]  # fmt: skip
        for kind, row in model["answers"].items():
            read = f"{row['read']} of {row['asked']} read as they are, {row['mended']} mended"
            lines += [f"Plans {kind} the grammar: {read}, {row['all_tokens']} took all 80 tokens.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--answers", type=int, default=24)
    args = parser.parse_args()
    machine, models = about(), []  # the commit that was measured, not the one of an hour later
    for model in args.models:
        loaded = load_decoder(model)
        row = {"model": Path(model).name, "vocabulary": loaded.config.vocab_size, "tables": tables(loaded)}
        models.append(row | {"steps": steps(loaded, args.rounds), "answers": answers(loaded, args.answers)})
        print(json.dumps(models[-1]), flush=True)
    command = f"python -m benchmarks.language_models.grammar {' '.join(row['model'] for row in models)}"
    command += f" --rounds {args.rounds} --answers {args.answers}"
    result = {"about": machine, "command": command, "models": models}
    write(RESULTS, "grammar", result, format_report(result))


if __name__ == "__main__":
    main()
