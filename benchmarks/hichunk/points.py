"""How well the sections of documents are found once their headings are gone: F1, Pk and WindowDiff, in three views.

    python -m benchmarks.hichunk.points DATA       # a folder with wikitext2/ and scisumm/; about 10 minutes on 2 cores

articles   WikiText-2: articles with headings of several levels; their paragraphs are a blank line apart
papers     CL-SciSumm: papers with flat sections; the data knows no paragraphs

Right are the first units under headings (`qrag boundaries --help`). Documents are dealt into five parts with a fixed
seed. In each of five splits one part is tested, the next one validates, and the others train, with all papers that are
only there to train (`other_papers`). So every document is tested once, by what has not seen it: counts are those of all
five splits together, intervals a bootstrap over documents, and the range is over the five.

Rows of taggers (`points_tagger.py`) are trained anew in every split: some ten minutes more a view, and all papers are
embedded. `--methods` and `--views` take some of it all.

A method is a function from a split to (what it chose, a source of points). It may learn from `train` and choose on
`valid`; the thresholds here are chosen by micro F1 of all levels on `valid`, for each view anew. Sentence vectors
(MiniLM-6) are made once; their seconds are charged to every method that reads them.
"""

import hashlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import about, about_lines, arguments, interval, minilm, write
from benchmarks.hichunk.points_tagger import ROWS as TAGGERS
from benchmarks.hichunk.points_tagger import Taggers
from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig, make_breakpoint
from qrag_jax.chunking.strategies.clusters import LinkageConfig, make_linkage
from qrag_jax.chunking.tree.boundaries import (
    Point,
    PredictPoints,
    equal_points,
    no_points,
    paragraph_points,
    predict_checked,
    rule_points,
    strategy_points,
)
from qrag_jax.data.corpora.headed_documents import HeadedDocument, read_headed
from qrag_jax.eval.tables import align, share
from qrag_jax.measures.boundary_scores import Judged, count_points, micro_f1, score_points
from qrag_jax.names import VIEWS, View
from qrag_jax.types import Embed

RESULTS = Path(__file__).parent / "results"

NUM_SPLITS = 5
PERCENTILES = (50, 60, 70, 80, 85, 90, 93, 95, 97, 98, 99)
DISTANCES = (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05)
EQUAL_LENGTHS = (5, 8, 10, 12, 15, 20, 25, 30, 40, 60)
LINKED = (5, 10, 15, 20, 30, 40, 60)
LAMBDAS = (0.5, 0.75)
READS_VECTORS = ("breakpoint", "linkage", *TAGGERS)
TIMED = 2_000  # texts that are embedded to know how long it takes, where vectors are kept


@dataclass(frozen=True)
class Split:
    """Documents of one view; none is in two of the three. `others` are the training documents of the other domain."""

    train: Sequence[HeadedDocument]
    valid: Sequence[HeadedDocument]
    test: Sequence[HeadedDocument]
    others: Sequence[HeadedDocument] = ()


# A split, and texts -> vectors -> what was chosen, and the source of points.
Method = Callable[[Split, Embed], tuple[str, PredictPoints]]


# --- data ------------------------------------------------------------------------------------------------------------


def read_domains(data: Path, view: View) -> dict[str, tuple[list[HeadedDocument], list[HeadedDocument]]]:
    """Domain -> documents that are dealt into splits, and those that only train."""
    papers = data / "scisumm"
    return {
        "articles": (read_headed(f"wikitext2:{data / 'wikitext2'}", view), []),
        "papers": (
            read_headed(f"scisumm:{papers / 'cited_papers.jsonl.gz'}", view),
            read_headed(f"scisumm:{papers / 'other_papers.jsonl.gz'}", view),
        ),
    }


def make_splits(dealt: Sequence[HeadedDocument], only_train: Sequence[HeadedDocument], seed: int = 0) -> list[Split]:
    """Five splits; the same documents in every view, as their order and number are."""
    part = np.random.default_rng(seed).permutation(len(dealt)) % NUM_SPLITS
    chosen = lambda kept: [document for document, its in zip(dealt, part, strict=True) if kept(its)]  # noqa: E731
    return [
        Split(
            [*chosen(lambda its, tests=tests: its not in (tests, (tests + 1) % NUM_SPLITS)), *only_train],
            chosen(lambda its, tests=tests: its == (tests + 1) % NUM_SPLITS),
            chosen(lambda its, tests=tests: its == tests),
        )
        for tests in range(NUM_SPLITS)
    ]


class Vectors:
    """Vectors of known texts, made once, or read from a file and kept there.

    Attributes:
        seconds_a_text: that embedding takes; of a sample, where vectors were kept.
    """

    def __init__(self, embed: Embed, texts: set[str], kept: Path | None = None) -> None:
        known, vectors = _kept(kept)
        there = set(known)
        new = sorted(text for text in texts if _key(text) not in there)
        timed = new or sorted(texts)[:: max(len(texts) // TIMED, 1)]
        start = time.perf_counter()
        made = embed(timed)
        self.seconds_a_text = (time.perf_counter() - start) / len(timed)
        order = [*known, *map(_key, new)]
        self._vectors = np.concatenate([rows for rows in (vectors, made if new else None) if rows is not None])
        self._row = {key: row for row, key in enumerate(order)}
        if kept is not None and new:
            np.savez(kept, keys=np.array(order), vectors=self._vectors)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return self._vectors[[self._row[_key(text)] for text in texts]]


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest().encode()


def _kept(path: Path | None) -> tuple[list[bytes], np.ndarray | None]:
    if path is None or not path.exists():
        return [], None
    with np.load(path, allow_pickle=False) as stored:
        return stored["keys"].tolist(), stored["vectors"]


# --- methods ---------------------------------------------------------------------------------------------------------


def always(source: PredictPoints) -> Method:
    """A source that chooses nothing."""
    return lambda split, embed: ("", source)


def best_of(make: Callable[[Embed], Mapping[str, PredictPoints]]) -> Method:
    """The source that finds most of the points of validation documents."""

    def method(split: Split, embed: Embed) -> tuple[str, PredictPoints]:
        sources = make(embed)
        scores = {name: micro_f1(count_points(judged(split.valid, source))) for name, source in sources.items()}
        chosen = max(scores, key=lambda name: scores[name])
        return chosen, sources[chosen]

    return method


def breakpoints(embed: Embed) -> dict[str, PredictPoints]:
    configs = [BreakpointConfig("percentile", value) for value in PERCENTILES]
    configs += [BreakpointConfig("absolute", value) for value in DISTANCES]
    return {f"{one.threshold} {one.value}": strategy_points(make_breakpoint(one, embed)) for one in configs}


def linkages(embed: Embed) -> dict[str, PredictPoints]:
    configs = [LinkageConfig(max_sentences=most, lambda_=lambda_) for most in LINKED for lambda_ in LAMBDAS]
    return {
        f"at most {one.max_sentences}, lambda {one.lambda_}": strategy_points(make_linkage(one, embed))
        for one in configs
    }


# Rows of the table; one that learns, or asks a language model, is one more line here.
METHODS: dict[str, Method] = {
    "none": always(no_points),
    "every paragraph": always(paragraph_points),
    "heading-line rule": always(rule_points),
    "equal length": best_of(lambda _: {f"{most} units": equal_points(most) for most in EQUAL_LENGTHS}),
    "breakpoint": best_of(breakpoints),
    "linkage": best_of(linkages),
}
_TAGGERS = Taggers()  # trained once, whichever rows and domains need it
METHODS |= {name: partial(_TAGGERS.row, name) for name in TAGGERS}


# --- scores ----------------------------------------------------------------------------------------------------------


def judged(documents: Sequence[HeadedDocument], source: PredictPoints) -> list[Judged]:
    found = predict_checked(source, [one.text for one in documents], [one.id for one in documents])
    return paired(documents, found)


def paired(documents: Sequence[HeadedDocument], found: Sequence[Sequence[Point]]) -> list[Judged]:
    return [Judged(len(one.text), one.points, its) for one, its in zip(documents, found, strict=True)]


def make_row(name: str, method: Method, splits: Sequence[Split], vectors: Vectors) -> dict[str, Any]:
    """A method on all splits."""
    chosen, tested, seconds = [], [], 0.0
    for split in splits:
        choice, source = method(split, vectors)
        chosen.append(choice)
        begin = time.perf_counter()
        tested.append(judged(split.test, source))
        seconds += time.perf_counter() - begin
    documents = [one for split in tested for one in split]
    embedding = vectors.seconds_a_text * sum(one.num_sentences for one in documents) if name in READS_VECTORS else 0.0
    score = score_points(documents)
    each = [micro_f1(count_points(split)) for split in tested]
    return {
        "method": name,
        "f1_l1": score.f1[1],
        "f1_l2": score.f1[2],
        "f1_any": asdict(score.f1_any),
        "least_split": min(each),
        "best_split": max(each),
        "pk": score.pk,
        "window_diff": score.window_diff,
        "n_documents": len(documents),
        "n_points": score.n_points,
        "seconds_a_document": (seconds + embedding) / len(documents),
        "beside_embedding": seconds / embedding if embedding else None,
        "chosen": chosen,
    }


# --- the table -------------------------------------------------------------------------------------------------------


def format_report(result: dict[str, Any]) -> str:
    lines = ["# Sections that are found", "", f"`{result['command']}`, {result['seconds']:.0f} s.", ""]
    lines += about_lines(result["about"])
    lines += [
        "F1 of points at exact sentences, micro over documents, dealt with seed 0, each tested once (95% bootstrap "
        "interval over "
        "documents; range over five splits); Pk and WindowDiff: means over documents, 0 is best; ms: milliseconds a "
        "document, embedding included; beside: the rest in "
        "percent of embedding. What a method chose on validation documents stands last, most often first. With "
        "headings in sight (kept, plain) a score tells how well headings are recognised; `removed` is what counts.",
        "",
    ]
    for domain, views in result["domains"].items():
        for view, rows in views.items():
            head = f"{rows[0]['n_documents']} documents, {rows[0]['n_points']:,} points"
            lines += [f"## {domain}, {view}", "", f"{head}.", "", *format_rows(rows), ""]
    return "\n".join(lines)


def format_rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    head = ["method", "F1 level 1", "level 2", "any", "splits", "Pk", "WindowDiff", "ms", "beside", "chosen"]
    table = [head]
    for row in rows:
        votes = sorted(dict.fromkeys(row["chosen"]), key=row["chosen"].count, reverse=True)
        splits = f"{share(row['least_split'])} to {share(row['best_split'])}"
        scores = [share(row["f1_l1"]), share(row["f1_l2"]), interval(row["f1_any"]), splits]
        scores += [share(row["pk"]), share(row["window_diff"]), f"{1000 * row['seconds_a_document']:.1f}"]
        beside = "" if row["beside_embedding"] is None else f"{row['beside_embedding']:.1%}"
        table.append([row["method"], *scores, beside, "; ".join(votes)])
    return align(table, (False, *(True for _ in head[1:-1]), False), markdown=True)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", type=Path, help="folder with wikitext2/ and scisumm/")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="rows to compute")
    parser.add_argument("--views", nargs="+", choices=VIEWS, default=list(VIEWS), help="views to compute")
    parser.add_argument("--vectors", type=Path, metavar="FILE.npz", help="keep sentence vectors there, and take them")
    parser.add_argument("--name", default="points", help="of the files in results/")
    args = parser.parse_args()
    start, machine = time.perf_counter(), about()
    views = {view: read_domains(args.data, view) for view in args.views}
    learns = bool(set(TAGGERS) & set(args.methods))
    parts = [part for domains in views.values() for pair in domains.values() for part in (pair if learns else pair[:1])]
    texts = {text for part in parts for one in part for text in one.text.texts()}
    vectors = Vectors(minilm(), texts, args.vectors)
    print(f"{len(texts):,} texts embedded at {1 / vectors.seconds_a_text:.0f} a second", flush=True)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for view, domains in views.items():
        dealt_splits = {domain: make_splits(*documents) for domain, documents in domains.items()}
        for domain, own in dealt_splits.items():
            others = [splits for name, splits in dealt_splits.items() if name != domain]
            splits = [
                replace(split, others=[one for other in others for one in other[number].train])
                for number, split in enumerate(own)
            ]
            rows = []
            for name in args.methods:
                rows.append(make_row(name, METHODS[name], splits, vectors))
                print(f"{domain}, {view}, {name}: F1 {rows[-1]['f1_any']}", flush=True)
            found.setdefault(domain, {})[view] = rows
            print("\n".join([f"{domain}, {view}", *format_rows(rows)]), flush=True)
    command = "python -m benchmarks.hichunk.points DATA"
    if args.views != list(VIEWS):
        command += f" --views {' '.join(args.views)}"
    if args.methods != list(METHODS):
        command += f" --methods {' '.join(map(shlex.quote, args.methods))}"
    result = {"command": command, "seconds": time.perf_counter() - start, "about": machine, "domains": found}
    write(RESULTS, args.name, result, format_report(result))


if __name__ == "__main__":
    main()
