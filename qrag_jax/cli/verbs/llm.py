"""`qrag llm`: how quick a language model is on this machine, and what a build with it would take."""

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import shown_lines, write_json
from qrag_jax.llm.local import LocalGenerator
from qrag_jax.models.decoder.bench import Speed, Work, measure_speeds
from qrag_jax.models.decoder.memory import cache_bytes, check_memory, num_parameters, resident_bytes
from qrag_jax.models.decoder.weights import best_storage, load_decoder_config, tensor_kinds
from qrag_jax.types import UsageError


@dataclass(frozen=True)
class Benched:
    """What `qrag llm bench` has measured.

    Attributes:
        source: as it was named.
        model: `LocalGenerator.model`.
        storage: how its matrices are kept.
        num_parameters: of the model.
        load_seconds: until it can be asked; its files may have been in the machine's memory or not.
        memory: bytes that the process holds after loading, and the most that it held up to the end of the rounds, both
            above what it held before; None where nothing tells.
        speeds: one of each kind.
    """

    source: str
    model: str
    storage: str
    num_parameters: int
    load_seconds: float
    memory: tuple[int, int] | None
    speeds: tuple[Speed, ...]


def run(args: argparse.Namespace) -> int:
    """Runs `qrag llm`; see `qrag llm --help`."""
    benched = bench(args)
    if args.json:
        write_json(to_json(benched, args.chunks))
    else:
        print(shown_lines(format_bench(benched, args.chunks)))
    return 0


def bench(args: argparse.Namespace) -> Benched:
    """Loads the model and measures it; what can be refused is, before that."""
    if "://" in args.model:
        raise UsageError(
            f"{args.model}: bench measures models of this machine, not servers: give smollm2, a folder, a .gguf file "
            "or a hub id"
        )
    works = [Work(rows, args.prompt_tokens, args.answer_tokens) for rows in args.rows]
    config = load_decoder_config(args.model)
    storage = args.storage or best_storage(args.model)
    dtype = "bfloat16" if storage == "bfloat16" else "float32"
    largest = max(cache_bytes(config, work.rows, work.size, dtype) for work in works)
    check_memory(config, args.model, storage, largest, tensor_kinds(args.model))
    jax.block_until_ready(jax.numpy.zeros(1))  # the back end is no part of the model
    before = resident_bytes()
    began = time.perf_counter()
    generator = LocalGenerator(args.model, batch_size=max(args.rows), dtype=dtype, storage=storage)
    load_seconds = time.perf_counter() - began
    loaded = resident_bytes()
    with Progress(transient=True) as progress:
        speeds = measure_speeds(generator.decoding, works, num_rounds=args.rounds, progress=progress.stage("rounds"))
    after = resident_bytes()
    memory = None if not (before and loaded and after) else (loaded[0] - before[0], after[1] - before[0])
    return Benched(args.model, generator.model, storage, num_parameters(config), load_seconds, memory, tuple(speeds))


def format_bench(benched: Benched, num_chunks: int) -> str:
    """All of it in a few lines."""
    work, compiled = benched.speeds[-1].work, sum(speed.compile_seconds for speed in benched.speeds)
    lines = [
        f"{benched.source}: {benched.num_parameters / 1e6:,.0f} million parameters, {benched.storage}, "
        f"{jax.default_backend()}",
        f"load      {benched.load_seconds:.1f} s; the first rounds took {compiled:.1f} s longer (compiling)",
    ]
    if benched.memory is not None:
        held, most = (value / 1e9 for value in benched.memory)
        lines.append(f"memory    {held:.2f} GB when it is loaded, {most:.2f} GB at most, above Python and JAX")
    lines.append(
        f"speed     tokens/s of all rows, median of {len(benched.speeds[-1].rounds)} (range); prompts of "
        f"{work.prompt_tokens:,}, answers of {work.answer_tokens:,} tokens"
    )
    for speed in benched.speeds:
        rows = f"{speed.work.rows} row{'s' if speed.work.rows > 1 else ''}"
        lines.append(f"  {rows:<8}read {_median(speed.read)}, write {_median(speed.write)}")
    build = build_values(benched.speeds[-1], num_chunks)
    lines.append(
        f"build     {num_chunks:,} chunks, {work.rows} at once: about {clock(build['seconds'])} (hours:minutes), "
        f"{build['tokens_read']:,} tokens read, {build['tokens_written']:,} written"
    )
    return "\n".join(lines)


def to_json(benched: Benched, num_chunks: int) -> dict[str, Any]:
    """What `--json` prints."""
    held, most = benched.memory or (None, None)
    return {
        "source": benched.source,
        "model": benched.model,
        "num_parameters": benched.num_parameters,
        "storage": benched.storage,
        "backend": jax.default_backend(),
        "load_seconds": benched.load_seconds,
        "memory_bytes": held,
        "peak_memory_bytes": most,
        "speeds": [
            asdict(speed.work)
            | {
                "compile_seconds": speed.compile_seconds,
                "read_tokens_per_second": _values(speed.read),
                "write_tokens_per_second": _values(speed.write),
            }
            for speed in benched.speeds
        ],
        "build": build_values(benched.speeds[-1], num_chunks),
    }


def build_values(speed: Speed, num_chunks: int) -> dict[str, Any]:
    """What a build takes that asks one question a chunk: seconds and tokens."""
    return {
        "num_chunks": num_chunks,
        "rows": speed.work.rows,
        "seconds": speed.seconds_of(num_chunks),
        "tokens_read": num_chunks * speed.work.prompt_tokens,
        "tokens_written": num_chunks * speed.work.answer_tokens,
    }


def clock(seconds: float) -> str:
    """`0:35`: hours and minutes, a minute that has begun counted whole."""
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    return f"{hours:,}:{minutes:02d}"


def _values(rounds: Sequence[float]) -> dict[str, Any]:
    return {"median": statistics.median(rounds), "rounds": list(rounds)}


def _median(rounds: Sequence[float]) -> str:
    return f"{statistics.median(rounds):,.1f} ({min(rounds):,.1f} to {max(rounds):,.1f})"
