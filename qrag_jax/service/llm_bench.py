"""Measures the speed of a language model on this machine, and estimates a build with it."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from qrag_jax.llm.local import LocalGenerator
from qrag_jax.models.decoder.bench import Speed, Work, measure_speeds
from qrag_jax.models.decoder.memory import cache_bytes, check_memory, num_parameters, resident_bytes
from qrag_jax.models.decoder.weights import best_storage, load_decoder_config, tensor_kinds
from qrag_jax.names import Storage
from qrag_jax.types import UsageError


@dataclass(frozen=True)
class BenchRequest:
    """A model to measure.

    Attributes:
        model: smollm2, a folder, a .gguf file or a hub id.
        rows: prompts that run at the same time, one measurement for each number.
        prompt_tokens, answer_tokens: of every prompt and answer.
        rounds: that count, for each of `rows`.
        storage: how matrices are stored; None: the best one for the model.
    """

    model: str = "smollm2"
    rows: tuple[int, ...] = (1, 8)
    prompt_tokens: int = 512
    answer_tokens: int = 64
    rounds: int = 3
    storage: Storage | None = None


@dataclass(frozen=True)
class Benched:
    """The speeds of a language model.

    Attributes:
        source: the model as it was named.
        model: `LocalGenerator.model`.
        storage: how its matrices are stored.
        backend: of JAX.
        num_parameters: of the model.
        load_seconds: time to load, with or without its files in the system's cache.
        memory: bytes after loading, and the maximum up to the end of the rounds, both minus the bytes before loading;
            None if the system does not report them.
        speeds: one for each of `rows`.
    """

    source: str
    model: str
    storage: str
    backend: str
    num_parameters: int
    load_seconds: float
    memory: tuple[int, int] | None
    speeds: tuple[Speed, ...]


def bench(request: BenchRequest, progress: Callable[[int, int], None] | None = None) -> Benched:
    """Loads a model and measures it.

    Args:
        progress: called with the number of finished rounds and their total.

    Raises:
        UsageError: a server, or a model that does not fit into memory; nothing is loaded.
    """
    if "://" in request.model:
        raise UsageError(
            f"{request.model}: bench measures models on this machine, not servers; give smollm2, a folder, a .gguf "
            "file or a hub id"
        )
    works = [Work(rows, request.prompt_tokens, request.answer_tokens) for rows in request.rows]
    config = load_decoder_config(request.model)
    storage = request.storage or best_storage(request.model)
    dtype = "bfloat16" if storage == "bfloat16" else "float32"
    largest = max(cache_bytes(config, work.rows, work.size, dtype) for work in works)
    check_memory(config, request.model, storage, largest, tensor_kinds(request.model))
    jax.block_until_ready(jax.numpy.zeros(1))  # start the backend, which is not part of the model
    before = resident_bytes()
    began = time.perf_counter()
    generator = LocalGenerator(request.model, batch_size=max(request.rows), dtype=dtype, storage=storage)
    load_seconds = time.perf_counter() - began
    loaded = resident_bytes()
    speeds = measure_speeds(generator.decoding, works, num_rounds=request.rounds, progress=progress)
    after = resident_bytes()
    memory = None if not (before and loaded and after) else (loaded[0] - before[0], after[1] - before[0])
    backend, size = jax.default_backend(), num_parameters(config)
    return Benched(request.model, generator.model, storage, backend, size, load_seconds, memory, tuple(speeds))


def bench_values(benched: Benched, num_chunks: int) -> dict[str, Any]:
    """The result as a JSON object, with the estimate of a build of `num_chunks` chunks."""
    held, most = benched.memory or (None, None)
    return {
        "source": benched.source,
        "model": benched.model,
        "num_parameters": benched.num_parameters,
        "storage": benched.storage,
        "backend": benched.backend,
        "load_seconds": benched.load_seconds,
        "memory_bytes": held,
        "peak_memory_bytes": most,
        "speeds": [
            asdict(speed.work)
            | {
                "compile_seconds": speed.compile_seconds,
                "read_tokens_per_second": _spread(speed.read),
                "write_tokens_per_second": _spread(speed.write),
            }
            for speed in benched.speeds
        ],
        "build": build_values(benched.speeds[-1], num_chunks),
    }


def build_values(speed: Speed, num_chunks: int) -> dict[str, Any]:
    """The seconds and tokens of a build that asks one question for each chunk."""
    return {
        "num_chunks": num_chunks,
        "rows": speed.work.rows,
        "seconds": speed.seconds_of(num_chunks),
        "tokens_read": num_chunks * speed.work.prompt_tokens,
        "tokens_written": num_chunks * speed.work.answer_tokens,
    }


def _spread(rounds: Sequence[float]) -> dict[str, Any]:
    return {"median": statistics.median(rounds), "rounds": list(rounds)}
