"""`qrag`: parses, and hands over to one module a verb. Imports no JAX, so `qrag --help` answers at once.

`qrag_jax.cli.verbs.<verb>.run(args) -> exit code` does the work; its module is imported when its verb is run. Exit
codes: 0 done; 1 bad data or a bad file (`InputError`); 2 a wrong flag, config or path (`UsageError`); 130 stopped by
Ctrl-C; 143 by SIGTERM.
"""

import argparse
import difflib
import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial

from qrag_jax.cli.errors import cli_text, flags_of
from qrag_jax.cli.parser import kinds_of, make_parser
from qrag_jax.cli.terminal import say, shown, shown_lines
from qrag_jax.cli.user_cache import keep_compiled
from qrag_jax.files.reading import read_with
from qrag_jax.types import InputError, UsageError

# Before what stands behind `--`: argparse takes a word that opens with a dash for a flag there too. No argument has it.
_PLAIN = "\0"
_EXIT_BROKEN_PIPE = 141  # what a shell reports for a process that died of SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments after the program's name; None takes `sys.argv`.

    Returns:
        The exit code.
    """
    _open_streams()
    flags: dict[str, str] = {}  # of the verb that runs
    shown_by, warnings.formatwarning = warnings.formatwarning, partial(_one_line, flags)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_ShownFormatter())
    try:
        args = parse(_without_zeros(sys.argv[1:] if argv is None else argv), flags)
        if _keeps_compiled(args):
            keep_compiled()
        with read_with(max_bytes=getattr(args, "max_input_gb", None), follow_links=getattr(args, "follow_links", None)):
            code = importlib.import_module(f"qrag_jax.cli.verbs.{args.verb}").run(args)
        sys.stdout.flush()  # here, where a closed pipe is still ours to handle
        return code
    except UsageError as error:
        return _fail(error, flags, 2)
    except InputError as error:
        return _fail(error, flags, 1)
    except KeyboardInterrupt:
        print("qrag: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # whoever read our output has left (`| head`): say nothing, now and when Python flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE
    except OSError as error:  # no permission, disk full, a file that went away
        return _fail(error, flags, 1)
    finally:
        warnings.formatwarning = shown_by
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(None)


def _keeps_compiled(args: argparse.Namespace) -> bool:
    """Whether a verb that compiles is to keep that; several processes may be on machines that share no processor."""
    is_one_of_many = getattr(args, "distributed", False) or getattr(args, "coordinator", None)
    return not (getattr(args, "no_compile_cache", True) or is_one_of_many)


def _without_zeros(argv: Sequence[str]) -> Sequence[str]:
    """The arguments, refused where one has a zero byte: no system gives such, no path can, but Python's callers may."""
    for word in argv:
        if "\0" in word:
            raise UsageError(f"{word!r}: a zero byte, which no name of a file and no value can hold")
    return argv


class _ShownFormatter(logging.Formatter):
    """What is logged where nobody has set logging up, as a terminal may see it."""

    def format(self, record: logging.LogRecord) -> str:
        return shown_lines(super().format(record))


def _open_streams() -> None:
    """Makes standard output and error such that what is printed cannot fail.

    A stream that the caller has closed (`>&-`) leads nowhere, and a letter that the encoding of one does not have is
    written as an escape.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def parse(argv: Sequence[str], flags: dict[str, str] | None = None) -> argparse.Namespace:
    """Arguments of one command, flags and positionals in any order.

    Args:
        flags: gets those of the verb (`flags_of`), before it is parsed.

    Raises:
        SystemExit: of argparse: 0 after `--help` or `--version`, 2 after a wrong flag.
    """
    parser, verbs = make_parser()
    if not argv or argv[0] not in verbs:
        parser.parse_args(argv)  # --help, --version or the error
        parser.error(f"say what to do: {', '.join(verbs)} (qrag --help explains them)")
    verb, words, chosen = argv[0], argv[1:], verbs[argv[0]]
    if kinds := kinds_of(chosen):
        if not words or words[0] not in kinds:
            chosen.parse_args(words[:1] if words and words[0] in ("-h", "--help") else [])
            chosen.error(f"say first which: qrag {verb} {'|'.join(kinds)} (qrag {verb} KIND --help explains one)")
        words, chosen = words[1:], kinds[words[0]]
    if flags is not None:
        flags.update(flags_of(chosen))
    args = chosen.parse_intermixed_args(_normalise(words, chosen))
    for name, value in vars(args).items():
        setattr(args, name, _unmarked(value))
    if verb in ("find", "ask"):
        args.paths, args.question = vars(args).pop("texts"), None
        if args.questions is None:
            args.question = args.paths.pop()
        if not args.paths:
            verbs[verb].error("give at least one file or folder, and the question last")
        if args.question is not None and os.path.lexists(args.question):
            verbs[verb].error(
                f"{args.question!r} is a file or folder here, and the last argument is the question: give the question "
                "last, in quotes (one that is named as a file: with a question mark)"
            )
    args.verb = verb
    return args


def _normalise(argv: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """`--dry-run` is `--dry_run`; `--a.b=3`, when it is no flag of this verb's, is the override `a.b=3`.

    What stands behind `--` is no flag, and is marked by `_PLAIN`. A flag that is nearly one of this verb's ends the
    command, as argparse would, with the name that was probably meant.
    """
    flags = {option for action in parser._actions for option in action.option_strings}
    takes_overrides = any(action.dest == "overrides" for action in parser._actions)
    result = []
    for i, token in enumerate(argv):
        if token == "--":
            return [*result, *(_PLAIN + word for word in argv[i + 1 :])]
        name, equals, value = token.partition("=")
        plain = name.replace("-", "_").replace("__", "--", 1)
        if name.startswith("--") and plain in flags:
            token = plain + equals + value
        elif name.startswith("--") and equals and takes_overrides:
            token = token.removeprefix("--")
        elif name.startswith("--") and (near := difflib.get_close_matches(plain, flags, n=2)):
            parser.error(f"unrecognized arguments: {token} (did you mean {' or '.join(near)}?)")
        result.append(token)
    return result


def _unmarked(value: object) -> object:
    """An argument, or a list of them, without the mark of what stood behind `--`."""
    if isinstance(value, list):
        return [_unmarked(one) for one in value]
    return value.removeprefix(_PLAIN) if isinstance(value, str) else value


def _one_line(flags: Mapping[str, str], message: Warning | str, *_: object, **__: object) -> str:
    """A warning as its reader needs it, without the line of code that it was given in."""
    return f"qrag: warning: {shown(cli_text(message, flags))}\n"


def _fail(error: Exception, flags: Mapping[str, str], code: int) -> int:
    say(f"qrag: error: {cli_text(error, flags)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
