"""`qrag hicbench`: questions with dense evidence that a language model writes and proves, as a folder."""

import argparse
from pathlib import Path

from qrag_jax.annotate.hicbench import Built, HiCBenchConfig, build_hicbench, write_hicbench
from qrag_jax.cli.llm_flags import llm_config
from qrag_jax.cli.note_readers import spent_by
from qrag_jax.cli.progress import Progress
from qrag_jax.cli.terminal import say
from qrag_jax.data.corpora.headed_documents import read_headed
from qrag_jax.files.new_folder import new_folder
from qrag_jax.llm.config import make_generator
from qrag_jax.llm.prices import Prices
from qrag_jax.models.encoder.sources import find_folder
from qrag_jax.models.encoder.tokenizer import TextTokenizer
from qrag_jax.types import InputError


def run(args: argparse.Namespace) -> int:
    """Runs `qrag hicbench`; see `qrag hicbench --help`."""
    out, llm = Path(args.out), llm_config(vars(args))
    config = HiCBenchConfig(
        num_one=args.num_one,
        num_two=args.num_two,
        draw_temperature=args.draw_temperature,
        max_tokens=args.max_answer_tokens,
        sampling=llm.sampling,
        seed=args.seed,
        prompts=llm.prompts,
    )
    with new_folder(out, "hicbench") as new:  # first of all: a place that cannot be written is told before the work
        documents = read_headed(args.docs, args.view)[: args.max_documents]
        generator = make_generator(llm)
        count = generator.count or TextTokenizer.from_file(find_folder(args.model) / "tokenizer.json").count
        with Progress() as progress:
            built = build_hicbench(documents, generator, count, config, progress=progress.answered)
        say(format_built(built, len(documents), llm.load_prices()))
        if not built.questions:
            raise InputError(f"{out}: no question is kept: try more documents, or a larger model; nothing is written")
        write_hicbench(new, built, documents)
    say(f"wrote {out}")
    return 0


def format_built(built: Built, num_documents: int, prices: Prices | None) -> str:
    """One line: what was tried, what is kept, what not by reason, and what it took."""
    rejected = ", ".join(f"{number:,} {reason}" for reason, number in built.rejected.items())
    kinds = [f"{sum(one.kind == kind for one in built.questions):,} {kind}" for kind in ("T1", "T2")]
    facts = [
        f"{num_documents:,} documents",
        f"{built.num_tried:,} questions tried",
        f"{len(built.questions):,} kept ({', '.join(kinds)})",
        f"rejected: {rejected or 'none'}",
        f"{built.num_unreadable:,} answers not readable",
        *spent_by(built.calls, prices),
    ]
    return ", ".join(facts)
