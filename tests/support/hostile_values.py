"""Values that files of others may hold, well-formed and meaning harm, and a canary that tells whether they did any.

The canary is a folder with a secret file, a secret environment variable, and a module that leaves a mark where it is
imported. Nobody but a hostile value ever names them.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from qrag_jax.types import InputError

VARIABLE, MODULE = "QRAG_CANARY", "qrag_canary_module"
SECRET = "canary-5e0c1d7f-file"
VARIABLE_SECRET = "canary-93ab4e62-variable"
SECONDS = 100  # for one artefact: nothing comes near it but what waits, or does not end
_EVENTS = ("open", "os.", "shutil.", "subprocess.", "pickle.", "import", "exec", "socket.connect")
_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_ONLY_READ = ("read ", "os.listdir", "os.scandir", "os.walk")
_IMPORTER = "<frozen importlib._bootstrap_external>"
_watched: list["Canary"] = []


class Canary:
    """Set up in a folder of its own; `check` says what a hostile value has reached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "outside"
        self.folder.mkdir()
        self.file, self.mark = self.folder / "id_rsa.txt", self.folder / "mark"
        self.file.write_text(f"{SECRET}\n")
        (self.folder / f"{MODULE}.py").write_text(f"open({str(self.mark)!r}, 'w').close()\n")
        self.touched: list[str] = []
        self._before = self._state()

    def check(self, *said: object) -> str | None:
        """What is wrong, None if nothing: the folder was changed or opened, code ran, or a secret was said."""
        if self.touched:
            return f"reached: {self.touched[0]}"
        if self._state() != self._before:
            return "the canary's folder was changed"
        if MODULE in sys.modules:
            return "the canary's module was imported"
        text = " ".join(map(str, said))
        return next((f"a secret was said: {text[:200]}" for one in (SECRET, VARIABLE_SECRET) if one in text), None)

    def in_files(self, folder: Path) -> str | None:
        """The first file below a folder that holds a secret."""
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                if SECRET.encode() in content or VARIABLE_SECRET.encode() in content:
                    return f"a secret was written into {path}"
        return None

    def _state(self) -> list[tuple[str, bytes, int]]:
        files = [path for path in sorted(self.folder.iterdir()) if path.is_file()]
        return [(path.name, path.read_bytes(), path.stat().st_mtime_ns) for path in files]


def _hook(event: str, args: tuple) -> None:
    if not _watched or not event.startswith(_EVENTS):
        return
    if event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "pickle.find_class"):
        _watched[0].touched.append(f"{event} {args!r:.200}")
    elif event.startswith(("open", "os.", "shutil.")):
        folder = str(_watched[0].folder)
        if event == "os.listdir" and sys._getframe(1).f_code.co_filename == _IMPORTER:
            return  # any import looks through sys.path; that the canary's module was imported is seen by itself
        if any(isinstance(arg, str | bytes | os.PathLike) and folder in os.fsdecode(arg) for arg in args[:2]):
            mode, flags = (str(args[1]), args[2]) if event == "open" else ("", 0)
            is_read = event == "open" and not set(mode) & set("wax+") and not flags & _WRITE
            _watched[0].touched.append(f"{'read' if is_read else event} {args!r:.200}")


sys.addaudithook(_hook)


@contextmanager
def watched(canary: Canary) -> Iterator[None]:
    """What runs inside of it is stopped after `SECONDS`, can import the canary's module, and is watched."""

    def late(*_: object) -> None:
        raise TimeoutError(f"not done after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    os.environ[VARIABLE] = VARIABLE_SECRET
    sys.path.append(str(canary.folder))
    _watched.append(canary)
    try:
        yield
    finally:
        _watched.pop()
        sys.path.remove(str(canary.folder))
        del os.environ[VARIABLE]
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(canary: Canary, call: Any, may_open: bool = False) -> tuple[str, str | None]:
    """(`taken` or `refused`, what is wrong or None) of a call that reads an artefact.

    Args:
        canary: watches it.
        call: gives a text that must not hold a secret, or anything else.
        may_open: what a link leads to may be opened for reading, as long as nothing is said or written of it.
    """
    try:
        with watched(canary):
            said, kind = call(), "taken"
    except InputError as error:
        said, kind = error, "refused"
    except Exception as error:  # noqa: BLE001
        return "raw", f"{type(error).__name__}: {str(error)[:300]}"
    if may_open:
        canary.touched[:] = [what for what in canary.touched if not what.startswith(_ONLY_READ)]
    return kind, canary.check(said if isinstance(said, str | InputError) else "")


def hostile_texts(canary: Canary) -> list[str]:
    """Paths, names of modules, shell words, template code, controls."""
    file, mark = str(canary.file), str(canary.mark)
    up = "../" * 40 + file.lstrip("/")
    return [
        file, up, f"file://{file}", f"a/../{up}", f"..\\..\\{canary.file.name}", "/etc/passwd", "~/.ssh/id_rsa",
        "/dev/zero", "/proc/self/environ", "C:\\x", "..", ".", "", " ", "con", f"{file}\0.json", "a\0b",
        "/dev/stdin", "x" * 5000,
        MODULE, f"{MODULE}.run", f"{MODULE}:run", "os.system", "torch.load", "builtins.eval", f"qrag_jax.{MODULE}",
        f"$({mark})", f"$(touch {mark})", f"`touch {mark}`", f"; touch {mark} #", f"| touch {mark}", f"${VARIABLE}",
        f"${{{VARIABLE}}}", f"%{VARIABLE}%", f"env:{VARIABLE}", "${oc.env:" + VARIABLE + "}", f"--out={mark}",
        f"__import__('os').system('touch {mark}')", f"open({mark!r}, 'w')", f"lambda: open({mark!r}, 'w')",
        "{{ cycler.__init__.__globals__.os.environ }}", f"{{% include {file!r} %}}",
        "{0.__class__.__init__.__globals__}",
        "%(__class__)s", "{}".format("{" * 200), f"!!python/object/apply:os.system ['touch {mark}']",
        f"!include {file}", "&a [*a]", "<<: *a", "\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe", "\ud800", "a\nb: 1", "\t",
        "nan", "inf", "1e999", "0x10", "null", "9" * 400, f"jar:{file}", f"https://127.0.0.1:1/{VARIABLE}", "*" * 300,
        "(a+)+$", "vectors", "scratch", "float64", "object", "|O", "O", "V8", "key<fry>", "i4,(1000,1000)f8", "M8[ns]",
    ]  # fmt: skip


NUMBERS: list[Any] = [
    0, -1, 1, 2, 3, 7, 255, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30), 10**400, 0.0, -0.0, 0.5, 1.5,
    -1e308, 1e308, 5e-324, float("nan"), float("inf"), -float("inf"), True, False, None,
]  # fmt: skip


def hostile_value(rng: Random, canary: Canary, texts: list[str]) -> Any:
    """A text, a number, or something that holds them."""
    draw = rng.random()
    if draw < 0.5:
        return rng.choice(texts)
    if draw < 0.8:
        return rng.choice(NUMBERS)
    inner = rng.choice([rng.choice(texts), rng.choice(NUMBERS)])
    deep: Any = inner
    for _ in range(rng.choice([1, 40])):
        deep = [deep]
    return rng.choice([
        [], {}, [inner], [inner] * 1000, {"a": inner}, {str(inner): inner}, deep, {"__class__": inner}, {"$ref": inner},
        {"py/object": "os.system", "args": [str(canary.mark)]}, {"": inner}, [[inner, inner]], [{}, []],
    ])  # fmt: skip


def _place(rng: Random, value: Any) -> tuple[Any, Any]:
    """(what holds it, its key) of something in JSON; what lies deep is no rarer than what there is little of."""
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.7:
        return _place(rng, value[key])
    return value, key


def hostile_json(rng: Random, canary: Canary, value: Any) -> Any:
    """A copy with one value replaced, left out, added, or under another name."""
    value, texts = json.loads(json.dumps(value)), hostile_texts(canary)
    if rng.random() < 0.02 or not isinstance(value, dict | list) or not value:
        return hostile_value(rng, canary, texts)
    node, last = _place(rng, value)
    draw = rng.random()
    if draw < 0.75 or not isinstance(node, dict):
        node[last] = hostile_value(rng, canary, texts)
    elif draw < 0.85:
        node[rng.choice(texts)] = node.pop(last)
    elif draw < 0.95:
        node[rng.choice(texts)] = hostile_value(rng, canary, texts)
    else:
        del node[last]
    return value
