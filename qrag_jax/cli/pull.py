"""`qrag pull`: fetches a run that was shared, from the hub or a folder."""

import argparse
import shlex

from qrag_jax import service
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.terminal import say

_DESCRIPTION = """\
Fetch a run that was shared.

What comes out: a run folder OUT, which `qrag find`, `eval` and `export` take.

owner/name is a repository of the Hugging Face hub (HF_ENDPOINT chooses another), and @REVISION after it a branch, a tag
or a whole commit id; a folder starts with ./, / or ~. A name that is both is refused: ./name is the folder,
hf://owner/name the repository. An OUT that holds anything is refused too.

Every file is compared with the manifest first: a damaged one is named, and nothing is kept. The hashes find damage;
they do not say who pushed it. A download that breaks off goes on when it is run again.
"""
_EXAMPLES = """\
examples:
  qrag pull alice/qa2 runs/alice
  qrag pull alice/qa2@v1 runs/alice         as it was when it was tagged v1
  qrag pull /mnt/shared/qa2 runs/qa2 --step 1200
"""
_FLAGS = """\
where WHERE  owner/name[@REVISION], or a folder
out OUT      run folder to write
--step I     which checkpoint (default: the newest)
"""


def _run(args: argparse.Namespace) -> int:
    pulled = service.pull(args.where, args.out, args.step)
    say(f"pulled step {pulled.step:,} of {pulled.where} into {args.out}, every file as its manifest says")
    say(f"next: qrag find, eval and export take {shlex.quote(args.out)}; its README.md says what it was trained on")
    return 0


VERB = Verb(_DESCRIPTION, _EXAMPLES, _FLAGS, _run)
