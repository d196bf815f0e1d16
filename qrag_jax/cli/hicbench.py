"""`qrag hicbench`: questions with dense evidence that a language model writes and proves, as a folder."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from qrag_jax.cli import llm_flags
from qrag_jax.cli.flags import made
from qrag_jax.cli.parser import Verb

if TYPE_CHECKING:
    from qrag_jax.annotate.hicbench import Built
    from qrag_jax.llm.prices import Prices

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
_FLAGS = f"""\
action ACTION               what to do: build
docs DOCS ...               Markdown file or folder, scisumm:PATH or wikitext2:PATH
--out! DIR                  folder to write, empty or not there
--view = plain              headings with marks or as lines of text
--num_one I = 2             questions of T1 to try a document
--num_two I = 2             questions of T2 to try a document
--max_documents N           take the first ones (default: all)
--draw_temperature X = 0.7  of the draws of evidence and answers
--model --seed
{llm_flags.llm_table(500)}"""


def _run(args: argparse.Namespace) -> int:
    from qrag_jax.annotate.hicbench import HiCBenchConfig
    from qrag_jax.cli.progress import Progress
    from qrag_jax.cli.terminal import say
    from qrag_jax.service.headed import BenchmarkRequest, build_benchmark

    llm = llm_flags.llm_config(vars(args))
    asking = {"max_tokens": llm.max_answer_tokens, "sampling": llm.sampling, "prompts": llm.prompts}
    config, out = made(HiCBenchConfig, vars(args), **asking), Path(args.out)
    request = made(BenchmarkRequest, vars(args), paths=tuple(args.docs), out=out, llm=llm, config=config)
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


VERB = Verb(
    _DESCRIPTION, _EXAMPLES, _FLAGS, _run, details=_DETAILS, choices={"action": ("build",), "view": ("kept", "plain")}
)
