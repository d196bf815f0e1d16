"""Processes that write an index: slowly, again and again, in little room, or with workers that are killed."""

import os
import random
import resource
import signal
import time
from functools import partial
from pathlib import Path

from support.indices import load_maker, maker, update, write_notes

from qrag_jax.index import update as update_module
from qrag_jax.index.prepare import Maker
from qrag_jax.types import InputError, UsageError

REFUSED = 3  # exit status of a writer that met a typed error


def build_slowly(folder, notes, log, pause, max_files=3):
    """Brings an index up to date, some files at a time, with a pause for each chunk that is embedded."""
    update_module._MAX_FILES = max_files
    update(folder, notes, make=maker(log=log, pause=pause))


def build_small(folder, notes, log, max_bytes):
    """The same where no file may have more bytes; what is said of that goes into `LOG.said`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        build_slowly(folder, notes, log, 0.0)
    except (InputError, UsageError) as error:
        Path(f"{log}.said").write_bytes(b"")  # a few bytes are let through anyway
        os.truncate(f"{log}.said", 0)
        Path(f"{log}.said").write_text(str(error)[: min(max_bytes, 4000)])
        os._exit(REFUSED)


def write_on(folder, notes, number_of_files, until):
    """Adds version after version of all files of a folder, until a file is there; says how many in `NOTES.versions`."""
    version = 0
    while not Path(until).exists():
        version += 1
        write_version(notes, number_of_files, version)
        update(folder, notes, mirror=False, patience=600)
        Path(f"{notes}.versions").write_text(str(version))


def write_version(notes, number_of_files, version):
    """Files whose lines all have one version."""
    lines = {f"n{number}": lines_of(version, number) for number in range(number_of_files)}
    return write_notes(notes, **lines)


def lines_of(version, number):
    return "\n".join(f"{version} is the version of line {line} of file {number}" for line in range(4))


def build_with_deaths(folder, notes, deaths, number, num_workers):
    """Builds with workers, of which so many are killed; each at another document, which the next one reads."""
    update_module._MAX_FILES = 2
    Path(deaths).mkdir(exist_ok=True)
    update(folder, notes, make=partial(load_mortal, deaths, number), num_workers=num_workers)


def load_mortal(deaths, number):
    made = load_maker()

    def chunk(document):
        mark = Path(deaths, document.id.replace("/", "-"))
        if not mark.exists() and len(os.listdir(deaths)) < number and random.random() < 0.5:
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return made.chunk(document)

    return Maker(chunk, made.embed, made.count)


def wait_for(log, size, process, patience):
    """Until a log has so many bytes; whether its writer has ended before."""
    until = time.monotonic() + patience
    while not Path(log).exists() or Path(log).stat().st_size < size:
        if process.exitcode is not None:
            return True
        assert time.monotonic() < until, "nothing is written"
        time.sleep(0.002)
    return False
