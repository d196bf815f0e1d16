"""`qrag pull`: fetches a run that was shared, from the hub or a folder, and proves it before it stands in its place."""

import argparse
import shlex
from pathlib import Path

from qrag_jax.cli.terminal import say
from qrag_jax.hub import parse_place, pull_run


def run(args: argparse.Namespace) -> int:
    """Runs `qrag pull`; see `qrag pull --help`."""
    step, origin = pull_run(parse_place(args.where), Path(args.out), args.step)
    say(f"pulled step {step:,} of {origin} into {args.out}, every file as its manifest says")
    say(f"next: qrag find, eval and export take {shlex.quote(args.out)}; its README.md says what it was trained on")
    return 0
