"""What else could hold a document at many levels: evidence recall of levels, clusters, late chunks and RAPTOR.

    nice python benchmarks/level_baselines.py DATA [--tasks squad,scisumm] [--documents 8] [--questions 300]

Needs scikit-learn; ten minutes a set on 2 idle CPU cores. DATA holds the folders scisumm, squad and chroma. All are
searched by MiniLM's cosine, and a context is filled with the best nodes, the last one cut at the budget, so that all
have as much to read. Levels are spans of at most 512, 256, 128 and 64 tokens within each other:

    packed    as many sentences as fit (`size_tree`): each level alone, and all in one list (MAL-RAG's way)
    best      the same spans by the best of their spans of 64 tokens (`best_child`)
    clusters  neighbours joined by meaning (`cluster_trees.py`), likewise
    late      spans of 64 or 128 tokens whose vectors are pooled from those of the whole text (`late_vectors`)
    raptor    `raptor.py` over the spans of 128 tokens, summaries extractive: no language model

ERec with 95% bootstrap intervals over questions, and the paired difference to packed spans of 128 tokens. Nothing is
chosen by the questions, so the best row of a table is partly luck.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import raptor
from embed import about, about_lines, write

from qrag_jax.chunking.chunker import ChunkConfig, make_tree_builder
from qrag_jax.chunking.strategies.late import late_vectors
from qrag_jax.chunking.strategies.level_leaves import LevelsConfig
from qrag_jax.chunking.text.sentences import make_splitter
from qrag_jax.chunking.tree.cluster_trees import make_cluster_trees
from qrag_jax.chunking.tree.level_ranges import LevelRange, full_range, size_names
from qrag_jax.chunking.tree.parent_vectors import Parents
from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.data.corpora.study_task import StudyTask
from qrag_jax.eval.study.cells.costs import Meter
from qrag_jax.eval.study.cells.filled_contexts import question_pieces
from qrag_jax.eval.study.cells.study_encoder import StudyEncoder, load_study_encoder
from qrag_jax.eval.study.config import TaskConfig
from qrag_jax.eval.study.load_tasks import load_task
from qrag_jax.index.parent_texts import window_vectors
from qrag_jax.measures.aggregate import mean_interval, paired_difference
from qrag_jax.measures.evidence_recall import evidence_recall
from qrag_jax.names import TaskKind
from qrag_jax.search.context.pack import Budget, fill_context
from qrag_jax.search.corpus import Corpus, embed_corpus, tree_corpus
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.types import Document
from qrag_jax.unit_rows import unit_rows

RESULTS = Path(__file__).parent / "results"
SIZES = (512, 256, 128, 64)
BUDGETS = (256, 512, 1024)
DOCUMENTS: dict[TaskKind, int] = {"squad": 5, "scisumm": 20, "chroma": 2}  # for time
REFERENCE, SEED = "packed 128", 0
# (vector of a question, budget) -> the context.
Fill = Callable[[np.ndarray, int], str]


class Desk:
    """What all rows of a task share: an encoder that remembers texts, and a counter that adds up words."""

    def __init__(self, task: StudyTask, encoder: StudyEncoder) -> None:
        self.task, self.encoder = task, encoder
        self.known: dict[str, np.ndarray] = {}
        count_word = cache(encoder.count)
        self.words = lambda text: sum(count_word(word) for word in text.split())
        self.split = make_splitter("sentencex", "en")

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of texts, which are read in windows; each different one once."""
        new = list(dict.fromkeys(text for text in texts if text not in self.known))
        if new:
            vectors = window_vectors(new, lambda some: self.encoder.embed(some, Meter()), self.encoder.count)
            self.known.update(zip(new, vectors, strict=True))
        return np.stack([self.known[text] for text in texts])

    def corpus(self, build: Callable[[Document], ChunkTree]) -> Corpus:
        """Trees with vectors of all nodes, tokens counted as the budgets do."""
        trees = [build(document) for document in self.task.documents]
        return embed_corpus(tree_corpus(self.task.documents, trees, self.words), self.embed)

    def level_fill(self, corpus: Corpus, levels: LevelRange, parents: Parents) -> Fill:
        """Contexts of the best nodes of a range."""
        index = LevelIndex(corpus, size_names(SIZES), parents, has_parents=parents.name != "best_child")

        def fill(vector: np.ndarray, num_tokens: int) -> str:
            ranked = index.rank("", vector, levels, num_tokens)  # a node has at least one token
            context = fill_context(corpus, ranked, Budget(num_tokens, self.words, max_notes=0, cut_last=True))
            return "\n".join(passage.text for passage in context.passages)

        return fill

    def text_fill(self, texts: Sequence[str], vectors: np.ndarray) -> Fill:
        """Contexts of the best texts, in the order of their ranks."""

        def fill(vector: np.ndarray, num_tokens: int) -> str:
            words: list[str] = []
            for place in np.argsort(-(vectors @ vector), kind="stable").tolist():
                for word in texts[place].split():
                    num_tokens -= self.words(word)
                    if num_tokens < 0:
                        return " ".join(words)
                    words.append(word)
            return " ".join(words)

        return fill


def rows_of(desk: Desk) -> Iterator[tuple[str, Fill, int]]:
    """(name, contexts, vectors that are searched) of every row."""
    names, whole = size_names(SIZES), full_range(size_names(SIZES))
    direct, best = Parents("windows"), Parents("best_child")
    config = ChunkConfig("levels", levels=LevelsConfig(sizes=SIZES))
    packed = desk.corpus(make_tree_builder(config, desk.encoder.count, desk.split))
    clustered = desk.corpus(make_cluster_trees(SIZES, desk.encoder.count, desk.embed, desk.split))
    for kind, corpus in (("packed", packed), ("clusters", clustered)):
        index = LevelIndex(corpus, names, direct, has_parents=True)
        for level, name in enumerate(names[1:], start=1):
            levels = LevelRange(level, level)
            yield f"{kind} {name}", desk.level_fill(corpus, levels, direct), index.num_vectors(levels)
        yield f"{kind}, all levels", desk.level_fill(corpus, whole, direct), index.num_vectors(whole)
    for level, name in enumerate(names[1:-1], start=1):
        yield f"best {name}", desk.level_fill(packed, LevelRange(level, level), best), len(packed.leaves)
    for level in (len(SIZES), len(SIZES) - 1):
        corpus, levels = late_corpus(desk, packed), LevelRange(level, level)
        index = LevelIndex(corpus, names, direct, has_parents=True)
        yield f"late {names[level]}", desk.level_fill(corpus, levels, direct), index.num_vectors(levels)
    texts, vectors = raptor_nodes(desk, packed)
    yield "raptor over 128", desk.text_fill(texts, vectors), len(texts)


def late_corpus(desk: Desk, corpus: Corpus) -> Corpus:
    """The same nodes with vectors that are pooled from those of their document's tokens."""
    parts = []
    for document in corpus.documents:
        spans = [corpus.nodes[node].spans for node in corpus.nodes_of(document.id)]
        parts.append(late_vectors(document.text, spans, desk.encoder.tokens, desk.encoder.count))
    return replace(corpus, vectors=np.concatenate(parts))


def raptor_nodes(desk: Desk, corpus: Corpus) -> tuple[list[str], np.ndarray]:
    """Texts and vectors of all layers of all documents."""
    index = LevelIndex(corpus, size_names(SIZES), Parents("windows"), has_parents=True)
    level = size_names(SIZES).index("128")
    nodes = index.nodes(LevelRange(level, level))
    texts, vectors = [], []
    for number in range(len(corpus.documents)):
        own = nodes[corpus.numbers_of(nodes) == number].tolist()
        leaves = [corpus.texts[node] for node in own]
        sum_up = raptor.extractive(desk.embed, desk.words)
        found = raptor.build(leaves, unit_rows(desk.embed(leaves)), desk.embed, sum_up, SEED)
        texts += found.texts
        vectors.append(found.vectors)
    return texts, np.concatenate(vectors)


def measure(task: StudyTask, encoder: StudyEncoder) -> list[dict]:
    """ERec of every row at every budget."""
    desk = Desk(task, encoder)
    asked = unit_rows(encoder.embed([question.text for question in task.questions], Meter()))
    pieces = [question_pieces(task, question) for question in task.questions]
    scores: dict[str, dict[int, np.ndarray]] = {}
    sizes: dict[str, int] = {}
    for name, fill, num_vectors in rows_of(desk):
        start = time.perf_counter()
        scores[name] = {
            budget: np.array(
                [evidence_recall(own, fill(vector, budget)) for own, vector in zip(pieces, asked, strict=True)]
            )
            for budget in BUDGETS
        }
        sizes[name] = num_vectors
        print(f"{task.name}: {name}: {time.perf_counter() - start:.0f} s", flush=True)
    return [
        {"task": task.name, "row": name, "budget": budget, "num_vectors": sizes[name], "questions": len(pieces)}
        | {f"erec_{key}": value for key, value in zip(("mean", "low", "high"), summary, strict=True)}
        | {f"difference_{key}": value for key, value in zip(("mean", "low", "high"), against, strict=True)}
        for name, own in scores.items()
        for budget in BUDGETS
        for summary, against in [compared(own[budget], scores[REFERENCE][budget])]
    ]


def compared(own: np.ndarray, reference: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and interval, and those of the paired difference."""
    mean = mean_interval(own)
    against = paired_difference(own, reference)
    return (mean.mean, mean.low, mean.high), (against.mean, against.low, against.high)


def format_report(result: dict, command: str) -> str:
    """A table a task."""
    told = f"`{command}`, seed {SEED}, {result['seconds']:,.0f} s."
    lines = ["# Levels beside other ways to hold a document at many sizes", "", told, "", *about_lines(result["about"])]
    lines += [f"ERec; in brackets the difference to {REFERENCE} and its 95% interval.", ""]
    for name, told in result["tasks"].items():
        lines += [f"## {name}: {told}", "", "| row | vectors | " + " | ".join(f"{b:,} tokens" for b in BUDGETS) + " |"]
        lines += ["| --- | ---: |" + " --- |" * len(BUDGETS)]
        for row in dict.fromkeys(cell["row"] for cell in result["rows"] if cell["task"] == name):
            own = [cell for cell in result["rows"] if (cell["task"], cell["row"]) == (name, row)]
            cells = [
                f"{one['erec_mean']:.3f} ({one['difference_mean']:+.3f} "
                f"[{one['difference_low']:+.3f}, {one['difference_high']:+.3f}])"
                for one in own
            ]
            lines.append(f"| {row} | {own[0]['num_vectors']:,} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("--tasks", default="squad,scisumm")
    parser.add_argument("--documents", type=int, help=f"of each set (default: {DOCUMENTS})")
    parser.add_argument("--questions", type=int, default=300, help="most of each set (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    start = time.perf_counter()
    encoder, split = load_study_encoder("minilm", None), make_splitter("sentencex", "en")
    result: dict = {"about": about("scikit-learn"), "tasks": {}, "rows": []}
    for kind in args.tasks.split(","):
        config = TaskConfig(kind, kind, num_documents=args.documents or DOCUMENTS[kind], num_questions=args.questions)
        task = load_task(kind, config, args.data, SEED, split)
        result["tasks"][kind] = f"{len(task.questions)} questions, {len(task.documents)} documents"
        result["rows"] += measure(task, encoder)
        result["seconds"] = time.perf_counter() - start
        command = " ".join(["python", "benchmarks/level_baselines.py", *sys.argv[1:]]).replace(args.data, "DATA")
        write(args.out, "level_baselines", result, format_report(result, command))


if __name__ == "__main__":
    main()
