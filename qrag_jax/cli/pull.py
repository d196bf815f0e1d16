"""`qrag pull`: fetches a shared run from the hub or a folder."""

import argparse
import shlex

from qrag_jax import service
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.terminal import say

_DESCRIPTION = """\
Fetch a shared run into the folder OUT, for `qrag find`, `eval` and `export`.

owner/name is a repository of the Hugging Face hub (HF_ENDPOINT chooses another hub); @REVISION names a branch, a tag or
a full commit id. A folder begins with ./, / or ~. If a name could be both, it is refused: write ./name for the folder,
or hf://owner/name for the repository. OUT must be empty or new.

Every file is checked against the manifest. If one is damaged, it is named and nothing is kept. The hashes detect
damage; they do not prove who pushed the run. If a download is interrupted, run the command again to continue.
"""
_EXAMPLES = """\
examples:
  qrag pull alice/qa2 runs/alice
  qrag pull alice/qa2@v1 runs/alice         the revision tagged v1
  qrag pull /mnt/shared/qa2 runs/qa2 --step 1200
"""
_FLAGS = """\
where WHERE  owner/name[@REVISION], or a folder
out OUT      run folder to write
--step I     checkpoint to fetch (default: the newest)
"""


def _run(args: argparse.Namespace) -> int:
    pulled = service.pull(args.where, args.out, args.step)
    say(f"pulled step {pulled.step:,} of {pulled.where} into {args.out}; all files match the manifest")
    say(f"next: use {shlex.quote(args.out)} with qrag find, eval or export; its README.md names the training data")
    return 0


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run)
