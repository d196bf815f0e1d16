"""`qrag push`: shares a checkpoint with a card that says what it is, what it was trained on, and how it scored."""

import argparse
import shlex
import tempfile
from pathlib import Path

from qrag_jax.checkpoint import Checkpoint, load_checkpoint
from qrag_jax.cli.terminal import say
from qrag_jax.eval.card import check_rows, local_paths, make_card
from qrag_jax.eval.retrieval.records import read_rows
from qrag_jax.files.folder_lock import lock_folder
from qrag_jax.files.manifest import MANIFEST, check_inside
from qrag_jax.hub import Place, parse_place, push_run, run_files
from qrag_jax.qrag.retriever import save_for_inference


def run(args: argparse.Namespace) -> int:
    """Runs `qrag push`; see `qrag push --help`."""
    place = parse_place(args.where, is_new=True)
    with lock_folder(_locked_folder(args.run), "qrag push", reads=True):  # training deletes steps as it goes on
        return _push(args, place)


def _push(args: argparse.Namespace, place: Place) -> int:
    """Shares a run that no other process works in."""
    saved = load_checkpoint(args.run, step=args.step, groups=())  # verified: no damage is passed on
    rows = read_rows(args.scores) if args.scores else []
    if args.scores:
        check_rows(rows, saved.config, args.scores)
    if paths := local_paths(saved.config):
        say(f"note: config.yaml and the card name paths of this machine: {', '.join(paths)}")
    card = make_card(saved, place, rows, args.license, args.inference)
    with tempfile.TemporaryDirectory() as folder:
        step = save_for_inference(saved, Path(folder)) if args.inference else saved.folder
        run = run_folder(args.run, saved)
        check_inside(run, saved.folder)
        files = run_files(step, saved.step, card, run)
        address = push_run(place, files, f"Step {saved.step} of a qrag_jax run", args.private)
    say(f"pushed step {saved.step:,} of {args.run}: {address}")
    say(f"next: qrag pull {shlex.quote(args.where)} OUT")
    return 0


def _locked_folder(given: str | Path) -> Path:
    """The folder that whoever writes the run locks: of all steps, also where one of them was given."""
    folder = Path(given).absolute()
    return folder.parent if (folder / MANIFEST).is_file() else folder


def run_folder(given: str | Path, saved: Checkpoint) -> Path:
    """The folder of the whole run, also where one of its steps was given."""
    return saved.folder.parent if Path(given).absolute() == saved.folder else Path(given)
