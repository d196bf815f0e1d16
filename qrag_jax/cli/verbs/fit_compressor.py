"""`qrag fit compressor`: trains a compressor on documents with headings, and says what to expect of it."""

import argparse
import time
from pathlib import Path
from typing import Any

from qrag_jax.annotate.summaries import SummariesConfig
from qrag_jax.chunking.tree.parent_vectors import FromTexts
from qrag_jax.cli.llm_flags import llm_config
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say, write_json
from qrag_jax.data.corpora.headed_documents import read_headed
from qrag_jax.eval.tables import share
from qrag_jax.index.parent_texts import text_parents
from qrag_jax.llm.config import make_generator
from qrag_jax.measures.aggregate import mean_interval, paired_difference
from qrag_jax.models.encoder.embedder import TextEmbedder, make_embedder
from qrag_jax.models.encoder.weights import load_encoder
from qrag_jax.names import COMPRESSOR_KINDS, COMPRESSOR_LOSSES
from qrag_jax.train.learners.compressor import TOP_K, CompressorConfig, FittedCompressor, fit_compressor, recalls
from qrag_jax.train.learners.compressor_data import make_lead_targets
from qrag_jax.train.run_folder import check_out
from qrag_jax.types import UsageError


def run(args: argparse.Namespace) -> int:
    """Runs `qrag fit compressor`; see `qrag fit compressor --help`."""
    out = Path(args.out)
    check_out(out, resumes=False)
    if args.target != "summary" and (given := llm_config(vars(args)).given()):
        raise UsageError(f"--{given[0]}: belongs to --target summary, where a language model sums up")
    documents = read_headed(args.paths)
    say(f"{len(documents):,} documents, {sum(len(one.points) for one in documents):,} headings")
    embedder = make_embedder(load_encoder(args.model))
    config = CompressorConfig(
        args.seed,
        kinds=COMPRESSOR_KINDS if args.kind is None else (args.kind,),
        losses=COMPRESSOR_LOSSES if args.loss is None else (args.loss,),
    )
    start = time.perf_counter()
    with Progress() as progress:
        fitted = fit_compressor(
            documents,
            embedder,
            embedder.count_tokens,
            _targets(args, embedder, progress),
            embedder.fingerprint,
            args.model,
            config,
            out,
            progress.report,
        )
    row = describe_fitted(fitted, args.seed) | {"seconds": time.perf_counter() - start}
    row = {"run": args.out, "target": args.target, **row}
    if args.json:
        write_json(row)
    else:
        print(_format(row))
    return 0


def describe_fitted(fitted: FittedCompressor, seed: int) -> dict[str, Any]:
    """What was chosen, and what to expect of it with 95% intervals over questions."""
    hits = {name: (places < TOP_K).astype(float) for name, places in fitted.places.items()}
    expected = mean_interval(hits["compressor"], seed=seed)
    over_mean = paired_difference(hits["compressor"], hits["mean"], seed=seed)
    row: dict[str, Any] = {
        "kind": fitted.chosen.kind,
        "loss": fitted.chosen.loss,
        "strength": fitted.chosen.strength,
        "n_documents": fitted.compressor.trained_on["num_documents"],
        "n_sections": fitted.compressor.trained_on["num_sections"],
        "held_out_sections": fitted.num_sections,
        "held_out_questions": expected.n,
        "r5": expected.mean,
        "low": expected.low,
        "high": expected.high,
        "r5_over_mean": over_mean.mean,
        "over_mean_low": over_mean.low,
        "over_mean_high": over_mean.high,
    }
    row |= {
        f"{name}_r{k}": value for name in hits for k, value in zip((1, 5), recalls(fitted.places[name]), strict=True)
    }
    row |= {f"{name}_squared_distance": value for name, value in fitted.squared_distance.items()}
    tried = ((one.kind, one.loss, one.strength, *recall) for one, recall in fitted.tried.items())
    return row | {"tried": [dict(zip(("kind", "loss", "strength", "r1", "r5"), one, strict=True)) for one in tried]}


def _targets(args: argparse.Namespace, embedder: TextEmbedder, progress: Progress) -> FromTexts:
    if args.target == "lead":
        return make_lead_targets(embedder, embedder.count_tokens, args.lead_tokens)
    llm = llm_config(vars(args))
    generator = make_generator(llm) if args.target == "summary" else None
    summaries = SummariesConfig(llm.max_answer_tokens, llm.sampling, llm.prompts)
    parents = text_parents(
        args.target,
        embedder,
        embedder.count_tokens,
        window_tokens=embedder.window,
        generator=generator,
        summaries=summaries,
        progress=progress.answered,
    )
    assert parents.of_texts is not None
    return parents.of_texts


def _format(row: dict[str, Any]) -> str:
    interval = f"{share(row['r5'])} [{share(row['low'])}, {share(row['high'])}]"
    over = (
        f"{share(row['r5_over_mean'], sign='+')} [{share(row['over_mean_low'], sign='+')}, "
        f"{share(row['over_mean_high'], sign='+')}]"
    )
    how = f"{row['kind']} by {row['loss']}, {row['n_sections']:,} sections, {row['seconds']:,.0f} s"
    return (
        f"trained: {row['run']}, {how}\n"
        f"held out: R@5 {interval} of {row['held_out_questions']:,} sentences among {row['held_out_sections']:,} "
        f"sections; {over} over the mean of the children\n"
        f"beside it: mean {share(row['mean_r5'])}, target {share(row['target_r5'])}, best child "
        f"{share(row['best_child_r5'])}"
    )
