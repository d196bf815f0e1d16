"""`qrag index`: builds, updates and inspects an index of documents."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from qrag_jax.cli import llm_flags
from qrag_jax.cli.errors import as_flag
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.terminal import say, shown, write_json
from qrag_jax.errors import worded
from qrag_jax.names import BUILD_ENGINES, CHUNKERS, INDEX_NOTES, PARENTS, STORES, VectorsName
from qrag_jax.types import EncoderOptions, InputError, UsageError

if TYPE_CHECKING:
    from qrag_jax.cli.progress import Progress
    from qrag_jax.documents.found import ReadInPart, Skipped
    from qrag_jax.index.info import IndexInfo
    from qrag_jax.index.stores.sqlite.note_rows import NotesMade
    from qrag_jax.index.update import Changes
    from qrag_jax.service.indexing import NotesRequest, NotesWatch

_OF_CUTTING = ("strategy", "max_tokens", "points", "tagger", "sizes", "parents", "compressor")  # as of `CutOptions`
_OF_READING = ("query_prompt", "document_prompt", "dim", "dtype")  # as of `EncoderOptions`
_OF_ACTIONS = {
    "num_shards": ("build",),
    "shard": ("build",),
    "workers": ("build", "add"),
    "encoding": ("build", "add"),
    "strict": ("build", "add"),
    "verify": ("info", "add"),
    "store": ("build", "add"),
    "uri": ("build", "add"),
    "engine": ("build", "add"),
    "late": ("build", "add"),
    "vectors": ("build", "add"),
    "notes": ("build", "add"),
    "estimate": ("build", "add"),
    **dict.fromkeys(("retriever", "model", *_OF_READING, *_OF_CUTTING), ("build", "add")),
}
_LLM = "llm"  # notes by a language model
_MAX_NAMED = 20

_DESCRIPTION = """\
Store documents, chunks and vectors in an index, so `qrag find` and `qrag ask` need not read the files again.

  build INDEX PATHS...    create or update the index: read changed files, remove documents whose files are gone
  add INDEX PATHS...      the same for these files and folders, but remove nothing
  remove INDEX PATHS...   remove the documents of these paths completely
  merge INDEX             join shards built with --num_shards and --shard
  info INDEX              describe the index; --verify also checks every document against its hash

The output is one line: documents read, unchanged, removed and failed, and chunks embedded. Documents are identified by
the path you pass; `add` knows a file of the index by each of its paths. A hash of their bytes detects changes; chunks
whose text is known keep their vectors. If a file has become empty or unreadable, its document stays and the exit code
is 1; `remove` removes it.
"""
_DETAILS = f"""\
Each document is written as soon as it is ready, so an interrupted command continues where it stopped. An empty or
unreadable folder removes nothing. Files that cannot be read are recorded, reported, and tried again when their bytes
change. If a file becomes empty or unreadable, its document stays; this command and `info` report it with the reason.

With --strategy levels the index stores trees with named levels: document, section, subsection, paragraph, sentence;
with --sizes the levels are spans of N tokens (docs/how_to/levels.md). `qrag ask INDEX QUESTION --levels
section:paragraph` searches some of them. --points, --sizes and --parents imply --strategy levels, unless you
name another strategy.

--late stores the vectors of all tokens of the chunks (docs/how_to/keep_an_index.md): 77 kB for a chunk of 200 tokens
with MiniLM. Their size is said before, and a disk without room is refused.

--parents says how a section is scored. best_child: by its best leaf, without a vector of its own. The others make a
vector: mean of its children; windows of its text, read in windows; direct of as much text as the encoder reads;
compressor by a network that reads its children (--compressor).

Chunks get notes from other chunks (docs/how_to/notes.md): sentences that name the topic of a chunk, which help `qrag
find` and `qrag ask` find it. Notes are made from all documents together, whenever those change. With --notes llm a
language model asks and answers (SqRAG). Name the model each time the documents change; only new questions are asked,
because the journal has the earlier answers. --estimate reads and embeds the documents, prints an upper bound of the
cost of their notes, and stops; the same command without it continues from there.

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
--retriever RUN       cut and embed as this run does, for it and all runs with the same encoder (default: none)
--model M             encoder: minilm, a folder, a .gguf file, a hub id, or multilingual for about 100 languages
                      (default: minilm; not with a run)
. --query_prompt --document_prompt --dim --dtype
--strategy
--max_tokens N        most tokens of a chunk (default: 200; none with --sizes; not with a run)
. --points --tagger --sizes
--parents             for levels: how a section is scored, by its best leaf or by a vector (default: best_child)
. --compressor RUN    run folder of `qrag train compressor`, for --parents compressor
--notes               build, add: who writes the notes; another choice writes all notes again (default: as in the index;
                      mentions for a new one, or none with a run or levels)
. --store             build, add: what searches the vectors (default: as in the index; sqlite for a new one)
. --uri URI           build, add: address of the server of --store milvus, for example http://localhost:19530
--late                new index: store token vectors for `qrag find --late`
. --vectors             build, add: what a search compares first: float32, or float16 or int8, which read a half or a
                      quarter and compare the best exactly (default: as in the index; float32 for a new one)
--workers I           processes that read and embed (default: none)
. --engine            build, add: where they run: on this machine, or on a Ray cluster (default: processes)
. --num_shards N      build: number of shards
. --shard I           build: the shard to build, from 0
--verify              info, add: check all by hash; add repairs damage
. --encoding E        text encoding of the files (default: as in the index; utf-8 for new files)
. --strict            build, add: stop at a file that cannot be read, or only in part
--exclude --no_ignore --follow_links --max_input_gb
--html_part --comments --outputs --fields
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
    if info.damaged_files:
        raise InputError(
            f"{folder}: damaged: {', '.join(info.damaged_files)}; remove what is named there, and `qrag index add "
            f"{folder} PATHS...` makes it again"
        )
    if not info.is_whole:
        raise InputError(
            f"{folder}: damaged: {', '.join((*info.damaged, *info.damaged_notes)) or info.fault}; repair it with `qrag "
            f"index add {folder} PATHS... --verify`, or delete the folder and build it again"
        )
    return 0


def _update(args: argparse.Namespace, folder: Path) -> int:
    from qrag_jax.annotate.ask_chunks import Estimated
    from qrag_jax.cli.llm_output import format_estimate
    from qrag_jax.cli.progress import Progress
    from qrag_jax.documents.told import warn_of_found
    from qrag_jax.service.cutting import CutOptions
    from qrag_jax.service.indexing import UpdateRequest, update

    more = {
        "cut": made(CutOptions, vars(args)),
        "notes": _notes(args),
        "reads": made(EncoderOptions, vars(args)),
    }
    request = made(UpdateRequest, vars(args), folder=folder, mirror=args.action == "build", **more)
    try:
        with Progress(transient=True) as bars:
            updated = update(request, _watch(args, bars))
    except Estimated as one:
        expected = format_estimate(one.estimate, vars(args))
        return _print(args, {"estimate": expected}, f"{expected}; nothing was asked (--estimate)")
    changes = updated.changes
    if changes is None:
        return _print(args, {"finished": True}, f"{folder}: shard {args.shard} is already finished")
    # skipped files are reported with those that failed
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
            raise UsageError(f"--{name}: works only with {' and '.join(actions)}, not with {args.action}; leave it out")
    takes_paths = args.action in ("build", "add", "remove")
    if takes_paths and not args.paths:
        raise UsageError(f"qrag index {args.action}: give at least one file or folder after {args.index}")
    if args.paths and not takes_paths:
        raise UsageError(f"{args.paths[0]}: qrag index {args.action} takes no paths; give only INDEX")
    if (args.shard is None) != (args.num_shards is None):
        raise UsageError("--num_shards, --shard: give both or neither")
    llm_flags.check_speed(args.tokens_per_second)
    given = llm_flags.given_flags(vars(args), llm_flags.OF_READERS)
    if given and args.action in ("merge", "info"):
        raise UsageError(f"--{given[0]}: works only with build, add and remove, not with {args.action}; leave it out")
    if args.notes == _LLM and args.num_shards is not None:
        raise UsageError(
            "--notes llm: does not work with shards, because notes join chunks of all shards; build and merge the "
            f"shards, then run `qrag index add {args.index} PATHS... --notes llm`"
        )
    if given and args.notes not in (None, _LLM):
        raise UsageError(f"--{given[0]}: works only with --notes llm, not with {args.notes}; leave it out")


def _say_what_failed(changes: "Changes") -> None:
    kept = "kept, because the file or folder cannot be read (`qrag index remove` removes documents)"
    for text, names in ((kept, changes.kept), ("repaired", changes.mended)):
        if names:
            say(f"{_several(len(names), 'document')} {text}: {_first(names)}")
    if changes.failed:
        say(f"{_several(len(changes.failed), 'file')} could not be read:")
        for one in changes.failed[:_MAX_NAMED]:
            say(f"  {one.id}: {one.reason}")
        if len(changes.failed) > _MAX_NAMED:
            say("  ... (--json lists all)")


def format_changes(changes: "Changes") -> str:
    """The result of an update, in one line."""
    of = changes.num_embedded + changes.num_reused
    kept = f", {len(changes.kept):,} kept" if changes.kept else ""
    return (
        f"{_several(changes.num_read, 'document')} read, {changes.num_same:,} unchanged, {len(changes.removed):,} "
        f"removed, {len(changes.failed):,} failed{kept}; {changes.num_embedded:,} of {_several(of, 'chunk')} embedded"
        f"{_of_notes(changes.notes)}"
    )


def _of_notes(made: "NotesMade") -> str:
    if not made.num_notes and not made.num_embedded:
        return ""
    return f"; {_several(made.num_notes, 'note')}, {made.num_embedded:,} embedded"


def changes_to_json(changes: "Changes") -> dict[str, object]:
    """The output of `--json` for an update."""
    return {**asdict(changes), "failed": _failed_to_json(changes.failed), "lossy": _failed_to_json(changes.lossy)}


def format_info(info: "IndexInfo", is_verified: bool) -> str:
    """An index in a few lines."""
    from qrag_jax.documents.converted import counted

    settings, documents = info.settings, info.documents
    num_chunks = sum(one.num_chunks for one in documents)
    num_cut = sum(one.num_chunks_cut for one in documents)
    lines = [
        f"{info.folder}: {_several(len(documents), 'document')}, {_several(num_chunks, 'chunk')}, "
        f"{info.num_bytes / 1e6:,.1f} MB",
        f"encoder   {settings.model} ({settings.fingerprint[:12]}), vectors of {info.dim}"
        + "".join(f", {name} {getattr(settings.reads, name)!r}" for name in settings.reads.given),
        f"chunks    {worded(settings.cutting, as_flag)}; {num_cut:,} longer than the encoder reads",
        f"notes     {format_notes(info)}",
    ]
    lines += [f"store     {settings.store} at {settings.uri}, collection {settings.collection}"] if settings.uri else []
    lines += [f"late      {_format_late(*info.late)}"] if settings.late and info.is_whole else []
    lines += [f"left out  {counted(info.left_out)}"] if info.left_out else []
    kept = set(info.kept)
    lines += [f"failed    {one.id}: {_as_before(one.id in kept)}{one.reason}" for one in info.failed]
    if is_verified:
        whole = "verified  every document matches its hash"
        lines.append(whole if info.is_whole else f"fault     {info.fault or 'none'}")
        lines += [f"damaged   {name}" for name in (*info.damaged, *info.damaged_notes, *info.damaged_files)]
    return "\n".join(map(shown, lines))


def _format_late(num_chunks: int, num_bytes: int) -> str:
    """The size of token vectors, in all and of a chunk."""
    return f"{num_bytes / 1e6:,.1f} MB of token vectors, {num_bytes / 1e3 / max(1, num_chunks):,.1f} kB a chunk"


def format_notes(info: "IndexInfo") -> str:
    """The reader that writes the notes, their number, and the number left out by reason."""
    setting = info.settings.notes
    if not info.settings.has_notes:
        return "none (--notes)"
    left_out = ", ".join(f"{reason} {number:,}" for reason, number in info.notes.left_out.items())
    text = f"{info.notes.num_notes:,} by {setting.model or setting.reader}; left out: {left_out or 'none'}"
    if info.are_notes_current:
        return text
    return f"{text}; out of date; update them with `qrag index add {info.folder} PATHS...`"


def to_json(info: "IndexInfo") -> dict[str, object]:
    """The output of `--json` for an index."""
    from qrag_jax.config import to_dict

    return {
        "index": str(info.folder),
        "settings": to_dict(info.settings),
        "num_documents": len(info.documents),
        "num_chunks": sum(one.num_chunks for one in info.documents),
        "num_chunks_cut": sum(one.num_chunks_cut for one in info.documents),
        "dim": info.dim,
        "bytes": info.num_bytes,
        "left_out": info.left_out,
        "late": dict(zip(("num_chunks", "bytes"), info.late, strict=True)),
        "documents": [
            {"id": one.id, "num_chunks": one.num_chunks, "num_tokens": one.num_tokens, "left_out": dict(one.left_out)}
            | asdict(one.origin)
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
        "damaged_files": list(info.damaged_files),
        "fault": info.fault,
    }


def _as_before(is_kept: bool) -> str:
    return "old version kept; " if is_kept else ""


def _failed_to_json(failed: "Sequence[Skipped | ReadInPart]") -> list[dict[str, str]]:
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
        "vectors": get_args(VectorsName),
        "engine": BUILD_ENGINES,
    },
    renamed={"--html": "--html_part"},
    usage=f"{{{','.join(_ACTIONS)}}} INDEX [PATHS...] [flags]",
)
