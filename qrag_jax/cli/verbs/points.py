"""`qrag points`: what finds the sections of documents, scored on documents whose headings say what is right."""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from qrag_jax.chunking.tree.boundaries import PredictPoints, predict_checked
from qrag_jax.cli.note_readers import Estimated
from qrag_jax.cli.points_llm import check_points_llm_flags
from qrag_jax.cli.points_sources import PointTools, check_tagger_flag, make_source
from qrag_jax.cli.terminal import shown_lines, write_json
from qrag_jax.cli.verbs.eval_outputs import STDOUT, check_place
from qrag_jax.data.corpora.headed_documents import HeadedDocument, read_headed, split_source
from qrag_jax.eval.tables import align, share
from qrag_jax.measures.boundary_scores import Judged, score_points
from qrag_jax.names import BOUNDARY_SOURCES, View
from qrag_jax.types import UsageError

_REMOVED: View = "removed"
_SHARES = ("f1_l1", "f1_l2", "f1_any", "low", "high", "pk", "window_diff")


def run(args: argparse.Namespace) -> int:
    """Runs `qrag points`; see `qrag points --help`."""
    if args.json and args.json != STDOUT:
        check_json(args)
    check_points_llm_flags(args, args.methods)
    check_tagger_flag(args, args.methods)
    tools = PointTools(args)
    sources = {name: make_source(name, tools) for name in args.methods}
    views = [args.view] if args.view == _REMOVED else [args.view, _REMOVED]
    documents = {view: read_headed(args.paths, view) for view in views}
    if args.estimate:
        return _print_estimates(sources, documents)
    rows = [
        points_row(name, view, source, documents[view], args.seed) for name, source in sources.items() for view in views
    ]
    if args.json != STDOUT:
        print(shown_lines(format_rows(rows)), flush=True)
    if args.json:
        write_json(rows, args.json)
    return 0


def check_json(args: argparse.Namespace) -> None:
    """Refuses a file for the rows that would take the place of something that is read."""
    check_place("json", Path(args.json))
    place = Path(os.path.realpath(args.json))
    given = [split_source(one)[1] for one in args.paths]
    read = [Path(os.path.realpath(one)) for one in (*given, args.llm_model, args.prices) if one]
    is_document = place.is_file() and place.suffix != ".json" and any(place.is_relative_to(one) for one in read)
    if place in read or is_document:
        raise UsageError(f"--json {args.json}: is a file that is read; name another file")


def _print_estimates(sources: Mapping[str, PredictPoints], documents: Mapping[View, Sequence[HeadedDocument]]) -> int:
    """Says what sources that ask a language model would take."""
    for name in (name for name in sources if name in BOUNDARY_SOURCES.choices("llm")):
        for view, its in documents.items():
            try:
                sources[name]([one.text for one in its])
            except Estimated as estimate:
                print(f"{view}: {estimate}; nothing is asked (--estimate)")
    return 0


def points_row(
    method: str, view: View, predict: PredictPoints, documents: Sequence[HeadedDocument], seed: int
) -> dict[str, object]:
    """One method on one view of documents, as a row of JSON.

    Args:
        predict: the source; what it takes is `seconds`.
        documents: with the points that are right.
    """
    begin = time.perf_counter()
    found = predict_checked(predict, [one.text for one in documents], [one.id for one in documents])
    seconds = time.perf_counter() - begin
    judged = [Judged(len(one.text), one.points, its) for one, its in zip(documents, found, strict=True)]
    score = score_points(judged, seed=seed)
    return {
        "method": method,
        "view": view,
        "f1_l1": score.f1[1],
        "f1_l2": score.f1[2],
        "f1_any": score.f1_any.mean,
        "low": score.f1_any.low,
        "high": score.f1_any.high,
        "pk": score.pk,
        "window_diff": score.window_diff,
        "n_documents": len(documents),
        "n_points": score.n_points,
        "seconds": seconds,
    }


def format_rows(rows: Sequence[dict[str, object]]) -> str:
    """Rows as a table, and below it what they are of."""
    table = [["method", "view", *_SHARES, "seconds"]]
    for row in rows:
        numbers = [share(cast(float, row[name])) for name in _SHARES]
        table.append([str(row["method"]), str(row["view"]), *numbers, f"{row['seconds']:.1f}"])
    right = (False, False, *(True for _ in _SHARES), True)
    counts = [f"{row['view']}: {row['n_documents']:,} documents, {row['n_points']:,} points" for row in rows]
    return "\n".join([*align(table, right), "", *dict.fromkeys(counts)])
