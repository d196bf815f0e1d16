"""What token vectors (`--late`) cost: bytes a chunk, what int8 loses, and milliseconds a question.

    python -m benchmarks.search.token_vectors FOLDER [--num_chunks 50000] [--num_questions 30]    # prints a page

Size and loss: MiniLM on the documents of this clone (docs/), asked with the titles of their sections. The same search
is scored with the int8 codes that an index stores and with the float32 vectors that they were rounded from.

Time: an index of drawn words and vectors in FOLDER, which needs 80 kB a chunk and is removed afterwards. Questions of
three words, one after the other in one process: `hybrid`, with token vectors that are stored, and with those computed.
"""

import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import ROOT, about, about_lines, arguments, grid, minilm
from benchmarks.search.index import CHUNKS_PER_DOCUMENT, drawn_index
from qrag_jax import open_index
from qrag_jax.chunking.text.spans import readable
from qrag_jax.documents.read import read_files
from qrag_jax.index.methods import DEFAULT_CHUNKING, single_step_method
from qrag_jax.index.options import SearchOptions
from qrag_jax.models.encoder.embedder import TextEmbedder
from qrag_jax.search.late import LATE_PASSAGES, LATE_WEIGHT, LateScorer, late_score

NUM_TOKENS = 200  # of a drawn chunk: as many as chunks may have by default
SEED = 0


def exact_score(question: np.ndarray, passage: np.ndarray) -> float:
    """`late_score` of vectors that were not rounded, of length 1."""
    return float((question @ passage.T).max(axis=1).mean()) if len(question) and len(passage) else 0.0


def size_and_loss(embed: TextEmbedder) -> list[str]:
    """Bytes a chunk, and the scores by int8 beside those by float32."""
    method = single_step_method("hybrid", embed, DEFAULT_CHUNKING)
    corpus = method.build(read_files([str(ROOT / "docs")]))
    texts = corpus.full_texts
    _, codes = embed.with_tokens([readable(text) for text in texts])
    titles = sorted(
        {line.lstrip("# ") for one in corpus.documents for line in one.text.splitlines() if line[:2] == "##"}
    )
    lost, same, num = [], 0, 0
    for title in titles:
        ranked = method.retrieve(title, corpus, LATE_PASSAGES)
        asked = embed.question_tokens(title)
        nodes = ranked.ids.tolist()
        rounded = np.array([late_score(asked, codes[node]) for node in nodes])
        exact = np.array([exact_score(asked, normalised(embed, texts[node])) for node in nodes])
        lost += np.abs(rounded - exact).tolist()
        scores = [ranked.scores + LATE_WEIGHT * found for found in (rounded, exact)]
        same += int(np.argmax(scores[0]) == np.argmax(scores[1]))
        num += 1
    sizes = [one.nbytes for one in codes]
    rows = [
        ["chunks, questions", f"{len(texts):,}, {num}"],
        ["kB a chunk: mean, largest", f"{statistics.mean(sizes) / 1e3:.1f}, {max(sizes) / 1e3:.1f}"],
        ["loss of a score by int8: mean, largest", f"{statistics.mean(lost):.1e}, {max(lost):.1e}"],
        ["the same passage first", f"{same} of {num}"],
    ]
    return grid(["docs/ of this clone", ""], rows)


_VECTORS: dict[str, np.ndarray] = {}


def normalised(embed: TextEmbedder, text: str) -> np.ndarray:
    """Vectors of length 1 of the tokens that a passage's codes are of."""
    if text not in _VECTORS:
        _VECTORS[text] = embed.question_tokens(readable(text))  # MiniLM has no prompts, so it is read as a document
    return _VECTORS[text]


def times(folder: Path, num_chunks: int, questions: Sequence[str]) -> list[str]:
    """Milliseconds a question, the first of which are not counted."""
    index_folder = folder / "drawn.index"
    drawn_index(index_folder, num_chunks // CHUNKS_PER_DOCUMENT, NUM_TOKENS)
    rows = []
    try:
        with open_index(index_folder) as index:
            for name, late in (("hybrid", False), ("hybrid with stored token vectors", True)):
                rows.append([name, *asked(lambda q, late=late: index.find(q, SearchOptions(5, late=late)), questions)])
            told = index.find(questions[0], SearchOptions(5, late=True))
            assert told.late is not None and told.late.num_tokens < 50  # only the question was read
            scorer = LateScorer(minilm())
            best = index.find(questions[0], SearchOptions(LATE_PASSAGES)).hits
            texts = [hit.text for hit in best]
            computed = asked(lambda question: scorer(question, texts), questions[:6])
            rows.append([f"token vectors of {LATE_PASSAGES} passages, computed", *computed])
        size = (index_folder / "catalogue.sqlite").stat().st_size
    finally:
        shutil.rmtree(index_folder)
    head = f"{num_chunks:,} chunks of {NUM_TOKENS} tokens, {size / 1e6:,.0f} MB"
    return grid([head, "ms, median", "ms, 90%", "CPU ms, median"], rows)


def asked(ask: Callable[[str], object], questions: Sequence[str]) -> list[str]:
    """Median and 90% of wall, median of CPU, in ms; two questions warm up."""
    wall, cpu = [], []
    for question in questions:
        start, before = time.perf_counter(), time.process_time()
        ask(question)
        wall.append(1e3 * (time.perf_counter() - start))
        cpu.append(1e3 * (time.process_time() - before))
    wall, cpu = wall[2:], cpu[2:]
    return [f"{statistics.median(wall):.1f}", f"{np.quantile(wall, 0.9):.1f}", f"{statistics.median(cpu):.1f}"]


def main() -> None:
    """Prints the page."""
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num_chunks", type=int, default=50_000)
    parser.add_argument("--num_questions", type=int, default=30)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(SEED)
    questions = [" ".join(f"word{number}" for number in rng.integers(0, 5000, 3)) for _ in range(args.num_questions)]
    print("\n".join(about_lines(about())), flush=True)
    print("\n".join(size_and_loss(minilm())), "\n", flush=True)
    print("\n".join(times(args.folder, args.num_chunks, questions)))


if __name__ == "__main__":
    main()
