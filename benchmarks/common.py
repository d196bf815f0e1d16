"""What benchmarks share: their command line, the machine, Markdown, times, processes, models, and runs of `qrag`."""

import argparse
import gzip
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrag_jax.eval.tables import share
from qrag_jax.files.whole_file import write_whole

if TYPE_CHECKING:  # jax takes seconds to load, and engines of others do without it
    from qrag_jax.models.encoder.embedder import TextEmbedder
    from qrag_jax.types import TextGenerator

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs" / "qrag"
CORES = len(os.sched_getaffinity(0))
MODEL_HELP = "a file that load_decoder reads, or NAME@URL of a server"
_DEADLINE = 900.0  # seconds of a call: those of two cores take their time
_AT_ONCE = 8  # calls to a server: start it with as many slots, of 4,096 tokens each
_AT = "@http"


def arguments(doc: str | None, smoke: str = "") -> argparse.ArgumentParser:
    """A parser that shows the docstring as it stands; `smoke` is what the flag of that name does."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if smoke:
        parser.add_argument("--smoke", action="store_true", help=smoke)
    return parser


# --- the machine and the page ----------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """What runs: commit, cores, versions."""
    import jax

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "device": jax.devices()[0].platform,
    }


def about(*packages: str) -> dict[str, Any]:
    """The machine, and the versions of what is compared."""
    models = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    versions = {name: importlib.metadata.version(name) for name in ("numpy", "jaxlib", *packages)}
    return machine() | {"processor": models[0] if models else "unknown", "cores": CORES, "versions": versions}


def about_lines(about: Mapping[str, Any]) -> list[str]:
    """What `about` found, for Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return [
        f"Machine: {about['cores']} cores of {about['processor']}, Python {about['python']}, jax {about['jax']} on "
        f"{about['device']}; {versions}. Commit {about['commit']}.",
        "",
    ]


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def interval(one: Any, digits: int = 3, sign: str = "", names: Sequence[str] = ("mean", "low", "high")) -> str:
    """Mean and 95% interval, of a `Summary` or of what JSON has of one, as `share` writes them."""
    values = [one[name] if isinstance(one, Mapping) else getattr(one, name) for name in names]
    mean, low, high = (share(value, digits, sign) for value in values)
    return f"{mean} [{low}, {high}]"


def tested(mean: float, low: float, high: float, p_value: float, n: int) -> list[str]:
    """Cells of a paired difference."""
    return [f"{mean:+.3f}", f"[{low:+.3f}, {high:+.3f}]", f"{p_value:.4f}", str(n)]


def place(about: Mapping[str, Any]) -> str:
    """What `machine` found, for a cell."""
    return "{cores} cores {device}, {processor}, jax {jax}".format_map(about)


def write(folder: Path, name: str, result: dict, report: str) -> None:
    """The numbers as JSON, the tables as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result) + "\n")
    (folder / f"{name}.md").write_text(report)
    print(report)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a .json or .json.gz file; empty if there is no file."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes an object as JSON into a .json.gz, the same bytes for the same object: rows stay small in git."""
    write_whole(path, gzip.compress(json.dumps(value, allow_nan=False).encode(), mtime=0))


# --- times and processes ---------------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": list(values)}


def shown(value: Mapping[str, float], form: str = ".2f") -> str:
    """Median and range."""
    return f"{value['median']:{form}} ({value['min']:{form}} to {value['max']:{form}})"


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Fills in the seconds of wall clock and of CPU that its block took."""
    taken: dict[str, float] = {}
    start, cpu = time.perf_counter(), time.process_time()
    yield taken
    taken |= {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}


def peak_mib() -> float:
    """Peak resident memory of this process. (`ru_maxrss` would count what the parent held when it started us.)"""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, "Linux"
    return int(found[1]) / 1024


def start_python(module: str, flags: Sequence[str], allocator: str) -> subprocess.Popen[str]:
    """A module in a new process: offline, CPU only, all cores, the allocator as asked (it reads this once)."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": str(CORES)}
    env.pop("GLIBC_TUNABLES", None)
    if allocator == "tuned":
        env["GLIBC_TUNABLES"] = makefile_tunables()
    return subprocess.Popen(
        [sys.executable, "-m", module, *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        cwd=ROOT,
    )


def makefile_tunables() -> str:
    found = re.search(r"^FAST_MALLOC = GLIBC_TUNABLES=(\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found, "the Makefile sets FAST_MALLOC"
    return found[1]


class EngineProcess:
    """One engine in its process: a line for a command, a line of JSON for what comes back."""

    def __init__(self, engine: str, module: str, flags: Sequence[str], allocator: str) -> None:
        self.engine = engine
        self._process = start_python(module, flags, allocator)

    def ask(self, command: str) -> Any:
        """Sends a command and waits; ends the script where the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.engine}: the process ended; its error stands above")
        return json.loads(line)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(make: Callable[[], Callable[[str], Any]]) -> None:
    """The other side of an `EngineProcess`, until stdin is closed: `make` gives what answers commands."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    answer = make()
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), file=answers, flush=True)


def qrag(*arguments: str | Path) -> None:
    """Runs the command line in a process of its own."""
    subprocess.run([sys.executable, "-m", "qrag_jax.cli.main", *arguments], check=True)


# --- models ----------------------------------------------------------------------------------------------------------


def minilm() -> "TextEmbedder":
    """The packaged encoder as it is called by default."""
    from qrag_jax.models.encoder.embedder import make_embedder
    from qrag_jax.models.encoder.weights import load_encoder

    return make_embedder(load_encoder("minilm"))


def open_model(source: str, journal: Path | None = None, *, claim_size: int = 512) -> "TextGenerator":
    """The language model of a source, with a journal around it where one is named.

    A source is what `load_decoder` reads (MODEL.gguf, smollm2), or NAME@URL of an OpenAI-compatible server, such as
    qwen2.5-coder-1.5b-instruct-q4_k_m@http://127.0.0.1:8080/v1. A file and a server of it round differently, so their
    answers are not the same: tables name which of them answered.
    """
    from qrag_jax.llm.journal.journal import JournaledGenerator
    from qrag_jax.llm.journal.journal_file import Journal
    from qrag_jax.llm.local import LocalGenerator
    from qrag_jax.llm.server.openai import OpenAIGenerator

    if _AT in source:
        name, _, address = source.partition("@")
        generator: TextGenerator = OpenAIGenerator(
            name, address, concurrency=_AT_ONCE, deadline=_DEADLINE, grammar_field="response_format"
        )
    else:
        generator = LocalGenerator(source)
    return JournaledGenerator(generator, Journal(journal), claim_size=claim_size) if journal else generator


def model_name(source: str) -> str:
    """As tables call it: without folders and addresses."""
    name, at, _ = source.partition(_AT)
    return f"{name} (server)" if at else Path(source).stem
