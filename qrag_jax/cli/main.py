"""The command `qrag`: parses the command line and runs the verb. Imports no JAX, so `qrag --help` is fast.

The module `qrag_jax.cli.<verb>` is imported when its verb is used. Exit codes: 0 done; 1 bad data or a bad file
(`InputError`); 2 a wrong flag, config or path (`UsageError`); 130 stopped by Ctrl-C; 143 stopped by SIGTERM.
"""

import argparse
import io
import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from qrag_jax.cli.errors import cli_text, flags_of
from qrag_jax.cli.parser import RENAMED, SUMMARIES, Parser, load_verb, main_parser, read
from qrag_jax.cli.terminal import say, shown, shown_lines
from qrag_jax.documents.decoding import is_utf8
from qrag_jax.files.reading import read_with
from qrag_jax.files.user_cache import keep_compiled
from qrag_jax.types import InputError, UsageError

# Arguments of `read_with` -> destinations of their flags; a flag that is not given changes nothing.
_READING = {"max_bytes": "max_input_gb", "html": "html_part"} | {
    name: name for name in ("follow_links", "exclude", "no_ignore", "comments", "outputs", "fields")
}
_EXIT_BROKEN_PIPE = 141  # what a shell reports for a process that died of SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments after the program's name; None uses `sys.argv`.

    Returns:
        The exit code.
    """
    if argv is None:
        _speak_utf8()
    _open_streams()
    flags: dict[str, str] = {}  # of the verb that runs
    shown_by, warnings.formatwarning = warnings.formatwarning, partial(_one_line, flags)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_ShownFormatter())
    try:
        command = parse(_without_zeros(sys.argv[1:] if argv is None else argv))
        flags |= flags_of(command.parser)
        values = command.values
        if _keeps_compiled(values):
            keep_compiled()
        with read_with(**{field: values.get(dest) or None for field, dest in _READING.items()}):
            code = command.parser.verb.run(argparse.Namespace(**values))
        sys.stdout.flush()  # now, so a closed pipe is handled below
        return code
    except UsageError as error:
        return _fail(error, flags, 2)
    except InputError as error:
        return _fail(error, flags, 1)
    except KeyboardInterrupt:
        print("qrag: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output has closed the pipe (`| head`): stay silent, now and when Python flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE
    except OSError as error:  # no permission, disk full, a file that went away
        return _fail(error, flags, 1)
    finally:
        warnings.formatwarning = shown_by
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(None)


def _keeps_compiled(values: Mapping[str, Any]) -> bool:
    """True if to cache compiled code. Not in runs of several processes: their machines may have other processors."""
    is_one_of_many = values.get("distributed") or values.get("coordinator")
    return not (values.get("no_compile_cache", True) or is_one_of_many)


def _without_zeros(argv: Sequence[str]) -> Sequence[str]:
    """The arguments, if none contains a zero byte. Only Python callers can pass one; no shell can."""
    for word in argv:
        if "\0" in word:
            raise UsageError(f"{word!r}: contains a zero byte; remove it")
    return argv


class _ShownFormatter(logging.Formatter):
    """Formats log records without control characters, if logging is not set up."""

    def format(self, record: logging.LogRecord) -> str:
        return shown_lines(super().format(record))


def _speak_utf8() -> None:
    """Starts this command again in Python's UTF-8 mode if names of files are not UTF-8 (`LC_ALL=C PYTHONUTF8=0`).

    Else arguments and names that are not ASCII are lone surrogates, which match no text.
    """
    if not is_utf8(sys.getfilesystemencoding()) and not sys.flags.utf8_mode:
        os.environ["PYTHONUTF8"] = "1"  # for the processes that this one starts
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _open_streams() -> None:
    """Sets up standard output and standard error, so printing cannot fail.

    A stream that the caller closed (`>&-`) discards its text. A character outside a stream's encoding is escaped.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or not is_utf8(stream.encoding)):
            stream.reconfigure(errors="backslashreplace")


@dataclass(frozen=True)
class Command:
    """A parsed command line: the verb, its parser, and the values of its flags by destination."""

    verb: str
    parser: Parser
    values: dict[str, Any]


def parse(argv: Sequence[str]) -> Command:
    """Parses a command line: flags and positionals in any order.

    Raises:
        SystemExit: by argparse, with code 0 after `--help` or `--version`, and 2 after a wrong flag.
    """
    if not argv or argv[0] not in {*SUMMARIES, *RENAMED}:
        parser = main_parser()
        parser.parse_args(argv)  # --help, --version or the error
        parser.error(f"give a verb: {', '.join(SUMMARIES)} (qrag --help explains them)")
    name = RENAMED.get(argv[0], argv[0])
    verb = load_verb(name)
    if name != argv[0]:
        say(f"note: qrag {argv[0]} is now called qrag {name}")
        verb = replace(verb, default_kind=None)  # the old verb had none
    parser, values = read(argv[1:], f"qrag {name}", verb)
    if "texts" in values:
        values |= _question_last(parser, values.pop("texts"), values["questions"])
    return Command(name, parser, values)


def _question_last(parser: Parser, texts: list[str], questions: str | None) -> dict[str, Any]:
    """Splits `PATHS... QUESTION` of find and ask; with a file of questions, all words are paths."""
    paths = texts if questions is not None else texts[:-1]
    question = None if questions is not None else texts[-1]
    if not paths:
        parser.error("give at least one file or folder, then the question")
    if question is not None and os.path.lexists(question):
        parser.error(
            f"{question!r} is a file or folder, but the last argument must be the question; put the question last, in "
            "quotes (if a file has the same name, end the question with a question mark)"
        )
    return {"paths": paths, "question": question}


def _one_line(flags: Mapping[str, str], message: Warning | str, *_: object, **__: object) -> str:
    """The text of a warning on one line, without the line of code that raised it."""
    return f"qrag: warning: {shown(cli_text(message, flags))}\n"


def _fail(error: Exception, flags: Mapping[str, str], code: int) -> int:
    say(f"qrag: error: {cli_text(error, flags)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
