"""`qrag pull`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags
from qrag_jax.cli.parsers.push import WHERE

SUMMARY = "fetch a run that was shared"
DESCRIPTION = f"""\
Fetch a run that was shared.

What comes out: a run folder OUT, which `qrag find`, `eval` and `export` take.

{WHERE}
@REVISION after the repository is a branch, a tag or a whole commit id. Every file is compared with the manifest first:
a damaged one is named, and nothing is kept. A download that breaks off goes on when it is run again. An OUT that holds
anything is refused. The hashes find damage; they do not say who pushed it.
"""
EXAMPLES = """\
examples:
  qrag pull alice/qa2 runs/alice
  qrag pull alice/qa2@v1 runs/alice         as it was when it was tagged v1
  qrag pull /mnt/shared/qa2 runs/qa2 --step 1200
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag pull`."""
    parser.add_argument("where", metavar="WHERE", help="owner/name[@REVISION], or a folder")
    parser.add_argument("out", metavar="OUT", help="run folder to write")
    flags.add_step(parser, "the newest")
