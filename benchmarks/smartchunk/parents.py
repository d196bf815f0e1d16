"""Which vectors of parents find the right one: of children, of text, by a compressor, of a language model's summary.

    nice python -m benchmarks.smartchunk.parents DATA --cache FOLDER  # 40 minutes on 2 cores, the second time 10
    nice python -m benchmarks.smartchunk.parents DATA --cache FOLDER --paired  # 30 minutes of one core, new papers
    nice python -m benchmarks.smartchunk.parents DATA --cache FOLDER --summaries MODEL --journal FILE --parents 300

DATA holds scisumm, squad, wikitext2 and novels. Questions: citing sentences, for the sections of 60 papers, of 25 of
them (the pilot, in whose sight the training was set) and of the other 35; SQuAD's questions, for paragraphs of 24
articles; of chapters of novels no questions are known, so sentences ask that were taken out of them. The children of
every parent are its sentences; all parents of a set are searched for each question. R@k is the share of questions of
which one right parent is among the first k (Success@k).

Compressors learn from papers of CL-SciSumm that no question is of (`other_papers`) and WikiText-2 articles: no document
of any set trains or chooses. Each kind and loss is trained with three seeds; a question counts the mean over them. What
`qrag train compressor` would choose, by recall on documents that are held out of training, is the row `chosen`. It is
compared with the mean, windows, the best child and summaries, question by question, over questions and over documents.

With --paired this comparison is made on the 35 papers outside the pilot alone, with the one compressor that held-out
documents choose, without the ways that it is not compared with.

With --summaries the same rows are scored on fixed samples, sections and paragraphs, whose texts the model sums up, with
the one compressor that held-out documents choose above; the journal keeps every answer, and the same line goes on from
there.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import MODEL_HELP, about, about_lines, arguments, interval, model_name, open_model, write
from benchmarks.smartchunk.parents_sets import (
    Kept,
    Parent,
    ParentSet,
    cited_papers,
    load_sets,
    new_papers,
    sample_set,
    squad,
    summary,
)
from qrag_jax.annotate.summaries import SummariesConfig, summarise
from qrag_jax.chunking.tree.parent_vectors import FromChildren, mean_of_children
from qrag_jax.data.corpora.headed_documents import HeadedDocument, read_headed
from qrag_jax.eval.tables import align, share
from qrag_jax.index.parent_texts import window_vectors
from qrag_jax.measures.aggregate import Summary, holm_p_values, mean_interval, over_seeds, paired_difference
from qrag_jax.models.compressor import compress_parents
from qrag_jax.models.encoder.embedder import TextEmbedder, make_embedder
from qrag_jax.models.encoder.weights import load_encoder
from qrag_jax.names import COMPRESSOR_LOSSES
from qrag_jax.train.learners.compressor import Candidate, CompressorConfig, fit_sections, train_candidate
from qrag_jax.train.learners.compressor_data import Section, read_sections
from qrag_jax.unit_rows import unit_rows

RESULTS = Path(__file__).parent / "results"

KS = (1, 5)
CUTS = (256, 512)
STRENGTH = 0.01
PAPERS = 170  # of the 342 with sections, for time
SEEDS = (0, 1, 2)
TIMED = 1_000  # parents whose vectors are timed
TIMED_TEXTS = 24  # of them, where text is embedded
SUMMARIES_AT_A_TIME = 8
MAX_SUMMARY_TOKENS = 1_200  # of a text that is summed up: a model of 1.5B reads 50 a second here
BEST, CHOSEN_WAY = "best child", "compressor, chosen"
COMPARED = ("mean", "windows", BEST, "summary")  # with the chosen compressor
CHOSEN = Candidate("both", "ranking", STRENGTH)  # what held-out documents chose with every seed


class Vectors:
    """What texts of a data set become, kept in a folder."""

    def __init__(self, folder: Path) -> None:
        loaded = load_encoder("minilm")
        self.embedders = {cut: make_embedder(loaded, window=cut) for cut in CUTS}
        self.kept = {cut: Kept(embedder, folder / str(cut)) for cut, embedder in self.embedders.items()}
        self.count = self.embedders[CUTS[0]].count_tokens
        self.fingerprint = self.embedders[CUTS[0]].fingerprint

    def of(self, texts: Sequence[str], cut: int = CUTS[0]) -> np.ndarray:
        return unit_rows(self.kept[cut](texts))

    def windows(self, texts: Sequence[str]) -> np.ndarray:
        return window_vectors(texts, self.kept[CUTS[0]], self.count)


def training_documents(data: Path, num_papers: int) -> list[HeadedDocument]:
    papers = read_headed(f"scisumm:{data / 'scisumm' / 'other_papers.jsonl.gz'}")[:num_papers]
    return [*papers, *read_headed(f"wikitext2:{data / 'wikitext2'}")]


# --- compressors -----------------------------------------------------------------------------------------------------


def train(
    sections: Sequence[Section], config: CompressorConfig, fingerprint: str, folder: Path
) -> tuple[dict[Candidate, list[dict[str, np.ndarray]]], list[Candidate]]:
    """Parameters of each candidate by seed, and what held-out documents choose with each seed; both are kept."""
    trained: dict[Candidate, list[dict[str, np.ndarray]]] = {one: [] for one in config.candidates}
    chosen = []
    folder.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        own = replace(config, seed=seed)
        for one in config.candidates:
            file = folder / f"{one.kind}_{one.loss}_{seed}.npz"
            if not file.exists():
                np.savez(file, **train_candidate(sections, one, own))  # type: ignore[arg-type]
                print(f"trained {file.stem}", flush=True)
            with np.load(file, allow_pickle=False) as stored:
                trained[one].append(dict(stored))
        if len(config.candidates) == 1:
            chosen.append(config.candidates[0])
            continue
        file = folder / f"chosen_{seed}.json"
        if not file.exists():
            found = fit_sections(sections, {}, fingerprint, "minilm", own)
            tried = [[asdict(one), recall] for one, recall in found.tried.items()]
            file.write_text(json.dumps({"chosen": asdict(found.chosen), "tried": tried}))
        chosen.append(Candidate(**json.loads(file.read_text())["chosen"]))
        print(f"seed {seed}: held-out documents choose {chosen[-1]}", flush=True)
    return trained, chosen


# --- scores ----------------------------------------------------------------------------------------------------------


def hits(scores: np.ndarray, gold: Sequence[frozenset[int]]) -> np.ndarray:
    """[questions, ks]: whether a right parent is among the first k."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, : max(KS)]
    right = np.array([[int(one) in own for one in row] for row, own in zip(order, gold, strict=True)])
    return np.stack([right[:, :k].any(axis=1) for k in KS], axis=1).astype(float)


def children_of(own: ParentSet, vectors: Vectors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(vectors, tokens, place of the parent) of all children of a set."""
    texts = [child for parent in own.parents for child in parent.children]
    place = np.repeat(np.arange(len(own.parents)), [len(parent.children) for parent in own.parents])
    return vectors.of(texts), np.array([vectors.count(text) for text in texts]), place


def score_set(
    own: ParentSet,
    vectors: Vectors,
    trained: dict[Candidate, list[dict[str, np.ndarray]]],
    chosen: Sequence[Candidate],
    summaries: np.ndarray | None = None,
    cuts: Sequence[int] = CUTS,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row for each way of making the vectors of parents, and what the chosen compressor has over others.

    Args:
        trained: parameters of each candidate by seed.
        chosen: candidate of each seed.
        summaries: [parents, dim], vectors of theirs.
        cuts: tokens of a parent that are embedded directly; a row each.
    """
    texts = [parent.text for parent in own.parents]
    questions, windows = vectors.of(own.questions), vectors.windows(texts)
    family = children_of(own, vectors)
    ways: dict[str, list[np.ndarray]] = {
        "windows": [windows],
        **{f"direct, cut at {cut}": [vectors.of(texts, cut)] for cut in cuts},
        "mean": [mean_of_children(*family)],
    }
    made = {one: [compress_parents(params, *family) for params in seeds] for one, seeds in trained.items()}
    if len(made) > 1:  # else it is the chosen one
        ways |= {f"compressor {one.kind}, {one.loss}": found for one, found in made.items()}
    ways[CHOSEN_WAY] = [made[one][seed] for seed, one in enumerate(chosen)]
    if summaries is not None:
        ways["summary"] = [summaries]
    first = np.flatnonzero(np.diff(family[2], prepend=-1))
    best = hits(np.maximum.reduceat(questions @ family[0].T, first, axis=1), own.gold)
    rows = [_row(own.name, BEST, [best], best, len(family[0]), None)]
    by_way = {BEST: [best]} | {
        name: [hits(questions @ one.T, own.gold) for one in found] for name, found in ways.items()
    }
    for name, found in ways.items():
        distance = float(np.mean([np.square(one - windows).sum(axis=1).mean() for one in found]))
        rows.append(_row(own.name, name, by_way[name], best, len(own.parents), distance))
    others = {name: by_way[name][0] for name in COMPARED if name in by_way}
    return rows, compare(own, by_way[CHOSEN_WAY], others)


def compare(own: ParentSet, seeds: Sequence[np.ndarray], others: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """The compressor minus each other way, paired: over questions, and over the documents of their right parents.

    A question counts its mean over the seeds; the interval by document holds the spread of the seeds too
    (`over_seeds`), and its p-value is of flips by document.

    Args:
        seeds: hits of the compressor of each seed, [questions, ks].
        others: hits of the ways that have no seed, likewise.
    """
    documents = [own.parents[min(gold)].document for gold in own.gold]
    rows = []
    for name, other in others.items():
        for column, k in enumerate(KS):
            values, mean = other[:, column], np.mean(seeds, axis=0)[:, column]
            over = paired_difference(mean, values)
            by_document = paired_difference(mean, values, groups=documents)
            each = [paired_difference(one[:, column], values, groups=documents) for one in seeds]
            spread = over_seeds([Summary(one.mean, one.low, one.high, one.n) for one in each], bounds=(-1, 1))
            rows.append(
                {"set": own.name, "minus": name, "k": k, "n": over.n, "documents": len(set(documents))}
                | {"mean": over.mean, "low": over.low, "high": over.high, "p_value": over.p_value}
                | {"better": over.better, "worse": over.worse, "by_seed": [one.mean for one in each]}
                | {"document_low": spread.low, "document_high": spread.high, "document_p": by_document.p_value}
            )
    return rows


def _row(
    name: str, way: str, seeds: Sequence[np.ndarray], best: np.ndarray, num_vectors: int, distance: float | None
) -> dict[str, Any]:
    row: dict[str, Any] = {"set": name, "parents": way, "seeds": len(seeds), "n": len(best), "vectors": num_vectors}
    mean = np.mean(seeds, axis=0)
    for column, k in enumerate(KS):
        found = mean_interval(mean[:, column])
        over = paired_difference(mean[:, column], best[:, column])
        row |= {f"r{k}": found.mean, f"r{k}_low": found.low, f"r{k}_high": found.high}
        row |= {f"r{k}_over_best": over.mean, f"r{k}_over_best_low": over.low, f"r{k}_over_best_high": over.high}
        row[f"r{k}_seeds"] = [float(one[:, column].mean()) for one in seeds]
    return row | {"squared_distance": distance}


# --- time ------------------------------------------------------------------------------------------------------------


def time_ways(
    own: ParentSet, vectors: Vectors, trained: dict[Candidate, list[dict[str, np.ndarray]]]
) -> dict[str, float]:
    """Milliseconds for the vectors of 1,000 parents, drawn with repetition; of text those of a few, scaled."""
    drawn = [own.parents[i] for i in np.random.default_rng(0).integers(len(own.parents), size=TIMED)]
    family = children_of(replace(own, parents=tuple(drawn)), vectors)
    ways: dict[str, FromChildren] = {"mean": mean_of_children}
    ways |= {f"compressor {one.kind}": partial(compress_parents, seeds[0]) for one, seeds in trained.items()}
    found = {name: _median_ms(partial(make, *family)) for name, make in ways.items()}
    few = [parent.text for parent in drawn[:TIMED_TEXTS]]
    embedder: TextEmbedder = vectors.embedders[CUTS[0]]
    by_text: dict[str, Callable[[], Any]] = {
        "windows": lambda: window_vectors(few, embedder, vectors.count),
        **{f"direct, cut at {cut}": partial(vectors.embedders[cut], few) for cut in CUTS},
    }
    return found | {name: _median_ms(make) * TIMED / TIMED_TEXTS for name, make in by_text.items()}


def _median_ms(make: Callable[[], Any]) -> float:
    make()  # compiles
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        make()
        seconds.append(time.perf_counter() - start)
    return 1e3 * float(np.median(seconds))


# --- summaries -------------------------------------------------------------------------------------------------------


def sum_up(parents: Sequence[Parent], model: str, journal: Path, vectors: Vectors) -> tuple[np.ndarray, dict[str, Any]]:
    """Vectors of summaries, and what all of them took; where there is none, the vector of the windows."""
    generator = open_model(model, journal, claim_size=SUMMARIES_AT_A_TIME)
    took_file = journal.with_suffix(f".{len(parents)}.took.json")  # sets have different numbers of parents
    took = json.loads(took_file.read_text()) if took_file.exists() else {"seconds": 0.0, "calls": 0, "tokens": 0}
    texts = [parent.text for parent in parents]
    found: list[str | None] = []
    for first in range(0, len(texts), SUMMARIES_AT_A_TIME):
        start = time.perf_counter()
        some = summarise(generator, texts[first : first + SUMMARIES_AT_A_TIME], SummariesConfig())
        found += some.texts
        if some.reading.num_calls:
            took["seconds"] += time.perf_counter() - start
            took["calls"] += some.reading.num_calls
            took["tokens"] += some.reading.prompt_tokens + some.reading.completion_tokens
            took_file.write_text(json.dumps(took))
            print(f"{len(found)} of {len(texts)} summaries, {took['seconds']:,.0f} s", flush=True)
    made = vectors.of([one or "" for one in found])
    lost = [place for place, one in enumerate(found) if one is None]
    if lost:
        made[lost] = vectors.windows([texts[place] for place in lost])
    return made, took | {"without": len(lost), "model": model_name(model)}


# --- report ----------------------------------------------------------------------------------------------------------


def format_report(result: dict[str, Any]) -> str:
    lines = ["# Vectors of parents", "", f"`{result['command']}`, seeds {', '.join(map(str, SEEDS))}.", ""]
    lines += about_lines(result["about"])
    lines += [
        f"Compressors: {result['num_sections']:,} sections of {result['num_documents']:,} documents that no question "
        f"is of, {CompressorConfig().num_updates} updates, target windows. In brackets 95% bootstrap intervals over "
        "questions; `-` best child: the paired difference. Distance: squared, to windows. A parent's vectors are "
        "searched in the place of its children's, but for best child.",
        "",
        "Below each table stands the chosen compressor minus other ways, on the same questions; a question counts its "
        "mean over the seeds. Intervals and p of sign flips are over questions, then over documents; that by document "
        f"holds other seeds too. Holm's correction is for the {len(result['paired'])} p by document of this page.",
        "",
        "Held-out documents choose: "
        + "; ".join(f"seed {s}: {c}" for s, c in zip(SEEDS, result["chosen"], strict=True)),
        "",
    ]
    if result["summaries"]:
        lines += [f"Summaries: {json.dumps(result['summaries'])}.", ""]
    for own in result["sets"]:
        lines += [f"## {own['set']}", "", f"{own['parents']:,} parents, {own['children']:,} children, "
                  f"{own['questions']:,} questions.", ""]  # fmt: skip
        head = ["parents", "R@1", "R@5", "R@5 by seed", "R@1 - best child", "R@5 - best child", "distance", "vectors"]
        table = [head, *(_cells(row) for row in result["rows"] if row["set"] == own["set"])]
        lines += [*align(table, [False] + [True] * 7, markdown=True), ""]
        lines += [*_paired_lines([row for row in result["paired"] if row["set"] == own["set"]]), ""]
    if result["ms"]:
        head = ["parents", f"ms for {TIMED:,}"]
        table = [head, *([name, f"{ms:,.0f}"] for name, ms in result["ms"].items())]
        told = f"Sections of papers, sentences embedded; of text {TIMED_TEXTS} are timed and scaled."
        lines += ["## Time", "", told, "", *align(table, [False, True], markdown=True), ""]
    return "\n".join(lines)


def _paired_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What the chosen compressor has over other ways on a set."""
    head = ["chosen minus", "at", "difference", "by seed", "better, worse", "p", "by document, seed", "p", "p (Holm)"]
    table = [head]
    for row in rows:
        found = interval(row, sign="+")
        by_document = interval(row, sign="+", names=("mean", "document_low", "document_high"))
        by_seed = " ".join(share(one, sign="+") for one in row["by_seed"])
        table.append([row["minus"], f"R@{row['k']}", found, by_seed, f"{row['better']}, {row['worse']}"])
        table[-1] += [share(row["p_value"]), by_document, share(row["document_p"]), share(row["p_holm"])]
    return [f"Over {rows[0]['documents']} documents:", "", *align(table, [False] * 2 + [True] * 7, markdown=True)]


def _cells(row: dict[str, Any]) -> list[str]:
    def of(name: str, sign: str = "") -> str:
        return interval(row, sign=sign, names=(name, f"{name}_low", f"{name}_high"))

    is_best = row["parents"] == BEST
    over = ["", ""] if is_best else [of(f"r{k}_over_best", "+") for k in KS]
    by_seed = " ".join(map(share, row["r5_seeds"])) if row["seeds"] > 1 else ""
    distance = "" if row["squared_distance"] is None else share(row["squared_distance"])
    return [row["parents"], of("r1"), of("r5"), by_seed, *over, distance, f"{row['vectors']:,}"]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of the data sets")
    parser.add_argument("--cache", type=Path, default=Path("runs/parents"), help="keeps vectors and compressors")
    parser.add_argument("--papers", type=int, default=PAPERS, help="that compressors learn from (default: %(default)s)")
    parser.add_argument("--paired", action="store_true", help="only papers outside the pilot, one compressor")
    parser.add_argument("--summaries", metavar="MODEL", help=f"sums up: {MODEL_HELP}")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="of --summaries, keeps its answers")
    parser.add_argument("--parents", type=int, default=300, help="of --summaries, to sum up (default: %(default)s)")
    args = parser.parse_args()
    if args.summaries and args.paired:
        parser.error("--paired, --summaries: two tables; give one of them")
    if args.summaries and not args.journal:
        parser.error("--summaries: needs --journal FILE, which keeps what took hours")
    vectors = Vectors(args.cache)
    documents = training_documents(args.data, args.papers)
    sections = read_sections(documents, vectors.of, vectors.count, vectors.windows)
    config = CompressorConfig(losses=COMPRESSOR_LOSSES, strengths=(STRENGTH,))
    if args.summaries or args.paired:
        config = replace(config, kinds=(CHOSEN.kind,), losses=(CHOSEN.loss,))
    trained, chosen = train(sections, config, vectors.fingerprint, args.cache / f"compressors_{args.papers}")
    took, times, name = {}, {}, "parents"
    if args.summaries:
        name = "parents_summaries"
        few = args.parents // 5  # sections take five times as long as paragraphs
        short = lambda parent: vectors.count(parent.text) <= MAX_SUMMARY_TOKENS  # noqa: E731
        asked = (cited_papers(args.data), few), (squad(args.data), args.parents - few)
        sets = [sample_set(own, number, short) for own, number in asked]
        scored = []
        for own in sets:
            made, took[own.name] = sum_up(own.parents, args.summaries, args.journal, vectors)
            scored.append(score_set(own, vectors, trained, chosen, made))
        given = f" --summaries {model_name(args.summaries)} --parents {args.parents}"
    elif args.paired:
        name, given, sets = "parents_paired", " --paired", [new_papers(args.data)]
        scored = [score_set(own, vectors, trained, chosen, cuts=()) for own in sets]
    else:
        given, sets = "", load_sets(args.data)
        scored = [score_set(own, vectors, trained, chosen) for own in sets]
        times = time_ways(cited_papers(args.data), vectors, trained)
    paired = [row for _, own in scored for row in own]
    corrected = holm_p_values([row["document_p"] for row in paired])
    result = {
        "command": f"python -m benchmarks.smartchunk.parents DATA --papers {args.papers}{given}",
        "about": about(),
        "num_documents": len(documents),
        "num_sections": len(sections),
        "chosen": [f"{one.kind} by {one.loss}" for one in chosen],
        "sets": [dict(one) for one in summary(sets)],
        "rows": [row for own, _ in scored for row in own],
        "paired": [row | {"p_holm": p_value} for row, p_value in zip(paired, corrected, strict=True)],
        "ms": times,
        "summaries": took,
    }
    write(RESULTS, name, result, format_report(result))


if __name__ == "__main__":
    main()
