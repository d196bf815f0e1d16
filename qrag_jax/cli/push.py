"""`qrag push`: shares a run on the hub or in a folder."""

import argparse
import shlex

from qrag_jax import service
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.terminal import say

_DESCRIPTION = """\
Share a run on the Hugging Face hub or in a folder.

WHERE receives the newest checkpoint with a manifest of hashes, a card (config, training data, scores) and
metrics.jsonl.

owner/name is a repository of the hub (HF_ENDPOINT chooses another hub). A folder begins with ./, / or ~. If a name
could be both, it is refused: write ./name for the folder, or hf://owner/name for the repository. A push to owner/name
is also refused if owner/ is a folder here.
"""
_DETAILS = """\
A new repository is public unless you give --private. It contains one step: a push replaces the files of the last push
in one commit, and the history keeps them. A folder must be empty or new. A link that leads out of the run is refused.
The token comes from `hf auth login` or HF_TOKEN.
"""
_EXAMPLES = """\
examples:
  qrag push runs/qa2 alice/qa2                            everything; others can continue the training
  qrag push runs/qa2 alice/qa2 --inference --private      only what a search needs, visible only to alice
  qrag push runs/qa2 alice/qa2 --scores rows.json         with rows of `qrag eval --json rows.json` on the card
  qrag push runs/qa2 ./shared/qa2 --license apache-2.0
"""
_FLAGS = """\
run
where WHERE    owner/name, or a folder
--step I       checkpoint to share (default: the newest complete one)
--inference    leave out what only training needs: optimiser and target parameters
--scores ROWS  file of `qrag eval --json`, to show as a table on the card
--license ID   licence for the card, such as apache-2.0 (default: none)
--private      make a new repository private
"""


def _run(args: argparse.Namespace) -> int:
    pushed = service.push(made(service.PushRequest, vars(args)), lambda text: say(f"note: {text}"))
    say(f"pushed step {pushed.step:,} of {args.run}: {pushed.where}")
    say(f"next: qrag pull {shlex.quote(args.where)} OUT")
    return 0


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run, details=_DETAILS)
