"""A server that misbehaves on purpose: what becomes of a batch of calls, of their retries, deadlines and answers.

    python -m benchmarks.language_models.llm_faults  # ten minutes; writes results/llm_faults.md

Every fault at the first, a middle and the last prompt of a batch of six, one call at a time and four, through a
journal; then the same batch once more against a good server at the same address. Nothing is simulated: the server is
a real one on this machine (tests/support/bad_server.py), the client the official one, with its own waits between
attempts.
"""

import argparse
import importlib.metadata
import itertools
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, arguments, grid, machine

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--retries", type=int, default=2, help="attempts of a call after the first")
    parser.add_argument("--deadline", type=float, default=2.0, help="seconds, where a fault lasts that long")
    flags = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    # Helpers of the tests; they need no test runner.
    from support.fault_cells import CONCURRENCIES, POSITIONS, run_cell
    from support.faults import FAULTS

    start = time.perf_counter()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for fault in itertools.chain(*FAULTS.values()):
            for position in POSITIONS:
                for concurrency in CONCURRENCIES:
                    place = Path(folder) / str(len(rows))
                    place.mkdir()
                    cell = run_cell(
                        fault, position, concurrency, place, max_retries=flags.retries, slow_deadline=flags.deadline
                    )
                    rows.append((fault, position, concurrency, cell))
                    print(".", end="", file=sys.stderr, flush=True)
    text = format_report(rows, flags, time.perf_counter() - start)
    (RESULTS / "llm_faults.md").write_text(text, encoding="utf-8")
    print(f"\n{text}")


def format_report(rows: list[tuple[Any, int, int, Any]], flags: argparse.Namespace, seconds: float) -> str:
    """Sums, the table of cells, and what each fault's error says."""
    from support.fault_cells import CANARY, CONCURRENCIES, NUM_PROMPTS, POSITIONS

    cells = [cell for *_, cell in rows]
    late = max(cell.seconds / cell.deadline for cell in cells)
    finished = sum(len(cell.finished) for cell in cells)
    lost = sum(len(cell.finished - cell.kept) for cell in cells)
    resumed = sum(answer.error is None for cell in cells for answer in cell.resumed)
    lines = [
        "# Faults of a server",
        "",
        f"`python -m benchmarks.language_models.llm_faults --retries {flags.retries} --deadline {flags.deadline:g}`: "
        f"{len(cells)} cells of {NUM_PROMPTS} calls in {seconds:.0f} s. {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, openai {importlib.metadata.version('openai')}. Commit {machine()['commit']}; "
        "the client's own waits vary by a quarter, and have no seed.",
        "",
        f"- calls with more attempts than allowed: {sum(cell.attempts > cell.allowed for cell in cells)}",
        f"- longest call, over its deadline: {late:.2f}",
        f"- finished calls lost: {lost} of {finished}",
        f"- asked for again though finished: {sum(len(cell.finished & cell.asked_again) for cell in cells)}",
        f"- answered after the server was well again: {resumed} of {NUM_PROMPTS * len(cells)}",
        f"- failures that look like answers, or the other way round: {sum(cell.num_wrong for cell in cells)}",
        f"- cells with the key in a log, the journal, an error, an answer or the generator's own description: "
        f"{sum(CANARY.encode() in cell.sinks for cell in cells)}",
        "",
        f"A row is {len(POSITIONS) * len(CONCURRENCIES)} cells. Attempts: most of one call, of those allowed. "
        "Seconds: the longest call. Kept: calls that the server finished and that came out of the journal later. "
        "Errors: failed calls, not asked ones among them.",
        "",
    ]
    table = []
    for fault, of_fault in itertools.groupby(rows, key=lambda row: row[0]):
        own = [cell for *_, cell in of_fault]
        kept = f"{sum(len(cell.finished & cell.kept) for cell in own)} / {sum(len(cell.finished) for cell in own)}"
        attempts = f"{max(cell.attempts for cell in own)} of {own[0].allowed}"
        seconds_of = f"{max(cell.seconds for cell in own):.2f} / {own[0].deadline:g}"
        table.append([fault.name, attempts, seconds_of, kept, str(sum(len(cell.errors) for cell in own))])
    lines += grid(["fault", "attempts", "seconds / deadline", "kept / finished", "errors"], table)
    ends = {fault.name: _end(cell.generations[position]) for fault, position, _, cell in rows}
    lines += ["", *grid(["fault", "what its call ends with"], ends.items())]
    return "\n".join(lines) + "\n"


def _end(generation: Any) -> str:
    if generation.error is None:
        return f"an answer, `{generation.finish_reason}`"
    return generation.error.replace("|", "\\|")


if __name__ == "__main__":
    main()
