"""`qrag notes`: the notes of an index, and what notes find, measured on sets with labels."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial

from qrag_jax.annotate.ask_chunks import Estimate
from qrag_jax.cli.llm_flags import llm_config
from qrag_jax.cli.note_readers import (
    check_reader_flags,
    format_estimate,
    format_readings,
    given_reader_flags,
    make_note_reader,
)
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, shown_lines, write_json
from qrag_jax.cli.verbs.eval_outputs import STDOUT, check_output
from qrag_jax.cli.verbs.notes_index import export_notes, list_notes
from qrag_jax.eval.notes.note_scores import NoteRow, check_modes, score_notes
from qrag_jax.eval.notes.note_sets import (
    MENTIONS,
    OWN_READERS,
    SCRIPTED,
    STORIES,
    MakeNoteTask,
    read_babi_task,
    read_multihop_task,
    read_stories,
)
from qrag_jax.eval.tables import align, share
from qrag_jax.names import MULTIHOP_SETS, NOTE_MODES, NOTE_READERS
from qrag_jax.search.note_search import NoteSearch
from qrag_jax.types import NoteReader, UsageError

_OF_BABI = ("filler", "chunk_sentences", "num_chunks", "wrong_share")
_OF_EVAL = ("distractors", *_OF_BABI, "reader", "num_questions", "modes", "k", "num_notes", "max_share", "model")
_MODEL, _NUM_PICKS = "minilm", (2, 4, 5, 10)
_OF_SEARCH = ("num_notes", "max_share")  # as `NoteSearch` has them
_HEADINGS = ("task", "mode", "k", "all gold", "interval", "recall", "embedded", "ms", "n")


def run(args: argparse.Namespace) -> int:
    """Runs `qrag notes`; see `qrag notes --help`."""
    _check_action(args)
    if args.action != "eval":
        return list_notes(args) if args.action == "list" else export_notes(args)
    _check_flags(args)
    modes, ks = args.modes or NOTE_MODES, args.k or _NUM_PICKS
    check_modes(modes, ks)
    search = NoteSearch(**{name: value for name in _OF_SEARCH if (value := getattr(args, name)) is not None})
    make_task = read_task(args)  # before a model is loaded: a bad file is told at once
    from qrag_jax.models.encoder.embedder import make_embedder
    from qrag_jax.models.encoder.weights import load_encoder

    embed = make_embedder(load_encoder(args.model or _MODEL))
    task = make_task(embed.count_tokens)
    say(task.about)
    with Progress() as progress:
        llm = None
        name = _reader_name(args)
        if name in NOTE_READERS.choices("llm"):
            llm = make_note_reader(args, name, embed, embed.count_tokens, progress.answered)
            estimates = (llm.estimate(pool.documents, pool.chunks) for pool in task.pools)
            expected = format_estimate(sum(estimates, Estimate()), args)
            if args.estimate:
                print(expected)
                return 0
            say(expected)
        scores = score_notes(
            task.name,
            task.pools,
            _own_reader(args, name) if llm is None else llm.read,
            embed,
            embed.count_tokens,
            reader_name=f"{name}, wrong {args.wrong_share:g}" if args.wrong_share else name,
            modes=modes,
            ks=ks,
            search=search,
            seed=args.seed,
            window=embed.window,
            progress=progress.stage("ask"),
        )
    if scores.left_out:
        say(f"notes left out: {counts(scores.left_out)}")
    if llm is not None:
        say(format_readings(llm.readings, llm_config(vars(args)).load_prices()))
    rows = scores.rows()
    if told := cut_told(rows):
        say(f"chunks with notes in them that are longer than the encoder's {embed.window} tokens, a question: {told}")
    if args.json:
        write_json([asdict(row) for row in rows], args.json)
    if args.json != STDOUT:
        print(shown_lines(format_rows(rows)))
    return 0


def counts(left_out: Mapping[str, int]) -> str:
    """How many notes were left out, by reason, the most frequent first."""
    ordered = sorted(left_out.items(), key=lambda item: -item[1])
    return ", ".join(f"{number:,} ({reason})" for reason, number in ordered)


def cut_told(rows: Sequence[NoteRow]) -> str:
    """By mode how many of the chunks that were embedded with notes were cut; empty where none was."""
    told = {
        row.mode: f"{row.mode} {row.cut_chunks:,.1f} of {row.noted_chunks:,.1f} ({row.cut_questions:.0%} of questions)"
        for row in rows
        if row.cut_questions
    }
    return ", ".join(told.values())


def read_task(args: argparse.Namespace) -> MakeNoteTask:
    """The set that the flags name."""
    if args.babi:
        return read_babi_task(
            args.babi,
            args.filler or STORIES,
            num_chunks=args.num_chunks or 15,
            chunk_sentences=args.chunk_sentences or 4,
            num_questions=args.num_questions,
            seed=args.seed,
        )
    kind = next(name for name in MULTIHOP_SETS if getattr(args, name))
    return read_multihop_task(
        kind,
        getattr(args, kind),
        distractors=args.distractors,
        num_questions=args.num_questions,
        seed=args.seed,
    )


def format_rows(rows: list[NoteRow]) -> str:
    """The rows as a table, and a line on what was searched."""
    table: list[tuple[str, ...]] = [_HEADINGS]
    for row in rows:
        interval = f"[{share(row.low)}, {share(row.high)}]"
        values = row.task, row.mode, str(row.k), share(row.all_gold), interval, share(row.recall)
        table.append((*values, f"{row.embedded_at_query:.1f}", f"{1000 * row.seconds:.0f}", str(row.n)))
    first = rows[0]
    about = f"{first.n_notes:,} notes by {first.reader} in {first.n_chunks:,} chunks, "
    about += f"{first.cross_chunk_share:.0%} from another chunk"
    ceilings = dict.fromkeys(f"{share(row.ceiling)} at k = {row.k}" for row in rows if row.ceiling < 1)
    if ceilings:
        about += f"; all gold is at most {', '.join(ceilings)}, as the other questions have more gold chunks"
    return "\n".join([*align(table, [False, False, *[True] * 7]), about])


def _reader_name(args: argparse.Namespace) -> str:
    return args.reader or (SCRIPTED if args.babi else MENTIONS)


def _own_reader(args: argparse.Namespace, name: str) -> NoteReader:
    """The reader of a name that asks no language model."""
    if not args.wrong_share:
        return OWN_READERS[name]
    return partial(read_stories, wrong_share=args.wrong_share, seed=args.seed)


def _check_action(args: argparse.Namespace) -> None:
    sources = [name for name in (*MULTIHOP_SETS, "babi") if getattr(args, name)]
    if args.action == "eval":
        if args.index or args.pairs:
            raise UsageError(
                f"{args.index or '--pairs'}: belongs to list and export; eval reads a set, as --hotpot FILE"
            )
        if not sources:
            raise UsageError(
                f"qrag notes eval: give one of {', '.join(f'--{name} FILE' for name in (*MULTIHOP_SETS, 'babi'))}"
            )
        return
    given = [*sources, *(name for name in _OF_EVAL if getattr(args, name) is not None), *given_reader_flags(args)]
    if given:
        raise UsageError(f"--{given[0]}: belongs to eval, not to {args.action}; leave it out")
    if not args.index:
        raise UsageError(f"qrag notes {args.action}: give the folder of an index behind it, and flags after that")
    if args.pairs and args.action == "list" or args.json and args.action == "export":
        raise UsageError(f"--{'pairs' if args.pairs else 'json'}: not of {args.action}; export prints JSON Lines")


def _check_flags(args: argparse.Namespace) -> None:
    given = [name for name in _OF_BABI if getattr(args, name) is not None]
    if given and not args.babi:
        raise UsageError(f"--{given[0]}: belongs to --babi; leave it out")
    if args.reader == SCRIPTED and not args.babi:
        raise UsageError(f"--reader {SCRIPTED}: reads bAbI stories alone (--babi); leave it out")
    check_reader_flags(args, _reader_name(args), NOTE_READERS.choices("llm"))
    if args.wrong_share and args.reader not in (None, SCRIPTED):
        raise UsageError(f"--wrong_share: belongs to --reader {SCRIPTED}, {args.reader} says what the text says")
    if args.wrong_share and args.wrong_share > 1:
        raise UsageError(f"--wrong_share {args.wrong_share:g}: a share of the answers, from 0 to 1")
    if args.distractors and args.babi:
        raise UsageError("--distractors: stories are hidden in --filler; leave it out")
    if args.json and args.json != STDOUT:
        check_output(args, "json")
