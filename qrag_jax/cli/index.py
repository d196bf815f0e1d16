"""`qrag index`: documents cut, embedded and kept, and brought up to date with their files."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.cli import llm_flags
from qrag_jax.cli.errors import as_flag
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.terminal import say, shown, write_json
from qrag_jax.errors import worded
from qrag_jax.names import CHUNKERS, INDEX_NOTES, PARENTS, STORES
from qrag_jax.types import InputError, UsageError

if TYPE_CHECKING:
    from qrag_jax.cli.progress import Progress
    from qrag_jax.documents.read import Skipped
    from qrag_jax.index.info import IndexInfo
    from qrag_jax.index.update import Changes
    from qrag_jax.index.update_notes import NotesMade
    from qrag_jax.service.indexing import NotesRequest, NotesWatch

_OF_CUTTING = ("strategy", "max_tokens", "points", "tagger", "sizes", "parents", "compressor")  # as of `CutOptions`
_OF_ACTIONS = {
    "num_shards": ("build",),
    "shard": ("build",),
    "workers": ("build", "add"),
    "encoding": ("build", "add"),
    "strict": ("build", "add"),
    "verify": ("info",),
    "store": ("build", "add"),
    "notes": ("build", "add"),
    "estimate": ("build", "add"),
    **dict.fromkeys(("retriever", "model", *_OF_CUTTING), ("build", "add")),
}
_LLM = "llm"  # notes by a language model
_MAX_NAMED = 20

_DESCRIPTION = """\
Keep documents, their chunks and vectors in a folder, INDEX, that `qrag find` and `qrag ask` search at once.

  build INDEX PATHS...    make it, or bring it up to date: what has changed is read again, what is gone is removed
  add INDEX PATHS...      the same for these files and folders, and nothing is removed
  remove INDEX PATHS...   take the documents of these paths out, without a rest
  merge INDEX             join shards that were built with --num_shards and --shard
  info INDEX              what it holds; --verify compares every document with its hash

What comes out: a line that says how many documents were read, were as before, are removed and failed, and how many
chunks were embedded. A document goes by its path as it was named. Whether it has changed its bytes decide, and a chunk
whose text is known keeps its vector. The exit code is 1 where a document stays as it was though its file has become
empty or unreadable; `remove` takes it out.
"""
_DETAILS = f"""\
Each document is written at once with its hash: however a command ends, the next one goes on there. An empty folder, or
one that cannot be read, removes nothing. What cannot be read is recorded, named, and tried again when its bytes change.
A file that has become empty or unreadable takes nothing away: its document is named with the reason here and by `info`.

With --strategy levels documents are kept as trees whose levels have names: document, section, subsection, paragraph,
sentence, or with --sizes spans of so many tokens (docs/how_to/levels.md). `qrag ask INDEX QUESTION --levels
section:paragraph` searches some of them. --points, --sizes and --parents choose that strategy, unless one is named.

Chunks get notes from other chunks (docs/how_to/notes.md): sentences that name what they are about, by which `qrag find`
and `qrag ask` find them too. They are made of all documents together, whenever those have changed. With --notes llm a
language model asks and answers (SqRAG): name it each time that documents change; what it has answered is in the
journal, so only what is new is asked. --estimate reads and embeds the documents, says what their notes will take at
most, and stops; without it, the same command goes on from there.

{llm_flags.HELP}"""
_EXAMPLES = """\
examples:
  qrag index build notes.index notes/
  qrag find notes.index "Who has the key to the garden?"
  qrag index add notes.index letters/ diary.txt
  qrag index build levels.index notes/ --strategy levels --points tagger --parents mean
  qrag index build big.index library/ --workers 2
  qrag index remove notes.index diary.txt
  qrag index info notes.index --verify
"""
_FLAGS = f"""\
action ACTION         what to do, as above
index INDEX           folder of the index
paths [PATHS ...]     files or folders
--retriever RUN       cut and embed as this run reads; the index then serves it and every run on its encoder (default:
                      none)
--model M             encoder: minilm, a folder or a hub id (default: minilm; not with a run)
--strategy
--max_tokens N        no chunk has more (default: 200; with --sizes no other limit; not with a run)
. --points --tagger --sizes
--parents             of levels: how a part that holds others is known: best_child (by its best leaf; no vector of it
                      stays), mean (of its children), windows (of its text, read in windows), direct (of its text as far
                      as the encoder reads), compressor (by a network that reads its children) (default: best_child)
. --compressor RUN    of parents by compressor: run folder of `qrag train compressor`
--notes               build, add: who writes the notes of chunks; another one writes them anew (default: that of the
                      index; of a new one mentions, and none of a run or of levels)
. --store             build, add: finds the nearest vectors (default: that of the index; of a new one memory)
--workers I           processes that read and embed (default: none)
. --num_shards N      build: make the index in so many parts
. --shard I           build: which part, from 0
--verify              info: compare every document with its hash
. --encoding E        of the files (default: a document's own, as it was read before; of new ones utf-8)
. --strict            build, add: a file that cannot be read ends the command
--follow_links --max_input_gb
--json
{llm_flags.READERS}"""


def _run(args: argparse.Namespace) -> int:
    from qrag_jax.cli.progress import Progress
    from qrag_jax.index.build import make_maker
    from qrag_jax.index.info import index_info
    from qrag_jax.index.shards import merge_shards
    from qrag_jax.service.indexing import remove

    _check_flags(args)
    folder = Path(args.index)
    if args.action in ("build", "add"):
        return _update(args, folder)
    if args.action == "remove":
        with Progress(transient=True) as bars:
            removed = remove(folder, args.paths, _notes(args), _watch(args, bars))
        return _print(args, {"removed": list(removed)}, f"removed {_several(len(removed), 'document')}")
    if args.action == "merge":
        number = merge_shards(folder, make=make_maker, waits=say)
        return _print(args, {"num_documents": number}, f"{folder}: {_several(number, 'document')}")
    info = index_info(folder, verify=args.verify)
    _print(args, to_json(info), format_info(info, args.verify))
    if not info.is_whole:
        raise InputError(
            f"{folder}: damaged: {', '.join((*info.damaged, *info.damaged_notes)) or info.fault}; `qrag index add "
            f"{folder} PATHS...` reads that again and keeps the rest; if not, remove the folder and build it again"
        )
    return 0


def _update(args: argparse.Namespace, folder: Path) -> int:
    from qrag_jax.annotate.ask_chunks import Estimated
    from qrag_jax.cli.llm_output import format_estimate
    from qrag_jax.cli.progress import Progress
    from qrag_jax.documents.found import warn_of_found
    from qrag_jax.service.cutting import CutOptions
    from qrag_jax.service.indexing import UpdateRequest, update

    more = {"cut": made(CutOptions, vars(args)), "notes": _notes(args)}
    request = made(UpdateRequest, vars(args), folder=folder, mirror=args.action == "build", **more)
    try:
        with Progress(transient=True) as bars:
            updated = update(request, _watch(args, bars))
    except Estimated as one:
        expected = format_estimate(one.estimate, vars(args))
        return _print(args, {"estimate": expected}, f"{expected}; nothing is asked (--estimate)")
    changes = updated.changes
    if changes is None:
        return _print(args, {"finished": True}, f"{folder}: shard {args.shard} is finished already")
    # what was skipped is told with what failed
    warn_of_found(replace(updated.found, skipped=(), lossy=changes.lossy))
    _say_what_failed(changes)
    _print(args, changes_to_json(changes), format_changes(changes))
    return int(not updated.is_complete)


def _notes(args: argparse.Namespace) -> "NotesRequest":
    from qrag_jax.service.indexing import NotesRequest

    given = llm_flags.given_flags(vars(args), llm_flags.OF_READERS)
    return made(NotesRequest, vars(args), reading=llm_flags.note_reading(vars(args), _LLM), given=tuple(given))


def _watch(args: argparse.Namespace, bars: "Progress") -> "NotesWatch":
    from qrag_jax.cli.llm_output import format_estimate, format_notes_read
    from qrag_jax.service.indexing import NotesWatch

    prices = llm_flags.llm_config(vars(args)).load_prices
    return NotesWatch(
        say,
        bars.note,
        bars.report,
        bars.answered,
        lambda estimate: say(format_estimate(estimate, vars(args))),
        lambda readings: say(format_notes_read(readings, prices())),
    )


def _check_flags(args: argparse.Namespace) -> None:
    for name, actions in _OF_ACTIONS.items():
        if args.action not in actions and getattr(args, name) not in (None, False, 0):
            raise UsageError(f"--{name}: belongs to {' and '.join(actions)}, not to {args.action}; leave it out")
    takes_paths = args.action in ("build", "add", "remove")
    if takes_paths and not args.paths:
        raise UsageError(f"qrag index {args.action}: give at least one file or folder behind {args.index}")
    if args.paths and not takes_paths:
        raise UsageError(f"{args.paths[0]}: qrag index {args.action} takes INDEX and no path")
    if (args.shard is None) != (args.num_shards is None):
        raise UsageError("--num_shards, --shard: give both, or none")
    llm_flags.check_speed(args.tokens_per_second)
    given = llm_flags.given_flags(vars(args), llm_flags.OF_READERS)
    if given and args.action in ("merge", "info"):
        raise UsageError(f"--{given[0]}: belongs to build, add and remove, not to {args.action}; leave it out")
    if args.notes == _LLM and args.num_shards is not None:
        raise UsageError(
            "--notes llm: not of shards, as chunks of all of them ask each other: build these without, merge them, and "
            f"have the notes written by `qrag index add {args.index} PATHS... --notes llm`"
        )
    if given and args.notes not in (None, _LLM):
        raise UsageError(f"--{given[0]}: belongs to --notes llm, not to {args.notes}; leave it out")


def _say_what_failed(changes: "Changes") -> None:
    kept = "kept as before, as file or folder cannot be read (`qrag index remove` takes out what is to go)"
    for text, names in ((kept, changes.kept), ("mended", changes.mended)):
        if names:
            say(f"{_several(len(names), 'document')} {text}: {_first(names)}")
    if changes.failed:
        say(f"{_several(len(changes.failed), 'file')} could not be read:")
        for one in changes.failed[:_MAX_NAMED]:
            say(f"  {one.id}: {one.reason}")
        if len(changes.failed) > _MAX_NAMED:
            say("  ... (--json names all)")


def format_changes(changes: "Changes") -> str:
    """What an update has done, in one line."""
    of = changes.num_embedded + changes.num_reused
    kept = f", {len(changes.kept):,} kept as before" if changes.kept else ""
    return (
        f"{_several(changes.num_read, 'document')} read, {changes.num_same:,} as they were, {len(changes.removed):,} "
        f"removed, {len(changes.failed):,} failed{kept}; {changes.num_embedded:,} of {_several(of, 'chunk')} embedded"
        f"{_of_notes(changes.notes)}"
    )


def _of_notes(made: "NotesMade") -> str:
    if not made.num_notes and not made.num_embedded:
        return ""
    return f"; {_several(made.num_notes, 'note')}, {made.num_embedded:,} embedded"


def changes_to_json(changes: "Changes") -> dict[str, object]:
    """What `--json` prints of an update."""
    return {**asdict(changes), "failed": _failed_to_json(changes.failed), "lossy": _failed_to_json(changes.lossy)}


def format_info(info: "IndexInfo", is_verified: bool) -> str:
    """An index in a few lines."""
    settings, documents = info.settings, info.documents
    num_chunks = sum(one.num_chunks for one in documents)
    num_cut = sum(one.num_chunks_cut for one in documents)
    lines = [
        f"{info.folder}: {_several(len(documents), 'document')}, {_several(num_chunks, 'chunk')}, "
        f"{info.num_bytes / 1e6:,.1f} MB",
        f"encoder   {settings.model} ({settings.fingerprint[:12]}), vectors of {info.dim}",
        f"chunks    {worded(settings.cutting, as_flag)}; {num_cut:,} longer than the encoder reads",
        f"notes     {format_notes(info)}",
    ]
    kept = set(info.kept)
    lines += [f"failed    {one.id}: {_as_before(one.id in kept)}{one.reason}" for one in info.failed]
    if is_verified:
        lines.append("verified  every document is what was written" if info.is_whole else f"fault     {info.fault}")
        lines += [f"damaged   {name}" for name in (*info.damaged, *info.damaged_notes)]
    return "\n".join(map(shown, lines))


def format_notes(info: "IndexInfo") -> str:
    """Who writes the notes, how many there are, and what was left out."""
    setting = info.settings.notes
    if not info.settings.has_notes:
        return "none (--notes)"
    left_out = ", ".join(f"{reason} {number:,}" for reason, number in info.notes.left_out.items())
    text = f"{info.notes.num_notes:,} by {setting.model or setting.reader}; left out: {left_out or 'none'}"
    if info.are_notes_current:
        return text
    return f"{text}; of an older state of the documents: `qrag index add {info.folder} PATHS...` makes the others"


def to_json(info: "IndexInfo") -> dict[str, object]:
    """What `--json` prints of an index."""
    from qrag_jax.config import to_dict

    return {
        "index": str(info.folder),
        "settings": to_dict(info.settings),
        "num_documents": len(info.documents),
        "num_chunks": sum(one.num_chunks for one in info.documents),
        "num_chunks_cut": sum(one.num_chunks_cut for one in info.documents),
        "dim": info.dim,
        "bytes": info.num_bytes,
        "documents": [
            {"id": one.id, "num_chunks": one.num_chunks, "num_tokens": one.num_tokens} | asdict(one.origin)
            for one in info.documents
        ],
        "failed": _failed_to_json(info.failed),
        "kept": list(info.kept),
        "notes": {
            "num_notes": info.notes.num_notes,
            "left_out": dict(info.notes.left_out),
            "is_current": info.are_notes_current,
            "damaged": list(info.damaged_notes),
        },
        "damaged": list(info.damaged),
        "fault": info.fault,
    }


def _as_before(is_kept: bool) -> str:
    return "kept as before; " if is_kept else ""


def _failed_to_json(failed: "Sequence[Skipped]") -> list[dict[str, str]]:
    return [{"file": one.id, "reason": one.reason} for one in failed]


def _print(args: argparse.Namespace, value: dict[str, object], text: str) -> int:
    if args.json:
        write_json(value)
    else:
        print(shown(text) if "\n" not in text else text)
    return 0


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _several(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_ACTIONS = ("build", "add", "remove", "merge", "info")
VERB = Verb(
    _DESCRIPTION,
    _EXAMPLES,
    _FLAGS,
    _run,
    details=_DETAILS,
    choices={
        "action": _ACTIONS,
        "strategy": (*CHUNKERS, "tree"),
        "parents": [way for way in PARENTS if way != "summary"],
        "notes": INDEX_NOTES,
        "store": STORES,
    },
    usage=f"{{{','.join(_ACTIONS)}}} INDEX [PATHS...] [flags]",
)
