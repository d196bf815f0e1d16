"""`qrag serve`: answers questions about indexes over HTTP, with a page for people and tools for agents."""

import argparse
import ipaddress
import os
import re
import signal
import socket
import sys

from qrag_jax.cli import search_flags
from qrag_jax.cli.llm_flags import HELP, llm_config, llm_table
from qrag_jax.cli.parser import Verb
from qrag_jax.errors import Arg, UsageError, not_installed

_LAST_PORT = 65_535
_TOKEN_NAME = "QRAG_TOKEN"
_FLAGS = f"""\
paths PATHS ...     indexes, or files and folders that are read now
--port I = 8000     port; 0 takes a free one
--host H = 127.0.0.1  address to listen on: 127.0.0.1 is this machine only; another one needs --token
--token T           secret that clients must send (default: the environment variable QRAG_TOKEN; none if it is not set)
. --allowed_host H+    a further name of this server, such as that of a proxy; may be repeated
. --max_waiting N = 64  most requests that wait at a time; more are refused with status 503
--retriever
. --num_steps N     with a run: chunks to pick (default: as in training)
. --stop            with a run: show only the picks before it stops
{search_flags.RERANK}\
{search_flags.TRACE}\
. --no_compile_cache
{llm_table()}"""


def _run(args: argparse.Namespace) -> int:
    from qrag_jax.cli.terminal import say
    from qrag_jax.index.options import AskOptions, SearchOptions
    from qrag_jax.llm.config import make_generator
    from qrag_jax.service.library import Library

    token = args.token or os.environ.get(_TOKEN_NAME, "")
    if token != token.strip():
        raise UsageError("has blanks or a line break at an end, which no client can send", field="token")
    if not token and not _is_local(args.host):
        reason = ", because other machines can then send requests; `--token` takes any long secret"
        raise UsageError((Arg("host", args.host), ": needs a token", reason), field="host")
    for name in args.allowed_host:
        if not re.fullmatch(r"[\w.-]+", name):
            raise UsageError("give a bare name, without a port or a path", field="allowed_host", value=name)
    llm = llm_config(vars(args))
    search = SearchOptions(
        retriever=args.retriever,
        num_steps=args.num_steps,
        stop=args.stop,
        late=search_flags.late_of(args),
        rerank=search_flags.rerank_options(vars(args)),
    )
    library = Library.open(args.paths, search, AskOptions(search, prompts=llm.prompts, sampling=llm.sampling))
    with _listener(args.host, args.port) as listener:
        if (args.llm or args.llm_model) is not None:
            library.llm = make_generator(llm)
        try:
            from qrag_jax.serve.app import ServeOptions, run
        except ImportError as error:
            raise not_installed(error.name, "serve") from error
        host, port = listener.getsockname()[:2]
        say(f"http://{f'[{host}]' if ':' in host else host}:{port} serves {', '.join(library.names)}; Ctrl-C ends it")
        names = tuple(args.allowed_host)
        # A script that starts this with `&` leaves Ctrl-C's signal ignored; uvicorn takes it, and then ends as if done.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with search_flags.tracing(vars(args)) as library.observe:
                run(library, ServeOptions(args.host, token, names, args.max_waiting), listener)
        except KeyboardInterrupt:
            print("qrag: stopped", file=sys.stderr, flush=True)
            os._exit(130)  # threads that still read an index or write an answer would hold the exit
    return 0


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listener(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        UsageError: the port is taken, or the address is not of this machine.
    """
    if port > _LAST_PORT:
        raise UsageError(f"at most {_LAST_PORT}", field="port", value=port)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = f"cannot listen there ({error.strerror or error})"
        remedy = "end the program that does, or give another port; 0 takes a free one"
        raise UsageError(f"{host}:{port}: {reason}", field="port", value=port, remedy=remedy) from error


VERB = Verb(
    description="""\
Serve indexes over HTTP: a page for people, JSON for programs, tools for agents (MCP, at /mcp).

The server keeps the indexes in memory and follows their folders: after `qrag index add` or build it searches the new
state, without a restart. It answers only this machine unless you give --host with a --token.

  POST /v1/search        {"question": ..., "top_k": ...} -> {"hits": [...]}: passages, each with its best sentence
                         of several indexes: "index": NAME for one, or "quotas": {NAME: most passages, ...}
  POST /v1/ask           {"question": ...} -> events: passages, then the answer with citations
  GET  /v1/documents/ID  the text of a document
  GET  /healthz  /metrics  /openapi.json
""",
    details=HELP,
    examples="""\
examples:
  qrag serve notes.index                        then open http://127.0.0.1:8000
  curl -s localhost:8000/v1/search -d '{"question": "Who has the key?", "top_k": 3}'
  qrag serve notes.index letters.index --port 9000 --llm_model smollm2
  qrag serve notes.index --host 0.0.0.0 --token "$(openssl rand -hex 16)"
""",
    flags=_FLAGS,
    usage="INDEX [INDEX...] [--port N] [--host H --token T] [...]",
    run=_run,
)
