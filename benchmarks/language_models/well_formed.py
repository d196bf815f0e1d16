"""Answers with and without a grammar, side by side: how many are well-formed, how many are right, what they take.

    python -m benchmarks.language_models.well_formed DATA --model smollm2 MODEL.gguf  # 30 minutes on 2 cores for 0.5B
    python -m benchmarks.language_models.well_formed DATA --smoke                       # 2 minutes: shows that it runs

DATA holds `squad/articles.jsonl.gz`, lines {title, paragraphs: [{qas: [{question}]}]}, and
`wikitext2/articles.jsonl.gz`, lines {title, items: [{text} or {heading, level}]}. Two kinds of questions, both with
answers that are known:

* Plans, as of SmartChunk: JSON with words to search for, and the largest and the smallest piece of a document to look
  at, for a question of SQuAD. The prompt states by which word of the question both are chosen; a plan is right if both
  are as stated. A third of the questions falls under each of three rules.
* Windows, as of HiChunk: numbered lines of a Wikipedia article, headings among them without any mark, sentences cut at
  100 characters. A row `line, level` is to be written for each line that begins a section. The right rows are those of
  the headings. The first line of a window is no border. Precision, recall and F1 of exact lines over all windows
  (micro), and of F1 the mean over windows, which the interval is of. The grammar admits rows of lines of this window
  in rising order, none twice, each with a level of 1 to 3; it says nothing of which.

A grammar is no knowledge: what looks at no question stands beside, one plan for all, and a row for every line.

Greedy, one answer a question, nobody is asked again. "Read" is what the strict parser takes as it is; an answer that is
not read is a wrong plan, or a window without rows. "Kept" is what leniency makes of all answers: JSON that is mended,
and rows wherever they can be picked out. Both ways take turns every 25 questions, each with a generator that has read
nothing before; what compiles and the tables of the grammar are not timed. Differences are paired by question, with 95%
bootstrap intervals.
"""

import gzip
import hashlib
import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROOT, about, about_lines, arguments, grid, timed, write
from qrag_jax.chunking.text.sentences import split_sentences
from qrag_jax.cli.progress import Progress
from qrag_jax.files.whole_file import write_whole
from qrag_jax.llm.json_answers import OneOf, Record, Text, parse_json, schema_grammar
from qrag_jax.llm.local import LocalGenerator
from qrag_jax.llm.structured import Structured, ask_structured
from qrag_jax.llm.wrappers import WatchedGenerator
from qrag_jax.measures.aggregate import mean_interval, paired_difference
from qrag_jax.measures.boundary_scores import boundary_f1, gaps_of_starts
from qrag_jax.models.decoder.sources import find_decoder
from qrag_jax.models.decoder.weights import LoadedDecoder, load_decoder
from qrag_jax.types import Generation, Grammar, InputError, Message, Regex, Sampling

RESULTS = Path(__file__).parent / "results"

ARMS = ("without", "with")
PART = 25  # questions between two turns
WARM = 9  # one more than a batch: rows leave and join
SEED = 0

# --- plans -----------------------------------------------------------------------------------------------------------

SIZES = ("sentence", "paragraph", "section", "document")
RULES = {  # how a question begins -> (largest, smallest)
    r"who|when|where|how many|how much": ("paragraph", "sentence"),
    r"what|which": ("section", "paragraph"),
    r"why|how (?:did|do|does|is|are|was|were|can|could|has|have|would|should)": ("document", "section"),
}
PLAN = Record({"words": Text(1, 200), "largest": OneOf(SIZES), "smallest": OneOf(SIZES)})
ASK_PLAN = """Plan a search that answers a question. Choose the largest and the smallest piece of a document to look \
at by the first words of the question:

Who, When, Where, How many, How much: largest "paragraph", smallest "sentence"
What, Which: largest "section", smallest "paragraph"
Why, or How with any other word: largest "document", smallest "section"

Reply with JSON and nothing around it, like this:
{"words": "words to search for", "largest": "section", "smallest": "paragraph"}"""
PLAN_TOKENS = 96


@dataclass(frozen=True)
class Task:
    """Questions of one kind.

    `read` makes a value of an answer or raises InputError, `keep` takes what can be kept of any; `score` holds a value
    (None is nothing) against what is right: {"right": 0 to 1, ...counts}. `blind` is a value that looks at no question.
    """

    name: str
    prompts: list[list[Message]]
    right: list[Any]
    grammar: Grammar
    max_tokens: int
    read: Callable[[str], Any]
    keep: Callable[[Structured[Any]], Any]
    score: Callable[[Any, Any], dict[str, float]]
    blind: Any


def read_plans(data: Path, count: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Questions drawn with a fixed seed, as many under each rule, and the right sizes of each."""
    articles = lines_of(data / "squad" / "articles.jsonl.gz")
    questions = [qa["question"].strip() for article in articles for part in article["paragraphs"] for qa in part["qas"]]
    pools = [
        sorted({each for each in questions if re.match(rf"(?:{pattern})\b", each, re.IGNORECASE)}) for pattern in RULES
    ]
    if count > (most := len(RULES) * min(map(len, pools))):
        raise SystemExit(f"{data}: too few questions fall under one of the rules: ask for at most {most} plans")
    rng, drawn = np.random.default_rng(SEED), []
    for number, (pool, sizes) in enumerate(zip(pools, RULES.values(), strict=True)):
        wanted = len(range(number, count, len(RULES)))
        drawn += [(pool[place], sizes) for place in rng.permutation(len(pool))[:wanted]]
    order = rng.permutation(len(drawn))
    return [drawn[place][0] for place in order], [drawn[place][1] for place in order]


def plan_task(data: Path, count: int) -> Task:
    questions, right = read_plans(data, count)
    prompts = [[Message("system", ASK_PLAN), Message("user", f"Question: {question}")] for question in questions]

    def score(value: Any, sizes: Sequence[str]) -> dict[str, float]:
        return {"right": float(value is not None and (value["largest"], value["smallest"]) == tuple(sizes))}

    read = partial(parse_json, schema=PLAN)
    blind = dict(zip(("largest", "smallest"), Counter(right).most_common(1)[0][0], strict=True))
    return Task("plans", prompts, right, schema_grammar(PLAN), PLAN_TOKENS, read, lambda one: one.value, score, blind)


# --- windows ---------------------------------------------------------------------------------------------------------

LINES, LEVELS = 20, 3
MAX_CHARS = 100
ASK_WINDOW = """You find where the sections of a document begin.

You are given lines of the document with their numbers. For each line that begins a new section or subsection, \
mostly because it is a heading, write one row: the number of the line, a comma, and the level of the section: 1 for a \
section, 2 for a subsection, 3 for a part of one. Write the rows in rising order and nothing else: no words, no row \
for any other line.

An example. For the lines
0. The town had two mills by then .
1. Early years
2. She was born in the town in 1850 .
3. School
4. From 1856 on she went to school .
the answer is
1, 1
3, 2"""
WINDOW_TOKENS = 7 * LINES  # two digits, comma, space, digit, line end, each maybe a token, and room
ROW = re.compile(r"(0|[1-9][0-9]{0,2}), ([1-3])")
LOOSE_ROW = re.compile(r"\D*?([0-9]{1,3})\D+([1-3])\b")
Rows = list[tuple[int, int]]


def rows_grammar() -> Regex:
    """What `read_rows` reads: nothing, or rows of rising lines; an option for each line that the last one may be of."""
    rows = [f"{line}, [1-{LEVELS}]" for line in range(LINES)]
    options = ["".join(rf"(?:{row}\n)?" for row in rows[:last]) + rf"{rows[last]}\n?" for last in range(LINES)]
    return Regex("|".join(["", *options]))


def read_rows(text: str) -> Rows:
    """The rows of an answer that is nothing else, or InputError; a line end behind the last one may be missing."""
    rows: Rows = []
    for line in text.removesuffix("\n").split("\n") if text else []:
        found = ROW.fullmatch(line)
        if found is None:
            raise InputError(f"{line!r:.60} is no row: a line number, a comma, a space and a level")
        rows.append((int(found[1]), int(found[2])))
    numbers = [number for number, _ in rows]
    if numbers != sorted(set(numbers)) or (numbers and numbers[-1] >= LINES):
        raise InputError(f"the lines {numbers} do not rise from row to row, or are not all below {LINES}")
    return rows


def keep_rows(text: str) -> Rows:
    """The rows that stand in an answer, whatever stands around; those that do not rise are left out."""
    rows: Rows = []
    for line in text.split("\n"):
        found = LOOSE_ROW.match(line)
        if found and (rows[-1][0] if rows else -1) < int(found[1]) < LINES:
            rows.append((int(found[1]), int(found[2])))
    return rows


def article_lines(article: dict) -> list[tuple[str, int]]:
    """Lines with the level of the section that each begins, 0 for none; levels of headings start at 2."""
    lines = []
    for item in article["items"]:
        if "heading" in item:
            lines.append((item["heading"].strip(), min(item["level"] - 1, LEVELS)))
        else:
            text = " ".join(item["text"].split())
            lines += [(text[first:last].strip(), 0) for first, last in split_sentences(text)]
    return [(text[:MAX_CHARS], level) for text, level in lines if text]


def read_windows(data: Path, count: int) -> tuple[list[list[str]], list[Rows]]:
    """Windows next to each other in their articles, drawn with a fixed seed among those with a border."""
    windows = []
    for article in lines_of(data / "wikitext2" / "articles.jsonl.gz"):
        lines = article_lines(article)
        windows += [lines[first : first + LINES] for first in range(0, len(lines) - LINES + 1, LINES)]
    windows = [window for window in windows if any(level for _, level in window[1:])]
    if len(windows) < count:
        raise SystemExit(f"{data}: {len(windows)} windows have a section that begins in them: ask for at most so many")
    chosen = [windows[place] for place in np.random.default_rng(SEED).permutation(len(windows))[:count]]
    texts = [[text for text, _ in window] for window in chosen]
    return texts, [[(line, level) for line, (_, level) in enumerate(window) if level] for window in chosen]


def score_rows(value: Rows | None, right: Rows) -> dict[str, float]:
    """F1 of the borders, their counts, and right borders that have the right level."""
    said, known = dict(value or []), dict(right)
    said_gaps, right_gaps = (gaps_of_starts(rows, LINES) for rows in (said, known))
    both = [line for line in said if line and line in known]
    counts = {"found": len(both), "said": int(said_gaps.sum()), "wanted": int(right_gaps.sum())}
    f1 = boundary_f1(right_gaps, said_gaps)[2]
    return {"right": f1} | counts | {"levels": sum(said[line] == known[line] for line in both)}


def window_task(data: Path, count: int) -> Task:
    windows, right = read_windows(data, count)
    texts = ["\n".join(f"{number}. {line}" for number, line in enumerate(window)) for window in windows]
    prompts = [[Message("system", ASK_WINDOW), Message("user", f"The lines:\n{text}")] for text in texts]

    def keep(one: Structured[Any]) -> Rows:
        return keep_rows(one.generations[-1].text)

    blind = [(line, 1) for line in range(LINES)]
    return Task("windows", prompts, right, rows_grammar(), WINDOW_TOKENS, read_rows, keep, score_rows, blind)


def lines_of(path: Path) -> Iterator[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


# --- asking ----------------------------------------------------------------------------------------------------------


class Model:
    """A decoder that is loaded when it is first needed, and has then compiled and built its tables."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._warmed: set[str] = set()

    @cached_property
    def _loaded(self) -> LoadedDecoder:
        return load_decoder(self._source)

    def generator(self, task: Task, arm: str, progress: Progress) -> LocalGenerator:
        """One that has read no prompt, and has the tables of the grammar."""
        if task.name not in self._warmed:
            self._warmed.add(task.name)
            progress.note(f"{task.name}: compiling")
            for each in ARMS:
                ask(self.generator(task, each, progress), task, each, range(min(WARM, len(task.prompts))))
        generator = LocalGenerator(self._loaded)
        generator.generate([[Message("user", "Go")]], sampling=Sampling(max_tokens=1))  # its weights are in place
        if arm == "with":
            generator.decoding.automata.constraint(task.grammar, 1)
        return generator


def ask(generator: Any, task: Task, arm: str, places: Sequence[int]) -> list[Structured[Any]]:
    prompts = [task.prompts[place] for place in places]
    grammar = task.grammar if arm == "with" else None
    sampling = Sampling(max_tokens=task.max_tokens)
    return ask_structured(generator, prompts, task.read, sampling=sampling, max_asks=1, grammar=grammar)


def ask_part(model: Model, task: Task, arm: str, places: Sequence[int], progress: Progress) -> dict:
    """Answers with their scores, and what they took."""
    generator = model.generator(task, arm, progress)
    stage = f"{task.name} {arm} grammar"

    def told(done: int, count: int, generation: Generation | None) -> None:
        progress.answered(stage, places[0] + done, len(task.prompts), generation)

    with timed() as taken:
        outcomes = ask(WatchedGenerator(generator, told), task, arm, places)
    return taken | {"answers": [note(task, place, one) for place, one in zip(places, outcomes, strict=True)]}


def note(task: Task, place: int, one: Structured[Any]) -> dict:
    """What is kept of an answer."""
    generation: Generation = one.generations[-1]
    if generation.error is not None:
        raise SystemExit(f"{task.name} {place}: {generation.error}")
    is_read = one.error is None and not one.was_repaired
    read, kept = one.value if is_read else None, task.keep(one)
    scores = {"read": task.score(read, task.right[place]), "kept": task.score(kept, task.right[place])}
    told = {"text": generation.text, "was_cut": generation.finish_reason == "length"}
    tokens = {"prompt_tokens": generation.prompt_tokens, "new_tokens": generation.completion_tokens}
    return {"is_read": is_read, "was_mended": one.was_repaired, "scores": scores} | tokens | told


def measure(source: str, tasks: Sequence[Task], parts: Path, progress: Progress) -> dict:
    """All parts of all tasks, both ways in turns, the first one changing from part to part."""
    model, found = Model(source), {}
    for task in tasks:
        of_arms: dict[str, list[dict]] = {arm: [] for arm in ARMS}
        for number, first in enumerate(range(0, len(task.prompts), PART)):
            places = range(first, min(first + PART, len(task.prompts)))
            for arm in ARMS if number % 2 == 0 else ARMS[::-1]:
                make = partial(ask_part, model, task, arm, places, progress)
                settings = {"prompts": [asdict(message) for place in places for message in task.prompts[place]]}
                settings |= {"model": files_of(source), "task": task.name, "arm": arm}
                of_arms[arm].append(once(parts, make, settings))
        found[task.name] = summarise(task, of_arms)
    return found


def once(folder: Path, make: Callable[[], dict], settings: dict[str, Any]) -> dict:
    """What `make` gives, or gave for the same settings and code: what was stopped goes on where it was.

    It is kept as JSON in a folder, which may be deleted at any time.
    """
    name = json.dumps(settings | {"code": code_sha256()}, sort_keys=True)
    path = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"settings": settings, "value": make()}) + "\n")
    return json.loads(path.read_text())["value"]


@cache
def code_sha256() -> str:
    """Of all that computes or asks: the package with its prompts, and the scripts of this folder."""
    package = [path for path in (ROOT / "qrag_jax").rglob("*") if path.suffix in (".py", ".txt")]
    digest = hashlib.sha256()
    for path in sorted([*package, *Path(__file__).parent.glob("*.py")]):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def files_of(model: str) -> list[tuple[str, int, int]]:
    """Name, size and time of a model's files, by which a part knows it."""
    path = find_decoder(model)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


# --- tables ----------------------------------------------------------------------------------------------------------


def summarise(task: Task, of_arms: dict[str, list[dict]]) -> dict:
    answers = {arm: [answer for part in parts for answer in part["answers"]] for arm, parts in of_arms.items()}
    result: dict[str, Any] = {"asked": len(task.prompts), "arms": {}, "difference": {}}
    values = {arm: values_of(of) for arm, of in answers.items()}
    for arm, of in answers.items():
        row = {name: asdict(mean_interval(each)) for name, each in values[arm].items()}
        row |= {
            name: sum(answer[name] for answer in of)
            for name in ("prompt_tokens", "new_tokens", "was_mended", "was_cut")
        }
        row |= {name: sum(part[name] for part in of_arms[arm]) for name in ("seconds", "cpu_seconds")}
        if task.name == "windows":
            row |= {f"borders {way}": micro([answer["scores"][way] for answer in of]) for way in ("read", "kept")}
        result["arms"][arm] = row
    for name in values["with"]:
        result["difference"][name] = asdict(paired_difference(values["with"][name], values["without"][name]))
    blind = [task.score(task.blind, right) for right in task.right]
    result["blind"] = {"right": float(np.mean([one["right"] for one in blind]))}
    if task.name == "windows":
        result["blind"] |= {"borders": micro(blind)}
    result["cpu_ratio"] = part_ratios(of_arms)
    pairs = list(zip(*answers.values(), strict=True))
    obeyed = [free["text"] == held["text"] for free, held in pairs if free["is_read"]]
    result["obeyed"], result["unchanged"] = len(obeyed), sum(obeyed)
    result["both_read"] = len(both := [pair for pair in pairs if all(answer["is_read"] for answer in pair)])
    result["right_where_both_read"] = {
        arm: float(np.mean([pair[number]["scores"]["read"]["right"] for pair in both])) if both else None
        for number, arm in enumerate(answers)
    }
    return result


def part_ratios(of_arms: dict[str, list[dict]]) -> tuple[float, float, float]:
    """CPU seconds a new token, the one that ends counted, with over without: median, least and most of the parts."""
    each = [
        [part["cpu_seconds"] / sum(answer["new_tokens"] + 1 for answer in part["answers"]) for part in of_arms[arm]]
        for arm in ARMS
    ]
    ratios = [own / free for free, own in zip(*each, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def values_of(answers: Sequence[dict]) -> dict[str, np.ndarray]:
    """One value a question of each measure."""
    return {
        "read": np.array([float(answer["is_read"]) for answer in answers]),
        "right": np.array([answer["scores"]["read"]["right"] for answer in answers]),
        "right_kept": np.array([answer["scores"]["kept"]["right"] for answer in answers]),
    }


def micro(scores: Sequence[dict]) -> dict[str, float]:
    """Shares over the borders of all windows; `levels` is that of the right borders whose level is right."""
    found, said, wanted, levels = (sum(one[name] for one in scores) for name in ("found", "said", "wanted", "levels"))
    shares = {"precision": found / max(1, said), "recall": found / max(1, wanted)}
    return shares | {"f1": 2 * found / max(1, said + wanted), "levels": levels / max(1, found)}


HEADS = {"plans": ("right, read as they are", "right, mended too"),
         "windows": ("mean F1, read as they are", "mean F1, rows picked out")}  # fmt: skip


BLIND = {"plans": "one plan for all", "windows": "a row for every line"}


def format_report(result: dict) -> str:
    lines = ["# Well-formed and right answers, with and without a grammar", ""]
    lines += [f"`{result['command']}`; see the script for what is measured.", ""]
    lines += about_lines(result["about"])
    for model in result["models"]:
        lines += [f"## {model['model']}", ""]
        for name, task in model["tasks"].items():
            lines += [*task_table(name, task), ""]
    return "\n".join(lines)


def task_table(name: str, task: dict) -> list[str]:
    heads = [f"{task['asked']} {name}", "well-formed", *HEADS[name], "cut", "new tokens each", "s each", "CPU s each"]
    rows = []
    for arm, row in task["arms"].items():
        shares = [interval(row[value]) for value in ("read", "right", "right_kept")]
        each = [f"{row[value] / task['asked']:.2f}" for value in ("new_tokens", "seconds", "cpu_seconds")]
        rows.append([f"{arm} grammar", *shares, str(row["was_cut"]), *each])
    blind = f"{task['blind']['right']:.3f}"
    rows.append([BLIND[name], "", blind, blind, *[""] * 4])
    differences = [f"{interval(one)}, p {one['p_value']:.3f}" for one in task["difference"].values()]
    rows.append(["difference", *differences, *[""] * 4])
    ratio = "{:.2f} ({:.2f} to {:.2f} over parts)".format(*task["cpu_ratio"])
    told = f"CPU seconds a new token with the grammar over without, the reading of prompts in them: {ratio}."
    same = (
        f"{task['unchanged']} of {task['obeyed']} that are well-formed without the grammar are the same text with it."
    )
    if task["both_read"]:
        right = " and ".join(f"{value:.3f} {arm}" for arm, value in task["right_where_both_read"].items())
        same += f" Right, of the {task['both_read']} that are read both ways: {right}."
    lines = [*grid(heads, rows), "", told, "", same]
    if name == "windows":
        ways = {"read": "read as they are", "kept": "rows picked out"}
        rows = [
            [f"{arm} grammar, {told}", *shares_of(row[f"borders {way}"])]
            for arm, row in task["arms"].items()
            for way, told in ways.items()
        ]
        rows.append([BLIND[name], *shares_of(task["blind"]["borders"])])
        lines += ["", *grid(["borders of all windows", "precision", "recall", "F1", "level right"], rows)]
    return lines


def shares_of(borders: dict[str, float]) -> list[str]:
    return [f"{value:.3f}" for value in borders.values()]


def interval(one: dict) -> str:
    return f"{one['mean']:.3f} ({one['low']:.3f} to {one['high']:.3f})"


def main() -> None:
    parser = arguments(__doc__, smoke="few questions, into a folder beside the results")
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", nargs="+", default=["smollm2"], help="any decoder that `load_decoder` reads")
    parser.add_argument("--num_plans", type=int, default=200)
    parser.add_argument("--num_windows", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--parts", type=Path, default=Path("runs/benchmarks/well_formed"), help="where a run goes on")
    args = parser.parse_args()
    if args.smoke:
        args.num_plans, args.num_windows, args.out = 6, 3, args.out / "smoke"
    machine, models = about(), []  # the commit that was measured, not the one of an hour later
    tasks = [plan_task(args.data, args.num_plans), window_task(args.data, args.num_windows)]
    with Progress() as progress:
        for source in args.model:
            found = measure(source, tasks, args.parts, progress)
            models.append({"model": Path(source).name, "tasks": found})
    names = " ".join(row["model"] for row in models)
    command = f"python -m benchmarks.language_models.well_formed DATA --model {names}"
    command += f" --num_plans {args.num_plans} --num_windows {args.num_windows}"
    result = {"about": machine, "command": command, "models": models}
    write(args.out, "well_formed", result, format_report(result))


if __name__ == "__main__":
    main()
