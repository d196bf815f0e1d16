"""`qrag find`: finds passages that answer a question, by meaning, by words, or by a trained run."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qrag_jax.cli import search_flags
from qrag_jax.cli.parser import Verb

if TYPE_CHECKING:
    from qrag_jax.data.questions.asked import Asked
    from qrag_jax.index.options import Found
    from qrag_jax.service.observing import Observe
    from qrag_jax.types import Hit

_TOP_K = 5
_FLAGS = f"""\
texts
--retriever
--top_k N        passages to show (default: {_TOP_K}; not with a run)
--questions --levels --smooth
. --planner P    for an index with levels: choose them by constant (--levels, or all levels) or a run that learned to
                 plan
{search_flags.CUTTING}\
--num_steps N    with a run: chunks to pick (default: as in training)
--stop           with a run: show only the picks before it stops, by its learned STOP or its threshold from held-out
                 questions
--notes_mode
{search_flags.RERANK}\
{search_flags.CHOICE}\
{search_flags.TRACE}\
--no_compile_cache
--html --json
"""
_MAX_NOTES = 2  # notes shown for a passage; `--json` gives all
_MAX_SHOWN, _MAX_PICKED = 300, 100  # characters shown of a passage, and of a pick in a table; `--json` gives all


def _run(args: argparse.Namespace) -> int:
    with search_flags.tracing(vars(args)) as observe:
        return _find(args, observe)


def _find(args: argparse.Namespace, observe: "Observe | None") -> int:
    from qrag_jax.cli.output import excerpt, planned_to_json, say_converted, say_planned, say_reranked, write_page
    from qrag_jax.cli.terminal import say, write_json
    from qrag_jax.index.options import Found, SearchOptions
    from qrag_jax.service.search import find_all, run_of
    from qrag_jax.types import InputError

    # Cheap checks come before the encoder or the run is loaded.
    planner, levels = search_flags.chosen_levels(args.planner, args.levels, asks_model=False)
    rerank = search_flags.rerank_options(vars(args))
    request = search_flags.search_request(vars(args), run_first=True)
    asked, many = request.read_questions(), args.questions is not None
    index = search_flags.open_searched(request, observe)
    search_flags.check_html(vars(args), index)
    run = run_of(index, request.retriever)
    options = SearchOptions(
        top_k=None if run else args.top_k or _TOP_K,
        notes=args.notes_mode,
        levels=levels,
        smooth=args.smooth,
        num_steps=args.num_steps,
        stop=args.stop,
        late=search_flags.late_of(args),
        rerank=rerank,
    )
    is_first = True
    results: list[Found] = []
    for one, found in find_all(index, asked, options):
        if not found.hits and not many:
            raise InputError(_nothing_found(found))
        if is_first and found.num_chunks_cut:
            say(_cut(found, by_run=run is not None))
        say_reranked(found.reranked)
        is_first, told = False, {}
        results += [found] if args.html else []
        if found.levels is not None:
            told = planned_to_json(found.levels, index.levels, planner)
            say_planned(found.levels, told)
        if args.json:
            write_json((_steps_to_json if run else _to_json)(one, found) | told, on_one_line=many)
            continue
        shown = format_steps(found.hits) if run else format_hits(found.hits) or _nothing_found(found)
        head = excerpt(one.question, _MAX_PICKED if run else _MAX_SHOWN)
        print(f"{head}\n{shown}\n" if many else shown, flush=True)
        say_converted(found.hits)
    if args.html:
        write_page(args.html, results, index, "qrag find")
    return 0


def format_hits(hits: "Sequence[Hit]") -> str:
    """Formats passages, best first: rank and place of the sentence that answers, a line of text, copies and notes."""
    from qrag_jax.cli.output import CONTEXT, excerpt, excerpt_with, format_copies
    from qrag_jax.cli.terminal import shown

    lines = []
    for hit in hits:
        lines.append(f"{hit.rank:>2}  {shown(str(hit.sentence.place))}")
        lines += [f"    {CONTEXT}{excerpt(hit.context, _MAX_SHOWN)}"] if hit.context else []
        lines.append(f"    {excerpt_with(hit.text, hit.sentence, _MAX_SHOWN)}")
        lines += [f"    {format_copies(hit.copies)}"] if hit.copies else []
        for note in hit.notes[:_MAX_NOTES]:
            lines.append(f"    note from {shown(str(note.source))}: {excerpt(note.text, _MAX_SHOWN)}")
    return "\n".join(lines)


def format_steps(hits: "Sequence[Hit]") -> str:
    """Formats the picks of a run as two tables: in order of retrieval with Q values, and in document order."""
    from qrag_jax.cli.output import excerpt_with
    from qrag_jax.cli.terminal import shown
    from qrag_jax.eval.tables import align

    texts = {hit.node: excerpt_with(hit.text, hit.sentence, _MAX_PICKED) for hit in hits}
    where = {hit.node: [shown(str(hit.sentence.place)), texts[hit.node]] for hit in hits}
    rows = [[f"{hit.rank:>4}", f"{hit.score:>7.3f}", *where[hit.node]] for hit in hits]
    ordered = [where[node] for node in sorted(where)]
    return "\n".join(
        [*align([["step", "Q value", "where", "chunk"], *rows]), "", "in document order:", *align(ordered)]
    )


def _to_json(asked: "Asked", found: "Found") -> dict[str, object]:
    """The output of `--json`: passages, best first. `text` is the text of `spans`, character offsets of the file.

    `line` and `page` are those of the sentence that answers.

    The cost of reading and embedding the files counts for the first question.
    """
    from qrag_jax.cli.output import note_to_json, place_to_json, reranked_to_json, scores_to_json, told_to_json

    passages = [
        {
            "rank": hit.rank,
            **place_to_json(hit.sentence.place),
            "start": hit.place.start,
            "end": hit.place.end,
            "spans": [list(span) for span in hit.spans],
            **({"context": hit.context} if hit.context else {}),
            "text": hit.text,
            "score": hit.score,
            **scores_to_json(found, hit.node),
            **told_to_json(hit),
            "notes": [note_to_json(note) for note in hit.notes],
        }
        for hit in found.hits
    ]
    return {
        "question": asked.question,
        **({} if asked.id is None else {"id": asked.id}),
        "retriever": found.retriever,
        "notes_mode": found.notes,
        "num_chunks": found.num_chunks,
        "num_chunks_cut": found.num_chunks_cut,
        "passages": passages,
        **reranked_to_json(found),
        "cost": {
            "seconds": dict(found.cost.seconds),
            "embedder_tokens": found.cost.embedder_tokens,
            **({} if found.reranked is None else {"reranker_tokens": found.cost.reranker_tokens}),
        },
    }


def _steps_to_json(asked: "Asked", found: "Found") -> dict[str, object]:
    """The output of `--json` for a run: steps in order of retrieval. `text` is characters `start` to `end`."""
    from qrag_jax.cli.output import place_to_json, span_to_json, told_to_json

    seconds = dict(found.cost.seconds)
    if "read" in seconds:  # at the first question: a run reads and cuts in one step
        seconds |= {"read": round(seconds["read"] + seconds.pop("chunk", 0.0), 3), "embed": seconds.get("embed", 0.0)}
    steps = [
        {
            "step": hit.rank,
            **place_to_json(hit.sentence.place),
            "start": hit.place.start,
            "end": hit.place.end,
            "text": hit.text,
            "q_value": hit.score,
            "position": hit.position,
            **told_to_json(hit),
            "runners_up": [
                span_to_json(one.place) | {"text": one.text, "q_value": one.score} for one in hit.runners_up
            ],
            **({} if hit.stop_score is None else {"stop_q_value": hit.stop_score}),
        }
        for hit in found.hits
    ]
    return {
        "question": asked.question,
        **({} if asked.id is None else {"id": asked.id}),
        "num_chunks": found.num_chunks,
        "num_chunks_cut": found.num_chunks_cut,
        "stop_reason": found.stop_reason,
        "steps": steps,
        "cost": {"seconds": seconds, "embedder_tokens": found.cost.embedder_tokens},
    }


def _cut(found: "Found", *, by_run: bool) -> str:
    what, hint = (
        "passages are longer than the encoder reads",
        " by meaning; use a lower --max_tokens to get shorter passages",
    )
    if by_run:
        what, hint = "chunks are longer than this run reads", ""
    return f"{found.num_chunks_cut:,} of {found.num_chunks:,} {what}; only their beginning was searched{hint}"


def _nothing_found(found: "Found") -> str:
    return (
        f"none of {found.num_chunks:,} passages shares a word with the question; use words of the text, or search by "
        "meaning too (--retriever hybrid)"
    )


VERB = Verb(
    description=f"""\
Find the passages in your own files, or in an index (`qrag index`), that answer a question.

You need no training. --retriever chooses the method:
{search_flags.WAYS}\
  RUN      a retriever that you trained: it picks a sentence, reads it, and looks for the next one. It works only for
           questions like its training data. You can also give RUN before the paths

The output is the --top_k best passages, best first, each with text and the file:line or file#page=N of the sentence
that answers. A passage that stands in several places is shown once, with the other places. A run gives its picks in
order of retrieval with their Q values, then the same picks in document order. --json adds character offsets, the best
sentence of each passage, and the cost.
""",
    details=f"""\
In the JSON, `text` is characters `start` to `end` of the file, or the text of `spans`; `line` and `page` are those of
`sentence`; `copies` has the other places of the same text; `left_out` counts what the reader of the file left out. Of a
file that is not text (`converted`), lines and characters are those of its text: `qrag chunk FILE --text` prints it.

{search_flags.RERANK_HELP}
{search_flags.QUESTIONS_HELP}""",
    examples="""\
examples:
  qrag find notes/ "Who has the key to the garden?"
  qrag find notes/ letters/*.md "Who has the key?" --top_k 10 --json
  qrag find notes.index "Who has the key?" --only 'letters/*'        search an index of `qrag index build`
  qrag find notes/ --questions questions.txt --json > found.jsonl
  qrag find runs/mine notes/ "Who has the key?" --num_steps 4        search with a run
  qrag find notes/ "Who has the key?" --html trace.html              write a page for a browser too
""",
    flags=_FLAGS,
    usage="[--retriever R] [--top_k N] [--json] [...] [RUN] PATHS...|INDEX QUESTION",
    run=_run,
)
