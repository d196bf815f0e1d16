"""Paths that lead elsewhere, are no files, or have names that a terminal would obey; and no network but this machine's.

Nothing outside of what was named is read into an output or changed, nothing waits for ever, and what is said holds no
control character.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from random import Random

import network_guard
import pytest
from support.hostile_artefacts import KINDS, Kind, make_checkpoint, resign
from support.hostile_values import SECRET, Canary, outcome
from support.tiers import of_tier

from qrag_jax.cli.main import main
from qrag_jax.data.stories.haystack import read_documents
from qrag_jax.documents.read import read_files
from qrag_jax.files.manifest import MANIFEST
from qrag_jax.files.reading import read_with

SEED = int(os.environ.get("TRUST_SEED", "8"))
TEXT = "Mary went to the kitchen. John took the milk."

# --- network


@pytest.mark.parametrize(
    "ask",
    [
        lambda: socket.getaddrinfo("huggingface.co", 443),
        lambda: socket.create_connection(("192.0.2.1", 80), timeout=1),
        lambda: socket.socket().bind(("0.0.0.0", 0)),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53)),
        lambda: socket.gethostbyname("example.org"),
    ],
)
def test_whoever_asks_for_another_machine_is_stopped_and_named(ask):
    with pytest.raises(network_guard.NetworkAsked):
        ask()
    assert len(network_guard.asked()) == 1


def test_processes_that_tests_start_are_guarded_too():
    code = "import socket\ntry: socket.getaddrinfo('example.org', 80)\nexcept Exception: pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0 and "NetworkAsked" in done.stderr
    assert network_guard.asked() == ["socket.getaddrinfo 'example.org'"]


def test_this_machine_may_be_asked():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        socket.create_connection(server.getsockname()).close()
    assert network_guard.asked() == []


# --- links and what is no file, in artefacts and folders of documents


def read_texts(folder: Path) -> str:
    with warnings.catch_warnings(record=True, action="always") as said:
        found = [*read_files(folder), *read_documents(folder)]
    return " ".join([*(one.text for one in found), *(str(warning.message) for warning in said)])


def make_documents(folder: Path) -> None:
    (folder / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.md", "sub/c.txt"):
        (folder / name).write_text(TEXT)


# Not what is a single file, which somebody names.
FOLDERS = {name: kind for name, kind in KINDS.items() if name not in ("chat template", "questions and records")}
ARTEFACTS = FOLDERS | {"documents": Kind(make_documents, lambda *_: None, read_texts)}
QUICK = ("documents", "corpus", "study folder")
MODELS, LINKED = ("encoder folder", "decoder folder", "GGUF"), ("link to a file", "link upwards")


def put(path: Path, what: str, canary: Canary) -> None:
    """Something else in the place of a file or folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if what == "FIFO":
        os.mkfifo(path)
    elif what == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
            server.bind(path.name)
        os.chdir(here)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to(
            {
                "link to a file": canary.file,
                "link upwards": os.path.relpath(canary.file, path.parent),
                "link to a folder": canary.folder,
                "link to nothing": path.with_name("nowhere"),
                "loop": path,
                "device": Path("/dev/zero"),
            }[what]
        )


WHATS = ("FIFO", "socket", "folder", "link to a file", "link upwards", "link to a folder", "link to nothing", "loop",
         "device")  # fmt: skip


def special_cases(names: tuple[str, ...], made: Path) -> list[tuple[str, str, str, bool]]:
    """(artefact, file or folder in it, what takes its place, whether the manifest is made to fit)."""
    cases = []
    for name in names:
        for path in sorted((made / name).rglob("*")):
            place = path.relative_to(made / name).as_posix()
            signed = [False, True] if any(path.parent.glob(MANIFEST)) and path.name != MANIFEST else [False]
            cases += [(name, place, what, fit) for what in WHATS for fit in signed]
    return cases


def test_what_is_no_file_is_refused_and_no_link_is_written_anywhere(tmp_path, figures):
    names = tuple(ARTEFACTS) if of_tier(0, 1) else QUICK
    canary, made = Canary(tmp_path), tmp_path / "made"
    made.mkdir()
    for name in names:
        ARTEFACTS[name].make(made / name)
    cases = special_cases(names, made)
    wrong, seen = [], Counter()
    chosen = Random(SEED).sample(cases, of_tier(40, len(cases)) if len(cases) > 40 else len(cases))
    for name, place, what, fit in chosen:
        work = tmp_path / "work"
        shutil.copytree(made / name, work, symlinks=True)
        path = work / place
        put(path, what, canary)
        if fit:
            with contextlib.suppress(OSError):
                resign(path.parent)
        with read_with(max_bytes=2**24):
            found, fault = outcome(canary, lambda name=name, work=work: ARTEFACTS[name].read(work), may_open=True)
        seen[found] += 1
        # Models may be made of links, as in the cache of the Hub: what the person who names one reads through them.
        fault = None if name in MODELS and found == "taken" and what in LINKED else fault
        wrong += [f"{name} {place} {what} {fit}: {fault}"] if fault else []
        canary.touched.clear()
        shutil.rmtree(work)
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong[:40])
    figures(
        8, "links, FIFOs, sockets, devices in artefacts", len(chosen),
        f"{seen['refused']} refused with a typed error, {seen['taken']} read without them, 0 bytes from outside in an "
        "output",
    )  # fmt: skip


def test_links_in_folders_of_documents_are_followed_where_that_is_asked_for(tmp_path):
    make_documents(tmp_path / "docs")
    canary = Canary(tmp_path)
    (tmp_path / "docs" / "key.txt").symlink_to(canary.file)
    (tmp_path / "docs" / "all").symlink_to(canary.folder)
    (tmp_path / "docs" / "all" / "loop").symlink_to(tmp_path / "docs")
    canary.file.write_text(f"{SECRET} is a sentence.")
    for read in (read_files, read_documents):
        with warnings.catch_warnings(record=True, action="always") as said:
            assert SECRET not in " ".join(one.text for one in read(tmp_path / "docs"))
        assert "2 links in folders were not followed" in str(said[0].message)
        with read_with(follow_links=True):
            found = [Path(one.id).relative_to(tmp_path / "docs").as_posix() for one in read(tmp_path / "docs")]
        assert (
            {"a.txt", "b.md", "sub/c.txt", "key.txt", "all/id_rsa.txt", "all/qrag_canary_module.py"}
            >= set(found)
            > {"a.txt", "b.md", "sub/c.txt"}
        )


# --- names

NAMES = (
    "\x1b[31mred\x1b[0m", "\x1b]0;owned\x07", "a\nqrag: error: b", "a\rb", "a\tb", "\x07", "\u202etxt.exe", "\u2066x",
    "\x9b2J", "\u2028", "\x7f", "\udcff\udc80", "-", "--", "--help me", "-x\x1b[2J", " ", "a b", "'", '"',
    "$(touch mark)", "`touch mark`", "; touch mark", "%s%n", "{0.__class__}", "*", "?", "[", "~", "#", "x" * 256,
    "y/" * 2500 + "z", "n\0ul",
    "../up\x1b[1m", "/dev/null/x\x1b[1m", "/proc/self/nothing\x1b[1m", "hf://a/b\x1b[1m", "a/b@\x1b[1m", "C:\\x\x1b[1m",
)  # fmt: skip
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
VERBS = (
    "chunk NAME", "chunk docs --config_path NAME", "chunk docs --html NAME/x", "chunk docs --tree NAME",
    "chunk docs --model NAME", "chunk docs --encoding NAME", "chunk docs --NAME", "find NAME docs where",
    "find run NAME where",
    "ask NAME where", "ask docs where --llm NAME", "ask docs where --journal NAME/x --llm none", "push NAME ./shared",
    "push run NAME --license x", "push run ./shared --scores NAME", "pull NAME out", "pull run NAME", "export NAME out",
    "eval NAME --jsonl q.jsonl", "eval run --jsonl NAME", "eval run --hotpot NAME", "eval run --babi NAME",
    "eval run --vectors NAME", "train --config_path NAME --dry_run", "train --dry_run init=NAME", "train --out NAME/x "
    "data.task=jsonl data.paths=[nothing]", "train --out out data.task=jsonl data.paths=[NAME]",
    "train --out out data.task=babi data.paths=[NAME]", "train --out out data.haystack=NAME data.num_questions=1",
    "train --out NAME --resume data.task=vectors data.paths=[nothing]", "train --dry_run NAME=3", "study NAME",
    "study --corpus NAME --questions q.jsonl", "study --corpus docs --questions NAME --out out",
    "NAME", "chunk NAME NAME", "points NAME", "points scisumm:NAME", "points docs --methods none --json NAME/x",
)  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with documents, questions and a step without arrays."""
    folder = tmp_path / "inner" / "place"
    make_documents(folder / "docs")
    make_checkpoint(folder / "run")
    (folder / "q.jsonl").write_text(json.dumps({"question": "Who?", "relevant": ["a.txt"]}) + "\n")
    monkeypatch.chdir(folder)
    return folder


def argv_of(line: str, name: str) -> list[str]:
    words = line.split(" ")
    return [word.replace("NAME", json.dumps(name) if word.endswith("[NAME]") else name) for word in words]


def lay(folder: Path, name: str, kind: str) -> None:
    """Makes what a name names, where a file system has such a name."""
    with contextlib.suppress(OSError, ValueError):
        if kind == "file":
            (folder / name).write_text("\x1b[31m: [")
        elif kind == "folder":
            (folder / name).mkdir()


def test_names_are_shown_as_no_terminal_obeys_them(tmp_path, place, capsys, figures):
    cases = [(line, name, kind) for line in VERBS for name in NAMES for kind in ("nothing", "file", "folder")]
    chosen = Random(SEED).sample(cases, of_tier(12, len(cases)))
    shutil.copytree(place, tmp_path / "good")
    wrong, codes = [], Counter()
    for line, name, kind in chosen:
        if not name.startswith(("/", "..", "~")) and name not in (" ", ".") and "z" != name[-1]:
            lay(place, name, kind)
        fault, code = None, None
        try:
            code = main(argv_of(line, name))
        except SystemExit as stopped:
            code = stopped.code
        except Exception as error:  # noqa: BLE001
            fault = f"{type(error).__name__}: {str(error)[:200]!r}"
        said = capsys.readouterr()
        codes[code] += 1
        if fault is None and code not in (0, 1, 2):
            fault = f"exit code {code}"
        if fault is None and (found := OBEYED.search(said.out + said.err)):
            fault = f"says {found[0]!r} in {(said.out + said.err)[max(0, found.start() - 60) : found.end() + 20]!r}"
        if fault is None and (code and "qrag" not in said.err):
            fault = f"says nothing: {said.err[:100]!r}"
        wrong += [f"{line} {name[:40]!r} {kind}: {fault}"] if fault else []
        beside = [path for path in place.parent.iterdir() if path != place]
        if (place / "mark").exists() or (beside and not name.startswith("..")):  # what is named may be made
            wrong.append(f"{line} {name[:40]!r} {kind}: something was made: {beside}")
        for path in [*place.iterdir(), *beside]:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copytree(tmp_path / "good", place, dirs_exist_ok=True)
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong[:60])
    figures(
        8, "names on the command line", len(chosen),
        f"{len(VERBS)} places, {len(NAMES)} names: no control character in what is said, nothing raw, nothing made "
        f"elsewhere; exit codes {', '.join(f'{code}: {number}' for code, number in sorted(codes.items(), key=str))}",
    )  # fmt: skip
