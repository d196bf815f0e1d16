"""`qrag fit tagger`: trains a tagger on documents with headings, and says what to expect of it."""

import argparse
import time
from pathlib import Path
from typing import Any

from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, write_json
from qrag_jax.data.corpora.headed_documents import HeadedDocument, read_headed
from qrag_jax.eval.tables import share
from qrag_jax.measures.boundary_scores import Judged, PointsScore, score_points
from qrag_jax.models.encoder.embedder import make_embedder
from qrag_jax.models.encoder.weights import load_encoder
from qrag_jax.train.learners.tagger import FittedTagger, TaggerConfig, fit_tagger
from qrag_jax.train.run_folder import check_out


def run(args: argparse.Namespace) -> int:
    """Runs `qrag fit tagger`; see `qrag fit tagger --help`."""
    out = Path(args.out)
    check_out(out, resumes=False)
    documents = read_headed(args.paths, args.view)
    say(f"{len(documents):,} documents, {sum(len(one.points) for one in documents):,} sections")
    embedder = make_embedder(load_encoder(args.model))
    start = time.perf_counter()
    with Progress() as progress:
        fitted = fit_tagger(
            documents, embedder, embedder.fingerprint, args.model, TaggerConfig(args.seed), out, progress.report
        )
    seconds = time.perf_counter() - start
    row = _row(fitted, documents, args, seconds)
    if args.json:
        write_json(row)
    else:
        print(_format(row))
    return 0


def score_held_out(fitted: FittedTagger, documents: list[HeadedDocument], seed: int) -> PointsScore:
    """What taggers found in the documents that they had not seen."""
    rows = zip(documents, fitted.held_out, strict=True)
    return score_points([Judged(len(one.text), one.points, found) for one, found in rows], seed=seed)


def _row(
    fitted: FittedTagger, documents: list[HeadedDocument], args: argparse.Namespace, seconds: float
) -> dict[str, Any]:
    score = score_held_out(fitted, documents, args.seed)
    f1 = score.f1_any
    return {
        "run": args.out,
        "view": args.view,
        "f1_l1": score.f1[1],
        "f1_l2": score.f1[2],
        "f1_any": f1.mean,
        "low": f1.low,
        "high": f1.high,
        "n_documents": f1.n,
        "n_points": score.n_points,
        "threshold": fitted.tagger.threshold,
        "strength": fitted.strength,
        "seconds": seconds,
    }


def _format(row: dict[str, Any]) -> str:
    interval = f"{share(row['f1_any'])} [{share(row['low'])}, {share(row['high'])}]"
    return (
        f"trained: {row['run']}, {row['seconds']:,.0f} s\n"
        f"held out, headings {row['view']}: F1 {interval} of all points, {share(row['f1_l1'])} of level 1, "
        f"{share(row['f1_l2'])} of level 2; {row['n_documents']:,} documents, {row['n_points']:,} points"
    )
