"""What `qrag push --help` and `qrag pull --help` say. Imports nothing: the help answers at once."""

_WHERE = """\
owner/name is a repository of the Hugging Face hub (HF_ENDPOINT chooses another); a folder starts with ./, / or ~. A
name that is both is refused: ./name is the folder, hf://owner/name the repository.
"""
PUSH_SUMMARY = "share a run on the hub or in a folder"
PUSH_DESCRIPTION = f"""\
Share a run, on the Hugging Face hub or in a folder.

What comes out, at WHERE: its newest checkpoint with a manifest of hashes, a card (config, training data, scores) and
metrics.jsonl.

{_WHERE}
A repository is made when absent, public unless --private says otherwise. It holds one step: what the last push wrote
is replaced in one commit, and stays in the history. A folder that holds anything is refused. The token is the one of
`hf auth login` or HF_TOKEN.
"""
PUSH_EXAMPLES = """\
examples:
  qrag push runs/qa2 alice/qa2                            all of it, optimiser too: others can train on
  qrag push runs/qa2 alice/qa2 --inference --private      what searching needs, for alice alone
  qrag push runs/qa2 alice/qa2 --scores rows.json         with what `qrag eval --json rows.json` wrote
  qrag push runs/qa2 ./shared/qa2 --license apache-2.0
"""

PULL_SUMMARY = "fetch a run that was shared"
PULL_DESCRIPTION = f"""\
Fetch a run that was shared.

What comes out: a run folder OUT, which `qrag find`, `eval` and `export` take.

{_WHERE}
@REVISION after the repository is a branch, a tag or a whole commit id. Every file is compared with the manifest first:
a damaged one is named, and nothing is kept. A download that breaks off goes on when it is run again. An OUT that holds
anything is refused. The hashes find damage; they do not say who pushed it.
"""
PULL_EXAMPLES = """\
examples:
  qrag pull alice/qa2 runs/alice
  qrag pull alice/qa2@v1 runs/alice         as it was when it was tagged v1
  qrag pull /mnt/shared/qa2 runs/qa2 --step 1200
"""
