"""`qrag index`: documents cut, embedded and kept, and brought up to date with their files."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from qrag_jax.cli.errors import as_flag
from qrag_jax.cli.note_readers import (
    QUESTIONS as LLM,
)
from qrag_jax.cli.note_readers import (
    Estimated,
    check_speed,
    given_reader_flags,
    index_note_reader,
    notes_setting,
)
from qrag_jax.cli.parsers.chunk import TREE
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, shown, write_json
from qrag_jax.config import to_dict
from qrag_jax.documents.found import warn_of_found
from qrag_jax.documents.read import Found, Skipped, find_files
from qrag_jax.errors import worded
from qrag_jax.index.build import index_settings, make_maker
from qrag_jax.index.folder import index_folder, is_index
from qrag_jax.index.info import IndexInfo, index_info
from qrag_jax.index.prepare import MakeMaker
from qrag_jax.index.remove import outside, remove_documents
from qrag_jax.index.settings import IndexSettings, NotesSetting, read_settings
from qrag_jax.index.shards import build_shard, merge_shards
from qrag_jax.index.update import Changes, Plan, update_index
from qrag_jax.index.update_notes import NotesMade
from qrag_jax.service.cutting import LEVELS, OF_TREES, CutOptions, chunking_of
from qrag_jax.types import InputError, NoteReader, UsageError

_MAKING = ("retriever", "model", "strategy", "max_tokens", *OF_TREES)
_OF_ACTIONS = {
    "num_shards": ("build",),
    "shard": ("build",),
    "workers": ("build", "add"),
    "encoding": ("build", "add"),
    "strict": ("build", "add"),
    "verify": ("info",),
    "notes": ("build", "add"),
    "estimate": ("build", "add"),
    **dict.fromkeys(_MAKING, ("build", "add")),
}
_MOST_NAMED = 20


def run(args: argparse.Namespace) -> int:
    """Runs `qrag index`; see `qrag index --help`."""
    _check_flags(args)
    folder = Path(args.index)
    if args.action in ("build", "add"):
        return _update(args, folder)
    if args.action == "remove":
        return _remove(args, folder)
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


def make_settings(args: argparse.Namespace, folder: Path) -> IndexSettings:
    """The settings that the flags name; those of the index, where it is there and they name none."""
    given = [name for name in _MAKING if getattr(args, name) is not None]
    there = read_settings(folder) if is_index(folder) else None
    notes = _notes_setting(args, None if there is None else there.notes)
    if not given and there is not None:
        return replace(there, notes=notes or there.notes)
    if args.retriever is not None and len(given) > 1:
        raise UsageError(f"--{given[1]}: not with --retriever: a run reads sentences, with its own encoder")
    return index_settings(
        args.retriever,
        args.model or "minilm",
        chunking_of(CutOptions(**{name: getattr(args, name) for name in CutOptions.__dataclass_fields__}), LEVELS),
        tree=args.strategy == TREE,
        notes=notes or (there and there.notes),
        tagger=args.tagger,
        parents=args.parents or (args.compressor and "compressor"),
        compressor=args.compressor,
    )


def _notes_setting(args: argparse.Namespace, there: NotesSetting | None) -> NotesSetting | None:
    """Who is to write the notes; None is whoever does, or the default of a new index."""
    name = args.notes or (there.reader if there is not None else "")
    if name != LLM:
        if given := given_reader_flags(args):
            raise UsageError(
                f"--{given[0]}: belongs to --notes llm, and notes of {args.index} are by {name or 'mentions'}; say "
                "--notes llm too, or leave it out"
            )
        return NotesSetting(args.notes) if args.notes else None
    asked = notes_setting(args)
    if args.notes is None and asked != there:
        assert there is not None
        raise UsageError(
            f"{args.index}: its notes were asked of {there.model} ({there.options}), the flags name {asked.model} "
            f"({asked.options}): name the same one with its flags and prompts, or say --notes llm to have them "
            "written anew, or --notes mentions or none"
        )
    return asked


def _remove(args: argparse.Namespace, folder: Path) -> int:
    settings = read_settings(index_folder(folder))
    settings = replace(settings, notes=_notes_setting(args, settings.notes) or settings.notes)
    make = make_maker(settings)
    with Progress(transient=True) as bars:
        removed = remove_documents(
            folder, args.paths, make=make, read_notes=_note_reader(args, settings, make, bars), waits=say
        )
    return _print(args, {"removed": list(removed)}, f"removed {_several(len(removed), 'document')}")


def _note_reader(
    args: argparse.Namespace, settings: IndexSettings, make: MakeMaker, bars: Progress
) -> NoteReader | None:
    """The reader that is to be handed in; None where the setting says all of it."""
    return index_note_reader(args, make, bars.answered) if settings.notes.reader == LLM else None


def _update(args: argparse.Namespace, folder: Path) -> int:
    if args.action == "add":
        index_folder(folder)
    settings = make_settings(args, folder)
    found, lies_inside = outside(find_files(args.paths), args.paths, folder)
    if lies_inside:
        say(f"note: {folder} lies in what is read, and is left out itself")
    make = make_maker(settings)
    with Progress(transient=True) as bars:
        plan = Plan(
            mirror=args.action == "build",
            encoding=args.encoding,
            strict=args.strict,
            num_workers=args.workers,
            waits=say,
            progress=bars.stage("documents"),
            note_progress=bars.stage("notes"),
            read_notes=_note_reader(args, settings, make, bars),
            keeps_notes=args.notes is None,
        )
        if args.num_shards is None:
            try:
                changes = update_index(folder, args.paths, found, settings, make, plan)
            except Estimated as estimate:
                return _print(args, {"estimate": str(estimate)}, f"{estimate}; nothing is asked (--estimate)")
        else:
            changes = build_shard(folder, args.paths, found, settings, make, plan, args.shard, args.num_shards)
    if changes is None:
        return _print(args, {"finished": True}, f"{folder}: shard {args.shard} is finished already")
    warn_of_found(replace(found, skipped=(), lossy=changes.lossy))  # what was skipped is told with what failed
    _say_what_failed(changes)
    _print(args, changes_to_json(changes), format_changes(changes))
    return _exit_code(found, changes)


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
    check_speed(args)
    given = given_reader_flags(args)
    if given and args.action in ("merge", "info"):
        raise UsageError(f"--{given[0]}: belongs to build, add and remove, not to {args.action}; leave it out")
    if args.notes == LLM and args.num_shards is not None:
        raise UsageError(
            "--notes llm: not of shards, as chunks of all of them ask each other: build these without, merge them, and "
            f"have the notes written by `qrag index add {args.index} PATHS... --notes llm`"
        )
    if given and args.notes not in (None, LLM):
        raise UsageError(f"--{given[0]}: belongs to --notes llm, not to {args.notes}; leave it out")


def _say_what_failed(changes: Changes) -> None:
    kept = "kept as before, as file or folder cannot be read (`qrag index remove` takes out what is to go)"
    for text, names in ((kept, changes.kept), ("mended", changes.mended)):
        if names:
            say(f"{_several(len(names), 'document')} {text}: {_first(names)}")
    if changes.failed:
        say(f"{_several(len(changes.failed), 'file')} could not be read:")
        for one in changes.failed[:_MOST_NAMED]:
            say(f"  {one.id}: {one.reason}")
        if len(changes.failed) > _MOST_NAMED:
            say("  ... (--json names all)")


def _exit_code(found: Found, changes: Changes) -> int:
    """1 where a file that was named itself could not be read, or a document is older than its file."""
    is_told = {file.id for file in found.files if file.named}.union(changes.kept)
    return int(any(one.id in is_told for one in changes.failed))


def format_changes(changes: Changes) -> str:
    """What an update has done, in one line."""
    of = changes.num_embedded + changes.num_reused
    kept = f", {len(changes.kept):,} kept as before" if changes.kept else ""
    return (
        f"{_several(changes.num_read, 'document')} read, {changes.num_same:,} as they were, {len(changes.removed):,} "
        f"removed, {len(changes.failed):,} failed{kept}; {changes.num_embedded:,} of {_several(of, 'chunk')} embedded"
        f"{_of_notes(changes.notes)}"
    )


def _of_notes(made: NotesMade) -> str:
    if not made.num_notes and not made.num_embedded:
        return ""
    return f"; {_several(made.num_notes, 'note')}, {made.num_embedded:,} embedded"


def changes_to_json(changes: Changes) -> dict[str, object]:
    """What `--json` prints of an update."""
    return {**asdict(changes), "failed": _failed_to_json(changes.failed), "lossy": _failed_to_json(changes.lossy)}


def format_info(info: IndexInfo, is_verified: bool) -> str:
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


def format_notes(info: IndexInfo) -> str:
    """Who writes the notes, how many there are, and what was left out."""
    setting = info.settings.notes
    if not info.settings.has_notes:
        return "none (--notes)"
    left_out = ", ".join(f"{reason} {number:,}" for reason, number in info.notes.left_out.items())
    text = f"{info.notes.num_notes:,} by {setting.model or setting.reader}; left out: {left_out or 'none'}"
    if info.are_notes_current:
        return text
    return f"{text}; of an older state of the documents: `qrag index add {info.folder} PATHS...` makes the others"


def to_json(info: IndexInfo) -> dict[str, object]:
    """What `--json` prints of an index."""
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


def _failed_to_json(failed: Sequence[Skipped]) -> list[dict[str, str]]:
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
