"""Do the tests notice? Random mutants of the modules that carry the promises, against the quick and the full tests.

    python -m benchmarks.quality.mutants --seed 0 --num 30 --out benchmarks/quality/results/mutants.md

A mutant is one change: an operator, a constant, or a statement that is dropped. Each runs against the tests of `TESTS`,
which are those that have to do with its module: first the quick tier's cases of them, then all. What other tests would
find is not counted. A run that hangs counts as found. With `--seed 0` the same 30 come for the same sources.
"""

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from benchmarks.common import ROOT, arguments, grid

RESULTS = Path(__file__).parent / "results"

# Module -> tests that are most likely to notice.
TESTS = {
    "train/qrag/returns.py": ["tests/train/qrag/test_returns.py", "tests/train/qrag/test_learner.py"],
    "qrag/env.py": [
        "tests/qrag/test_env.py",
        "tests/trust/test_configs.py",
        "tests/qrag/test_env_stop.py",
        "tests/train/qrag/test_learner.py",
    ],
    "models/towers/positions.py": ["tests/models/towers/test_positions.py", "tests/qrag/test_env.py"],
    "chunking/size/budget.py": ["tests/chunking"],
    "checkpoint.py": [
        "tests/test_checkpoint.py",
        "tests/test_damage.py",
        "tests/trust/test_corruption.py",
        "tests/train/qrag/test_loop.py",
    ],
    "llm/journal/journal.py": ["tests/llm"],
}
SWAPS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//", ast.Pow: "*",
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.And: "or", ast.Or: "and", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
COPIED = ("qrag_jax", "tests", "configs", "docs", "benchmarks", "pyproject.toml", "README.md", "CHANGELOG.md")
QUICK, FULL = ["-m", "not slow and not oracle"], ["-m", "not oracle", "--hypothesis-profile=full"]


@dataclass(frozen=True)
class Mutant:
    """One change of a file: characters `start` to `end` become `text`."""

    module: str
    line: int
    start: int
    end: int
    text: str
    was: str

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def mutants(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module; annotations, docstrings and messages are left alone."""
    lines = source.splitlines(keepends=True)
    starts = list(accumulate(map(len, lines), initial=0))
    # ast counts columns in UTF-8 bytes
    place = lambda line, column: starts[line - 1] + len(lines[line - 1].encode()[:column].decode())  # noqa: E731
    tree, skipped = ast.parse(source), set()
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                skipped |= {id(x) for x in ast.walk(getattr(node, name))}
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(x) for x in ast.walk(node)}
    found = []

    def add(node: ast.AST, start: int, end: int, text: str) -> None:
        found.append(Mutant(module, node.lineno, start, end, text, source[start:end]))

    def swap(node: ast.AST, left: ast.expr, right: ast.expr, operator: ast.AST) -> None:
        if type(operator) in SWAPS:
            start, end = place(left.end_lineno, left.end_col_offset), place(right.lineno, right.col_offset)
            between = source[start:end]
            bare = between.strip("() \n\\")
            if bare and "#" not in between:
                add(node, start, end, between.replace(bare, SWAPS[type(operator)]))

    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.BinOp):
            swap(node, node.left, node.right, node.op)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            swap(node, node.left, node.comparators[0], node.ops[0])
        elif isinstance(node, ast.BoolOp):
            swap(node, node.values[0], node.values[1], node.op)
        elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            value = (not node.value) if isinstance(node.value, bool) else node.value + 1
            add(node, place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset), repr(value))
        elif isinstance(node, (ast.Expr, ast.Raise, ast.AugAssign)) and not (
            isinstance(node, ast.Expr) and isinstance(node.value, (ast.Constant, ast.Yield))
        ):
            add(node, place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset), "pass")
    return found


def draw(num: int, seed: int) -> list[Mutant]:
    """`num` mutants, as many of each module, that still parse."""
    rng, chosen = random.Random(seed), []
    for i, module in enumerate(TESTS):
        source = (ROOT / "qrag_jax" / module).read_text(encoding="utf-8")
        every = mutants(module, source)
        rng.shuffle(every)
        share = num // len(TESTS) + (i < num % len(TESTS))
        chosen += [mutant for mutant in every if _parses(mutant.apply(source))][:share]
    return chosen


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def fails(copy: Path, tests: list[str], tier: list[str], seconds: int) -> bool:
    """True if tests fail in a copy of the repository; a run that hangs does."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tier, *tests]
    env = os.environ | {"PYTHONPATH": str(copy), "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
    env["QRAG_JAX_TESTS_COMPILED"] = str(copy.parent / "compiled")
    try:
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode != 0


def check_unchanged(module: str, copies: list[Path]) -> None:
    """The tests of a module pass without any mutant, else every one of its mutants would count as found."""
    copy = copies.pop()
    try:
        if fails(copy, TESTS[module], FULL, 3600):
            raise SystemExit(f"{module}: its tests fail without any mutant")
    finally:
        copies.append(copy)
    print(f"{module}: its tests pass as it is", flush=True)


def judge(mutant: Mutant, copies: list[Path]) -> str:
    """`quick`: the quick tests notice; `full`: only the full ones; `lives`: none."""
    copy = copies.pop()
    path = copy / "qrag_jax" / mutant.module
    source = path.read_text(encoding="utf-8")
    try:
        path.write_text(mutant.apply(source), encoding="utf-8")
        verdict = "lives"
        for name, tier, seconds in (("quick", QUICK, 900), ("full", FULL, 1800)):
            if verdict == "lives" and fails(copy, TESTS[mutant.module], tier, seconds):
                verdict = name
        print(f"{mutant.module}:{mutant.line}: {mutant.was!r} -> {mutant.text!r}: {verdict}", flush=True)
        return verdict
    finally:
        path.write_text(source, encoding="utf-8")
        copies.append(copy)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--num", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="show the mutants and stop")
    parser.add_argument("--out", type=Path, default=RESULTS / "mutants.md")
    args = parser.parse_args()
    chosen = draw(args.num, args.seed)
    if args.list:
        for mutant in chosen:
            print(f"{mutant.module}:{mutant.line}: {mutant.was!r} -> {mutant.text!r}")
        return
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / str(i) for i in range(2)]
        for copy in copies:
            for name in COPIED:
                one = ROOT / name
                shutil.copytree(one, copy / name) if one.is_dir() else shutil.copy(one, copy / name)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda module: check_unchanged(module, copies), TESTS))
            verdicts = list(pool.map(lambda mutant: judge(mutant, copies), chosen))
    write(args.out, chosen, verdicts, args.seed)


def write(out: Path, chosen: list[Mutant], verdicts: list[str], seed: int) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    count = lambda *names: sum(verdict in names for verdict in verdicts)  # noqa: E731
    lines = [
        "# Mutants", "",
        f"`python -m benchmarks.quality.mutants --seed {seed} --num {len(chosen)}`, commit {commit}. Of {len(chosen)} "
        f"mutants the quick tests find {count('quick')}, the full ones {count('quick', 'full')}.", "",
    ]  # fmt: skip
    table = []
    for mutant, verdict in zip(chosen, verdicts, strict=True):
        was, text = (" ".join(part.split())[:60].replace("|", "\\|") for part in (mutant.was, mutant.text))
        table.append([f"{mutant.module}:{mutant.line}", f"`{was}` -> `{text}`", verdict])
    lines += grid(["place", "change", "found by"], table)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
