"""`qrag mcp`: gives an agent tools to search indexes and read their documents, over standard input and output."""

import argparse
import io
import os
import signal
import sys

from qrag_jax.cli import search_flags
from qrag_jax.cli.parser import Verb
from qrag_jax.errors import UsageError, not_installed

_FLAGS = f"""\
paths INDEX ...  indexes of `qrag index build`
--retriever
--late           compare the best passages token by token too
. --no_late      do not, where it is the default: if the index stores token vectors
{search_flags.TRACE}\
. --no_compile_cache
"""


def _run(args: argparse.Namespace) -> int:
    from qrag_jax.index.options import SearchOptions
    from qrag_jax.index.sources import is_stored
    from qrag_jax.service.library import Library

    for path in args.paths:
        if not is_stored(path):
            why = "is no index; make one with `qrag index build`" if os.path.exists(path) else "there is no such index"
            raise UsageError(f"{path}: {why}")
    options = SearchOptions(retriever=args.retriever, late=search_flags.late_of(args))
    library = Library.open(args.paths, options)
    try:
        from qrag_jax.serve.mcp import serve_stdio
    except ImportError as error:
        raise not_installed(error.name, "mcp") from error
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what is printed leaves while it goes to standard error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # as a shell reports it
    code = 0
    with search_flags.tracing(vars(args)) as library.observe:
        try:
            serve_stdio(library)
        except SystemExit as stop:
            code = int(stop.code or 0)
    sys.stderr.flush()
    os._exit(code)  # a thread that still loads a model would abort the interpreter


VERB = Verb(
    description="""\
Give an agent tools to search indexes and to read their documents (MCP over standard input and output).

An agent starts this command itself; name it in the agent's configuration. It has two tools, which change nothing:

  search   a question -> passages, each with its best sentence, file, line, page and an id
  fetch    an id -> the text of the document around the passage; a long document comes in parts

Only documents of the indexes can be read. The command follows the folders of the indexes, and ends when the agent
closes its input.
""",
    examples="""\
examples:
  qrag mcp notes.index
  qrag mcp notes.index letters.index --retriever bm25
""",
    flags=_FLAGS,
    usage="INDEX [INDEX...] [--retriever R] [...]",
    run=_run,
)
