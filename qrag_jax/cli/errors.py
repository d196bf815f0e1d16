"""Errors and warnings for the command line: they name the flag instead of the argument."""

import argparse
import shlex
from collections.abc import Mapping

from qrag_jax.errors import Arg, InputError, InputWarning

# Argument or field of the library -> its flag, if the names differ.
FLAGS = {
    "beam_widths": "beam_width",
    "bounds": "answer_bounds",
    "encoder": "model",
    "estimates": "estimate",
    "fills": "fill",
    "held_out": "calibrate",
    "ks": "k",
    "measures": "answer_measures",
    "notes": "notes_mode",
    "num_workers": "workers",
    "protocols": "protocol",
}


def flags_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The flags of a verb: name of the argument -> flag."""
    return {action.dest: action.option_strings[-1] for action in parser._actions if action.option_strings}


def cli_text(error: Exception | Warning | str, flags: Mapping[str, str]) -> str:
    """The text of an error or warning for the terminal.

    Args:
        flags: of the verb that ran (`flags_of`). An argument without a flag keeps the library's name.
    """

    def name(arg: Arg) -> str:
        flag = flags.get(arg.name) or flags.get(FLAGS.get(arg.name, ""))
        return str(arg) if flag is None else as_flag(Arg(flag.removeprefix("--"), arg.value))

    return error.text(name) if isinstance(error, InputError | InputWarning) else str(error)


def as_flag(arg: Arg) -> str:
    """An argument as a flag of the command line, for any verb."""
    value = ",".join(map(str, arg.value)) if isinstance(arg.value, tuple) else arg.value
    if isinstance(value, str) and value != value.strip():  # a prompt that ends in a space
        value = shlex.quote(value)
    return f"--{arg.name}" if value is None or value is True else f"--{arg.name} {value}"
