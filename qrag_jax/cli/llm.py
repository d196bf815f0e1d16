"""`qrag llm`: measures a language model on this machine, and estimates the time of a build with it."""

import argparse
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qrag_jax import service
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import shown_lines, write_json

if TYPE_CHECKING:  # it imports JAX
    from qrag_jax.service.llm_bench import Benched

_DESCRIPTION = """\
Measure a language model on this machine before you give it a long job.

  bench [MODEL]           measure seconds to load, tokens per second read (prompts) and written (answers), and memory;
                          estimate the time of a build that asks one question for each chunk

MODEL is what --llm_model of `qrag ask` takes with --llm local: smollm2 (the default), a folder, a .gguf file or a hub
id. A model that does not fit into memory is refused before it is loaded.

The output is a few lines, or one object with --json. The time of a build is an estimate: --chunks prompts at the speed
of the last of --rows. Prompts of another length, or a busy machine, have another speed.
"""
_DETAILS = """\
Prompts are random tokens, all different, and no answer ends before --answer_tokens. Speeds are medians over --rounds,
with their range, of all rows together. Rounds of all --rows take turns; a first round of each compiles and does not
count. Memory is that of this process, minus what Python and JAX used before the model was loaded.
"""
_EXAMPLES = """\
examples:
  qrag llm bench
  qrag llm bench models/qwen2.5-0.5b-instruct-q4_k_m.gguf --chunks 20000 --prompt_tokens 900 --answer_tokens 40
  qrag llm bench smollm2 --rows 1,4 --rounds 5 --json
"""
_USAGE = "{bench} [MODEL] [--chunks N] [--prompt_tokens N] [--answer_tokens N] [flags]"
_FLAGS = """\
action ACTION             what to do, as above
model [MODEL] = smollm2   smollm2, a folder, a .gguf file or a hub id
--chunks N = 1000         chunks of the build to estimate
--prompt_tokens N = 512   tokens of a prompt
--answer_tokens N = 64    tokens of an answer; at least 2
--rounds N = 3            rounds that count, for each of --rows
--rows N,N,... = 1,8      prompts that run at the same time; `qrag ask` runs up to 8
--storage --no_compile_cache --json
"""


def _run(args: argparse.Namespace) -> int:
    with Progress(transient=True) as progress:
        benched = service.bench(made(service.BenchRequest, vars(args)), progress.stage("rounds"))
    if args.json:
        write_json(service.bench_values(benched, args.chunks))
    else:
        print(shown_lines(_format(benched, args.chunks)))
    return 0


def _format(benched: "Benched", num_chunks: int) -> str:
    """Formats the measurements in a few lines."""
    work, compiled = benched.speeds[-1].work, sum(speed.compile_seconds for speed in benched.speeds)
    lines = [
        f"{benched.source}: {benched.num_parameters / 1e6:,.0f} million parameters, {benched.storage}, "
        f"{benched.backend}",
        f"load      {benched.load_seconds:.1f} s; the first rounds took {compiled:.1f} s longer (compiling)",
    ]
    if benched.memory is not None:
        held, most = (value / 1e9 for value in benched.memory)
        lines.append(f"memory    {held:.2f} GB after loading, {most:.2f} GB at most, without Python and JAX")
    lines.append(
        f"speed     tokens/s of all rows, median of {len(benched.speeds[-1].rounds)} (range); prompts of "
        f"{work.prompt_tokens:,}, answers of {work.answer_tokens:,} tokens"
    )
    for speed in benched.speeds:
        rows = f"{speed.work.rows} row{'s' if speed.work.rows > 1 else ''}"
        lines.append(f"  {rows:<8}read {_median(speed.read)}, write {_median(speed.write)}")
    build = service.bench_values(benched, num_chunks)["build"]
    lines.append(
        f"build     {num_chunks:,} chunks, {work.rows} at a time: about {_clock(build['seconds'])} (hours:minutes), "
        f"{build['tokens_read']:,} tokens read, {build['tokens_written']:,} written"
    )
    return "\n".join(lines)


def _clock(seconds: float) -> str:
    """`0:35`: hours and minutes, rounded up."""
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    return f"{hours:,}:{minutes:02d}"


def _median(rounds: Sequence[float]) -> str:
    return f"{statistics.median(rounds):,.1f} ({min(rounds):,.1f} to {max(rounds):,.1f})"


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run, details=_DETAILS, choices={"action": ("bench",)}, usage=_USAGE)
