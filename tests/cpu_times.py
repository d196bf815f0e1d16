"""CPU seconds of every case, its own and those of processes that it ended: `CPU_TIMES=DIR make test`.

Each worker writes `DIR/WORKER.jsonl`: a line {"test": ..., "cpu": ...} a case, and a last one of the session with its
peak memory. The run ends with a summary: seconds by module, and the ten slowest cases. Wall time says little where
tests share cores; CPU seconds of a case do. `python tests/cpu_times.py DIR` prints the summary of an earlier run.
"""

import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

NAME = "cpu-times"
SESSION = "SESSION"
MODULES, CASES = 20, 10  # lines of the summary


class CpuTimes:
    """The plugin of one process: the controller, or a worker."""

    def __init__(self, folder: Path, worker: str | None) -> None:
        """Args: folder, for one file a process; worker, its name, or None for the controller or a run without one."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.is_worker = folder, worker is not None
        self.path = folder / f"{worker or 'main'}.jsonl"
        if not self.is_worker:
            for old in folder.glob("*.jsonl"):
                old.unlink()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = cpu_seconds()
        result = yield
        self._write({"test": item.nodeid, "cpu": round(cpu_seconds() - before, 3)})
        return result

    def pytest_sessionfinish(self) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        self._write({"test": SESSION, "cpu": round(cpu_seconds(), 2), "peak_mb": peak})

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU seconds")
        terminalreporter.write(summary(self.folder))

    def _write(self, row: dict) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin where CPU_TIMES names a folder."""
    if os.environ.get("CPU_TIMES") and not config.pluginmanager.has_plugin(NAME):  # also as `-p cpu_times`
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        config.pluginmanager.register(CpuTimes(Path(os.environ["CPU_TIMES"]), worker), NAME)


def cpu_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def summary(folder: Path) -> str:
    """Processes, modules and cases by their CPU seconds, the largest first."""
    lines, cases, modules, numbers = [], Counter(), Counter(), Counter()
    for path in sorted(folder.glob("*.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            module = row["test"].partition("::")[0]
            if module == SESSION:
                lines.append(f"{path.stem}: {row['cpu']:,.0f} s in all, peak memory {row['peak_mb']:,} MB")
            else:
                cases[row["test"]] += row["cpu"]
                modules[module] += row["cpu"]
                numbers[module] += 1
    lines.append(f"{sum(numbers.values()):,} cases of {len(modules)} modules: {sum(cases.values()):,.0f} s")
    lines += [f"{cpu:8.1f}  {name} ({numbers[name]})" for name, cpu in modules.most_common(MODULES)]
    lines += ["slowest cases:", *(f"{cpu:8.1f}  {name}" for name, cpu in cases.most_common(CASES))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(summary(Path(sys.argv[1])), end="")
