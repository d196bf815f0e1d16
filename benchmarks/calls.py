"""What safe keeping costs: journalled calls to a server, a checkpoint, the cells of a study, a corpus.

    python benchmarks/calls.py [--rounds 5] [--only calls checkpoint study corpus] [--json]        # prints a table

Wall and CPU seconds, medians of rounds; a round begins with empty folders. The server is a process of its own on this
machine that answers at once: its CPU seconds are not counted, and what is counted is ours and the client's. `--json`
prints every round, for a comparison of two checkouts that is run in turns.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

NUM_CALLS = 1_000
TREE_BYTES = 100_000_000
MODEL = "tiny"
ANSWER = {
    "id": "chatcmpl-1",
    "model": MODEL,
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes " * 50}}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 50},
}
Work = tuple[str, Callable[[], object]]


def serve() -> None:
    """Answers every request by the same words, on a port that it prints."""
    body = json.dumps(ANSWER).encode()
    whole = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = re.search(rb"content-length: *(\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(whole)
                if b"connection: close" in head:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def running_server() -> Iterator[str]:
    """Its address."""
    with subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.terminate()


def calls(folder: Path, url: str) -> Iterator[Work]:
    """A thousand calls through a new journal, and once more out of it."""
    from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
    from qrag_jax.llm.server.openai import OpenAIGenerator
    from qrag_jax.types import Message, Sampling

    prompts = [[Message("system", "Be brief."), Message("user", f"Question {n}? " * 20)] for n in range(NUM_CALLS)]

    def ask(path: Path, concurrency: int) -> None:
        generator = OpenAIGenerator(MODEL, url, key_name="BENCHMARK_KEY", concurrency=concurrency)
        answers = JournaledGenerator(generator, Journal(path)).generate(prompts, sampling=Sampling())
        assert all(answer.error is None for answer in answers)

    for concurrency in (1, 8):
        path = folder / f"{concurrency}.sqlite"
        yield f"{NUM_CALLS:,} calls, {concurrency} at once", lambda p=path, c=concurrency: ask(p, c)
    yield f"{NUM_CALLS:,} answers of the journal", lambda: ask(path, 8)


def checkpoint(folder: Path, url: str) -> Iterator[Work]:
    """Save and load of a tree of fifty arrays."""
    from qrag_jax.checkpoint import load_checkpoint, save_checkpoint

    rng, size = np.random.default_rng(0), TREE_BYTES // 4 // 50
    tree = {"params": {f"layer_{number}": rng.random(size, np.float32) for number in range(50)}}
    yield f"save {TREE_BYTES / 1e6:.0f} MB", lambda: save_checkpoint(folder / "run", 1, tree, {"seed": 0})
    yield f"load {TREE_BYTES / 1e6:.0f} MB", lambda: load_checkpoint(folder / "run")


def study(folder: Path, url: str) -> Iterator[Work]:
    """Cells of a study: a hundred, of fifty questions with ten hits each."""
    from qrag_jax.eval.study.cells.cell_files import CellStore
    from qrag_jax.eval.study.records import CellResult, FoundChunk, FoundChunks
    from qrag_jax.types import Cost

    hits = tuple(FoundChunk(f"chunk {n}", "document", ((n, n + 100),), 20, 1 / (n + 1)) for n in range(10))
    found = tuple(FoundChunks(f"question {n}", hits) for n in range(50))
    store, origin = CellStore(folder / "study"), {"encoder": "none", "seed": 0}

    def write() -> None:
        for number in range(100):
            store.write(CellResult("task", "fixed", number, "dev", 10, 100, 20.0, 40, 0.0, Cost(), found), origin)

    def read() -> None:
        assert all(store.read("task", "fixed", number, "dev", origin) for number in range(100))

    yield "write 100 cells", write
    yield "read 100 cells", read


def corpus(folder: Path, url: str) -> Iterator[Work]:
    """A corpus of 1,000 documents in 10,000 chunks, with vectors of 384 numbers."""
    from qrag_jax.index.corpus_folder import load_corpus, save_corpus
    from qrag_jax.search.corpus import Corpus, MadeBy
    from qrag_jax.types import Chunk, Document

    documents = tuple(Document(f"{number:04}", "A sentence of some words. " * 100) for number in range(1_000))
    nodes = tuple(
        Chunk(f"{document.id}-{n}", document.id, ((n * 260, n * 260 + 259),), 0, 60)
        for document in documents
        for n in range(10)
    )
    vectors = np.random.default_rng(0).random((len(nodes), 384), np.float32)
    whole = Corpus(documents, nodes, vectors, MadeBy(None, "none", "none"))
    yield "save 10,000 chunks", lambda: save_corpus(whole, folder / "corpus")
    yield "load 10,000 chunks", lambda: load_corpus(folder / "corpus")


PARTS = {"calls": calls, "checkpoint": checkpoint, "study": study, "corpus": corpus}


def one_round(parts: list[str], url: str) -> list[dict]:
    """What each piece of work took, in order."""
    rows = []
    for part in parts:
        with tempfile.TemporaryDirectory() as folder:
            for name, work in PARTS[part](Path(folder), url):
                wall, cpu = time.perf_counter(), time.process_time()
                work()
                times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
                rows.append({"part": part, "what": name} | times)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--json", action="store_true", help="every round as JSON lines")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    with running_server() as url:
        one_round(args.only, url)  # imports, caches
        rounds = [one_round(args.only, url) for _ in range(args.rounds)]
    if args.json:
        print("\n".join(json.dumps(row) for rows in rounds for row in rows))
        return
    print("| what | wall, s | CPU, s |\n| --- | ---: | ---: |")
    for rows in zip(*rounds, strict=True):
        wall, cpu = (statistics.median(row[clock] for row in rows) for clock in ("wall", "cpu"))
        print(f"| {rows[0]['what']} | {wall:.2f} | {cpu:.2f} |")


if __name__ == "__main__":
    main()
