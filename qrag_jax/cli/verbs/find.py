"""`qrag find`: the passages of the user's own files that answer a question, by meaning and words, or by a run."""

import argparse
from collections.abc import Mapping
from dataclasses import replace

from qrag_jax.cli.level_search import check_level_flags, level_index_of, make_level_search
from qrag_jax.cli.searching.places import excerpt, fields_of, note_to_json, place_of, source_place
from qrag_jax.cli.searching.sources import (
    Source,
    checked,
    find_source,
    make_method,
    read_questions,
    read_source,
    searched,
    timed,
)
from qrag_jax.cli.terminal import say, write_json
from qrag_jax.data.questions.asked import Asked
from qrag_jax.search.corpus import Corpus
from qrag_jax.search.hybrid import Ranked
from qrag_jax.types import InputError

_TOP_K = 5
_MOST_NOTES = 2  # of a passage; likewise
_MOST_SHOWN = 300  # characters of a passage; `--json` has all of it
_OF_RUNS = ("num_steps", "stop")


def run(args: argparse.Namespace) -> int:
    """Runs `qrag find`; see `qrag find --help`."""
    # What costs nothing to look at comes before encoder or run are loaded.
    source, asked = find_source(args, _OF_RUNS, run_first=True), read_questions(args)
    by_levels = check_level_flags(args, source)
    if source.is_run:
        from qrag_jax.cli.searching.find_steps import find_in_steps

        return find_in_steps(args, source, asked)
    spent: dict[str, float] = {}
    if by_levels:
        source = replace(source, notes_mode="none")
    with timed("read", spent):
        found = read_source(args, source)
    with timed("load", spent):
        method = make_method(args, source)
    asked = checked(asked, method.check)
    corpus, method = searched(found, method, source)
    levels = make_level_search(args, source, level_index_of(corpus, source, method), method) if by_levels else None
    retrieve = method.retrieve if levels is None else levels.search.retrieve
    spent |= {stage: round(seconds, 3) for stage, seconds in corpus.cost.seconds.items()}
    if corpus.num_beyond_window:
        say(
            f"{corpus.num_beyond_window:,} of {len(corpus):,} passages are longer than the encoder reads; only their "
            "beginning was searched by meaning (--max_tokens cuts smaller ones)"
        )
    before = 0
    for one in asked:
        with timed("search", spent):
            ranked = retrieve(one.question, corpus, args.top_k or _TOP_K)
        if not len(ranked) and args.questions is None:
            raise InputError(_nothing_found(corpus))
        num_tokens, _ = method.spent()
        told = {} if levels is None else levels.told()
        if levels is not None:
            levels.say(told)
        if args.json:
            cost = {"seconds": spent, "embedder_tokens": num_tokens - before}
            found = to_json(one, ranked, corpus, source, cost) | told
            write_json(found, on_one_line=args.questions is not None)
        else:
            head = "" if args.questions is None else f"{excerpt(one.question, _MOST_SHOWN)}\n"
            print(f"{head}{format_ranked(ranked, corpus) or _nothing_found(corpus)}" + "\n" * bool(head), flush=True)
        spent, before = {}, num_tokens
    return 0


def format_ranked(ranked: Ranked, corpus: Corpus) -> str:
    """Two lines a passage, best first: its rank and where it stands, and how it reads; one a note that told it."""
    lines = []
    for rank, node in enumerate(ranked.ids.tolist(), start=1):
        chunk = corpus.nodes[node]
        lines.append(f"{rank:>2}  {place_of(corpus.by_id[chunk.document_id], chunk.spans[0][0])}")
        lines.append(f"    {excerpt(corpus.texts[node], _MOST_SHOWN)}")
        for note in ranked.notes_of(node)[:_MOST_NOTES]:
            lines.append(f"    note from {source_place(note, corpus)}: {excerpt(note.text, _MOST_SHOWN)}")
    return "\n".join(lines)


def to_json(
    asked: Asked, ranked: Ranked, corpus: Corpus, source: Source, cost: Mapping[str, object]
) -> dict[str, object]:
    """What `--json` prints: passages, best first; `text` is that of `spans`, characters of the file.

    Args:
        source: what was searched, and by which method; scores are on its own scale.
        cost: seconds by stage and tokens; those of reading and embedding stand with the first question.
    """
    passages = []
    for rank, (node, score) in enumerate(zip(ranked.ids.tolist(), ranked.scores.tolist(), strict=True), start=1):
        chunk = corpus.nodes[node]
        passages.append(
            {
                "rank": rank,
                **fields_of(corpus.by_id[chunk.document_id], chunk.spans[0][0]),
                "start": chunk.spans[0][0],
                "end": chunk.spans[-1][1],
                "spans": [list(span) for span in chunk.spans],
                "text": corpus.texts[node],
                "score": score,
                "notes": [note_to_json(note, corpus) for note in ranked.notes_of(node)],
            }
        )
    return {
        "question": asked.question,
        **({} if asked.id is None else {"id": asked.id}),
        "retriever": source.retriever,
        "notes_mode": source.notes_mode,
        "num_chunks": len(corpus.leaves),
        "num_chunks_cut": corpus.num_beyond_window,
        "passages": passages,
        "cost": dict(cost),
    }


def _nothing_found(corpus: Corpus) -> str:
    return (
        f"none of {len(corpus.leaves):,} passages shares a word with the question: ask in the words of the text, or "
        "search by meaning too (--retriever hybrid)"
    )
