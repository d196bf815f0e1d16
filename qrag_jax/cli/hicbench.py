"""`qrag hicbench`: questions with dense evidence that a language model writes and proves, as a folder."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.cli import flags, llm_flags
from qrag_jax.cli.parser import Verb
from qrag_jax.names import VIEWS

if TYPE_CHECKING:
    from qrag_jax.annotate.hicbench import Built
    from qrag_jax.llm.prices import Prices

ANSWER_TOKENS, NUM_QUESTIONS, TEMPERATURE = 500, 2, 0.7  # as in annotate.hicbench, whose import takes longer
_DESCRIPTION = """\
Build a benchmark from documents with sections, as HiCBench was: questions whose evidence is dense, so that they tell
whether a chunker keeps together what belongs together.

  T1  about one section of 512 to 4,096 tokens
  T2  about two sections of 256 to 2,048 tokens each

DOCS are Markdown files and folders, scisumm:PATH or wikitext2:PATH, as of `qrag boundaries`.

What comes out: the folder --out with documents/NNNN.txt, the texts that are asked about, and questions.jsonl, which
`qrag study` reads. On standard error what was tried, kept and rejected, and what it took.
"""
_DETAILS = f"""\
The model is shown summaries of the document's sections and the ones that are asked about, and writes a question with
its answer. Then it names the sentences that the answer rests on, in 5 draws: those that 4 draws name are the evidence,
and must be a tenth of the sections. The answer is taken apart into facts, and 5 answers to the question from the
sections must state more than 0.8 of them on average. What fails is rejected, and counted by reason.

A line of questions.jsonl is {{"id", "type", "question", "answer", "evidence": [{{"file", "start", "end", "text"}},
...], "facts", "coverage", "context": [[start, end], ...]}}. A call that fails is an error, and nothing is written; run
it again: finished calls are in the journal and are not made twice.

{llm_flags.HELP}"""
_EXAMPLES = """\
examples:
  qrag hicbench build handbook/ --llm openai --base_url http://127.0.0.1:8080/v1 --llm_model qwen --out bench/
  qrag hicbench build wikitext2:articles.jsonl.gz --llm_model qwen.gguf --num_two 0 --max_documents 3 --out bench/
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("build",), help="what to do")
    parser.add_argument(
        "docs", nargs="+", metavar="DOCS", help="Markdown file or folder, scisumm:PATH or wikitext2:PATH"
    )
    parser.add_argument(
        "--out", required=True, type=flags.filled, metavar="DIR", help="folder to write, empty or not there"
    )
    parser.add_argument(
        "--view",
        choices=[view for view in VIEWS if view != "removed"],
        default="plain",
        help="headings with marks or as lines of text (default: %(default)s)",
    )
    for name, kind in (("num_one", "T1"), ("num_two", "T2")):
        parser.add_argument(
            f"--{name}",
            type=flags.natural,
            default=NUM_QUESTIONS,
            metavar="N",
            help=f"questions of {kind} to try a document (default: %(default)s)",
        )
    parser.add_argument("--max_documents", type=flags.positive, metavar="N", help="take the first ones (default: all)")
    parser.add_argument(
        "--draw_temperature",
        type=flags.amount,
        default=TEMPERATURE,
        metavar="X",
        help="of the draws of evidence and answers (default: %(default)s)",
    )
    flags.add_model(parser, "%(default)s", value="minilm")
    flags.add_seed(parser)
    llm_flags.add_llm_flags(parser, max_answer_tokens=ANSWER_TOKENS)


def _run(args: argparse.Namespace) -> int:
    from qrag_jax.annotate.hicbench import HiCBenchConfig
    from qrag_jax.cli.progress import Progress
    from qrag_jax.cli.terminal import say
    from qrag_jax.service.headed import BenchmarkRequest, build_benchmark

    llm = llm_flags.llm_config(vars(args))
    config = HiCBenchConfig(
        num_one=args.num_one,
        num_two=args.num_two,
        draw_temperature=args.draw_temperature,
        max_tokens=args.max_answer_tokens,
        sampling=llm.sampling,
        seed=args.seed,
        prompts=llm.prompts,
    )
    out = Path(args.out)
    request = BenchmarkRequest(tuple(args.docs), out, llm, config, args.view, args.max_documents, args.model)
    with Progress() as progress:
        build_benchmark(
            request, progress.answered, lambda built, number: say(format_built(built, number, llm.load_prices()))
        )
    say(f"wrote {out}")
    return 0


def format_built(built: "Built", num_documents: int, prices: "Prices | None") -> str:
    """One line: what was tried, what is kept, what not by reason, and what it took."""
    from qrag_jax.cli.llm_output import spent_by

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


VERB = Verb(_DESCRIPTION, _EXAMPLES, _add_flags, _run, details=_DETAILS)
