"""Requests of every kind, good and bad, and what a server holds after each thousand of them."""

import random
import time
from collections.abc import Sequence
from urllib.parse import quote, urlencode

from benchmarks.doors.processes import Call, Load, Server, load, post

CLIENTS = 4
BLOCK = 1_000  # requests between two measurements
_PAUSE = 1.0  # seconds for connections and work that was left to end
_LONG_BODY = "x" * 70_000  # bytes; the server takes 65,536
_KINDS = {
    "search": 60,
    "ask": 1,
    "ask_whole": 1,
    "document": 20,
    "page": 8,
    "page_of_answer": 1,
    "bad": 6,
    "leaves": 3,
}  # requests in 100; an answer takes as long as twenty searches


def mixed_calls(questions: Sequence[str], documents: Sequence[str], number: int, seed: int) -> list[Call]:
    """Requests of every kind in random order."""
    rng = random.Random(seed)
    kinds = rng.choices(list(_KINDS), list(_KINDS.values()), k=number)
    return [_call(kind, rng.choice(questions), rng.choice(documents), rng) for kind in kinds]


def _call(kind: str, question: str, document: str, rng: random.Random) -> Call:
    path = f"/v1/documents/{quote(document)}"
    return {
        "search": post("/v1/search", question=question, top_k=5),
        "ask": post("/v1/ask", question=question),
        "ask_whole": post("/v1/ask", question=question, stream=False),
        "document": Call(path),
        "page": Call(f"/?{urlencode({'question': question})}"),
        "page_of_answer": Call(f"/?{urlencode({'question': question, 'mode': 'ask'})}"),
        "bad": rng.choice(_bad_calls(question)),
        "leaves": rng.choice(_calls_that_leave(question, path)),
    }[kind]


def _bad_calls(question: str) -> list[Call]:
    foreign = {"host": "elsewhere.example"}
    return [
        Call("/v1/search", "{", 400),
        Call("/v1/search", '{"question": " "}', 422),
        Call("/v1/search", _LONG_BODY, 413),
        Call("/v1/documents/none", "", 404),
        Call(f"/?{urlencode({'question': question})}", "", 421, headers=foreign),
        Call("/none", "", 404),
    ]


def _calls_that_leave(question: str, path: str) -> list[Call]:
    asked, searched = post("/v1/ask", question=question), post("/v1/search", question=question)
    early = [Call(one.path, one.body, leaves_after=0) for one in (asked, searched, Call(path))]
    return [*early, *(Call(one.path, one.body, leaves_after=1) for one in (asked, Call(path)))]


def soak(server: Server, calls: Sequence[Call]) -> tuple[list[dict[str, float]], Load]:
    """Sends all requests, and measures the server before, after every block, and at the end.

    Returns:
        Rows with the number of requests so far, `rss`, `peak`, `fds` and `threads`; and all answers.
    """
    rows, whole = [{"requests": 0, **_measured(server)}], Load()
    for start in range(0, len(calls), BLOCK):
        block = calls[start : start + BLOCK]
        told = load(server, block, clients=CLIENTS, most=len(block))
        whole.seconds += told.seconds
        whole.faults += told.faults
        whole.wall += told.wall
        rows.append({"requests": start + len(block), **_measured(server)})
        print(rows[-1], flush=True)
    return rows, whole


def _measured(server: Server) -> dict[str, float]:
    time.sleep(_PAUSE)
    return server.memory() | server.handles()
