"""Requests/s, waiting times and memory of `qrag serve`, beside servers of txtai and LlamaIndex; and a soak.

    qrag index build small.index FOLDER                       # 83 files, say; and a large one
    python -m benchmarks.doors.serve_load run --index small.index --index big.index
    python -m benchmarks.doors.serve_load rivals --index big.index --one_seconds 10 --seconds 10
    python -m benchmarks.doors.serve_load soak --index small.index
    python -m benchmarks.doors.serve_load run --index small.index --seconds 3           # shows that it runs

With `--out benchmarks/doors/results` each command replaces its own part of the page there. `rivals` needs the
environment of benchmarks/rivals.txt.

* Servers and clients share the machine, over 127.0.0.1. A client sends its next question when it has the answer to the
  last, on a connection that stays open. `clients, cores` is the processor time that all clients took from the servers.
* A question is 5 to 12 words in a row of a random passage of the index, and no two are equal; or it is a line of
  `--questions`.
* One client sends 300 questions, or as many as it can in `--one_seconds`; then `--clients` send others for `--seconds`.
* An error is an answer with another status than 200, or none.
* `first answer` is the time from the command to the answer to the first question, so it includes loading.

`rivals` gives all servers the same passages and vectors: those of our index. Each server embeds a question with the
same MiniLM, and answers with five passages and their texts.

* `qrag dense` does the work of the rivals, and also finds the best sentence, the place and the copies of each passage.
  `qrag` is the default: words, vectors and notes.
* `txtai` is its own server with its defaults, and stored texts: faiss, above 5,000 passages with an inverted file, so
  that a search looks at a part of them. `txtai flat` looks at all, as we do.
* `LlamaIndex` is the retriever of a VectorStoreIndex behind ten lines of FastAPI, since LlamaIndex's core has no
  server; its default store is a list. `LlamaIndex faiss` has a flat index of faiss. Both are made from the vectors when
  they start; txtai loads its folder.
* `same first` is the share of the questions of one client with the same first passage as `qrag dense`;
  `qrag` also compares words and notes, so it often puts another one first.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

from benchmarks.common import about, about_lines, arguments, grid, read_json, write
from benchmarks.doors.processes import Call, Load, Server, load, our_server
from benchmarks.doors.soak import CLIENTS, mixed_calls, soak
from qrag_jax.data.questions.asked import read_asked
from qrag_jax.index.index import open_index
from qrag_jax.models.encoder.sources import find_encoder

_NAME = "serve_load"
_RIVALS = str(Path(__file__).parent / "rival_servers.py")
_ONE = 300  # questions of one client
_FEWEST_WORDS, _MOST_WORDS = 5, 12
_REFERENCE = "qrag dense"
_HEADS = ["", "first answer, s", "1 client: n", "p50, ms", "p95", "p99", "{} clients: /s", "errors", "p50, ms", "p95"]
_HEADS += ["p99", "clients, cores", "MiB after first, 1 client, all; peak"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Opened:
    """What an index contains; vectors float32 [texts, dim]."""

    name: str
    documents: list[str]
    texts: list[str]
    vectors: np.ndarray

    @property
    def told(self) -> str:
        """Its name and sizes."""
        return f"{self.name}: {len(self.documents):,} documents, {len(self.texts):,} chunks"


def opened(path: str) -> Opened:
    with open_index(path) as index:
        corpus = index.corpus
        assert corpus.vectors is not None
        texts = [corpus.texts[leaf] for leaf in corpus.leaves]
        documents = [document.id for document in corpus.documents]
        return Opened(Path(path).name.removesuffix(".index"), documents, texts, corpus.vectors[corpus.leaves])


def drawn_questions(texts: Sequence[str], number: int, seed: int) -> list[str]:
    """Distinct questions, each of words in a row of a random text; fewer if not so many are found soon."""
    rng, found = np.random.default_rng(seed), dict[str, None]()
    for place in rng.integers(len(texts), size=2 * number):
        words = texts[place].split()
        length = int(rng.integers(_FEWEST_WORDS, _MOST_WORDS + 1))
        start = int(rng.integers(max(1, len(words) - length + 1)))
        if len(words) >= _FEWEST_WORDS:
            found[" ".join(words[start : start + length])] = None
    return list(found)[:number]


def questions_for(texts: Sequence[str], args: argparse.Namespace) -> list[str]:
    if args.questions:
        return [one.question for one in read_asked(args.questions)]
    return drawn_questions(texts, args.generate, args.seed)


# --- parts of the page -----------------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Our server alone, over each index."""
    rows = []
    for path in args.index:
        index = opened(path)
        with our_server(path) as server:
            row, _ = measured(server, questions_for(index.texts, args), args)
        rows.append({"name": index.told, **row})
    return {"rows": rows}


def rivals(args: argparse.Namespace) -> dict[str, Any]:
    """All servers, one after the other, over the vectors of each index."""
    tables, versions = {}, {}
    for path in args.index:
        index = opened(path)
        questions = questions_for(index.texts, args)
        with tempfile.TemporaryDirectory() as folder:
            versions = _build(Path(folder), index, args.rival_python)
            tables[index.told] = _compared(_servers(path, folder, args.rival_python), questions, args)
    return {"tables": tables, "versions": versions}


def soaked(args: argparse.Namespace) -> dict[str, Any]:
    """Our server over the first index, asked for everything."""
    index = opened(args.index[0])
    questions = questions_for(index.texts, args)
    with our_server(args.index[0]) as server:
        server.first_answer(questions[0])
        rows, told = soak(server, mixed_calls(questions, index.documents, args.requests, args.seed))
    return {"name": index.told, "rows": rows, **told.summary(), "faults": told.faults[:20], "wall": told.wall}


def measured(server: Server, questions: Sequence[str], args: argparse.Namespace) -> tuple[Row, Load]:
    """What clients see of a server, and its memory; and the answers that one client had."""
    first, memory = server.first_answer(questions[0]), [server.memory()]
    calls = [server.ask(question) for question in questions[1:]]
    one = load(server, calls, most=_ONE, seconds=args.one_seconds)
    memory.append(server.memory())
    many = load(server, calls[_ONE:] or calls, clients=args.clients, seconds=args.seconds)
    memory.append(server.memory())
    for fault in (one.faults + many.faults)[:5]:
        print("no answer:", fault)
    return {"first": first, "one": one.summary(), "many": many.summary(), "memory": memory}, one


def _compared(servers: Iterator[tuple[str, Server]], questions: Sequence[str], args: argparse.Namespace) -> list[Row]:
    rows, firsts = [], dict[str, dict[int, str]]()
    for name, server in servers:
        with server:
            row, one = measured(server, questions, args)
        firsts[name] = {number: _first_text(body) for number, body in one.bodies.items()}
        both = firsts[name].keys() & firsts[_REFERENCE].keys()
        row["same"] = float(np.mean([firsts[name][number] == firsts[_REFERENCE][number] for number in both]))
        rows.append({"name": name, **row})
        print(*_cells(rows[-1]), flush=True)
    return rows


def _first_text(body: bytes) -> str:
    told = json.loads(body)
    return (told["hits"] if isinstance(told, dict) else told)[0]["text"]


def _build(folder: Path, index: Opened, python: str) -> dict[str, str]:
    """Writes the vectors and what txtai makes of them; returns the versions of the rivals."""
    (folder / "texts.json").write_text(json.dumps(index.texts))
    np.save(folder / "vectors.npy", index.vectors)
    command = [python, _RIVALS, "build", str(folder), str(find_encoder("minilm"))]
    return json.loads(subprocess.check_output(command, text=True).splitlines()[-1])


def _servers(path: str, folder: str, python: str) -> Iterator[tuple[str, Server]]:
    """Each is started when it is taken."""
    yield _REFERENCE, our_server(path, "--retriever", "dense")
    yield "qrag", our_server(path)
    for name in ("txtai", "txtai_flat"):
        quiet = ["--host", "127.0.0.1", "--port", "{port}", "--log-level", "warning", "--no-access-log"]
        yield (
            name.replace("_", " "),
            Server([python, "-m", "uvicorn", "txtai.api:app", *quiet], _get_search, CONFIG=f"{folder}/{name}.yml"),
        )
    for name in ("llamaindex_faiss", "llamaindex"):
        command = [python, _RIVALS, name, folder, str(find_encoder("minilm")), "{port}"]
        yield name.replace("_", " ").replace("llamaindex", "LlamaIndex"), Server(command, _get_search)


def _get_search(question: str) -> Call:
    return Call(f"/search?{urlencode({'query': question, 'limit': 5})}")


# --- the page --------------------------------------------------------------------------------------------------------


def page(parts: dict[str, Any]) -> str:
    """All parts that were measured."""
    lines = ["# `qrag serve` under load", "", *(__doc__ or "").split("\n\n", 2)[2].strip().splitlines(), ""]
    for name, (title, written) in _PARTS.items():
        if name in parts:
            part = parts[name]
            lines += [f"## {title}", "", f"`{part['command']}`", "", *about_lines(part["about"]), *written(part), ""]
    return "\n".join(lines)


def _run_lines(part: dict[str, Any]) -> list[str]:
    return grid([head.format(part["clients"]) for head in _HEADS], map(_cells, part["rows"]))


def _rivals_lines(part: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in part["versions"].items())
    lines = [f"Rivals: {versions}."]
    heads = [*(head.format(part["clients"]) for head in _HEADS), "same first"]
    for name, rows in part["tables"].items():
        lines += ["", f"### {name}", "", *grid(heads, ([*_cells(row), f"{row['same']:.0%}"] for row in rows))]
    return lines


def _soak_lines(part: dict[str, Any]) -> list[str]:
    heads = ["requests", "rss", "peak", "fds", "threads"]
    rows = ([f"{row[head]:,.0f}" for head in heads] for row in part["rows"])
    told = (
        f"{part['name']}. {CLIENTS} clients, {part['requests']:,} answers as expected and {part['errors']} others in "
        f"{part['wall']:.0f} s. All connections are closed for each measurement."
    )
    others = [f"Others: {', '.join(part['faults'])}.", ""] if part["faults"] else []
    return [told, "", *others, *grid(["requests", "MiB", "peak MiB", "open files", "threads"], rows)]


def _cells(row: Row) -> list[str]:
    one, many, memory = row["one"], row["many"], row["memory"]
    sizes = ", ".join(f"{each['rss']:,.0f}" for each in memory)
    return [
        row["name"],
        f"{row['first']:.1f}",
        str(one["requests"]),
        *(f"{one[name]:,.1f}" for name in ("p50", "p95", "p99")),
        f"{many['rate']:.1f}",
        str(one["errors"] + many["errors"]),
        *(f"{many[name]:,.0f}" for name in ("p50", "p95", "p99")),
        f"{many['cores']:.2f}",
        f"{sizes}; {memory[-1]['peak']:,.0f}",
    ]


_PARTS = {
    "run": ("Alone", _run_lines),
    "rivals": ("Beside other servers", _rivals_lines),
    "soak": ("After many requests", _soak_lines),
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("part", choices=_PARTS)
    parser.add_argument("--index", action="append", required=True, help="folder of an index; may be repeated")
    parser.add_argument("--seconds", type=float, default=60, help="that the clients ask together")
    parser.add_argument("--one_seconds", type=float, default=60, help="most that one client asks")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--questions", help="a file with a question a line")
    parser.add_argument("--generate", type=int, default=20_000, help="questions to draw from the index")
    parser.add_argument("--requests", type=int, default=10_000, help="of the soak")
    parser.add_argument("--rival_python", default=".venv-rivals/bin/python")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the page; it keeps the other parts")
    args = parser.parse_args()
    part = {"run": run, "rivals": rivals, "soak": soaked}[args.part](args)
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    command = shlex.join(["python", "-m", "benchmarks.doors.serve_load", *words])
    told = {"command": command, "clients": args.clients, "about": about("fastapi", "uvicorn"), **part}
    parts = (read_json(args.out / f"{_NAME}.json") if args.out else {}) | {args.part: told}
    if args.out:
        write(args.out, _NAME, parts, page(parts))
    else:
        print(page(parts))


if __name__ == "__main__":
    main()
