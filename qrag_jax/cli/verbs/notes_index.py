"""`qrag notes list` and `export`: the notes of an index, for people and as rows."""

import argparse
from pathlib import Path

from qrag_jax.cli.output import excerpt, note_to_json, place_to_json
from qrag_jax.cli.terminal import say, shown, write_json
from qrag_jax.cli.verbs.eval_outputs import STDOUT, check_output
from qrag_jax.index.build import load_noted_index
from qrag_jax.index.info import index_info
from qrag_jax.index.settings import read_settings
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hits import note_hit
from qrag_jax.search.note_search import NotedCorpus
from qrag_jax.search.sentences import make_place
from qrag_jax.types import Note, UsageError

_MOST_SHOWN = 120  # characters of a note; `--json` has all of it


def list_notes(args: argparse.Namespace) -> int:
    """Prints the notes of an index in the order of their chunks: where each belongs, where it comes from, its text."""
    if args.json and args.json != STDOUT:
        check_output(args, "json")
        if Path(args.json).resolve().is_relative_to(Path(args.index).resolve()):
            raise UsageError(f"--json {args.json}: is in the index {args.index}; name a file elsewhere")
    noted = _open(args.index)
    if args.json is not None:
        info = index_info(args.index)
        about = {"index": args.index, "reader": info.settings.notes.reader, "num_notes": len(noted.notes)}
        state = {"left_out": dict(info.notes.left_out), "is_current": info.are_notes_current}
        notes = [note_to_json(note_hit(note, noted.corpus)) for note in noted.notes]
        write_json(about | state | {"notes": notes}, args.json)
        return 0
    for note in noted.notes:
        hit = note_hit(note, noted.corpus)
        print(f"{shown(str(hit.evidence))}  from {shown(str(hit.source))}: {excerpt(note.text, _MOST_SHOWN)}")
    if not noted.notes:
        say(f"{args.index}: has no note")
    return 0


def export_notes(args: argparse.Namespace) -> int:
    """Prints a line of JSON a note; with `--pairs` those between two chunks, with both of them."""
    noted = _open(args.index)
    notes = [note for note in noted.notes if not args.pairs or note.asking != note.answering]
    for note in notes:
        row = note_to_json(note_hit(note, noted.corpus))
        write_json(_pair_to_json(note, row, noted.corpus) if args.pairs else row, on_one_line=True)
    asked = sum(bool(note.question) for note in notes)
    of = "join two chunks" if args.pairs else "notes"
    say(f"{len(notes):,} of {len(noted.notes):,} {of}; {asked:,} ask a question")
    return 0


def _pair_to_json(note: Note, row: dict[str, object], corpus: Corpus) -> dict[str, object]:
    """A note with the whole chunks that it joins, as a row of a data set; `question` is null where none was asked."""
    row = {"question": None, "answer": None} | row
    for name, key in (("asking", note.asking), ("answering", note.answering)):
        node = corpus.by_chunk[key]
        chunk, text = corpus.nodes[node], corpus.texts[node]
        place = make_place(corpus.by_id[chunk.document_id], chunk.spans[0])
        row[name] = place_to_json(place) | {"spans": [list(span) for span in chunk.spans], "text": text}
    return row


def _open(index: str) -> NotedCorpus:
    settings = read_settings(index)
    if not settings.has_notes:
        raise UsageError(f"{index}: has no notes: `qrag index add {index} PATHS... --notes mentions` has them written")
    return load_noted_index(index)
