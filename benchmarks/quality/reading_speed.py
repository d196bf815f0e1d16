"""Seconds that a megabyte of each type of file takes to be read, beside an earlier version.

    python -m benchmarks.quality.reading_speed FOLDER
    git worktree add ../before COMMIT
    python -m benchmarks.quality.reading_speed FOLDER --before ../before --out PAGE.md

FOLDER holds files of each type. A process of each version reads them one by one with `read_files`, as files that are
named, and takes turns with the other, so that a machine that slows down slows both. The time of a type is that of the
fastest of `--repeats` turns. A file that one of the versions refuses is left out. What a version reads as plain text
(a table, mail or notebook, before it had readers of its own) is marked.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.common import ROOT, about, about_lines, arguments, grid

_READ = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
from qrag_jax.documents.read import read_files
from qrag_jax.documents.kinds import kind_of
found, paths = {}, json.load(sys.stdin)
for path in [*paths[:1], *paths]:  # the first twice: it also loads the package
    began = time.perf_counter()
    try:
        (document,) = read_files(path)
    except ValueError:
        continue
    seconds = time.perf_counter() - began
    with open(path, "rb") as file:
        found[path] = [seconds, kind_of(path, file.read())]
print(json.dumps(found))
"""
Times = dict[str, tuple[float, str]]  # path -> seconds, kind


def read(repository: Path, paths: list[str]) -> Times:
    """Reads files with the package of a repository, in a new process."""
    how = {"cwd": repository, "env": os.environ | {"PYTHONPATH": str(repository), "JAX_PLATFORMS": "cpu"}}
    command = [sys.executable, "-c", _READ]
    ended = subprocess.run(command, input=json.dumps(paths), capture_output=True, text=True, check=True, **how)
    return {path: (seconds, kind) for path, (seconds, kind) in json.loads(ended.stdout).items()}


def fastest(turns: list[Times]) -> Times:
    """The shortest time of each file."""
    return {path: min(turn[path] for turn in turns) for path in turns[0]}


def rows(before: Times | None, now: Times) -> list[list[str]]:
    """A row for each type of file."""
    files: dict[str, list[str]] = defaultdict(list)
    for path in now:
        if before is None or path in before:
            files[Path(path).suffix].append(path)
    found = []
    for suffix, paths in sorted(files.items()):
        size = sum(os.path.getsize(path) for path in paths) / 1e6
        seconds = sum(now[path][0] for path in paths)
        row = [suffix, str(len(paths)), f"{size:.2f}", f"{seconds / size:.3f}"]
        if before is not None:
            earlier = sum(before[path][0] for path in paths)
            is_new = before[paths[0]][1] != now[paths[0]][1]
            row[3:3] = [f"{earlier / size:.3f}" + " (as text)" * is_new]
            row.append("-" if is_new else f"{seconds / earlier:.2f}")
        found.append(row)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--before", type=Path, help="a working tree of an earlier version")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    paths = sorted(str(path) for path in args.folder.resolve().rglob("*") if path.is_file())
    versions = [ROOT] if args.before is None else [args.before.resolve(), ROOT]
    turns: dict[Path, list[Times]] = {version: [] for version in versions}
    for _ in range(args.repeats):
        for version in versions:
            turns[version].append(read(version, paths))
    before = None if args.before is None else fastest(turns[versions[0]])
    heads = ["type", "files", "MB", *["s a MB before"] * (before is not None), "s a MB now"]
    table = grid(heads + ["now / before"] * (before is not None), rows(before, fastest(turns[ROOT])))
    page = ["# Seconds that a megabyte takes to be read", "", *about_lines(about()), *table]
    print("\n".join(table))
    if args.out is not None:
        args.out.write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
