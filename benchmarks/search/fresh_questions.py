"""Encoders and rerankers on 300 questions about ten folders of documents in four languages.

    python -m benchmarks.search.fresh_questions rank COLLECTIONS OUT --names cargo,laws --model minilm
    python -m benchmarks.search.fresh_questions rank COLLECTIONS OUT --sizes 800:200 --smooth 0.25 --label smooth
    python -m benchmarks.search.fresh_questions rerank COLLECTIONS OUT --model likelihood:FILE.gguf
    python -m benchmarks.search.fresh_questions rerank COLLECTIONS OUT --model late:minilm --label late
    python -m benchmarks.search.fresh_questions pairs COLLECTIONS OUT --conditionalqa FOLDER    # OUT/pairs.jsonl
    python -m benchmarks.search.fresh_questions weights OUT               # on the six older collections
    python -m benchmarks.search.fresh_questions table OUT
    python -m benchmarks.search.fresh_questions speed COLLECTIONS OUT --model FILE.gguf --files 10 --names cargo

COLLECTIONS holds a folder a collection (`questions/collections.json`: repository, commit, folders, patterns). OUT gets
one file a collection and method. `rank` writes, for every question, the best 20 files with the score of their best
passage, which of them answer, and which of the best 20 passages hold a proof. `rerank` writes the scores that a
reranker gives to the best passage of each of hybrid's best `--files`; 5 and 10 files are cut from these.

The questions were written from the documents and committed before anything was searched; a second reader looked for
other files that answer. Any file with a proof is right. Weights are chosen on the six older collections (108
questions), the table is of the ten fresh ones. Files without `.md` or `.txt` are left out.

Intervals are Wilson's, 95%. Each method stands beside hybrid, or the row that `--beside` names: on how many questions
it is better and worse, and the p-value of a two-sided sign test, corrected for the number of methods (Holm).
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

import numpy as np
from scipy.stats import binomtest

from benchmarks.common import CORES, arguments, grid
from benchmarks.quality.embed_engines import peak
from benchmarks.search.own_documents import SUFFIXES, Question, read_questions, titled_sections
from qrag_jax.chunking.chunker import ChunkConfig
from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
from qrag_jax.data.corpora.conditionalqa import read_conditionalqa
from qrag_jax.documents.read import read_files
from qrag_jax.files.reading import read_with
from qrag_jax.index import build_index, index_settings, open_index
from qrag_jax.index.corpus_folder import load_corpus, save_corpus
from qrag_jax.index.methods import Method, load_embedder, single_step_method
from qrag_jax.index.options import SearchOptions
from qrag_jax.index.rerankers import load_reranker
from qrag_jax.measures.aggregate import holm_p_values
from qrag_jax.models.decoder.gguf_weights import gguf_decoder_config
from qrag_jax.models.decoder.weights import num_parameters
from qrag_jax.models.gguf.file import read_gguf
from qrag_jax.search.corpus import Corpus, are_unknown
from qrag_jax.search.hybrid import Ranked
from qrag_jax.search.late import LATE_PASSAGES, LATE_WEIGHT, LateScorer
from qrag_jax.search.rerank import RerankOptions
from qrag_jax.search.rerank import rerank as rerank_best
from qrag_jax.types import Document, EncoderOptions, ReadsTokens, Reranker

QUESTIONS = Path(__file__).parent / "questions"
OLDER = ("fastapi", "handbook", "prometheus", "redis", "madetech", "nips")  # what methods are chosen on
FRESH = ("cargo", "synapse", "obsidian", "sourcegraph", "veterans", "contao", "amt24", "laws", "tidb", "betagouv")
NUM_HEADINGS, NUM_WRONG = 150, 3
NUM_TIMED = 8  # questions
NUM_FILES, NUM_PASSAGES, NUM_LEVEL_PASSAGES = 20, 20, 100
BASE, HYBRID_LATE = "hybrid", "hybrid-late"
GRID = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, np.inf)  # weights beside hybrid; inf is the reranker alone


@dataclass(frozen=True)
class Passage:
    """A passage as it was ranked: its file, its characters, its score and the text that was read."""

    file: str
    spans: tuple[tuple[int, int], ...]
    score: float
    text: str


@dataclass(frozen=True)
class Places:
    """Where the right file and the right passage stand for every question, from 1 (0: not found), and nDCG@10."""

    files: np.ndarray
    passages: np.ndarray
    ndcg: np.ndarray


def read_collection(name: str, folder: Path) -> list[Document]:
    """The documents of a collection, those in hidden folders too."""
    known = json.loads((QUESTIONS / "collections.json").read_text("utf-8"))[name]
    documents = []
    with read_with(no_ignore=True):
        found = read_files([folder])
    for document in found:
        file = os.path.relpath(document.id, folder)
        kept = not known.get("only") or any(fnmatch(file, pattern) for pattern in known["only"])
        if kept and Path(file).suffix in SUFFIXES and not any(fnmatch(file, each) for each in known.get("without", ())):
            documents.append(document)
    return documents


def first_passages(corpus: Corpus, ranked: Ranked, folder: Path) -> list[Passage]:
    """The best passages, until they are of 20 files and at least 20."""
    found, files = [], set()
    for node, score in zip(ranked.ids.tolist(), ranked.scores.tolist(), strict=True):
        chunk = corpus.nodes[node]
        file = os.path.relpath(chunk.document_id, folder)
        found.append(Passage(file, chunk.spans, float(score), corpus.full_texts[node]))
        files.add(file)
        if len(files) >= NUM_FILES and len(found) >= NUM_PASSAGES:
            break
    return found


def best_of_files(passages: Sequence[Passage]) -> list[Passage]:
    """The best passage of each of the best files."""
    first: dict[str, Passage] = {}
    for passage in passages:
        first.setdefault(passage.file, passage)
    return list(first.values())[:NUM_FILES]


def holds_proof(passage: Passage, question: Question) -> int:
    spans = [(start, end) for file, start, end in question.proofs if file == passage.file]
    return int(any(start < last and first < end for start, end in spans for first, last in passage.spans))


def row_of(passages: Sequence[Passage], question: Question) -> dict[str, Any]:
    files = best_of_files(passages)
    return {
        "scores": [round(one.score, 6) for one in files],
        "right": [int(one.file in question.files) for one in files],
        "num_right": len(question.files),
        "best_holds_proof": [holds_proof(one, question) for one in files],
        "passages": [holds_proof(one, question) for one in passages[:NUM_PASSAGES]],
    }


def corpus_of(method: Method, documents: Sequence[Document], kept: Path) -> Corpus:
    if not kept.exists():
        save_corpus(method.build(documents), kept)
    return load_corpus(kept)


def make_ranker(args: argparse.Namespace, name: str, retriever: str, encoder: str) -> Callable[[str], list[Passage]]:
    """Ranks the passages of a collection."""
    folder = args.collections / name
    documents = read_collection(name, folder)
    if args.sizes:
        return level_ranker(args, name, [document.id for document in documents], encoder)
    method = single_step_method(retriever, encoder, reads=reads_of(args))
    kept = f"{name}-{Path(encoder).stem}" + (f"-{args.dtype}" if args.dtype else "")
    corpus = corpus_of(method, documents, args.out / "corpora" / kept)
    embed = method.embed
    reads_tokens = load_embedder(args.late_model) if args.late_model else cast(ReadsTokens, embed)
    scorer = LateScorer(reads_tokens) if args.late else None
    options = RerankOptions("late", passages=LATE_PASSAGES, weight=args.late_weight)

    def ranker(question: str) -> list[Passage]:
        ranked = method.retrieve(question, corpus, None)
        if scorer is not None and embed is not None and not are_unknown(embed, [question])[0]:
            ranked, _ = rerank_best(question, corpus, ranked, scorer, options, by_words=False)
        return first_passages(corpus, ranked, folder)

    return ranker


def reads_of(args: argparse.Namespace) -> EncoderOptions:
    return EncoderOptions(dtype=args.dtype)


def level_ranker(
    args: argparse.Namespace, name: str, files: Sequence[str], encoder: str
) -> Callable[[str], list[Passage]]:
    """Ranks the smallest parts of an index with levels; a part's score has a share of those around it."""
    folder, levels = args.collections / name, [int(size) for size in args.sizes.split(":")]
    kept = args.out / "indexes" / f"{name}-{Path(encoder).stem}-{args.sizes.replace(':', '_')}-{args.parents}"
    chunking = ChunkConfig(strategy="levels", levels=LevelsConfig(sizes=tuple(levels)))
    reads = reads_of(args)
    with read_with(no_ignore=True):
        settings = index_settings(None, encoder, chunking, tree=True, notes="none", parents=args.parents, reads=reads)
        build_index(kept, files, settings)
    index = open_index(kept)
    options = SearchOptions(NUM_LEVEL_PASSAGES, levels=str(min(levels)), smooth=args.smooth)
    return lambda question: [
        Passage(os.path.relpath(hit.place.document, folder), hit.spans, hit.score, hit.text)
        for hit in index.find(question, options).hits
    ]


def rank(args: argparse.Namespace) -> None:
    """Writes the best files and passages of every question."""
    label = args.label or (args.retriever if args.model == "minilm" else f"{args.retriever}-{Path(args.model).stem}")
    for name in args.names:
        if (args.out / label / f"{name}.json").exists():
            continue
        questions = read_questions(QUESTIONS / f"{name}.jsonl", args.collections / name)
        ranker = make_ranker(args, name, args.retriever, args.model)
        ranker(questions[0].text)  # compiles
        start = time.process_time()
        found = [ranker(question.text) for question in questions]
        spent = (time.process_time() - start) / len(questions)
        rows = [row_of(each, question) for each, question in zip(found, questions, strict=True)]
        write(args.out, label, name, {"cpu_ms": round(1000 * spent, 1), "questions": rows})


def rerank(args: argparse.Namespace) -> None:
    """Writes the scores of a reranker for the best passage of hybrid's files; adds to those that are there."""
    label = args.label or args.model.replace("/", "_")
    reranker = reranker_of(args.model)
    for name in args.names:
        questions = read_questions(QUESTIONS / f"{name}.jsonl", args.collections / name)
        path = args.out / label / f"{name}.json"
        known = json.loads(path.read_text()) if path.exists() else {"cpu_ms": 0.0, "tokens": 0.0}
        scores = known.get("scores", [[] for _ in questions])
        if min(map(len, scores)) >= args.files:
            continue
        ranker = make_ranker(args, name, BASE, "minilm")
        read = known_scores(args, name, questions)
        spent, num_read, num_all, before = 0.0, 0, 0, reranker.counts.num_tokens
        for number, (question, found) in enumerate(zip(questions, scores, strict=True)):
            texts = [one.text for one in best_of_files(ranker(question.text))[len(found) : args.files]]
            new = [text for text in texts if text not in read[number]]
            start = time.process_time()
            read[number] |= dict(zip(new, reranker(question.text, new).tolist() if new else [], strict=True))
            spent += time.process_time() - start
            found += [round(read[number][text], 5) for text in texts]
            num_read, num_all = num_read + len(new), num_all + len(texts)
        if num_read:
            scale = num_all / num_read / len(questions)  # costs are those of all passages
            added = 1000 * spent * scale, (reranker.counts.num_tokens - before) * scale
        else:
            same = load(args.out, args.reuse, name)
            scale = num_all / sum(map(len, same["scores"]))
            added = same["cpu_ms"] * scale, same["tokens"] * scale
        cpu_ms, tokens = known["cpu_ms"] + added[0], known["tokens"] + added[1]
        content = {"over": HYBRID_LATE if args.late else BASE, "cpu_ms": round(cpu_ms, 1), "tokens": round(tokens, 1)}
        write(args.out, label, name, {**content, "scores": scores})


def known_scores(args: argparse.Namespace, name: str, questions: Sequence[Question]) -> list[dict[str, float]]:
    """Scores of hybrid's passages that the results of `--reuse` hold, by question."""
    if not args.reuse:
        return [{} for _ in questions]
    ranker = make_ranker(argparse.Namespace(**{**vars(args), "late": False}), name, BASE, "minilm")
    passages = [best_of_files(ranker(question.text)) for question in questions]
    scores = load(args.out, args.reuse, name)["scores"]
    return [
        {one.text: score for one, score in zip(found, known, strict=False)}
        for found, known in zip(passages, scores, strict=True)
    ]


def speed(args: argparse.Namespace) -> None:
    """Prints what the reranking of `--files` files takes, beside the peak of matrix products in the same process.

    Counted are the multiplications of parameters with tokens, two operations each, without those of the vocabulary.
    """
    name = args.names[0]
    ranker, reranker = make_ranker(args, name, BASE, "minilm"), load_reranker(args.model)
    questions = read_questions(QUESTIONS / f"{name}.jsonl", args.collections / name)[:NUM_TIMED]
    passages = [[one.text for one in best_of_files(ranker(question.text))[: args.files]] for question in questions]
    for question, texts in zip(questions, passages, strict=True):  # compiles
        reranker(question.text, texts)
    before, peaks, spent = reranker.counts.num_tokens, [peak("ours bf16")], []
    for question, texts in zip(questions, passages, strict=True):
        start = time.process_time()
        reranker(question.text, texts)
        spent.append(time.process_time() - start)
    peaks.append(peak("ours bf16"))
    tokens = (reranker.counts.num_tokens - before) / len(questions)
    rate = CORES * 2 * multiplied(args.model) * tokens / float(np.mean(spent)) / 1e9
    print(
        f"{args.model}: {args.files} files, {tokens:,.0f} tokens, median {np.median(spent):.1f} CPU s a question "
        f"({min(spent):.1f} to {max(spent):.1f}, {len(spent)} questions of {name}); {rate:,.0f} GFLOP/s on "
        f"{CORES} cores, peak of bfloat16 {peaks[0]:,.0f} before and {peaks[1]:,.0f} after: {rate / max(peaks):.0%}"
    )


def multiplied(file: str) -> int:
    """Parameters of the layers of a GGUF file, which every token is multiplied with."""
    config = gguf_decoder_config(read_gguf(file))
    one, two = (num_parameters(replace(config, num_layers=number)) for number in (1, 2))
    return config.num_layers * (two - one)


def pairs(args: argparse.Namespace) -> None:
    """Writes pairs to train a reranker on: OUT/pairs.jsonl."""
    rng, groups = np.random.default_rng(0), []
    for name in args.names:
        sections = titled_sections(read_collection(name, args.collections / name))
        for number in rng.permutation(len(sections))[:NUM_HEADINGS].tolist():
            title, sentences = sections[number]
            groups.append({"question": title, "positive": " ".join(sentences)})
    if args.conditionalqa:
        groups += conditionalqa_pairs(args.conditionalqa)
    with (args.out / "pairs.jsonl").open("w") as file:
        file.writelines(json.dumps(groups[number]) + "\n" for number in rng.permutation(len(groups)).tolist())
    print(f"{len(groups):,} pairs")


def conditionalqa_pairs(folder: Path) -> list[dict[str, Any]]:
    """The passage with the first evidence of each training question; wrong are the nearest ones of a page by words."""
    task = read_conditionalqa(folder, "conditionalqa", questions="train")
    method = single_step_method("bm25")
    texts = {document.id: document for document in task.documents}
    groups = []
    for question in task.questions:
        first = question.evidence[0]
        page = method.build([texts[first.document_id]])
        ranked = method.retrieve(question.text, page, None).ids.tolist()
        holds = [
            any(start < first.end and first.start < end for start, end in page.nodes[node].spans) for node in ranked
        ]
        right = [node for node, has in zip(ranked, holds, strict=True) if has]
        wrong = [page.full_texts[node] for node, has in zip(ranked, holds, strict=True) if not has][:NUM_WRONG]
        if right:
            positive = page.full_texts[right[0]]
            negatives = [text for text in wrong if text != positive]
            groups.append({"question": question.text, "positive": positive, "negatives": negatives})
    return groups


def reranker_of(source: str) -> Reranker:
    """`late:ENCODER` compares token vectors of an encoder; others as `qrag find --rerank` takes them."""
    kind, _, encoder = source.partition(":")
    return LateScorer(load_embedder(encoder)) if kind == "late" else load_reranker(source)


def write(out: Path, label: str, name: str, content: Mapping[str, Any]) -> None:
    path = out / label / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content) + "\n")
    print(f"{label} {name}: {content['cpu_ms']} CPU ms a question", flush=True)


def load(out: Path, label: str, name: str) -> dict[str, Any]:
    return json.loads((out / label / f"{name}.json").read_text())


def places_of(rows: Sequence[Mapping[str, Any]]) -> Places:
    """Places by the order of files and passages as they were ranked."""
    files, passages, ndcg = [], [], []
    for row in rows:
        files.append(first_place(row["right"]))
        passages.append(first_place(row["passages"]))
        ndcg.append(ndcg_at_10(row["right"], row["num_right"]))
    return Places(np.array(files), np.array(passages), np.array(ndcg))


def reranked_places(
    rows: Sequence[Mapping[str, Any]], scores: Sequence[Sequence[float]], num_files: int, weight: float
) -> Places:
    """Places if the first files are ordered by hybrid + weight * score; the others keep theirs.

    The passages of the candidates come first, so the right passage counts if it is the best of its file.
    """
    files, passages, ndcg = [], [], []
    for row, found in zip(rows, scores, strict=True):
        first = np.array(row["scores"])
        new = np.array(found)
        new = new[:num_files]
        total = new if np.isinf(weight) else first[: len(new)] + weight * new
        order = [*np.argsort(-total, kind="stable").tolist(), *range(len(new), len(first))]
        right = [row["right"][place] for place in order]
        files.append(first_place(right))
        passages.append(first_place([row["best_holds_proof"][place] for place in order]))
        ndcg.append(ndcg_at_10(right, row["num_right"]))
    return Places(np.array(files), np.array(passages), np.array(ndcg))


def order_under(out: Path, label: str, names: Sequence[str]) -> str:
    """The label of the order whose files were scored."""
    return str(load(out, label, names[0]).get("over", BASE))


def scored_files(out: Path, label: str, names: Sequence[str]) -> dict[str, int]:
    """Most files of a question that were scored, by collection."""
    return {name: max(map(len, load(out, label, name)["scores"])) for name in names}


def cuts(scored: Mapping[str, int]) -> list[int]:
    """Of 5, 10 and 20 files, those that were scored in all collections."""
    return [num_files for num_files in (5, 10, 20) if num_files <= min(scored.values())]


def first_place(flags: Sequence[int]) -> int:
    return next((place for place, flag in enumerate(flags, 1) if flag), 0)


def ndcg_at_10(right: Sequence[int], num_right: int) -> float:
    """Binary gains, over the best order of all right files."""
    discounts = 1 / np.log2(np.arange(2, 12))
    best = discounts[: min(num_right, 10)].sum()
    return float((np.array(right[:10]) * discounts[: len(right[:10])]).sum() / best)


def within(places: np.ndarray, most: int) -> np.ndarray:
    return (places >= 1) & (places <= most)


def share(hits: np.ndarray) -> str:
    """`231 of 300, 77.0% (71.9 to 81.4)`."""
    found, of = int(hits.sum()), len(hits)
    interval = binomtest(found, of).proportion_ci(method="wilson")
    return f"{found} of {of}, {found / of:.1%} ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def sign_test(hits: np.ndarray, base: np.ndarray) -> tuple[int, int, float]:
    better, worse = int((hits & ~base).sum()), int((base & ~hits).sum())
    return better, worse, float(binomtest(better, better + worse).pvalue) if better + worse else 1.0


def collected(out: Path, label: str, names: Sequence[str], key: str) -> list[Any]:
    return [row for name in names for row in load(out, label, name)[key]]


def weights(args: argparse.Namespace) -> None:
    """Prints every order, and what every weight of a reranker gives, on the older collections."""
    folders = [path for path in sorted(args.out.iterdir()) if all((path / f"{name}.json").exists() for name in OLDER)]
    cells = {path.name: [] for path in folders}
    for label in cells:
        if "questions" in load(args.out, label, OLDER[0]):
            found = places_of(collected(args.out, label, OLDER, "questions"))
            cells[label].append(["", "", *_counts(found)])
            continue
        scores = collected(args.out, label, OLDER, "scores")
        rows = collected(args.out, order_under(args.out, label, OLDER), OLDER, "questions")
        for num_files in cuts(scored_files(args.out, label, OLDER)):
            for weight in GRID:
                shown = "alone" if np.isinf(weight) else f"{weight:g}"
                cells[label].append([str(num_files), shown, *_counts(reranked_places(rows, scores, num_files, weight))])
    lines = [[label, *cell] for label, own in cells.items() for cell in own]
    print("\n".join(grid(["method", "files", "weight", "first", "in 3", "nDCG@10"], lines)))


def _counts(found: Places) -> list[str]:
    return [*(str(int(within(found.files, most).sum())) for most in (1, 3)), f"{found.ndcg.mean():.4f}"]


def table(args: argparse.Namespace) -> None:
    """Prints the table of the fresh questions of `--names`; rerankers at the weights of `--weights LABEL=W`."""
    names = [name for name in args.names if name in FRESH]
    rows = collected(args.out, BASE, names, "questions")
    chosen = {label: float(value) for label, _, value in (each.rpartition("=") for each in args.weights)}
    found: list[tuple[str, Places, float]] = [(BASE, places_of(rows), cpu_ms(args.out, BASE, names))]
    for folder in sorted(args.out.iterdir()):
        label = folder.name
        if label == BASE or not all((folder / f"{name}.json").exists() for name in names):
            continue
        if "questions" in load(args.out, label, names[0]):
            places = places_of(collected(args.out, label, names, "questions"))
            found.append((label, places, cpu_ms(args.out, label, names)))
            continue
        scores = collected(args.out, label, names, "scores")
        under = collected(args.out, order_under(args.out, label, names), names, "questions")
        scored = scored_files(args.out, label, names)
        for num_files in cuts(scored):
            places = reranked_places(under, scores, num_files, chosen.get(label, np.inf))
            spent = float(np.mean([cpu_ms(args.out, label, [name]) * num_files / scored[name] for name in names]))
            found.append((f"{label}, {num_files} files", places, spent))
    found.sort(key=lambda row: row[0] != args.beside)  # the row that the others are compared with comes first
    if found[0][0] != args.beside:
        raise SystemExit(f"--beside {args.beside!r}: no such row")
    base = found[0][1]
    tests = {
        most: [sign_test(within(places.files, most), within(base.files, most)) for _, places, _ in found]
        for most in (1, 3)
    }
    holm = {most: holm_p_values([test[2] for test in each[1:]]) for most, each in tests.items()}
    cells = []
    for number, (label, places, spent) in enumerate(found):
        beside = []
        for most in (1, 3):
            better, worse, p_value = tests[most][number]
            beside.append(f"+{better} -{worse}, p = {p_value:.2g} ({holm[most][number - 1]:.2g})" if number else "")
        first, three = (share(within(places.files, most)) for most in (1, 3))
        passage = f"{within(places.passages, 1).mean():.1%} / {within(places.passages, 3).mean():.1%}"
        cells.append([label, first, three, f"{places.ndcg.mean():.3f}", passage, *beside, f"{spent:,.0f}"])
    heads = ["method", "right file first", "in 3", "nDCG@10", "right passage first / in 3",
             f"first, beside {args.beside}", "in 3, beside it", "CPU ms a question"]  # fmt: skip
    print("\n".join(grid(heads, cells)))
    orders = [(label, places) for label, places, _ in found if "files" not in label]
    bounds = [[label, *(share(within(places.files, most)) for most in (5, 10, 20))] for label, places in orders]
    print("\n" + "\n".join(grid(["right file among the best", "5", "10", "20"], bounds)))


def cpu_ms(out: Path, label: str, names: Sequence[str]) -> float:
    return float(np.mean([load(out, label, name)["cpu_ms"] for name in names]))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("what", choices=("rank", "rerank", "pairs", "speed", "weights", "table"))
    parser.add_argument("collections", type=Path, nargs="?", help="folder of the collections; not of weights and table")
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--names", type=lambda text: text.split(","), default=[*OLDER, *FRESH])
    parser.add_argument("--model", default="minilm", help="encoder, or reranker as `qrag find --rerank` takes it")
    parser.add_argument("--retriever", default=BASE, help="hybrid, dense or bm25")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of the encoder of `rank`")
    parser.add_argument("--conditionalqa", type=Path, help="folder of ConditionalQA, for `pairs`")
    parser.add_argument("--late", action="store_true", help="order the best passages by token vectors, as qrag does")
    parser.add_argument("--late_model", help="of --late: encoder of the token vectors, such as late_lora.py writes")
    parser.add_argument("--late_weight", type=float, default=LATE_WEIGHT, help="of token vectors beside the search")
    parser.add_argument("--reuse", help="of `rerank`: the label of results over hybrid by the same reranker")
    parser.add_argument("--sizes", help="rank parts of several sizes, such as 800:200, and return the smallest")
    parser.add_argument("--smooth", type=float, default=0.0, help="with --sizes: share of larger parts in a score")
    parser.add_argument("--parents", default="mean", help="with --sizes: vectors of larger parts")
    parser.add_argument("--files", type=int, default=NUM_FILES, help="candidates of `rerank`")
    parser.add_argument("--label", help="name of the results")
    parser.add_argument("--beside", default=BASE, help="row of the table that the others are compared with")
    parser.add_argument("--weights", nargs="*", default=[], metavar="LABEL=W", help="of rerankers, for the table")
    args = parser.parse_args()
    verbs = {"rank": rank, "rerank": rerank, "pairs": pairs, "speed": speed, "weights": weights, "table": table}
    verbs[args.what](args)


if __name__ == "__main__":
    main()
