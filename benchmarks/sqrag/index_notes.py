"""What notes cost an index: making them, adding a document, loading, asking, bytes; vectors are drawn.

    python -m benchmarks.sqrag.index_notes [--num_chunks 2000,20000]      # prints a table

Pages of ten chunks of some 60 words; every second chunk has a heading of its own and names another page's. What
embedding takes is not in it: vectors are drawn from the texts. CPU seconds count: a busy machine spoils the others.
"""

import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common import arguments
from qrag_jax.annotate.mentions import mention_notes
from qrag_jax.chunking.chunker import ChunkConfig, make_chunker
from qrag_jax.documents.read import find_files
from qrag_jax.index import index_settings, load_index, load_noted_index
from qrag_jax.index.prepare import Maker
from qrag_jax.index.settings import IndexSettings
from qrag_jax.index.update import Plan, update_index
from qrag_jax.search import make_noted_retrieve, make_single_step

DIM, CHUNKS, WORDS = 384, 10, 60
QUESTION = "Where does the neighbour of page twelve live?"
ROUNDS, REPEATS = 5, 20  # the clock of a process may go by milliseconds: so many questions at once
SEED = 0


@dataclass
class Counts:
    num_texts: int = 0
    num_tokens: int = 0
    num_texts_cut: int = 0


class Drawn:
    """Unit vectors drawn from texts."""

    fingerprint = "drawn"

    def __init__(self) -> None:
        self.counts = Counts()

    def __call__(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        rows = [np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIM) for text in texts]
        vectors = np.array(rows, np.float32).reshape(-1, DIM)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def count(text: str) -> int:
    return len(text.split())


def make() -> Maker:
    return Maker(make_chunker(ChunkConfig("headings", max_tokens=WORDS + 20), count), Drawn(), count)


def page(number: int, of: int, rng: np.random.Generator) -> Iterator[str]:
    """Sections of a page; every second one names a section of another page."""
    for section in range(CHUNKS):
        words = [f"word{word}" for word in rng.integers(0, 5_000, WORDS - 12)]
        named = f"Page {rng.integers(of)} Part {rng.integers(CHUNKS)}"
        said = f"As {named} says, it is so on day {number} of all." if section % 2 else "Nobody is named in here."
        yield f"# Page {number} Part {section}\n\n{said} {' '.join(words[:30]).capitalize()}. {' '.join(words[30:])}.\n"


def write_pages(folder: Path, number: int) -> str:
    rng = np.random.default_rng(SEED)
    folder.mkdir()
    for one in range(number):
        (folder / f"{one:05}.md").write_text("\n".join(page(one, number, rng)))
    return str(folder)


def timed(work: Callable[[], object]) -> float:
    """CPU seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def update(index: Path, path: str, settings: IndexSettings) -> Callable[[], object]:
    return lambda: update_index(index, [path], find_files([path]), settings, make, Plan(mirror=False))


def measure(folder: Path, num_chunks: int) -> None:
    pages, index, plain = write_pages(folder / "pages", num_chunks // CHUNKS), folder / "index", folder / "plain"
    settings = {name: index_settings(model="drawn", notes=name) for name in ("mentions", "none")}
    without = timed(update(plain, pages, settings["none"]))
    with_notes = timed(update(index, pages, settings["mentions"]))
    noted, corpus = load_noted_index(index), load_index(plain)
    row = Row(f"{len(corpus):,} chunks, {len(noted.notes):,} notes")
    row("build", without, with_notes)
    row("the reader alone", 0.0, timed(lambda: mention_notes(corpus.documents, corpus.nodes)))
    more = folder / "more.md"
    more.write_text("# Page 7 Part 2\n\nAs Page 3 Part 4 says, so be it.\n")
    row(
        "one document more",
        *(timed(update(at, str(more), settings[name])) for at, name in ((plain, "none"), (index, "mentions"))),
    )
    row(
        "nothing new",
        *(timed(update(at, str(more), settings[name])) for at, name in ((plain, "none"), (index, "mentions"))),
    )
    row("load", *(median(partial(load, at)) for load, at in ((load_index, plain), (load_noted_index, index))))
    row("count the words", timed(lambda: corpus.words), timed(lambda: noted.words))
    for name in ("dense", "hybrid"):
        embed = Drawn()
        one, two = make_single_step(name, embed), make_noted_retrieve(name, noted, embed, "best_of")
        asks = partial(one, QUESTION, corpus, 5), partial(two, QUESTION, noted.corpus, 5)
        row(f"a question, {name}, ms", *(1000 * median(partial(repeat, ask)) / REPEATS for ask in asks))
    row("bytes, MB", *(sum(file.stat().st_size for file in at.iterdir()) / 1e6 for at in (plain, index)))


def median(work: Callable[[], object]) -> float:
    work()
    return statistics.median(timed(work) for _ in range(ROUNDS))


def repeat(work: Callable[[], object]) -> None:
    for _ in range(REPEATS):
        work()


@dataclass
class Row:
    """Lines of a table."""

    title: str

    def __post_init__(self) -> None:
        print(f"\n| {self.title} | without | with notes |\n| --- | ---: | ---: |")

    def __call__(self, what: str, without: float, with_notes: float) -> None:
        print(f"| {what} | {without:.2f} | {with_notes:.2f} |", flush=True)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--num_chunks", default="2000,20000", metavar="N,N")
    args = parser.parse_args()
    for number in map(int, args.num_chunks.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), number)


if __name__ == "__main__":
    main()
