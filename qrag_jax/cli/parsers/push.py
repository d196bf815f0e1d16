"""`qrag push`: its help and flags. Imports nothing heavy: the help answers at once."""

import argparse

from qrag_jax.cli import flags

# What WHERE may be; `qrag pull` says it too.
WHERE = """\
owner/name is a repository of the Hugging Face hub (HF_ENDPOINT chooses another); a folder starts with ./, / or ~. A
name that is both is refused: ./name is the folder, hf://owner/name the repository. So is a push to owner/name where
owner/ is a folder here.
"""

SUMMARY = "share a run on the hub or in a folder"
DESCRIPTION = f"""\
Share a run, on the Hugging Face hub or in a folder.

What comes out, at WHERE: its newest checkpoint with a manifest of hashes, a card (config, training data, scores) and
metrics.jsonl.

{WHERE}
A repository is made when absent, public unless --private says otherwise. It holds one step: what the last push wrote
is replaced in one commit, and stays in the history. A folder that holds anything is refused, and so is
a link that leads out of the run. The token is the one of `hf auth login` or HF_TOKEN.
"""
EXAMPLES = """\
examples:
  qrag push runs/qa2 alice/qa2                            all of it, optimiser too: others can train on
  qrag push runs/qa2 alice/qa2 --inference --private      what searching needs, for alice alone
  qrag push runs/qa2 alice/qa2 --scores rows.json         with what `qrag eval --json rows.json` wrote
  qrag push runs/qa2 ./shared/qa2 --license apache-2.0
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `qrag push`."""
    flags.add_run(parser)
    parser.add_argument("where", metavar="WHERE", help="owner/name, or a folder")
    flags.add_step(parser, "the newest that is whole")
    parser.add_argument(
        "--inference", action="store_true", help="leave out what only training needs: optimiser, target parameters"
    )
    parser.add_argument("--scores", metavar="ROWS", help="rows of `qrag eval --json`, as a table on the card")
    parser.add_argument("--license", metavar="ID", help="for the card, such as apache-2.0 (default: none is named)")
    parser.add_argument("--private", action="store_true", help="make a repository that others do not see")
