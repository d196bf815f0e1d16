"""What an index saves: reading vectors against embedding, equal picks, a build again, a sentence that is edited.

    python -m benchmarks.search.index [--num_chunks 50000] [--num_files 85] [--num_questions 200]      # prints tables
    python -m benchmarks.search.index --only growth --num_chunks 1000000      # one file more, with notes by names

Two corpora. A large one, whose texts and vectors are drawn: it is written and loaded as any other, and what embedding
it would take is measured on a sample of real texts and multiplied. And files of speeches (`qrag_jax`'s haystack),
indexed with MiniLM and asked as files and as an index. And `growth`: what one file more, another version of it and its
removal cost in an index of drawn pages that name each other, in this process with an encoder that only hashes, and by
the command, beside the same command on an index of one page. CPU seconds count: a busy machine spoils the others.
"""

import hashlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import numpy as np

from benchmarks.common import arguments, minilm
from qrag_jax.chunking.text.chunks import make_chunk
from qrag_jax.data.stories.haystack import load_haystack
from qrag_jax.documents.read import find_files, read_files
from qrag_jax.index import build_index, index_method, index_settings, load_index, read_settings, single_step_method
from qrag_jax.index.prepare import Maker, keys_of
from qrag_jax.index.remove import remove_documents
from qrag_jax.index.settings import write_settings
from qrag_jax.index.stores.sqlite.database import create, writing_to
from qrag_jax.index.stores.sqlite.document_rows import put
from qrag_jax.index.stores.sqlite.entries import Entry, Origin, text_key
from qrag_jax.index.stores.sqlite.text_rows import pack_keys
from qrag_jax.index.update import Plan, update_index
from qrag_jax.index.update_notes import KnownTexts, update_notes
from qrag_jax.types import Chunk, Document

CHUNKS_PER_DOCUMENT, WORDS_PER_CHUNK, DIM = 100, 150, 384
QUESTION = "word17 word230 word4000"
SAMPLE = 512  # real texts of so many words that are embedded
ROUNDS = 5
SEED = 0


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def median(times: list[tuple[float, float]]) -> tuple[float, float]:
    wall, cpu = zip(*times, strict=True)
    return statistics.median(wall), statistics.median(cpu)


def row(what: str, times: tuple[float, float], note: str = "") -> None:
    """A line of a table; arguments are evaluated in order, so a note may speak of what was timed."""
    print(f"| {what} | {times[0]:.2f} | {times[1]:.2f} | {note} |", flush=True)


def drawn_index(folder: Path, num_documents: int, num_tokens: int = 0) -> None:
    """An index of drawn words and vectors, a transaction a document; with vectors of so many tokens a chunk, if any."""
    rng = np.random.default_rng(SEED)
    words = np.array([f"word{number}" for number in range(5_000)])
    folder.mkdir()
    create(folder)
    settings = index_settings(notes="none", late=num_tokens > 0)
    with writing_to(folder) as connection:
        for number in range(num_documents):
            lines = [" ".join(rng.choice(words, WORDS_PER_CHUNK)) for _ in range(CHUNKS_PER_DOCUMENT)]
            document = Document(f"{number:06}.txt", "\n".join(lines), {"path": f"{number:06}.txt"})
            starts = np.cumsum([0, *(len(line) + 1 for line in lines)]).tolist()
            spans = [(start, start + len(line)) for start, line in zip(starts, lines, strict=False)]
            nodes = tuple(make_chunk(document, [span], 1, lambda text: WORDS_PER_CHUNK) for span in spans)
            vectors = rng.standard_normal((len(nodes), DIM), np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            tokens: dict[int, tuple[bytes, bytes]] = {}
            if num_tokens:
                codes = rng.integers(-127, 128, (len(nodes), num_tokens, DIM), np.int8)
                tokens = {node: (text_key(line), codes[node].tobytes()) for node, line in enumerate(lines)}
            origin = Origin("drawn", "drawn")
            entry = Entry(document, nodes, vectors, np.zeros(len(nodes), bool), origin, tokens=tokens)
            put(connection, folder, entry)
    write_settings(folder, settings)


def large(folder: Path, num_chunks: int) -> None:
    """Writing, loading and asking many chunks, against embedding them."""
    num_documents = num_chunks // CHUNKS_PER_DOCUMENT
    index = folder / "large"
    written = timed(lambda: drawn_index(index, num_documents))
    print("| drawn | wall, s | CPU, s | |\n| --- | ---: | ---: | --- |")
    row(f"draw and write {num_chunks:,} chunks, {num_documents:,} transactions", written)
    loads = median([timed(lambda: load_index(index)) for _ in range(ROUNDS)])
    size = sum(file.stat().st_size for file in index.iterdir()) / 1e6
    row(f"load_index, {num_chunks:,} chunks", loads, f"{size:,.0f} MB, every row checked")
    sentences = " ".join(load_haystack("sotu").sentences[: SAMPLE * 8]).split()
    texts = [" ".join(sentences[n * WORDS_PER_CHUNK : (n + 1) * WORDS_PER_CHUNK]) for n in range(SAMPLE)]
    texts = [text for text in texts if text]
    embed = minilm()
    embed(texts)  # compiled
    wall, cpu = timed(lambda: embed(texts))
    times = num_chunks / len(texts)
    note = f"{len(texts)} texts, times {times:.0f}"
    row(f"embed as many texts of {WORDS_PER_CHUNK} words", (wall * times, cpu * times), note)
    shares = f"1/{wall * times / loads[0]:,.0f} of embedding (wall), 1/{cpu * times / loads[1]:,.0f} (CPU)"
    print(f"\nReading takes {shares}.\n")
    corpus = load_index(index)
    print("| of the loaded corpus | wall, s | CPU, s | |\n| --- | ---: | ---: | --- |")
    row("its words, counted at the first question", timed(lambda: corpus.words))
    row("its unit vectors", timed(lambda: corpus.unit_vectors))
    print("\n| a question to it by `qrag find`, the whole process | wall, s | CPU, s | |\n| --- | ---: | ---: | --- |")
    for retriever in ("hybrid", "dense", "bm25"):
        ask_anew(index, retriever)  # compiled programs are kept
        row(retriever, median([ask_anew(index, retriever) for _ in range(ROUNDS)]))


def ask_anew(index: Path, retriever: str) -> tuple[float, float]:
    """Wall and CPU seconds of a command that asks one question."""
    return run("find", str(index), QUESTION, "--retriever", retriever)


def run(*command: str) -> tuple[float, float]:
    """Wall and CPU seconds of a command of qrag."""
    wall, before = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "qrag_jax.cli.main", *command], check=True, stdout=subprocess.DEVNULL)
    after = getrusage(RUSAGE_CHILDREN)
    cpu = sum(getattr(after, part) - getattr(before, part) for part in ("ru_utime", "ru_stime"))
    return time.perf_counter() - wall, cpu


class Hashes:
    """An encoder that repeats the hash of a text."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint, self.counts = fingerprint, minilm().counts

    def __call__(self, texts, progress=None) -> np.ndarray:
        known = [np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8) for text in texts]
        return np.array([np.resize(one, DIM) for one in known], np.float32).reshape(-1, DIM) / 255


def drawn_page(number: int, num_pages: int, num_lines: int = CHUNKS_PER_DOCUMENT) -> str:
    """A page of lines of 20 drawn words; every tenth is a heading, every eighth names another page."""
    rng = random.Random(number)
    lines = [f"# {title_of(number)}"]
    for line in range(1, num_lines):
        words = " ".join(f"word{rng.randrange(5_000)}" for _ in range(20))
        other = f"and {title_of(rng.randrange(num_pages))} " if line % 8 == 0 else ""
        heading = f"## {HEADINGS[line // 10 % len(HEADINGS)]} {rng.choice(('', rng.randrange(10**6)))}\n"
        lines.append(f"{heading if line % 10 == 0 else ''}The {other}{words}.")
    return "\n".join(lines)


def title_of(number: int) -> str:
    """Two drawn names; shared words make some begin alike."""
    return f"{SYLLABLES[number % 97]}{SYLLABLES[number % 89]} {SYLLABLES[number // 89 % 83]}{number // 500}"


HEADINGS = ("How to begin", "Settings", "Known limits", "History of", "Notes on part")
SYLLABLES = [f"{first}{second}{third}" for first in "BDGKLMNPRT" for second in "aeiou" for third in ("lin", "vur")]


def cut_lines(document: Document) -> list[Chunk]:
    """A chunk a line."""
    starts = np.cumsum([0, *(len(line) + 1 for line in document.text.split("\n"))]).tolist()
    spans = [(start, stop - 1) for start, stop in zip(starts, starts[1:], strict=False)]
    return [make_chunk(document, [span], 1, lambda text: 20) for span in spans]


def named_index(folder: Path, num_pages: int, make: Callable[[], Maker]) -> None:
    """An index of drawn pages with notes by names."""
    encoder = make().embed
    settings = index_settings(notes="mentions")
    settings = replace(settings, fingerprint=encoder.fingerprint)
    folder.mkdir()
    create(folder)
    write_settings(folder, settings)
    with writing_to(folder) as connection:
        for number in range(num_pages):
            name = f"pages/{number:06}.md"
            document = Document(name, drawn_page(number, num_pages), {"path": name})
            nodes = tuple(cut_lines(document))
            plain, origin = np.zeros(len(nodes), bool), Origin("drawn", "2 drawn")
            vectors = encoder([document.text[slice(*node.spans[0])] for node in nodes])
            keys = pack_keys(keys_of(document.text, nodes, plain, "alike"))
            put(connection, folder, Entry(document, nodes, vectors, plain, origin, keys=keys))
        update_notes(connection, folder, settings, make, KnownTexts(connection, folder))


def growth(num_chunks: int) -> None:
    """Prints the cost of one file more in an index of so many chunks, in this process and by the command."""
    num_pages = num_chunks // CHUNKS_PER_DOCUMENT
    maker = Maker(cut_lines, Hashes(minilm().fingerprint), lambda text: 20)
    print(f"\n| {num_chunks:,} chunks with notes by names | wall, s | CPU, s | |\n| --- | ---: | ---: | --- |")
    row("draw, write, make the notes", timed(lambda: named_index(Path("large"), num_pages, lambda: maker)))
    named_index(Path("small"), 1, lambda: maker)
    size = sum(file.stat().st_size for file in Path("large").iterdir()) / 1e6
    print(f"\n{size:,.0f} MB. One file of 100 lines, medians of {ROUNDS}:\n")
    print("| in this process | wall, s | CPU, s | |\n| --- | ---: | ---: | --- |")
    for name in ("small", "large"):
        index, settings = Path(name), read_settings(name)
        times: dict[str, list] = {"add": [], "replace": [], "remove": []}
        for number in range(ROUNDS):
            path = Path(f"more{number}.md")

            def update(path: Path = path, index: Path = index, settings=settings) -> None:
                found = find_files([str(path)])
                update_index(index, [str(path)], found, settings, lambda: maker, Plan())

            path.write_text(drawn_page(num_pages + number, num_pages))
            times["add"].append(timed(update))
            path.write_text(drawn_page(2 * num_pages + number, num_pages))
            times["replace"].append(timed(update))
            gone = lambda path=path, index=index: remove_documents(index, [str(path)], make=lambda: maker)  # noqa: E731
            times["remove"].append(timed(gone))
        for what, each in times.items():
            row(f"{what}, {name} index", median(each))
    print("\n| `qrag index`, the whole process | wall, s | CPU, s | |\n| --- | ---: | ---: | --- |")
    for name in ("small", "large", "small", "large"):
        Path("more.md").write_text(drawn_page(3 * num_pages, num_pages))
        row(f"add, {name} index", run("index", "add", name, "more.md"))
        row(f"remove, {name} index", run("index", "remove", name, "more.md"))


def write_speeches(num_files: int) -> list[str]:
    """Files of speeches' sentences, some forty each; gives the sentences."""
    sentences = list(load_haystack("sotu").sentences)[: num_files * 100]
    Path("speeches").mkdir()
    for number in range(num_files):
        Path(f"speeches/{number:03}.txt").write_text(" ".join(sentences[number * 100 : (number + 1) * 100]))
    return sentences


def files(num_files: int, num_questions: int) -> None:
    """Files and their index: equal picks, a build again, a sentence that is edited."""
    sentences = write_speeches(num_files)
    plain = index_settings(notes="none")
    print("\n| speeches | wall, s | CPU, s | |\n| --- | ---: | ---: | --- |")
    done = []
    row(f"build, {num_files} files", timed(lambda: done.append(build_index("index", "speeches", plain))), told(done))
    row("build again", timed(lambda: done.append(build_index("index", "speeches", plain))), told(done))
    path = Path("speeches/007.txt")
    path.write_text(path.read_text().replace(sentences[750], "One sentence was edited here.", 1))
    row("build, one sentence edited", timed(lambda: done.append(build_index("index", "speeches", plain))), told(done))
    row("load_index", median([timed(lambda: load_index("index")) for _ in range(ROUNDS)]))
    kept = load_index("index")
    fresh = []
    method = single_step_method("hybrid")
    documents = sorted(read_files("speeches"), key=lambda document: document.id)
    row("the same from the files", timed(lambda: fresh.append(method.build(documents))), f"{len(kept):,} chunks")
    rng = random.Random(SEED)
    drawn = [text.split() for text in rng.sample(sentences, num_questions)]
    questions = [" ".join(rng.sample(words, min(8, len(words)))) for words in drawn]
    print("\n| retriever | questions | equal first 5, in order | largest difference of a score |")
    print("| --- | ---: | ---: | ---: |")
    for name in ("hybrid", "single_step", "bm25"):
        ask = index_method(read_settings("index"), name).retrieve
        pairs = [(ask(question, kept, 5), ask(question, fresh[0], 5)) for question in questions]
        equal = sum(one.ids.tolist() == two.ids.tolist() for one, two in pairs)
        apart = max(float(np.abs(one.scores - two.scores).max()) for one, two in pairs if len(one) == len(two) > 0)
        print(f"| {name} | {len(questions)} | {equal} | {apart:.1e} |", flush=True)


def told(done: list) -> str:
    last = done[-1]
    of = last.num_embedded + last.num_reused
    return f"{last.num_read} read, {last.num_embedded} of {of} chunks embedded"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--num_chunks", type=int, default=50_000)
    parser.add_argument("--num_files", type=int, default=85)
    parser.add_argument("--num_questions", type=int, default=200)
    parser.add_argument("--only", choices=("large", "files", "growth"))
    args = parser.parse_args()
    for name, work in (
        ("large", lambda: large(Path(), args.num_chunks)),
        ("files", lambda: files(args.num_files, args.num_questions)),
        ("growth", lambda: growth(args.num_chunks)),
    ):
        if args.only in (None, name):
            with tempfile.TemporaryDirectory() as folder, chdir(folder):
                work()


if __name__ == "__main__":
    main()
