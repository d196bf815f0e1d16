"""Processes that share a batch of calls and are killed at random moments: is every finished call paid for once?

    python benchmarks/journal_kill.py [--rounds 3] [--seed 0]        # writes benchmarks/results/journal_kill.md

Every process has the same 500 prompts, the same journal and a scripted model that takes some milliseconds a call.
SIGKILL comes when a random number of answers is there, and some random milliseconds later; the process is started again
at once. What is begun and what was kept goes into one log, line by line, in the order in which it happened.
"""

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
from qrag_jax.llm.scripted import ScriptedGenerator
from qrag_jax.types import Generation, Message, Sampling

RESULTS = Path(__file__).parent / "results"
MOST_SECONDS = 0.008  # a call, half of it on average


@dataclass(frozen=True)
class Outcome:
    """What one round came to.

    Attributes:
        killed_at: answers that were there at each kill.
        num_begun: calls that were made, by all processes.
        begun_after_kept: calls that were made though their answer had been kept: paid twice.
        kept_twice: calls with two answers.
        num_answers: in the journal at the end.
        integrity: what SQLite says of the file.
        files: left beside the journal.
    """

    killed_at: tuple[int, ...]
    num_begun: int
    begun_after_kept: tuple[int, ...]
    kept_twice: tuple[int, ...]
    num_answers: int
    integrity: str
    files: tuple[str, ...]


def work(folder: Path, num_calls: int) -> None:
    """One process: answers all prompts, by the journal where it can, and holds the answers to what they should be."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    rng = random.Random()

    def script(prompt: Sequence[Message]) -> str:
        os.write(log, f"begun {prompt[0].content}\n".encode())
        time.sleep(MOST_SECONDS * rng.random())
        return f"answer {prompt[0].content}"

    def finished(place: int, generation: Generation) -> None:
        if not generation.from_journal:
            os.write(log, f"kept {place}\n".encode())

    generator = JournaledGenerator(ScriptedGenerator(script), Journal(folder / "journal.sqlite"), claim_size=16)
    prompts = [[Message("user", str(number))] for number in range(num_calls)]
    answers = generator.generate(prompts, sampling=Sampling(), finished=finished)
    assert [answer.text for answer in answers] == [f"answer {number}" for number in range(num_calls)]


def start(folder: Path, num_calls: int) -> subprocess.Popen:
    argv = [sys.executable, __file__, "--work", str(folder), "--calls", str(num_calls)]
    with (folder / "errors").open("a") as errors:
        return subprocess.Popen(argv, stderr=errors)


def num_kept(folder: Path) -> int:
    log = folder / "log"
    return sum(line.startswith("kept") for line in log.read_text().splitlines()) if log.exists() else 0


def run(folder: Path, *, num_calls: int, num_processes: int, num_kills: int, seed: int) -> Outcome:
    """One round.

    Raises:
        RuntimeError: a process ended with an error, or with wrong answers.
    """
    rng, killed_at = random.Random(seed), []
    processes = [start(folder, num_calls) for _ in range(num_processes)]
    for target in sorted(rng.sample(range(num_calls - num_kills), num_kills)):
        while num_kept(folder) < target:
            check(processes, folder)
            time.sleep(0.001)
        time.sleep(MOST_SECONDS * rng.random())
        number = rng.randrange(num_processes)
        processes[number].send_signal(signal.SIGKILL)
        if processes[number].wait() != -signal.SIGKILL:
            raise RuntimeError("a process had ended before it was killed: more calls, or fewer kills")
        killed_at.append(num_kept(folder))
        processes[number] = start(folder, num_calls)
    for process in processes:
        process.wait()
    check(processes, folder)
    return outcome(folder, killed_at)


def check(processes: list[subprocess.Popen], folder: Path) -> None:
    if any(process.poll() not in (None, 0) for process in processes):
        raise RuntimeError((folder / "errors").read_text())


def outcome(folder: Path, killed_at: list[int]) -> Outcome:
    kept: Counter[int] = Counter()
    num_begun, again = 0, []
    for line in (folder / "log").read_text().splitlines():
        word, number = line.split()
        if word == "kept":
            kept[int(number)] += 1
        else:
            num_begun += 1
            again += [int(number)] * (int(number) in kept)
    path = folder / "journal.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        integrity = connection.execute("PRAGMA integrity_check").fetchone()[0]
    left = sorted(file.name for file in folder.iterdir() if file.name not in ("log", "errors", path.name))
    twice = tuple(number for number, times in kept.items() if times > 1)
    return Outcome(
        tuple(killed_at), num_begun, tuple(again), twice, Journal(path).num_answers(), integrity, tuple(left)
    )


def table(outcomes: list[Outcome], num_calls: int) -> str:
    rows = [
        "| killed when so many answers were there | calls begun | of them in flight at a kill, made again "
        "| made again though finished | kept twice | in the journal | integrity |",
        "|---|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {', '.join(map(str, one.killed_at))} | {one.num_begun} | {one.num_begun - num_calls} "
        f"| {len(one.begun_after_kept)} | {len(one.kept_twice)} | {one.num_answers} | {one.integrity} |"
        for one in outcomes
    ]
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work, args.calls)
        return
    from worlds import machine  # imports JAX, which the killed processes need not wait for

    outcomes = []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            counts = {"num_calls": args.calls, "num_processes": args.processes, "num_kills": args.kills}
            outcomes.append(run(Path(folder), **counts, seed=args.seed + number))
    rows = table(outcomes, args.calls)
    print(rows)
    command = f"python benchmarks/journal_kill.py --rounds {args.rounds} --seed {args.seed}"
    text = f"""# A journal whose processes are killed

Command: `{command}`, commit {machine()["commit"]}.

{args.processes} processes with the same {args.calls} calls and one journal; one of them is killed (SIGKILL) at
{args.kills} random moments and started again at once. A row is a round. Each process has one call in flight, so a kill
costs one call at most. At the end every process has all right answers.

"""
    (RESULTS / "journal_kill.md").write_text(text + rows)
    if any(one.begun_after_kept or one.kept_twice or one.num_answers != args.calls for one in outcomes):
        sys.exit("a finished call was made again")


if __name__ == "__main__":
    main()
