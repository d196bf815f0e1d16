"""Test 6 of docs/reliability.md: damaged and hostile files of every format, and any text for everything that cuts one.

What is changed, and how, hangs on TRUST_SEED and the reader's name alone. A case that fails lies in the test's folder,
below `found`.
"""

import ctypes
import gc
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from support.tiers import of_tier
from trust.cutters import CUTTERS
from trust.data_readers import QUESTIONS, SETS
from trust.model_readers import MODELS, TABLES
from trust.mutations import mutate
from trust.run_readers import OTHERS
from trust.samples import REFUSALS, Reader

MAX_SECONDS, BYTES_A_SECOND = 5.0, 50_000  # of CPU: so long for any input, and longer by what it is made of
MAX_PEAK, MAX_KEPT = 400, 100  # MB: while a reader runs, and when it has read all
WITNESS = 4
TENTH = 4  # a tenth of all would take three minutes of CPU; this is the share of it that `make test-all` has
_MAX_SHOWN = 12
ALL = {one.name: one for one in (*QUESTIONS, *SETS, *TABLES, *MODELS, *OTHERS, *CUTTERS)}


class OutOfTime(BaseException):
    """An input took more CPU than any may; no `except Exception` of a reader holds it."""


@contextmanager
def watched(most: float) -> Iterator[None]:
    """Raises OutOfTime in what takes more than twice `most` seconds of CPU."""

    def stop(*_: object) -> None:
        raise OutOfTime

    old = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, 2 * most)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def status_mb(field: str) -> float:
    """A line of this process's memory, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def resident_mb(many: bool) -> float:
    """What this process holds; after many cases, when all that can be given back is, which takes a second."""
    if not many:
        return status_mb("VmRSS")
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return status_mb("VmRSS")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def restore(folder: Path, files: dict[str, bytes], changed: str, everything: bool) -> None:
    """The valid sample again."""
    if not everything:
        (folder / changed).write_bytes(files[changed])
        return
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in files:
            path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def fault_of(reader: Reader, folder: Path, outcomes: Counter, most: float) -> str | None:
    """Reads once; what was raised that should not be, and where in qrag_jax."""
    try:
        with watched(most):
            reader.read(folder)
    except REFUSALS as error:
        outcomes["refused"] += 1
        assert str(error).strip(), "a refusal without a word"
        return None
    except (Exception, OutOfTime) as error:  # noqa: BLE001 -- what is looked for
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/qrag_jax/" in frame.filename]
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
        return f"{type(error).__name__} at {place}: {' '.join(str(error).split())[:150]}"
    except BaseException as error:  # a panic of Rust
        if type(error).__name__ != "PanicException":
            raise
        return f"PanicException: {str(error)[:200]}"
    outcomes["read"] += 1
    return None


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured by Linux")
@pytest.mark.filterwarnings("ignore::UserWarning")  # damaged files of a study are said in warnings
@pytest.mark.parametrize("name", ALL)
def test_only_refusals(name, tmp_path, figures):
    reader, number = ALL[name], of_tier(WITNESS, ALL[name].cases)
    if WITNESS < number < reader.cases:
        number = -(-number // TENTH)
    folder = tmp_path / "sample"
    folder.mkdir()
    reader.make(folder)
    files = contents(folder)
    reader.read(folder)  # the sample is valid
    restore(folder, files, "", everything=True)
    rng = Random(f"{os.environ.get('TRUST_SEED', '0')} {name}")
    outcomes, faults, slowest = Counter(), {}, 0.0
    before = resident_mb(number >= 1_000)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory from here on
    for case in range(number):
        changed = rng.choice(list(files))
        (folder / changed).write_bytes(mutate(rng, changed, files[changed]))
        if reader.seal is not None and rng.random() < 0.8:
            reader.seal(folder)
        hostile = (folder / changed).read_bytes()
        start, most = time.process_time(), MAX_SECONDS + len(hostile) / BYTES_A_SECOND
        fault = fault_of(reader, folder, outcomes, most)
        took = time.process_time() - start
        slowest = max(slowest, took)
        if fault is None and took > most:
            fault = f"{took:.1f} seconds"
        if fault is not None:
            outcomes["fault"] += 1
            faults.setdefault(fault.partition(": ")[0], f"{fault} (case {case}, {changed})")
            keep(tmp_path, case, changed, hostile, fault)
        restore(folder, files, changed, everything=reader.seal is not None or reader.leaves)
    peak, kept = status_mb("VmHWM") - before, resident_mb(number >= 1_000) - before
    assert not faults, f"{outcomes['fault']} of {number}:\n" + "\n".join(list(faults.values())[:_MAX_SHOWN])
    assert peak < MAX_PEAK and kept < MAX_KEPT, f"memory grew by {peak:.0f} MB, and {kept:.0f} MB stayed"
    read, refused = outcomes["read"], outcomes["refused"]
    figures(
        6, name, number,
        f"{refused:,} refused, {read:,} read, 0 other errors; slowest {slowest:.2f} s; peak +{max(peak, 0):.0f} MB",
    )  # fmt: skip


def keep(folder: Path, case: int, name: str, content: bytes, fault: str) -> None:
    """A failing input as a file, with what came of it."""
    place = folder / "found" / f"{case}-{Path(name).name}"
    if len(list(place.parent.glob("*"))) < 2 * _MAX_SHOWN if place.parent.exists() else True:
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(content)
        place.with_name(f"{place.name}.fault").write_text(fault, errors="replace")
