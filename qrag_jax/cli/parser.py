"""The parsers of `qrag` and of each verb. Imports nothing heavy: `qrag --help` answers at once."""

import argparse
from types import ModuleType
from typing import NoReturn

from qrag_jax import __version__
from qrag_jax.cli.parsers import (
    ask,
    chunk,
    demo,
    eval,
    export,
    find,
    fit,
    flags,
    hicbench,
    index,
    llm,
    notes,
    points,
    pull,
    push,
    study,
    train,
)
from qrag_jax.cli.terminal import shown_lines

_DESCRIPTION = """\
Find what answers a question in your own files, offline, and train retrievers that find scattered facts step by step.

  qrag find notes/ "Where is the key?"    the passages that answer a question; nothing has to be trained
  qrag index build notes.index notes/     keep the files cut and embedded: qrag find notes.index "Where is the key?"
  qrag ask notes/ "Where is the key?"     have a language model answer from them, with citations
  qrag demo                               train a retriever on simulated stories, measure it and ask it
"""


# In the order of `qrag --help`; what a module offers is said in `parsers`.
_VERBS: dict[str, ModuleType] = {
    "find": find,
    "ask": ask,
    "index": index,
    "chunk": chunk,
    "points": points,
    "hicbench": hicbench,
    "study": study,
    "demo": demo,
    "train": train,
    "fit": fit,
    "eval": eval,
    "notes": notes,
    "llm": llm,
    "export": export,
    "push": push,
    "pull": pull,
}


class _Parser(argparse.ArgumentParser):
    """Shows what it was given as a terminal may see it: a shell puts names of files there (`qrag chunk *`)."""

    def error(self, message: str) -> NoReturn:
        super().error(shown_lines(message))


def make_parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of `qrag`, and the parser of each verb by its name."""
    parser = _Parser(
        prog="qrag",
        description=_DESCRIPTION,
        epilog="qrag VERB --help explains one. Exit codes: 0 done, 1 bad data or file, 2 wrong flag, config or path.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"qrag_jax {__version__}")
    group = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb")
    parsers = {name: flags.add_parser(group, name, verb) for name, verb in _VERBS.items()}
    return parser, parsers


def kinds_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of what a verb does of several kinds, as `qrag fit tagger`; none of other verbs."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: own for group in groups for name, own in group.choices.items()}
