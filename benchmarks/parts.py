"""Long measurements of language models in parts that are kept: what was stopped goes on where it was.

A part is named by all that it depends on: its settings, the files of the model, and the code of the package and of the
benchmarks. So nothing old is ever taken for something new, and a folder of parts may be deleted at any time.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from qrag_jax.cli.progress import Progress
from qrag_jax.files.whole_file import write_whole
from qrag_jax.llm.wrappers import WatchedGenerator
from qrag_jax.models.decoder.sources import find_decoder
from qrag_jax.models.decoder.weights import LoadedDecoder, load_decoder
from qrag_jax.names import Storage
from qrag_jax.types import Generation, TextGenerator

ROOT = Path(__file__).parent.parent
STORAGES = ("float32", "bfloat16", "int8", "file")  # of weights, the one that others are held against first
STORAGE = "file"  # of answers, those of GGUF files
T = TypeVar("T")


class Parts:
    """Values of JSON in a folder, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def once(self, make: Callable[[], T], **settings: Any) -> T:
        """What `make` gives, or gave for the same settings and code; of JSON, so tuples come back as lists."""
        name = json.dumps(settings | {"code": code_sha256()}, sort_keys=True)
        path = self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"
        if not path.exists():
            write_whole(path, json.dumps({"settings": settings, "value": make()}) + "\n")
        return json.loads(path.read_text())["value"]


@cache
def code_sha256() -> str:
    """Of all that computes or asks: the package with its prompts, and the scripts of this folder."""
    package = [path for path in (ROOT / "qrag_jax").rglob("*") if path.suffix in (".py", ".txt")]
    digest = hashlib.sha256()
    for path in sorted([*package, *Path(__file__).parent.glob("*.py")]):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def files_of(model: str) -> list[tuple[str, int, int]]:
    """Name, size and time of a model's files, by which a part knows it."""
    path = find_decoder(model)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def model_name(model: str) -> str:
    """As it stands in tables."""
    return Path(model).name


def load_stored(model: str, storage: Storage) -> LoadedDecoder:
    """A decoder whose weights are kept as `storage` says."""
    return load_decoder(model, storage=storage)


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Fills in the seconds of wall clock and of CPU that its block took."""
    taken: dict[str, float] = {}
    start, cpu = time.perf_counter(), time.process_time()
    yield taken
    taken |= {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}


def watched(generator: TextGenerator, bar: Progress, stage: str, before: int, of: int) -> WatchedGenerator:
    """The generator with a bar of which `before` answers are there already."""

    def told(done: int, count: int, generation: Generation | None) -> None:
        del count
        bar.answered(stage, before + done, of, generation)

    return WatchedGenerator(generator, told)
