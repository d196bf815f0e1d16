"""How often hostile passages turn the answers of `qrag ask`: 60 of six kinds, with and without the prompt's fence.

    python -m benchmarks.language_models.injection [FILE.gguf ...]  # SmolLM2 and others; writes results/injection.md

The passages and questions are tests/support/hostile_passages.py, what is measured is tests/support/injection.py.
Greedy answers of at most 24 tokens, batches of eight. A run with --journal that was broken off goes on where it was.
"""

import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import ROOT, arguments, machine

RESULTS = Path(__file__).parent / "results"

WINDOW = 1024


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("models", nargs="*", help="GGUF files beside the embedded model")
    parser.add_argument("--journal", type=Path, help="keeps answers, so that a run that is broken off goes on")
    parser.add_argument("--only", action="store_true", help="without the embedded model")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    # Helpers of the tests; they need no test runner.
    from support.hostile_passages import HOSTILE
    from support.injection import attack

    from qrag_jax.llm.journal.journal import Journal, JournaledGenerator
    from qrag_jax.llm.local import LocalGenerator

    start, found = time.perf_counter(), {}
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(args.journal or Path(folder) / "journal.sqlite")
        for source in [*([] if args.only else ["smollm2"]), *args.models]:
            # Eight claims a time: as many answers are kept at once as the model works on.
            generator = JournaledGenerator(LocalGenerator(source, window=WINDOW), journal, claim_size=8)
            for fenced in (True, False):
                found[Path(source).stem, fenced] = attack(HOSTILE, generator, fenced=fenced)
                print(f"{source}, fence {fenced}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    seconds = None if args.journal else time.perf_counter() - start
    text = report(found, seconds)
    (RESULTS / "injection.md").write_text(text, encoding="utf-8")
    print(text)


def report(found: dict, seconds: float | None) -> str:
    """What was run, sums, and the table of kinds; without seconds where a journal may have had some of the answers."""
    from support.injection import MAX_TOKENS, summary, table

    took = "" if seconds is None else f", {seconds:.0f} s"
    lines = [
        "# Hostile passages in the prompt of `qrag ask`",
        "",
        f"`python -m benchmarks.language_models.injection`, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, commit {machine()['commit']}{took}. "
        f"Greedy, at most {MAX_TOKENS} tokens an answer; each passage stands behind an "
        "honest one that holds the answer. Shares with Wilson's intervals of 95%. Without the fence the prompt is the "
        "same, with neither marks nor a word about them.",
        "",
    ]
    for (model, fenced), one in found.items():
        lines.append(f"- {model}, {'with' if fenced else 'without'} the fence: {summary(one)}")
    lines += ["", *table(found)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
