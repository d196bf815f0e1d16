"""Language models in this process: right answers, and what keeping their weights in fewer bits costs.

    python benchmarks/local_models.py DATA smollm2 MODEL.gguf ... --rivals_python .venv-rivals/bin/python --transformers
    python benchmarks/local_models.py DATA smollm2 --smoke      # about 3 minutes: shows that it runs

DATA holds `squad/articles.jsonl.gz`: SQuAD as lines {title, paragraphs: [{context, qas: [{id, question, answers:
[{text}]}]}]}. The models are any that `load_decoder` reads.

* Answers: questions of SQuAD, one a paragraph and drawn with a fixed seed, with their paragraph and no other, greedy.
  `short_answer` is the prompt of answers that are scored: EM and F1 of SQuAD. `answer` is the prompt of `qrag ask`,
  which wants sentences with citations: how many hold a right answer word by word, and how many cite the passage. Means
  with 95% bootstrap intervals; differences between models are paired by question. What compiles is not timed.
* Perplexity: the paragraphs one after the other, cut into windows of 512 tokens that know nothing of each other; the
  first token of each is not scored. For each storage of the weights: nats a token above those of float32 on the same
  tokens, with the standard error of that mean over windows (tokens of a window are not independent), and how often both
  expect the same token.
* Greedy tokens: beginnings of 8 articles are continued, one at a time. How many first tokens are those of float32, of
  llama.cpp on the same file (GGUF only) and, for float32, of transformers in float32; an end counts as a token. Where
  two texts part, the logits of ours, read anew in one piece: how far its best token is above the second, and above that
  of the other. A small margin is a tie that rounding decides, a large one another model. The median margin of the
  perplexity's text says what is small.

All computing is in float32, whatever the storage.
"""

import argparse
import gzip
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import combinations, zip_longest
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from embed import about, about_lines, write
from local_models_rivals import END, until_end
from parts import STORAGE, STORAGES, Parts, files_of, load_stored, model_name, timed, watched

from qrag_jax.cli.progress import Progress
from qrag_jax.eval.answers.answer_rows import SHORT_ANSWER
from qrag_jax.llm.calls import ANSWER_TOKENS, ask_all
from qrag_jax.llm.local import LocalGenerator
from qrag_jax.llm.prompts import load_prompt, passages_prompt
from qrag_jax.measures.aggregate import mean_interval, paired_difference
from qrag_jax.measures.answer_scores import contains_reference, score_answer
from qrag_jax.models.decoder.causal_lm import all_logits
from qrag_jax.models.decoder.config import DecoderConfig
from qrag_jax.models.decoder.generation import make_decoder
from qrag_jax.models.decoder.sources import find_decoder
from qrag_jax.models.decoder.tokenizer import DecoderTokenizer
from qrag_jax.models.decoder.weights import LoadedDecoder, save_decoder
from qrag_jax.models.gguf.file import read_gguf
from qrag_jax.search.answer import make_prompt
from qrag_jax.types import Generation, Message, Sampling

RESULTS = Path(__file__).parent / "results" / "speed"
RIVALS_SCRIPT = Path(__file__).parent / "local_models_rivals.py"
REFERENCE = STORAGES[0]
PROMPTS = {"short_answer": SHORT_ANSWER, "answer": Sampling(max_tokens=ANSWER_TOKENS)}
MEASURES = {"short_answer": ("em", "f1", "contains"), "answer": ("contains", "cites")}
COMPARED = {"short_answer": "f1", "answer": "contains"}  # between models
PART, WARM = 25, 9  # questions that are kept together; one more than a batch, so that rows leave and join
WINDOW, WINDOWS_A_PART = 512, 8
BEGINNING = 128  # tokens of a prompt that is continued
SEED = 0


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    questions: int
    tokens: int  # of the text of the perplexity
    prompts: int  # that are continued
    new_tokens: int


@dataclass(frozen=True)
class Question:
    """Of SQuAD, with the paragraph that answers it."""

    id: str
    text: str
    passage: str
    references: tuple[str, ...]

    def prompt(self, name: str) -> tuple[Message, ...]:
        template = load_prompt(name)
        if name == "answer":
            return make_prompt(template, self.text, [self.passage])
        return passages_prompt(template, self.text, [self.passage], self.id)


class Stored:
    """A model whose weights are kept in one way, loaded when it is first needed."""

    def __init__(self, source: str, storage: str) -> None:
        self.source, self.storage = source, storage

    @cached_property
    def loaded(self) -> LoadedDecoder:
        return load_stored(self.source, self.storage)

    @cached_property
    def tokenizer(self) -> DecoderTokenizer:
        """Without the weights."""
        path = find_decoder(self.source)
        if path.is_dir():
            return DecoderTokenizer.from_folder(path)
        return DecoderTokenizer.from_gguf(read_gguf(path).metadata, str(path))

    def release(self) -> None:
        """Lets the weights go until they are needed again."""
        self.__dict__.pop("loaded", None)

    @property
    def key(self) -> dict[str, Any]:
        """What its parts depend on."""
        return {"model": files_of(self.source), "storage": self.storage}

    def logits_of(self, tokens: np.ndarray) -> jax.Array:
        """float32 [length, vocab] of the token after each of `tokens`."""
        return _logits(self.loaded.config, self.loaded.params, jnp.asarray(tokens, jnp.int32))


@partial(jax.jit, static_argnums=0)
def _logits(config: DecoderConfig, params: Any, tokens: jax.Array) -> jax.Array:
    return all_logits(config, params, tokens[None], jnp.zeros(1, jnp.int32), compute_dtype="float32")[0]


def read_articles(data: Path) -> list[dict]:
    with gzip.open(data / "squad" / "articles.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# --- answers ---------------------------------------------------------------------------------------------------------


def draw_questions(articles: Iterable[dict], count: int) -> list[Question]:
    """One of a paragraph, of paragraphs drawn without repetition."""
    paragraphs = [part for article in articles for part in article["paragraphs"] if part["qas"]]
    if len(paragraphs) < count:
        raise SystemExit(f"{len(paragraphs)} paragraphs have questions: ask for at most so many")
    rng, drawn = np.random.default_rng(SEED), []
    for place in rng.permutation(len(paragraphs))[:count]:
        qas = paragraphs[place]["qas"]
        chosen = qas[int(rng.integers(len(qas)))]
        references = tuple(dict.fromkeys(answer["text"] for answer in chosen["answers"]))
        drawn.append(Question(chosen["id"], chosen["question"].strip(), paragraphs[place]["context"], references))
    return drawn


def answer_questions(stored: Stored, questions: Sequence[Question], name: str, parts: Parts, bar: Progress) -> dict:
    """Answers by one prompt, with their scores and what they took."""
    prompts = [question.prompt(name) for question in questions]
    asker = Asker(stored, prompts, PROMPTS[name], f"{model_name(stored.source)} {name}", bar)
    made = []
    for first in range(0, len(prompts), PART):
        of = prompts[first : first + PART]
        settings = stored.key | {"prompts": [[asdict(message) for message in prompt] for prompt in of]}
        made.append(parts.once(partial(asker.ask, first, of), what="answers", **settings))
    answers = [answer for part in made for answer in part["answers"]]
    scores = [score(question, answer["text"].strip()) for question, answer in zip(questions, answers, strict=True)]
    values = {measure: [one[measure] for one in scores] for measure in MEASURES[name]}
    totals = {total: sum(part[total] for part in made) for total in ("seconds", "cpu_seconds")}
    totals |= {total: sum(answer[total] for answer in answers) for total in ("prompt_tokens", "new_tokens", "was_cut")}
    row = {"model": model_name(stored.source), "storage": stored.storage, "prompt": name, "asked": len(questions)}
    return row | totals | {"values": values} | {m: asdict(mean_interval(np.array(v))) for m, v in values.items()}


class Asker:
    """Asks parts of a batch; the first one that is asked warms up."""

    def __init__(self, stored: Stored, prompts: Sequence[Any], sampling: Sampling, stage: str, bar: Progress) -> None:
        self._stored, self._sampling, self._prompts = stored, sampling, prompts
        self._stage, self._bar = stage, bar

    @cached_property
    def _generator(self) -> LocalGenerator:
        self._bar.note(f"{self._stage}: compiling")
        LocalGenerator(self._stored.loaded).generate(self._prompts[:WARM], sampling=self._sampling)
        generator = LocalGenerator(self._stored.loaded)  # that has read nothing
        generator.generate([[Message("user", "Go")]], sampling=Sampling(max_tokens=1))  # its weights are in place
        return generator

    def ask(self, first: int, prompts: Sequence[Sequence[Message]]) -> dict:
        generator = watched(self._generator, self._bar, self._stage, first, len(self._prompts))
        with timed() as taken:
            generations = ask_all(generator, prompts, sampling=self._sampling)
        return taken | {"answers": [note(self._stage, one) for one in generations]}


def note(stage: str, one: Generation) -> dict:
    if one.error is not None:
        raise SystemExit(f"{stage}: {one.error}")
    counts = {"prompt_tokens": one.prompt_tokens, "new_tokens": one.completion_tokens}
    return counts | {"text": one.text, "was_cut": one.finish_reason == "length"}


def score(question: Question, answer: str) -> dict[str, float]:
    exact = asdict(score_answer(answer, question.references))
    return exact | {"contains": contains_reference(answer, question.references), "cites": float("[1]" in answer)}


def compare_models(rows: Sequence[dict]) -> list[dict]:
    """Paired differences of each two models."""
    found = []
    for name, measure in COMPARED.items():
        for second, first in combinations([row for row in rows if row["prompt"] == name], 2):
            one, other = (np.array(row["values"][measure]) for row in (first, second))
            pair = {"prompt": name, "measure": measure, "first": first["model"], "second": second["model"]}
            found.append(pair | asdict(paired_difference(one, other)))
    return found


# --- perplexity ------------------------------------------------------------------------------------------------------


def text_windows(articles: Iterable[dict], tokenizer: DecoderTokenizer, num_tokens: int) -> np.ndarray:
    """Ids [windows, WINDOW] of the paragraphs one after the other; at least `num_tokens`."""
    count, ids = -(-num_tokens // WINDOW) * WINDOW, []
    for article in articles:
        for paragraph in article["paragraphs"]:
            ids += tokenizer.encode(paragraph["context"] + "\n\n", special=False)
            if len(ids) >= count:
                return np.array(ids[:count]).reshape(-1, WINDOW)
    raise SystemExit(f"the paragraphs have {len(ids):,} tokens: ask for at most so many")


@jax.jit
def _look(logits: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Nats of each token but the first, the best token in its place, and that one's margin."""
    logits = logits[:-1]
    own = jnp.take_along_axis(logits, tokens[1:, None], axis=1)[:, 0]
    best, places = jax.lax.top_k(logits, 2)
    return jax.nn.logsumexp(logits, axis=1) - own, places[:, 0], best[:, 0] - best[:, 1]


def read_windows(stored: Stored, windows: np.ndarray, bar: Progress) -> list[list[list[float]]]:
    """What `_look` sees in each window."""
    seen = []
    for window in windows:
        nats, best, margins = jax.device_get(_look(stored.logits_of(window), jnp.asarray(window)))
        if not np.isfinite(nats).all():
            raise SystemExit(f"{stored.source}, {stored.storage}: probabilities that are no numbers")
        seen.append([nats.tolist(), best.tolist(), margins.tolist()])
        bar.note(
            f"{model_name(stored.source)} {stored.storage}: {len(seen)} of {len(windows)} windows of a part are read"
        )
    return seen


def look_at_text(stored: Stored, windows: np.ndarray, parts: Parts, bar: Progress) -> np.ndarray:
    """float64 [3, windows, WINDOW - 1]: nats, best tokens, margins."""
    seen = []
    for first in range(0, len(windows), WINDOWS_A_PART):
        of = windows[first : first + WINDOWS_A_PART]
        make = partial(read_windows, stored, of, bar)
        seen += parts.once(make, what="windows", tokens=of.tolist(), **stored.key)
    return np.array(seen).transpose(1, 0, 2)


def perplexity_row(stored: Stored, seen: np.ndarray, reference: np.ndarray) -> dict:
    """Beside float32 on the same tokens."""
    (nats, best, margins), (own_nats, own_best, _) = seen, reference
    above = (nats - own_nats).mean(axis=1)
    error = float(above.std(ddof=1) / np.sqrt(len(above))) if len(above) > 1 else None
    row = {"model": model_name(stored.source), "storage": stored.storage, "tokens": nats.size, "windows": len(nats)}
    row |= {"nats": float(nats.mean()), "perplexity": float(np.exp(nats.mean()))}
    row |= {"above": float(above.mean()), "standard_error": error, "ratio": float(np.exp(above.mean()))}
    return row | {"same_best": float((best == own_best).mean()), "median_margin": float(np.median(margins))}


# --- greedy tokens ---------------------------------------------------------------------------------------------------


def beginnings(articles: Sequence[dict], tokenizer: DecoderTokenizer, count: int) -> list[list[int]]:
    """The first tokens of articles."""
    prompts = []
    for article in articles[:count]:
        text = "\n\n".join(paragraph["context"] for paragraph in article["paragraphs"])
        prompts.append(tokenizer.encode(text[: 20 * BEGINNING], special=False)[:BEGINNING])
    if [len(prompt) for prompt in prompts] != [BEGINNING] * count:
        raise SystemExit(f"{count} articles with {BEGINNING} tokens are needed")
    return prompts


def continue_prompts(stored: Stored, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """Greedy, one at a time, `END` behind what an end token ended."""
    decoder = make_decoder(stored.loaded, batch_size=1, compute_dtype="float32", prefix_bytes=0)
    answers = decoder.generate_ids(prompts, Sampling(max_tokens=count))
    return [[*answer.ids, END] if answer.finish_reason == "stop" else list(answer.ids) for answer in answers]


def ask_rival(python: str, engine: str, model: Path, job: dict) -> list[list[int]]:
    command = [python, str(RIVALS_SCRIPT), engine, str(model)]
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, input=json.dumps(job), stdout=subprocess.PIPE, text=True, env=env, check=False)
    if done.returncode:
        raise SystemExit(f"{engine} on {model} ended with {done.returncode}; its error stands above")
    return [until_end(ids, [END]) for ids in json.loads(done.stdout)]


def rival_versions(python: str, has_transformers: bool) -> dict[str, str]:
    names = ["xllamacpp", *(["torch", "transformers"] if has_transformers else [])]
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([python, "-c", code, *names], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"--rivals_python {python}: a Python with {', '.join(names)} is needed")
    return json.loads(done.stdout)


def ask_transformers(stored: Stored, python: str, job: dict) -> list[list[int]]:
    """With the same weights, written as float32."""
    with tempfile.TemporaryDirectory() as folder:
        save_decoder(folder, stored.loaded.config, stored.loaded.params, stored.loaded.tokenizer)
        stored.release()
        return ask_rival(python, "transformers", Path(folder), job)


def first_difference(ours: Sequence[int], others: Sequence[int]) -> int | None:
    pairs = enumerate(zip_longest(ours, others))
    return next((place for place, (one, other) in pairs if one != other), None)


def part_ways(stored: Stored, prompts: Sequence[list[int]], ours: Any, others: Any, most: int) -> list[dict]:
    """Of each prompt: how many first tokens are equal and, where that is not all, the margins of ours."""
    found = []
    for prompt, own, other in zip(prompts, ours, others, strict=True):
        place = first_difference(own, other)
        if place is None:
            found.append({"equal": len(own), "is_same": True})
            continue
        ids = np.array([*prompt, *own[:place]])
        padded = np.pad(ids, (0, BEGINNING + most - len(ids)))  # behind what counts: one shape, one program
        logits = np.array(stored.logits_of(padded)[len(ids) - 1])
        ends = sorted(stored.tokenizer.eos_ids)
        theirs = logits[ends].max() if other[place] == END else logits[other[place]]
        second, best = np.partition(logits, -2)[-2:]
        margins = {"margin": float(best - second), "above_other": float(best - theirs)}
        found.append({"equal": place, "is_same": False} | margins)
    return found


def greedy_rows(of: Sequence[Stored], prompts: list[list[int]], args: Any, sizes: Sizes, parts: Parts) -> list[dict]:
    """Each storage beside float32, llama.cpp and transformers; the first of them is float32."""
    reference, count = of[0], sizes.new_tokens
    job = {"prompts": prompts, "num_tokens": count, "ends": sorted(reference.tokenizer.eos_ids)}
    others: dict[str, list[list[int]]] = {}
    path = find_decoder(reference.source)
    if args.rivals_python and path.is_file():
        make = partial(ask_rival, args.rivals_python, "llama.cpp", path, job)
        others["llama.cpp"] = parts.once(make, what="llama.cpp", job=job, **reference.key)
    rows = []
    for stored in of:
        settings = {"prompts": prompts, "count": count} | stored.key
        ours = parts.once(partial(continue_prompts, stored, prompts, count), what="greedy", **settings)
        beside = dict(others)
        if stored is reference:
            others = {REFERENCE: ours} | others
            if args.rivals_python and args.transformers:
                make = partial(ask_transformers, stored, args.rivals_python, job)
                beside["transformers"] = parts.once(make, what="transformers", job=job, **stored.key)
        for name, theirs in beside.items():
            make = partial(part_ways, stored, prompts, ours, theirs, count)
            ways = parts.once(make, what="margins", ours=ours, theirs=theirs, **settings)
            rows.append({"model": model_name(stored.source), "storage": stored.storage, "beside": name, "ways": ways})
        stored.release()
    return rows


# --- all -------------------------------------------------------------------------------------------------------------


def measure_model(source: str, args: Any, sizes: Sizes, parts: Parts, bar: Progress) -> dict[str, list[dict]]:
    """Storages one after the other, float32 first; the weights of one are held at a time."""
    articles = read_articles(args.data)
    of = [Stored(source, storage) for storage in dict.fromkeys([REFERENCE, *args.storages])]
    tokenizer = of[0].tokenizer
    windows, prompts = text_windows(articles, tokenizer, sizes.tokens), beginnings(articles, tokenizer, sizes.prompts)
    found, seen = {"perplexity": [], "greedy": [], "answers": []}, []
    for stored in of:
        seen.append(look_at_text(stored, windows, parts, bar))
        found["perplexity"].append(perplexity_row(stored, seen[-1], seen[0]))
        stored.release()
    found["greedy"] = greedy_rows(of, prompts, args, sizes, parts)
    questions, stored = draw_questions(articles, sizes.questions), Stored(source, args.answers_storage)
    found["answers"] = [answer_questions(stored, questions, name, parts, bar) for name in args.prompts]
    return found


# --- tables ----------------------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def interval(one: dict | None) -> str:
    return "" if one is None else f"{one['mean']:.3f} ({one['low']:.3f} to {one['high']:.3f})"


def format_report(result: dict) -> str:
    lines = ["# Language models in this process", ""]
    lines += [f"`{result['command']}`; see the script for what is measured.", ""]
    lines += about_lines(result["about"])
    lines += [*answers_part(result), *perplexity_part(result["perplexity"]), *greedy_part(result["greedy"])]
    return "\n".join(lines)


def answers_part(result: dict) -> list[str]:
    lines = ["## Answers from the paragraph that holds them", ""]
    heads = ["model", "weights", "prompt", "EM", "F1", "holds a right answer", "cites", "cut", "s each", "CPU s each"]
    heads += ["tokens read each", "written each"]
    rows = []
    for row in result["answers"]:
        shares = [interval(row.get(measure)) for measure in ("em", "f1", "contains", "cites")]
        each = [f"{row[name] / row['asked']:.2f}" for name in ("seconds", "cpu_seconds")]
        each += [f"{row[name] / row['asked']:.1f}" for name in ("prompt_tokens", "new_tokens")]
        rows.append([row["model"], row["storage"], row["prompt"], *shares, str(row["was_cut"]), *each])
    lines += table(heads, rows)
    for one in result["differences"]:
        line = f"{one['prompt']}, {one['measure']}: {one['first']} above {one['second']} by {interval(one)}"
        lines += [f"{line}, p {one['p_value']:.4f}, n {one['n']}.", ""]
    return lines


def perplexity_part(rows: Sequence[dict]) -> list[str]:
    heads = ["model", "weights", "tokens", "perplexity", "nats a token", "above float32 (standard error)", "ratio"]
    heads += ["same best token", "median margin"]
    made = []
    for row in rows:
        error = "" if row["standard_error"] is None else f" ({row['standard_error']:.5f})"
        numbers = [
            f"{row['tokens']:,}",
            f"{row['perplexity']:.3f}",
            f"{row['nats']:.4f}",
            f"{row['above']:+.5f}{error}",
        ]
        numbers += [f"{row['ratio']:.4f}", f"{row['same_best']:.2%}", f"{row['median_margin']:.2f}"]
        made.append([row["model"], row["storage"], *numbers])
    return [f"## Perplexity in windows of {WINDOW} tokens", "", *table(heads, made)]


def greedy_part(rows: Sequence[dict]) -> list[str]:
    heads = ["model", "weights", "beside", "equal texts", "equal first tokens", "margin where they part"]
    heads.append("above the other's token")
    made = []
    for row in rows:
        ways = row["ways"]
        parted = [one for one in ways if not one["is_same"]]
        equal = ", ".join(str(one["equal"]) for one in ways)
        margins = [", ".join(f"{one[name]:.3f}" for one in parted) for name in ("margin", "above_other")]
        same = f"{len(ways) - len(parted)} of {len(ways)}"
        made.append([row["model"], row["storage"], row["beside"], same, equal, *margins])
    return ["## Greedy continuations", "", *table(heads, made)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--storages", nargs="+", default=list(STORAGES), help="of perplexity and tokens")
    parser.add_argument("--answers_storage", default=STORAGE, help="of the answers")
    parser.add_argument("--prompts", nargs="+", choices=list(PROMPTS), default=list(PROMPTS))
    parser.add_argument("--num_questions", type=int, default=100)
    parser.add_argument("--num_tokens", type=int, default=20_000)
    parser.add_argument("--rivals_python", help="a Python that has xllamacpp (and torch, transformers)")
    parser.add_argument("--transformers", action="store_true", help="float32 beside transformers too")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--parts", type=Path, default=Path("runs/benchmarks/local_models"), help="where a run goes on")
    parser.add_argument("--smoke", action="store_true", help="little of all, into a folder beside the results")
    args = parser.parse_args()
    sizes = Sizes(args.num_questions, args.num_tokens, prompts=8, new_tokens=64)
    if args.smoke:
        sizes, args.out = Sizes(questions=4, tokens=2 * WINDOW, prompts=2, new_tokens=16), args.out / "smoke"
    result: dict[str, Any] = {"about": about()}  # the commit that was measured, not the one of an hour later
    if args.rivals_python:
        result["about"]["versions"] |= rival_versions(args.rivals_python, args.transformers)
    result["command"] = command_of(args)
    with Progress() as bar:
        for source in args.models:
            for name, rows in measure_model(source, args, sizes, Parts(args.parts), bar).items():
                result[name] = [*result.get(name, []), *rows]
    result["differences"] = compare_models(result["answers"])
    for row in result["answers"]:
        del row["values"]
    write(args.out, "local_models", result, format_report(result))


def command_of(args: Any) -> str:
    names = " ".join(model_name(model) for model in args.models)
    command = f"python benchmarks/local_models.py DATA {names} --storages {' '.join(args.storages)}"
    command += f" --answers_storage {args.answers_storage} --prompts {' '.join(args.prompts)}"
    command += f" --num_questions {args.num_questions} --num_tokens {args.num_tokens}"
    for flag, is_set in (("--rivals_python PYTHON", args.rivals_python), ("--transformers", args.transformers)):
        command += f" {flag}" if is_set else ""
    return command + (" --smoke" if args.smoke else "")


if __name__ == "__main__":
    main()
