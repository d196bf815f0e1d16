"""Searches of a large index, beside other libraries on the same vectors and texts, one after the other.

    python -m benchmarks.search.grow real.index grown.index --copies 8
    python -m benchmarks.search.large grown.index [--rivals .venv-rivals/bin/python] [--num_questions 100]

Rows: `qrag find` in a new process; searches in a process that stays, with float32, float16, int8 and signs; words
alone; FTS5 of SQLite; and of others, each in a process of its own in the environment of `--rivals`
(benchmarks/rivals.txt): faiss (flat, as the bound that memory sets, and HNSW), usearch, LanceDB, txtai, Milvus Lite,
bm25s. Questions are the first words of chunks.
"""

import argparse
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, machine
from qrag_jax.chunking.text.words import asked_words, bm25_tokens
from qrag_jax.index.index import open_index
from qrag_jax.index.methods import load_embedder
from qrag_jax.index.options import SearchOptions
from qrag_jax.index.settings import read_settings
from qrag_jax.index.stored_corpus import open_corpus
from qrag_jax.search.corpus import Corpus, embed_texts
from qrag_jax.search.dense import search_vectors
from qrag_jax.search.rows import CodeKind, RowPart, Rows, code
from qrag_jax.unit_rows import unit_rows

_TOP_K = 10
_NUM_WORDS = 9
_TOGETHER = 32
_RIVALS = ("faiss flat", "faiss HNSW", "usearch", "lancedb", "txtai", "milvus", "bm25s")


def times_of(search: Callable[[int], Any], number: int) -> tuple[list[Any], dict[str, float]]:
    """The results of searches, and the p50 and p95 of their wall time in ms."""
    found, spent = [], []
    search(0)
    for one in range(number):
        start = time.perf_counter()
        found.append(search(one))
        spent.append(1000 * (time.perf_counter() - start))
    return found, {"p50": statistics.median(spent), "p95": float(np.quantile(spent, 0.95))}


def memory() -> dict[str, float]:
    """MB of this process: its own, and of mapped files."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {name: int(lines[field].split()[0]) / 1000 for name, field in (("own", "RssAnon"), ("mapped", "RssFile"))}


def recall(found: list[Any], exact: list[Any]) -> float:
    return float(np.mean([len({*one} & {*other}) / len(other) for one, other in zip(found, exact, strict=True)]))


# --- ours ------------------------------------------------------------------------------------------------------------


def ours(index: str, questions: list[str], asked: np.ndarray) -> Iterator[tuple[str, dict[str, float], list[Any]]]:
    """Rows of one index in this process: given vectors, words, then whole questions, alone and 32 together."""
    with open_index(index) as opened:
        start = time.perf_counter()
        opened.search(questions[0], _TOP_K)
        print(f"first search: {time.perf_counter() - start:.2f} s", file=sys.stderr)
        corpus = opened.corpus
        vectors, words = corpus.unit_vectors, corpus.words
        found, spent = times_of(
            lambda one: search_vectors(asked[one : one + 1], vectors, _TOP_K)[0][0].tolist(), len(questions)
        )
        yield "vectors, exact", spent, found
        # Nobody keeps the shares of all texts: a question's memory is used again for the next one.
        _, spent = times_of(lambda one: float(words.shares(questions[one]).max()), len(questions))
        yield "words", spent, []
        ways = ["signs", "exact"] if corpus.finds_near else ["exact"]
        if corpus.finds_near:
            found, spent = times_of(lambda one: corpus.find_near(asked[one], _TOP_K)[0].tolist(), len(questions))
            yield "vectors, signs", spent, found
        for way in ways:
            if way == "exact":
                vars(corpus)["_near"] = {}  # for the rest of this process
            for retriever in ("dense", "hybrid", "bm25"):
                options = SearchOptions(_TOP_K, retriever=retriever)
                _, spent = times_of(lambda one, options=options: opened.find(questions[one], options), len(questions))
                yield f"{retriever}, whole question to hits, {way}", spent, []
        print(f"memory, one question after the other: {memory()}", file=sys.stderr)
        last = len(questions) - _TOGETHER
        blocks = [questions[start : start + _TOGETHER] for start in range(0, last + 1, _TOGETHER)]
        for retriever in ("dense", "hybrid"):
            options = SearchOptions(_TOP_K, retriever=retriever)
            _, spent = times_of(lambda one, options=options: list(opened.find_all(blocks[one], options)), len(blocks))
            each = {name: value / _TOGETHER for name, value in spent.items()}
            yield f"{retriever}, {_TOGETHER} questions together, a question", each, []
        print(f"memory, questions together: {memory()}", file=sys.stderr)


def new_process(index: str, question: str) -> dict[str, float]:
    """Wall and CPU seconds of `qrag find` in a new process; the median of three."""
    rows = []
    for _ in range(3):
        start, before = time.perf_counter(), os.times()
        subprocess.run(
            [Path(sys.executable).with_name("qrag"), "find", index, question], check=True, capture_output=True
        )
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        rows.append((time.perf_counter() - start, spent))
    wall, cpu = map(statistics.median, zip(*rows, strict=True))
    return {"wall": wall, "cpu": cpu}


def full_text(texts: list[str], questions: list[str]) -> dict[str, float]:
    """The same words in FTS5: bm25 of its own, of texts that are cut into our tokens."""
    safe = lambda word: word.encode().hex()  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder, "words.sqlite"))
        connection.execute("CREATE VIRTUAL TABLE t USING fts5 (words, content='', tokenize='ascii')")
        rows = ((" ".join(map(safe, bm25_tokens(text))),) for text in texts)
        connection.executemany("INSERT INTO t (words) VALUES (?)", rows)
        connection.commit()
        connection.execute("INSERT INTO t (t) VALUES ('optimize')")
        asked = [" OR ".join(map(safe, asked_words(one, set(bm25_tokens(one))))) for one in questions]
        query = "SELECT rowid, bm25(t) FROM t WHERE t MATCH ? ORDER BY bm25(t) LIMIT 10"
        _, spent = times_of(lambda one: connection.execute(query, (asked[one],)).fetchall(), len(questions))
        connection.close()
    return spent


# --- others ----------------------------------------------------------------------------------------------------------


def rival(name: str, folder: Path) -> None:
    """A rival in this process, on the vectors and texts of a folder; prints a row as JSON."""
    vectors, asked = (
        np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False),
        np.load(folder / "asked.npy", allow_pickle=False),
    )
    questions = json.loads((folder / "questions.json").read_text())
    start = time.perf_counter()
    search = MAKERS[name](vectors, asked, questions, folder)
    built = time.perf_counter() - start
    found, spent = times_of(search, len(questions))
    print(json.dumps({"name": name, "built": built, **spent, "found": found, **memory()}))


def faiss_flat(vectors: np.ndarray, asked: np.ndarray, questions: list[str], folder: Path) -> Callable[[int], Any]:
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return lambda one: index.search(asked[one : one + 1], _TOP_K)[1][0].tolist()


def faiss_hnsw(vectors: np.ndarray, asked: np.ndarray, questions: list[str], folder: Path) -> Callable[[int], Any]:
    import faiss

    index = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efSearch = 128
    index.add(vectors)
    return lambda one: index.search(asked[one : one + 1], _TOP_K)[1][0].tolist()


def usearch(vectors: np.ndarray, asked: np.ndarray, questions: list[str], folder: Path) -> Callable[[int], Any]:
    from usearch.index import Index

    index = Index(ndim=vectors.shape[1], metric="ip", dtype="i8", connectivity=32, expansion_search=256)
    index.add(np.arange(len(vectors)), vectors, threads=os.cpu_count() or 1)
    return lambda one: index.search(asked[one], _TOP_K).keys.tolist()


def lancedb(vectors: np.ndarray, asked: np.ndarray, questions: list[str], folder: Path) -> Callable[[int], Any]:
    import lancedb as lance
    import pyarrow as pa

    def batches() -> Iterator[Any]:
        for start in range(0, len(vectors), 50_000):
            some = np.ascontiguousarray(vectors[start : start + 50_000])
            column = pa.FixedSizeListArray.from_arrays(pa.array(some.reshape(-1)), vectors.shape[1])
            yield pa.RecordBatch.from_arrays([pa.array(np.arange(start, start + len(some))), column], ["id", "vector"])

    schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), vectors.shape[1]))])
    table = lance.connect(str(folder / "lance")).create_table("t", batches(), schema=schema)
    return lambda one: [
        row["id"] for row in table.search(asked[one]).distance_type("dot").limit(_TOP_K).select(["id"]).to_list()
    ]


def txtai(vectors: np.ndarray, asked: np.ndarray, questions: list[str], folder: Path) -> Callable[[int], Any]:
    from txtai.ann import ANNFactory

    index = ANNFactory.create(
        {"backend": "faiss", "dimensions": vectors.shape[1], "faiss": {"components": "IDMap,Flat"}}
    )
    index.index(np.ascontiguousarray(vectors))
    return lambda one: [key for key, _ in index.search(asked[one : one + 1], _TOP_K)[0]]


def milvus(vectors: np.ndarray, asked: np.ndarray, questions: list[str], folder: Path) -> Callable[[int], Any]:
    from pymilvus import MilvusClient

    client = MilvusClient(str(folder / "milvus.db"))
    client.create_collection("t", vectors.shape[1], metric_type="IP", consistency_level="Strong")
    for start in range(0, len(vectors), 10_000):
        rows = [{"id": start + at, "vector": row} for at, row in enumerate(vectors[start : start + 10_000])]
        client.insert("t", rows)
    return lambda one: [hit["id"] for hit in client.search("t", [asked[one].tolist()], limit=_TOP_K)[0]]


def bm25s(vectors: np.ndarray, asked: np.ndarray, questions: list[str], folder: Path) -> Callable[[int], Any]:
    import bm25s as library

    texts = json.loads((folder / "texts.json").read_text())
    index = library.BM25()
    index.index(library.tokenize(texts, show_progress=False), show_progress=False)
    words = library.tokenize(questions, return_ids=False, show_progress=False)
    return lambda one: index.retrieve([words[one]], k=_TOP_K, show_progress=False)[0][0].tolist()


MAKERS: dict[str, Callable[..., Callable[[int], Any]]] = dict(
    zip(_RIVALS, (faiss_flat, faiss_hnsw, usearch, lancedb, txtai, milvus, bm25s), strict=True)
)


# --- the page --------------------------------------------------------------------------------------------------------


def asked_of(index: str, number: int) -> tuple[list[str], np.ndarray, Corpus]:
    """Questions, their vectors and the documents of an index."""
    settings = read_settings(index)
    corpus = open_corpus(Path(index), settings, None)
    nodes = random.Random(0).sample(range(len(corpus.nodes)), number)
    questions = [" ".join(corpus.texts[node].split()[:_NUM_WORDS]) for node in nodes]
    return questions, unit_rows(embed_texts(load_embedder(settings.model, settings.reads), questions)), corpus


def show(name: str, spent: Mapping[str, Any], note: str = "") -> None:
    """A row of the table."""
    print(f"| {name} | {spent['p50']:.1f} | {spent['p95']:.1f} | {note} |", flush=True)


def others(python: Path, names: Sequence[str], folder: Path, exact: list[Any]) -> None:
    """The rows of rivals, each in a process of its own."""
    for name in names:
        command = [python, "-m", "benchmarks.search.large", "-", "--rival", name, folder]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode:
            print(f"| {name} | failed: {said.stderr.strip().splitlines()[-1][:100]} | | |", flush=True)
            continue
        row = json.loads(said.stdout.splitlines()[-1])
        note = f"ready after {row['built']:.0f} s; {row['own']:,.0f} MB of its own, {row['mapped']:,.0f} MB mapped"
        if name != "bm25s":
            note += f"; recall@10 {recall(row['found'], exact):.3f}"
        show(name, row, note)


def main() -> None:
    """See the module."""
    parser = arguments(__doc__)
    parser.add_argument("index")
    parser.add_argument("--rivals", type=Path, help="python of the environment of rivals")
    parser.add_argument("--names", default=",".join(_RIVALS), help="rivals, comma-separated")
    parser.add_argument("--num_questions", type=int, default=100)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()), help="a folder with room for copies")
    parser.add_argument("--rival", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rival:
        rival(args.rival[0], Path(args.rival[1]))
        return
    questions, asked, corpus = asked_of(args.index, args.num_questions)
    print(f"{json.dumps(machine())}\n\n{len(corpus.leaves):,} chunks of {len(corpus.documents):,} documents\n")
    cold = new_process(args.index, questions[0])
    print(f"`qrag find` in a new process: {cold['wall']:.2f} s, {cold['cpu']:.2f} CPU s\n")
    print("| what | p50 ms | p95 ms | |\n|---|---|---|---|")
    exact: list[Any] = []
    for name, spent, found in ours(args.index, questions, asked):
        exact = exact or found
        show(name, spent, f"recall@10 {recall(found, exact):.3f}" if found else "")
    for kind in ("float16", "int8"):
        coded = with_codes(corpus, kind)
        found, spent = times_of(
            lambda one, rows=coded: search_vectors(asked[one : one + 1], rows, _TOP_K)[0][0].tolist(), len(questions)
        )
        show(f"vectors, {kind} first", spent, f"recall@10 {recall(found, exact):.3f}; codes off by {coded.error:.4f}")
    if args.rivals is not None:
        with tempfile.TemporaryDirectory(dir=args.work) as name:
            folder = Path(name)
            np.save(folder / "vectors.npy", corpus.unit_vectors[:])
            np.save(folder / "asked.npy", asked)
            texts = [text for document in corpus.documents for text in texts_of(corpus, document.id)]
            (folder / "texts.json").write_text(json.dumps(texts))
            (folder / "questions.json").write_text(json.dumps(questions))
            show("FTS5 of SQLite, with our words", full_text(texts, questions))
            others(args.rivals, args.names.split(","), folder, exact)


def texts_of(corpus: Corpus, document: str) -> list[str]:
    """The texts of the chunks of a document."""
    return [corpus.texts[node] for node in corpus.nodes_of(document)]


def with_codes(corpus: Corpus, kind: CodeKind) -> Rows:
    """The vectors of a corpus with codes beside them, in memory."""
    vectors = corpus.unit_vectors[:]
    return Rows([RowPart(vectors, np.arange(len(vectors)), codes=code(vectors, kind))], *vectors.shape)


if __name__ == "__main__":
    main()
