"""Is search right at once? The right file first, or among three, for questions about folders of real documents.

    python -m benchmarks.search.own_documents COLLECTION benchmarks/search/questions/NAME.jsonl
    python -m benchmarks.search.own_documents COLLECTION QUESTIONS --retrievers hybrid --run RUN --llamaindex PYTHON
    python -m benchmarks.search.own_documents COLLECTION QUESTIONS --model FOLDER --corpus OUT  # another encoder, kept
    python -m benchmarks.search.own_documents COLLECTION --training LINES.jsonl  # what RUN can be trained on, see below
    python -m benchmarks.search.own_documents --table benchmarks/search/results/own_documents/*.json

`questions/collections.json` says where the collections come from: repository, commit, folders, which stand side by
side in COLLECTION (a single one is COLLECTION itself). The questions were written and committed before anything was
searched: {"question", "files", "quote"}. Any of `files` answers; `quote` is the place of a proof in one of them and the
sha256 of its text, which is checked, so that another version of the documents is refused. fastapi, handbook and
prometheus are what methods are chosen on; redis, madetech and nips what they are reported on.

A file stands where its best chunk stands, and counts once. Intervals are Wilson's, 95%. `--half` takes the questions
with odd or with even numbers, from 1: what is tried is chosen on odd ones and reported on even ones.

LlamaIndex is its five-line starter (SimpleDirectoryReader, VectorStoreIndex, all defaults) over the same encoder, in a
Python of its own: own_documents_llamaindex.py says what that needs. It is given 50 nodes in place of two.

`ranks` is hybrid with reciprocal ranks in the place of scores (`fuse`).

`--json` keeps what other calls have written there of other methods, and `--table` makes one table of such files, as a
whole, and with every method beside hybrid: on how many questions it is better and worse, and the two-sided
p-value of a sign test.

A collection has no questions to train on: `--training` makes them of headings. The question is the title of a section,
the right chunks are the first sentences below it, the wrong ones are sections from anywhere.
"""

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from benchmarks.common import arguments, grid
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.documents.read import read_files
from qrag_jax.index.corpus_folder import load_corpus, save_corpus
from qrag_jax.index.methods import DEFAULT_CHUNKING, Method, multi_step_method, single_step_method
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked, fuse, rank_bm25, rank_dense
from qrag_jax.types import Document

ENGINE = Path(__file__).parent / "own_documents_llamaindex.py"
NAMES = ("hybrid", "ranks", "dense", "bm25")
SUFFIXES = (".md", ".txt")  # of the collections, whatever else is read by now: rows of two versions compare
NUM_PICKS = 10  # of a run: enough for three files
NUM_LINES, SECTIONS_A_LINE, SENTENCES_A_SECTION, NUM_GOLD = 600, 12, 8, 2
Rank = Callable[[str], Sequence[str]]  # question -> files, best first


@dataclass(frozen=True)
class Question:
    """A text, the files that answer it, and the places of the proofs: file, first and last character."""

    text: str
    files: tuple[str, ...]
    proofs: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Row:
    """One method: the place of the right file for every question, from 1; 0 where it was not found."""

    method: str
    places: tuple[int, ...]
    seconds: dict[str, float]

    def share(self, most: int) -> str:
        """`9 of 10, 90% (60 to 98)`: the right file among the first so many."""
        found, of = sum(1 <= place <= most for place in self.places), len(self.places)
        interval = binomtest(found, of).proportion_ci(method="wilson")
        return f"{found} of {of}, {found / of:.0%} ({100 * interval.low:.0f} to {100 * interval.high:.0f})"


def read_questions(path: Path, folder: Path) -> list[Question]:
    """All questions; refused where a file is missing, or is not the version that the question was written for."""
    questions = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        row = json.loads(line)
        quotes = row.get("quotes") or [row["quote"]]
        files = tuple(row.get("files") or dict.fromkeys(quote["file"] for quote in quotes))
        missing = [file for file in files if not (folder / file).is_file()]
        if missing:
            raise SystemExit(
                f"{path}:{number}: {folder} has no {missing[0]}; collections.json says where it comes from"
            )
        for quote in quotes:
            text = (folder / quote["file"]).read_bytes().decode("utf-8")[quote["start"] : quote["end"]]
            if quote["file"] not in files or sha256(text.encode("utf-8")).hexdigest() != quote["sha256"]:
                raise SystemExit(f"{path}:{number}: {quote['file']} is not the version of collections.json")
        proofs = tuple((quote["file"], quote["start"], quote["end"]) for quote in quotes)
        questions.append(Question(row["question"], files, proofs))
    return questions


def take_half(questions: Sequence[Question], half: str) -> list[Question]:
    return list({"all": questions, "odd": questions[::2], "even": questions[1::2]}[half])


def place_of(files: Sequence[str], right: Sequence[str]) -> int:
    """Where the first right file stands, each file counted once; 0 where there is none."""
    return next((place for place, file in enumerate(dict.fromkeys(files), 1) if file in right), 0)


def measure(name: str, make: Callable[[], Rank], questions: Sequence[Question]) -> Row:
    start = time.perf_counter()
    rank = make()
    built = time.perf_counter()
    places = tuple(place_of(rank(question.text), question.files) for question in questions)
    return Row(name, places, {"build": round(built - start, 1), "ask": round(time.perf_counter() - built, 1)})


def method_of(name: str, model: str, chunking: ChunkConfig) -> Method:
    """One of `NAMES`: those of the library, and hybrid by reciprocal ranks."""
    if name != "ranks":
        return single_step_method(name, model, chunking)
    method = single_step_method("hybrid", model, chunking)

    def retrieve(question: str, corpus: Corpus, top_k: int | None) -> Ranked:
        return fuse([rank_dense(question, corpus, method.embed), rank_bm25(question, corpus)]).first(top_k)

    return replace(method, retrieve=retrieve)


def keep_corpus(build: Callable[[], Corpus], folder: Path | None) -> Callable[[], Corpus]:
    """Builds once for all methods that search the same vectors, and once for all calls that name the folder."""

    @cache
    def corpus() -> Corpus:
        if folder is not None and folder.exists():
            return load_corpus(folder)
        built = build()
        if folder is not None:
            save_corpus(built, folder)
        return built

    return corpus


def make_ours(method: Method, corpus: Corpus, folder: Path, top_k: int | None) -> Rank:
    def rank(question: str) -> list[str]:
        ranked = method.retrieve(question, corpus, top_k)
        return [os.path.relpath(corpus.nodes[node].document_id, folder) for node in ranked.ids.tolist()]

    return rank


def make_run(run: str, documents: Sequence[Document], folder: Path) -> Rank:
    from qrag_jax.qrag.retriever import load_retriever

    method = multi_step_method(load_retriever(run))
    return make_ours(method, method.build(documents), folder, NUM_PICKS)


def make_llamaindex(python: str, folder: Path, questions: Sequence[Question]) -> Rank:
    """Asks all questions in one process, since the index of the starter is gone with it."""
    asked = [question.text for question in questions]
    done = subprocess.run(
        [python, str(ENGINE), str(folder)], input=json.dumps(asked), text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{ENGINE.name} failed:\n{done.stderr[-2000:]}")
    return dict(zip(asked, json.loads(done.stdout.splitlines()[-1]), strict=True)).__getitem__


def titled_sections(documents: Sequence[Document]) -> list[tuple[str, list[str]]]:
    """(title, first sentences) of sections that have two sentences or more."""
    from qrag_jax.chunking.strategies.headings import find_sections
    from qrag_jax.chunking.text.sentences import split_sentences

    sections = []
    for document in documents:
        for found in find_sections(document.text):
            if found.title_span is not None:
                title = document.text[slice(*found.title_span)]
                body = document.text[found.title_span[1] : found.end]
                sentences = [" ".join(body[start:end].split()) for start, end in split_sentences(body)]
                sentences = [sentence for sentence in sentences if len(sentence.split()) > 3]
                if len(sentences) >= NUM_GOLD and title.strip():
                    sections.append((" ".join(title.split()), sentences[:SENTENCES_A_SECTION]))
    return sections


def training_lines(documents: Sequence[Document], seed: int = 0) -> list[dict]:
    """At most `NUM_LINES` for `qrag train data.task=jsonl`, of titled sections."""
    sections = titled_sections(documents)
    rng, lines = np.random.default_rng(seed), []
    for number in rng.permutation(len(sections))[:NUM_LINES].tolist():
        title, sentences = sections[number]
        others = rng.choice(len(sections), min(SECTIONS_A_LINE, len(sections)), replace=False)
        chosen = [sections[other][1] for other in others if other != number and sections[other][0] != title]
        place = int(rng.integers(len(chosen) + 1))
        before = [sentence for section in chosen[:place] for sentence in section]
        after = [sentence for section in chosen[place:] for sentence in section]
        gold = list(range(len(before), len(before) + NUM_GOLD))
        lines.append({"question": title, "chunks": before + sentences + after, "gold": gold})
    return lines


def format_report(rows: Sequence[Row]) -> str:
    cells = [[row.method, row.share(1), row.share(3), *map(str, row.seconds.values())] for row in rows]
    return "\n".join(grid(["method", "right file first", "in 3", "build, s", "ask, s"], cells)) + "\n"


def write_rows(path: Path, setting: dict, rows: Sequence[Row]) -> None:
    """Adds rows to those of the same setting that are there; refused where they are of another."""
    kept = json.loads(path.read_text()) if path.exists() else {**setting, "rows": []}
    if {key: kept[key] for key in setting} != setting:
        raise SystemExit(f"{path}: holds rows of another setting than {setting}; name another file")
    new = {row.method for row in rows}
    kept["rows"] = [row for row in kept["rows"] if row["method"] not in new] + [asdict(row) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")


def beside(row: Row, other: Row, most: int) -> str:
    """`5 better, 1 worse, p = .22`: questions where one of both alone has the right file among the first so many."""
    pairs = zip(row.places, other.places, strict=True)
    found = [(1 <= mine <= most, 1 <= theirs <= most) for mine, theirs in pairs]
    better, worse = found.count((True, False)), found.count((False, True))
    p_value = binomtest(better, better + worse).pvalue if better + worse else 1.0
    return f"{better} better, {worse} worse, p = {p_value:.2g}"


def format_table(files: Sequence[Path]) -> str:
    """One table of files that `--json` wrote, and one of all of them together, each method beside hybrid."""
    cells = []
    together: dict[str, list[int]] = {}
    for file in files:
        for row in json.loads(file.read_text())["rows"]:
            found = Row(row["method"], tuple(row["places"]), {})
            cells.append([file.stem, found.method, found.share(1), found.share(3)])
            together.setdefault(found.method, []).extend(found.places)
    rows = [Row(method, tuple(places), {}) for method, places in together.items()]
    rows = [row for row in rows if len(row.places) == max(map(len, together.values()))]  # asked in every collection
    first = next((row for row in rows if row.method == NAMES[0]), rows[0])
    lines = [*grid(["collection", "method", "right file first", "in 3"], cells), ""]
    cells = [[row.method, row.share(1), row.share(3), beside(row, first, 1), beside(row, first, 3)] for row in rows]
    lines += grid(["all", "right file first", "in 3", f"first, beside {first.method}", "in 3, beside it"], cells)
    return "\n".join(lines) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("collection", type=Path, nargs="?", help="folder of documents")
    parser.add_argument("questions", type=Path, nargs="?", help="lines of questions")
    parser.add_argument("--retrievers", nargs="*", choices=NAMES, default=list(NAMES))
    parser.add_argument("--corpus", type=Path, metavar="FOLDER", help="keep chunks and vectors of one model there")
    parser.add_argument("--model", default="minilm", help="encoder of ours: minilm, a folder or a hub id")
    parser.add_argument("--strategy", default=DEFAULT_CHUNKING.strategy, help="of the chunks")
    parser.add_argument("--max_tokens", type=int, default=DEFAULT_CHUNKING.max_tokens, help="of a chunk")
    parser.add_argument("--run", help="a run trained on the collection")
    parser.add_argument("--llamaindex", metavar="PYTHON", help="a Python that has LlamaIndex")
    parser.add_argument("--half", choices=("all", "odd", "even"), default="all", help="which questions")
    parser.add_argument("--training", type=Path, metavar="OUT", help="write lines to train on, and stop")
    parser.add_argument("--json", type=Path, metavar="OUT", help="places of every question, added to those there")
    parser.add_argument("--table", type=Path, nargs="+", metavar="JSON", help="print a table of these, and stop")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.table:
        print(format_table(args.table))
        return
    if args.collection is None:
        raise SystemExit("name the folder of the collection")
    documents = [found for found in read_files([args.collection]) if Path(found.id).suffix in SUFFIXES]
    if args.training is not None:
        lines = training_lines(documents)
        args.training.write_text("".join(json.dumps(line) + "\n" for line in lines))
        print(f"{len(lines)} lines in {args.training}")
        return
    if args.questions is None:
        raise SystemExit("name the questions: benchmarks/search/questions/NAME.jsonl")
    questions = take_half(read_questions(args.questions, args.collection), args.half)
    chunking = replace(DEFAULT_CHUNKING, strategy=args.strategy, max_tokens=args.max_tokens)

    corpus = keep_corpus(lambda: method_of("dense", args.model, chunking).build(documents), args.corpus)

    def ours(name: str) -> Rank:
        return make_ours(method_of(name, args.model, chunking), corpus(), args.collection, None)

    suffix = "" if args.model == "minilm" else f", {Path(args.model).name}"
    rows = [measure(name + suffix, lambda name=name: ours(name), questions) for name in args.retrievers]
    if args.run:
        rows.append(measure("run", lambda: make_run(args.run, documents, args.collection), questions))
    if args.llamaindex:
        make = lambda: make_llamaindex(args.llamaindex, args.collection, questions)  # noqa: E731
        rows.append(measure("LlamaIndex", make, questions))
    print(format_report(rows))
    if args.json:
        setting = {"half": args.half, "strategy": args.strategy, "max_tokens": args.max_tokens}
        write_rows(args.json, setting, rows)


if __name__ == "__main__":
    main()
