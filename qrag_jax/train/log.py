"""Files of a training run: metrics that a resumed run repeats bit for bit, separate times, and TensorBoard."""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qrag_jax.files.reading import read_limited
from qrag_jax.files.whole_file import write_whole
from qrag_jax.types import InputError, UsageError

METRICS, TIMES = "metrics.jsonl", "times.jsonl"


class RunLog:
    """metrics.jsonl: a line of facts about the data, then one a logged step. times.jsonl: seconds at these steps.

    Metrics hold nothing that depends on the clock, so that a run which was killed and resumed has the same file as one
    which was not. Seconds run on from those of the interrupted run.
    """

    def __init__(self, out: Path, facts: Mapping[str, Any], first: int, tensorboard: bool):
        """Opens the files; what an interrupted run logged after update `first` is cut off, since it comes again.

        Args:
            out: run folder, made when absent.
            first: update after which the run starts; 0 is a new run.
            tensorboard: also write event files into `out/tensorboard`.
        """
        out.mkdir(parents=True, exist_ok=True)
        self._metrics, self._times = out / METRICS, out / TIMES
        earlier = [line for line in read_lines(self._metrics) if 0 < (line.get("step") or 0) <= first] if first else []
        times = [line for line in read_lines(self._times) if line["step"] <= first] if first else []
        _rewrite(self._metrics, [{"data": dict(facts)}, *earlier])
        _rewrite(self._times, times)
        self._start = time.perf_counter() - (times[-1]["seconds"] if times else 0.0)
        self._board = _board(out / "tensorboard", first) if tensorboard else None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends a step to all files."""
        _append(self._metrics, {"step": step, **values})
        _append(self._times, {"step": step, "seconds": round(time.perf_counter() - self._start, 3)})
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
            self._board.flush()

    def sync(self) -> None:
        """Flushes the files to disk before a checkpoint."""
        for path in (self._metrics, self._times):
            with path.open("ab") as file:
                os.fsync(file.fileno())

    def close(self) -> None:
        """Closes the event files; a later line does not open them again."""
        if self._board is not None:
            self._board.close()
            self._board = None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSON Lines file; none when there is no file. A last line that a kill cut short is left out."""
    if not path.exists():
        return []
    lines, found = read_limited(path).split(b"\n"), []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last line break is no whole line
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{path}:{number}: not JSON ({error}); remove the line, or the file, and resume"
            ) from error
        if not isinstance(value, dict) or not _is_line(value, path.name == TIMES):
            raise InputError(
                f"{path}:{number}: expected an object with step or data; remove the line, or the file, and resume"
            )
        found.append(value)
    return found


def _is_line(value: dict[str, Any], has_time: bool) -> bool:
    step, seconds = value.get("step"), value.get("seconds")
    if has_time:
        return type(step) is int and isinstance(seconds, (int, float)) and abs(seconds) < sys.float_info.max
    return type(step) is int or (step is None and "data" in value)


def _rewrite(path: Path, lines: list[dict[str, Any]]) -> None:
    write_whole(path, "".join(_line(line) for line in lines))


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(_line(line))


def _line(line: dict[str, Any]) -> str:
    return json.dumps(line, allow_nan=False) + "\n"


def _board(folder: Path, first: int) -> Any:
    if not first:
        for old in folder.glob("events.out.tfevents.*"):  # of a run that was killed before it saved anything
            old.unlink()
    try:
        from tensorboardX import SummaryWriter  # here: it is slow to import, and most runs do without
    except ImportError as error:
        raise UsageError(
            "tensorboard: needs the package tensorboardX, which is not installed: pip install 'qrag_jax[train]', or "
            "set tensorboard=false"
        ) from error

    return SummaryWriter(str(folder), purge_step=first + 1 if first else None)
