"""Writes the figures of `make trust` into docs/reliability.md: `python tests/trust/page.py FIGURES.jsonl`."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
NUM_TESTS = 14  # the twelve, two processes that meet, an index
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def with_figures(page: str, rows: list[dict], about: str) -> str:
    """The page with a new table between its two marks.

    Raises:
        ValueError: a mark is not there.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: no {BEGIN} or no {END}")
    lines = [about, "", "| test | what | cases | what came | seconds |", "| ---: | --- | ---: | --- | ---: |"]
    for row in sorted(rows, key=lambda row: (row["test"], row["what"])):
        outcome = row["outcome"].replace("|", "\\|")
        lines.append(f"| {row['test']} | {row['what']} | {row['cases']:,} | {outcome} | {row['seconds']:.0f} |")
    missing = sorted(set(range(1, NUM_TESTS + 1)) - {row["test"] for row in rows})
    if missing:  # not run, or failed: a test writes its row when its goal is reached
        lines += ["", f"No figures: {', '.join(map(str, missing))}."]
    return "\n".join([before + begin, *lines, end + after])


def main() -> None:
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    about = (
        f"Commit {commit.stdout.strip() or 'unknown'}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"jax {version('jax')}: {sum(row['cases'] for row in rows):,} cases. Seconds are of one test "
        "of two beside each other."
    )
    PAGE.write_text(with_figures(PAGE.read_text(encoding="utf-8"), rows, about), encoding="utf-8")


if __name__ == "__main__":
    main()
