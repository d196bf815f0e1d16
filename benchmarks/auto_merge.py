"""Seconds of Auto-Merge from 1,000 to 100,000 leaves, beside LlamaIndex's AutoMergingRetriever.

    python benchmarks/auto_merge.py [--rival PYTHON]      # two minutes; PYTHON has llama-index-core (rivals.txt)

Documents of 100 leaves in sections of 10, those in 2 chapters of 5; leaves of 50 words in random order, of which the
budget holds half, so work grows with leaves. CPU seconds, best of 3 rounds, corpora made before; a round has as many
corpora as have 100,000 leaves together, so that a small one is no more in the processor's caches than a large one.
Goal: 100,000 leaves take at most 130 times as long as 1,000.

LlamaIndex gets the same nodes in its docstore and the same half of the leaves, best first, from a retriever that looks
nothing up; its default threshold is half of the children. It has no budget, so what it merges is not the same.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from embed import about, about_lines, write

from qrag_jax.chunking.tree.tree import ChunkTree
from qrag_jax.search.context.auto_merge import merge_context
from qrag_jax.search.context.pack import Budget
from qrag_jax.search.corpus import Corpus, tree_corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.types import Document

RESULTS = Path(__file__).parent / "results" / "speed"
SIZES = (1_000, 10_000, 100_000)
LEAVES, SECTION, CHAPTER = 100, 10, 5  # leaves of a document and of a section, sections of a chapter
WORDS = 50
MOST_RATIO = 130
ROUNDS = 3


def make_corpus(num_leaves: int) -> Corpus:
    """Documents whose trees have chapters, sections and leaves."""
    leaf = " ".join(f"w{i}" for i in range(WORDS))
    text = "\n".join([leaf] * LEAVES)
    step = len(leaf) + 1
    rows: list[tuple[int, int, int, int]] = [(0, len(text), 0, -1)]
    for place in range(LEAVES):
        for size, level in ((SECTION * CHAPTER, 1), (SECTION, 2), (1, 3)):
            if place % size == 0:
                parent = max(number for number, row in enumerate(rows) if row[2] == level - 1)
                rows.append((place * step, (place + size) * step - 1, level, parent))
    start, end, level, parent = np.array(rows, np.int64).T
    leaves = np.flatnonzero(level == 3)
    documents = [Document(f"{number}.txt", text) for number in range(num_leaves // LEAVES)]
    trees = [ChunkTree(document.id, start, end, level, parent, leaves) for document in documents]
    return tree_corpus(documents, trees, lambda text: text.count(" ") + text.count("\n") + 1)


def ranking(corpus: Corpus) -> Ranked:
    order = np.random.default_rng(0).permutation(corpus.leaves)
    return Ranked(order, np.linspace(1, 0, len(order)))


def ours(num_leaves: int) -> dict:
    """Seconds and passages of our contexts."""
    corpora = [make_corpus(num_leaves) for _ in range(max(SIZES) // num_leaves)]
    ranked, budget = ranking(corpora[0]), Budget(num_leaves * WORDS // 2)
    seconds, contexts = [], []
    for _ in range(ROUNDS + 1):  # in the first one texts of nodes are joined
        start = time.process_time()
        contexts = [merge_context(corpus, ranked, budget) for corpus in corpora]
        seconds.append((time.process_time() - start) / len(corpora))
    context = contexts[0]
    return {"seconds": min(seconds[1:]), "passages": len(context.passages), "tokens": context.num_tokens}


def theirs(python: str, num_leaves: int) -> dict:
    """The same of LlamaIndex; why not, where it cannot be run."""
    corpus = make_corpus(num_leaves)
    parents = []
    for node in range(len(corpus)):
        tree, number = corpus.tree_of(node)
        above = int(tree.parent[number])
        parents.append(None if above < 0 else node - number + above)
    given = {"parents": parents, "leaves": ranking(corpus).ids[: num_leaves // 2].tolist()}
    script = str(Path(__file__).with_name("auto_merge_llamaindex.py"))
    run = subprocess.run([python, script], input=json.dumps(given), capture_output=True, text=True, timeout=1_800)
    return json.loads(run.stdout) if not run.returncode else {"seconds": None, "why": "not installed"}


def format_report(result: dict) -> str:
    lines = ["# Auto-Merge: seconds of a context", "", f"`{result['command']}`", "", *about_lines(result["about"])]
    lines += [f"100,000 leaves take {result['ratio']:.0f} times as long as 1,000 (goal: at most {MOST_RATIO}).", ""]
    lines += [
        "| leaves | ours, s | passages | LlamaIndex, s | nodes | its version |",
        "| ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in result["rows"]:
        rival = row["llama_index"]
        told = (
            [f"{rival['seconds']:.4f}", f"{rival['nodes']:,}", rival["version"]]
            if rival["seconds"]
            else ["", "", rival["why"]]
        )
        cells = [f"{row['leaves']:,}", f"{row['ours']['seconds']:.4f}", f"{row['ours']['passages']:,}", *told]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rival", default=sys.executable, metavar="PYTHON", help="that has llama-index-core")
    args = parser.parse_args()
    rows = []
    for size in SIZES:
        rows.append({"leaves": size, "ours": ours(size), "llama_index": theirs(args.rival, size)})
        print(json.dumps(rows[-1]), flush=True)
    ratio = rows[-1]["ours"]["seconds"] / rows[0]["ours"]["seconds"]
    command = "python benchmarks/auto_merge.py" + ("" if args.rival == sys.executable else " --rival PYTHON")
    result = {"command": command, "about": about(), "ratio": ratio, "rows": rows}
    write(RESULTS, "auto_merge", result, format_report(result))


if __name__ == "__main__":
    main()
