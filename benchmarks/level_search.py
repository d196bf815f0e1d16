"""How long searching a range of levels takes, and making the vectors of parents that need no text.

    python benchmarks/level_search.py [--num_nodes 100000] [--rounds 9]      # two minutes

Nodes are drawn: documents of three sections of five subsections of five paragraphs of four sentences each, vectors of
384 components. Parents by `best_child` have no vectors; by `mean` they are made of all children, level by level. A
question is ranked for its 20 best nodes. Medians of interleaved rounds, CPU seconds: a busy machine spoils the others.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from embed import about, about_lines, write

from qrag_jax.chunking.chunker import ChunkConfig, make_tree_builder
from qrag_jax.chunking.tree.level_ranges import NAMES, parse_levels
from qrag_jax.chunking.tree.parent_vectors import Parents, fill_levels_above, mean_of_children
from qrag_jax.search.corpus import Corpus, embed_corpus, tree_corpus
from qrag_jax.search.levels.level_search import LevelIndex
from qrag_jax.types import Document

RESULTS = Path(__file__).parent / "results"
DIM, TOP_K, SEED = 384, 20, 0
SECTIONS, SUBSECTIONS, PARAGRAPHS, SENTENCES = 3, 5, 5, 4
WAYS = {"best_child": Parents("best_child"), "mean": Parents("mean", of_children=mean_of_children)}
RANGES = ("section", "paragraph", "sentence", "section:sentence", "document:sentence")


def drawn_corpus(num_nodes: int) -> Corpus:
    """At least so many nodes."""
    sentences = " ".join(["Some words of one sentence stand here."] * SENTENCES)
    parts = [
        f"{'#' * level} Part\n\n" + "\n\n".join([sentences] * PARAGRAPHS)
        for _ in range(SECTIONS)
        for level in (1, *[2] * (SUBSECTIONS - 1))
    ]
    build = make_tree_builder(ChunkConfig("levels"), lambda text: len(text.split()))
    text = "\n\n".join(parts)
    size = len(build(Document("one", text)))
    documents = [Document(str(number), text) for number in range(-(-num_nodes // size))]
    corpus = tree_corpus(documents, [build(document) for document in documents], lambda text: len(text.split()))
    rng = np.random.default_rng(SEED)
    return embed_corpus(corpus, lambda texts: rng.standard_normal((len(texts), DIM), np.float32))


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of this process, all threads together."""
    start = time.process_time()
    work()
    return time.process_time() - start


def thousand_parents(corpus: Corpus) -> tuple[Callable[[], None], int]:
    """What makes the means of all paragraphs, at least 1,000 of them, and how many these are."""
    parent, level = joined(corpus)
    wanted = level == NAMES.index("paragraph")
    wanted[corpus.leaves] = False
    vectors = np.array(corpus.vectors)

    def work() -> None:
        fill_levels_above(parent, level, vectors, corpus.num_tokens, mean_of_children, wanted)

    return work, int(wanted.sum())


def joined(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Parent and level of every node."""
    starts = [corpus.nodes_of(document.id).start for document in corpus.documents]
    parent = [np.where(t.parent < 0, -1, t.parent + start) for t, start in zip(corpus.trees, starts, strict=True)]
    return np.concatenate(parent), np.concatenate([tree.level for tree in corpus.trees])


def measure(corpus: Corpus, rounds: int) -> dict:
    """Milliseconds and bytes of every way and range."""
    make, num_parents = thousand_parents(corpus)
    making = [1e6 * cpu_seconds(make) / num_parents for _ in range(rounds)]
    rng = np.random.default_rng(SEED + 1)
    indices = {name: LevelIndex(corpus, NAMES, way) for name, way in WAYS.items()}
    cells = [(way, text, parse_levels(text, NAMES)) for way in WAYS for text in RANGES]
    times: dict[tuple[str, str], list[float]] = {(way, text): [] for way, text, _ in cells}
    first: dict[tuple[str, str], float] = {}
    for number in range(rounds + 1):
        question = rng.standard_normal(DIM).astype(np.float32)
        for way, text, levels in cells:
            taken = 1e3 * cpu_seconds(lambda w=way, r=levels, q=question: indices[w].rank("", q, r, TOP_K))
            if number:
                times[way, text].append(taken)
            else:
                first[way, text] = taken
    rows = [
        {
            "way": way,
            "levels": text,
            "num_nodes": len(indices[way].nodes(levels)),
            "num_vectors": indices[way].num_vectors(levels),
            "bytes": indices[way].num_vectors(levels) * DIM * 4,
            "ms": statistics.median(times[way, text]),
            "min": min(times[way, text]),
            "max": max(times[way, text]),
            "first_ms": first[way, text],
        }
        for way, text, levels in cells
    ]
    return {
        "num_nodes": len(corpus),
        "num_leaves": len(corpus.leaves),
        "num_parents": num_parents,
        "mean_ms_per_1000": statistics.median(making),
        "rows": rows,
    }


def format_report(result: dict, command: str, rounds: int) -> str:
    """The tables."""
    lines = ["# Searching a range of levels", "", f"`{command}`, seed {SEED}, medians of {rounds} rounds.", ""]
    lines += [*about_lines(result["about"])]
    lines += [
        f"{result['num_nodes']:,} nodes, of which {result['num_leaves']:,} are leaves, {DIM} components, the "
        f"{TOP_K} best. Milliseconds of CPU time.",
        "",
        f"Vectors of 1,000 parents: `best_child` none; `mean` {result['mean_ms_per_1000']:.2f} ms "
        f"({result['num_parents']:,} paragraphs of {SENTENCES} sentences at once).",
        "",
        "| parents | levels | candidates | vectors compared | MB | a question, ms (range) | the first one, ms |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['way']} | {row['levels']} | {row['num_nodes']:,} | {row['num_vectors']:,} | {row['bytes'] / 1e6:,.1f} "
        f"| {row['ms']:.0f} ({row['min']:.0f} to {row['max']:.0f}) | {row['first_ms']:.0f} |"
        for row in result["rows"]
    ]
    lines += ["", "The first question at a range also finds its candidates and makes the vectors that are missing."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_nodes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS / "speed")
    args = parser.parse_args()
    result = {"about": about()} | measure(drawn_corpus(args.num_nodes), args.rounds)
    command = " ".join(["python", "benchmarks/level_search.py", *sys.argv[1:]])
    write(args.out, "level_search", result, format_report(result, command, args.rounds))


if __name__ == "__main__":
    main()
