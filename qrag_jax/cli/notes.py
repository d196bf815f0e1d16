"""`qrag notes`: shows the notes of an index, and measures notes on labelled sets."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.cli import llm_flags
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb
from qrag_jax.cli.terminal import say, shown, shown_lines, write_json
from qrag_jax.names import MULTIHOP_SETS, NOTE_MODES, NOTE_READERS
from qrag_jax.types import UsageError

if TYPE_CHECKING:
    from qrag_jax.eval.notes.note_scores import NoteRow
    from qrag_jax.search.corpus import Corpus
    from qrag_jax.service.notes import NotesEvalRequest
    from qrag_jax.types import Note

_MENTIONS, _SCRIPTED, _LLM = "mentions", "scripted", "llm"  # readers
_OF_BABI = ("filler", "chunk_sentences", "num_chunks", "wrong_share")
_OF_EVAL = ("distractors", *_OF_BABI, "reader", "num_questions", "modes", "k", "num_notes", "max_share", "model")
_MAX_SHOWN = 120  # characters of a note; `--json` has all of it
_HEADINGS = ("task", "mode", "k", "all gold", "interval", "recall", "embedded", "ms", "n")

_DESCRIPTION = """\
Show and measure notes: sentences that link a chunk to other chunks (SqRAG).

With notes, one search finds evidence that answers a question only together. Nothing is trained, and only the readers
llm and propositions call a language model.

  list INDEX      show the notes of an index (`qrag index`): where each belongs, its source and its text
  export INDEX    the same as JSON Lines; --pairs: only notes between two chunks, with the text and place of both
  eval            measure the share of questions whose gold chunks are all among the first k, for every mode

eval prints a row for each mode and k: all_gold, its 95% interval, recall, texts embedded and milliseconds for each
question. --json writes the same rows as a list of objects.
"""
_DETAILS = f"""\
A reader writes the notes. `mentions`: a sentence that names the topic of another chunk is a note of that chunk.
`scripted`: asks and answers about the facts of bAbI stories.

A mode uses the notes. none: not at all. best_of: a chunk's score is the best of its own vector and its notes, where a
note scores at most as high as its source chunk (best_of_uncapped: without that limit). insert: the notes nearest to the
question are put into their chunks, which are embedded again. all: all notes are put into their chunks. random: as
insert, with random notes; the control. walk: the second chunk is the one that the first names. bm25, and MODE+bm25:
fused with BM25 over texts with their notes, whose words have no limit.

{llm_flags.READERS_HELP}
{llm_flags.HELP}
HotpotQA and 2WikiMultihopQA were built from names that texts share, and MuSiQue was not. So their rows say nothing
about MuSiQue.
"""
_EXAMPLES = """\
examples:
  qrag notes list notes.index
  qrag notes export notes.index --pairs > pairs.jsonl
  qrag notes eval --2wiki dev.jsonl --num_questions 60
  qrag notes eval --hotpot dev.jsonl --distractors corpus.json --modes none,best_of,best_of+bm25 --json rows.json
  qrag notes eval --babi qa2_valid.txt --filler stories --chunk_sentences 4 --num_chunks 15 --json rows.json
  qrag notes eval --hotpot dev.jsonl --num_questions 2 --reader llm --llm_model model.gguf --estimate
"""
_USAGE = "{list,export} INDEX [flags]\neval (--hotpot | --2wiki | --musique | --babi) FILE [flags]"
_FLAGS = f"""\
action ACTION            what to do, as above
index [INDEX]            list, export: folder of the index
--pairs                  export: only notes from another chunk, with both chunks
| --hotpot FILE          HotpotQA, as for `qrag eval`
| --2wiki FILE           2WikiMultihopQA, as for `qrag eval`
| --musique FILE         MuSiQue, as for `qrag eval`
| --babi FILE            bAbI stories (qaN_*.txt or .txt.gz)
. --distractors FILE     more passages to search; not with --babi
. --filler F             with --babi: text to hide stories in: stories (others of the file, renamed), or a haystack as
                         for `qrag eval --haystack` (default: stories)
. --chunk_sentences N    with --babi: sentences of a chunk (default: 4)
. --num_chunks N         with --babi: chunks of a story (default: 15)
--reader                 who writes the notes (default: mentions; with --babi scripted, which reads only bAbI)
. --wrong_share X        with --reader scripted: share of answers that name a wrong place, drawn by --seed (default: 0)
--modes M,...            modes to measure: {", ".join(NOTE_MODES)}, best_of_uncapped, bm25 and MODE+bm25 (default:
                         {",".join(NOTE_MODES)})
--k N,N,...              numbers of chunks to look at (default: 2,4,5,10)
. --num_notes N          insert, random: notes for each question (default: 10)
. --max_share X          most tokens of notes in a chunk, as a multiple of its own tokens, above 0 (default: 1)
--num_questions N        questions to draw by --seed (default: all of the file)
--model M                encoder: minilm, a folder or a hub id (default: minilm)
--seed --follow_links --max_input_gb --no_compile_cache
--json [OUT] = -         list, eval: write JSON to OUT; without OUT, or with -, print it instead of the table
{llm_flags.READERS}"""


def _run(args: argparse.Namespace) -> int:
    from qrag_jax.annotate.ask_chunks import Estimated
    from qrag_jax.cli.llm_output import format_estimate, format_notes_read
    from qrag_jax.cli.output_paths import STDOUT
    from qrag_jax.cli.progress import Progress
    from qrag_jax.service.indexing import NotesWatch
    from qrag_jax.service.notes import evaluate_notes

    _check_action(args)
    if args.action != "eval":
        return _list(args) if args.action == "list" else _export(args)
    _check_flags(args)
    try:
        with Progress() as progress:
            watch = NotesWatch(
                say,
                progress.note,
                progress.report,
                progress.answered,
                expected=lambda estimate: say(format_estimate(estimate, vars(args))),
            )
            scored = evaluate_notes(_request(args), watch)
    except Estimated as one:
        print(format_estimate(one.estimate, vars(args)))
        return 0
    if scored.scores.left_out:
        say(f"notes left out: {counts(scored.scores.left_out)}")
    if args.reader in NOTE_READERS.choices("llm"):
        say(format_notes_read(scored.readings, llm_flags.llm_config(vars(args)).load_prices()))
    rows = scored.scores.rows()
    if told := cut_told(rows):
        say(f"chunks with notes longer than the encoder's {scored.window} tokens, for each question: {told}")
    if args.json:
        write_json([asdict(row) for row in rows], args.json)
    if args.json != STDOUT:
        print(shown_lines(format_rows(rows)))
    return 0


def _list(args: argparse.Namespace) -> int:
    """Prints the notes of an index in the order of their chunks: where each belongs, its source and its text."""
    from qrag_jax.cli.output import excerpt, note_to_json
    from qrag_jax.cli.output_paths import STDOUT, check_output
    from qrag_jax.index.info import index_info
    from qrag_jax.search.hits import note_hit
    from qrag_jax.service.notes import index_notes

    if args.json and args.json != STDOUT:
        check_output(vars(args), "json")
        if Path(args.json).resolve().is_relative_to(Path(args.index).resolve()):
            raise UsageError(f"--json {args.json}: is inside the index {args.index}; name a file elsewhere")
    noted = index_notes(args.index)
    if args.json is not None:
        info = index_info(args.index)
        about = {"index": args.index, "reader": info.settings.notes.reader, "num_notes": len(noted.notes)}
        state = {"left_out": dict(info.notes.left_out), "is_current": info.are_notes_current}
        notes = [note_to_json(note_hit(note, noted.corpus)) for note in noted.notes]
        write_json(about | state | {"notes": notes}, args.json)
        return 0
    for note in noted.notes:
        hit = note_hit(note, noted.corpus)
        print(f"{shown(str(hit.evidence))}  from {shown(str(hit.source))}: {excerpt(note.text, _MAX_SHOWN)}")
    if not noted.notes:
        say(f"{args.index}: has no notes")
    return 0


def _export(args: argparse.Namespace) -> int:
    """Prints one line of JSON for each note; with `--pairs`, only notes between two chunks, with both chunks."""
    from qrag_jax.cli.output import note_to_json
    from qrag_jax.search.hits import note_hit
    from qrag_jax.service.notes import index_notes

    noted = index_notes(args.index)
    notes = [note for note in noted.notes if not args.pairs or note.asking != note.answering]
    for note in notes:
        row = note_to_json(note_hit(note, noted.corpus))
        write_json(_pair_to_json(note, row, noted.corpus) if args.pairs else row, on_one_line=True)
    asked = sum(bool(note.question) for note in notes)
    of = "join two chunks" if args.pairs else "notes"
    say(f"{len(notes):,} of {len(noted.notes):,} {of}; {asked:,} ask a question")
    return 0


def _pair_to_json(note: "Note", row: dict[str, object], corpus: "Corpus") -> dict[str, object]:
    """A note with the two chunks that it joins, as a row of a data set; `question` is null if none was asked."""
    from qrag_jax.cli.output import place_to_json
    from qrag_jax.search.sentences import make_place

    row = {"question": None, "answer": None} | row
    for name, key in (("asking", note.asking), ("answering", note.answering)):
        node = corpus.by_chunk[key]
        chunk, text = corpus.nodes[node], corpus.texts[node]
        place = make_place(corpus.by_id[chunk.document_id], chunk.spans[0])
        row[name] = place_to_json(place) | {"spans": [list(span) for span in chunk.spans], "text": text}
    return row


def _request(args: argparse.Namespace) -> "NotesEvalRequest":
    from qrag_jax.search.note_search import NoteSearch
    from qrag_jax.service.notes import BABI, NotesEvalRequest

    kind = next(name for name in (*MULTIHOP_SETS, BABI) if getattr(args, name))
    reading, search = llm_flags.note_reading(vars(args), _reader(args)), made(NoteSearch, vars(args))
    return made(NotesEvalRequest, vars(args), kind=kind, path=getattr(args, kind), reading=reading, search=search)


def counts(left_out: Mapping[str, int]) -> str:
    """The numbers of notes left out, by reason, the largest first.

    Args:
        left_out: reason -> number.
    """
    ordered = sorted(left_out.items(), key=lambda item: -item[1])
    return ", ".join(f"{number:,} ({reason})" for reason, number in ordered)


def cut_told(rows: "Sequence[NoteRow]") -> str:
    """For each mode, how many of the chunks embedded with notes were cut off; empty if none was."""
    told = {
        row.mode: f"{row.mode} {row.cut_chunks:,.1f} of {row.noted_chunks:,.1f} ({row.cut_questions:.0%} of questions)"
        for row in rows
        if row.cut_questions
    }
    return ", ".join(told.values())


def format_rows(rows: "Sequence[NoteRow]") -> str:
    """Formats the rows as a table, with a line about the notes below."""
    from qrag_jax.eval.tables import align, interval, share

    table: list[tuple[str, ...]] = [_HEADINGS]
    for row in rows:
        values = row.task, row.mode, str(row.k), share(row.all_gold), interval(row.low, row.high), share(row.recall)
        table.append((*values, f"{row.embedded_at_query:.1f}", f"{1000 * row.seconds:.0f}", str(row.n)))
    first = rows[0]
    about = f"{first.n_notes:,} notes by {first.reader} in {first.n_chunks:,} chunks, "
    about += f"{first.cross_chunk_share:.0%} from another chunk"
    ceilings = dict.fromkeys(f"{share(row.ceiling)} at k = {row.k}" for row in rows if row.ceiling < 1)
    if ceilings:
        about += f"; all gold can be at most {', '.join(ceilings)}, because the other questions have more gold chunks"
    return "\n".join([*align(table, [False, False, *[True] * 7]), about])


def _reader(args: argparse.Namespace) -> str:
    return args.reader or (_SCRIPTED if args.babi else _MENTIONS)


def _check_action(args: argparse.Namespace) -> None:
    sources = [name for name in (*MULTIHOP_SETS, "babi") if getattr(args, name)]
    if args.action == "eval":
        if args.index or args.pairs:
            raise UsageError(
                f"{args.index or '--pairs'}: works only with list and export; give eval a set, such as --hotpot FILE"
            )
        if not sources:
            raise UsageError(
                f"qrag notes eval: give one of {', '.join(f'--{name} FILE' for name in (*MULTIHOP_SETS, 'babi'))}"
            )
        return
    given = [
        *sources,
        *(name for name in _OF_EVAL if getattr(args, name) is not None),
        *llm_flags.given_flags(vars(args), llm_flags.OF_READERS),
    ]
    if given:
        raise UsageError(f"--{given[0]}: works only with eval, not with {args.action}; leave it out")
    if not args.index:
        raise UsageError(f"qrag notes {args.action}: give the folder of an index, then flags")
    if args.pairs and args.action == "list" or args.json and args.action == "export":
        flag, remedy = ("pairs", "use export") if args.pairs else ("json", "leave it out; export prints JSON Lines")
        raise UsageError(f"--{flag}: does not work with {args.action}; {remedy}")


def _check_flags(args: argparse.Namespace) -> None:
    from qrag_jax.cli.output_paths import STDOUT, check_output

    given = [name for name in _OF_BABI if getattr(args, name) is not None]
    if given and not args.babi:
        raise UsageError(f"--{given[0]}: works only with --babi; leave it out")
    if args.reader == _SCRIPTED and not args.babi:
        raise UsageError(f"--reader {_SCRIPTED}: reads only bAbI stories (--babi); choose another reader")
    _check_reader_flags(args, _reader(args))
    if args.wrong_share and args.reader not in (None, _SCRIPTED):
        raise UsageError(f"--wrong_share: works only with --reader {_SCRIPTED}, not with {args.reader}; leave it out")
    if args.wrong_share and args.wrong_share > 1:
        raise UsageError(f"--wrong_share {args.wrong_share:g}: must lie in [0, 1]")
    if args.distractors and args.babi:
        raise UsageError("--distractors: does not work with --babi, whose stories are hidden in --filler; leave it out")
    if args.json and args.json != STDOUT:
        check_output(vars(args), "json")


def _check_reader_flags(args: argparse.Namespace, name: str) -> None:
    """Refuses flags of a language model, or of questions, if the reader uses none."""
    of_questions, llm_readers = ("num_questions_a_chunk", "most_relevant"), NOTE_READERS.choices("llm")
    given = [] if name == _LLM else llm_flags.given_flags(vars(args), llm_flags.OF_READERS)
    given = [flag for flag in given if flag in of_questions or name not in llm_readers]
    if given:
        belongs = _LLM if given[0] in of_questions else " or ".join(llm_readers)
        raise UsageError(f"--{given[0]}: works only with --reader {belongs}, not with {name}; leave it out")
    llm_flags.check_speed(args.tokens_per_second)


VERB = Verb(
    _DESCRIPTION,
    _EXAMPLES,
    _FLAGS,
    _run,
    details=_DETAILS,
    choices={"action": ("list", "export", "eval"), "reader": NOTE_READERS},
    usage=_USAGE,
)
