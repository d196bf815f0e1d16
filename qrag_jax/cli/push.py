"""`qrag push`: shares a run, on the hub or in a folder."""

import argparse
import shlex

from qrag_jax import service
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.terminal import say

_DESCRIPTION = """\
Share a run, on the Hugging Face hub or in a folder.

What comes out, at WHERE: its newest checkpoint with a manifest of hashes, a card (config, training data, scores) and
metrics.jsonl.

owner/name is a repository of the Hugging Face hub (HF_ENDPOINT chooses another); a folder starts with ./, / or ~. A
name that is both is refused: ./name is the folder, hf://owner/name the repository. So is a push to owner/name where
owner/ is a folder here.
"""
_DETAILS = """\
A repository is made when absent, public unless --private says otherwise. It holds one step: what the last push wrote
is replaced in one commit, and stays in the history. A folder that holds anything is refused, and so is
a link that leads out of the run. The token is the one of `hf auth login` or HF_TOKEN.
"""
_EXAMPLES = """\
examples:
  qrag push runs/qa2 alice/qa2                            all of it, optimiser too: others can train on
  qrag push runs/qa2 alice/qa2 --inference --private      what searching needs, for alice alone
  qrag push runs/qa2 alice/qa2 --scores rows.json         with what `qrag eval --json rows.json` wrote
  qrag push runs/qa2 ./shared/qa2 --license apache-2.0
"""
_FLAGS = """\
run
where WHERE    owner/name, or a folder
--step I       which checkpoint (default: the newest that is whole)
--inference    leave out what only training needs: optimiser, target parameters
--scores ROWS  rows of `qrag eval --json`, as a table on the card
--license ID   for the card, such as apache-2.0 (default: none is named)
--private      make a repository that others do not see
"""


def _run(args: argparse.Namespace) -> int:
    pushed = service.push(made(service.PushRequest, vars(args)), lambda text: say(f"note: {text}"))
    say(f"pushed step {pushed.step:,} of {args.run}: {pushed.where}")
    say(f"next: qrag pull {shlex.quote(args.where)} OUT")
    return 0


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run, details=_DETAILS)
