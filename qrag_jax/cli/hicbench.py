"""`qrag hicbench`: builds a benchmark of questions with dense evidence, written and checked by a language model."""

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
Build a benchmark like HiCBench from documents with sections: questions with dense evidence.

Such questions show whether a chunker keeps related sentences together. There are two types:
  T1  about one section of 512 to 4,096 tokens
  T2  about two sections of 256 to 2,048 tokens each

DOCS are Markdown files and folders, scisumm:PATH or wikitext2:PATH, as for `qrag boundaries`.

The output is the folder --out with the documents (documents/NNNN.txt) and questions.jsonl, which `qrag study` reads.
Standard error reports how many questions were tried, kept and rejected, and the cost.
"""
_DETAILS = f"""\
The model reads summaries of the document's sections and the sections in question, and writes a question with its
answer. Then it names the sentences that support the answer, in 5 draws. Sentences named in 4 draws are the evidence;
they must be a tenth of the sections. The model splits the answer into facts, and answers the question 5 times from the
sections; these answers must state more than 0.8 of the facts on average. Questions that fail are rejected and counted
by reason.

A line of questions.jsonl is {{"id", "type", "question", "answer", "evidence": [{{"file", "start", "end", "text"}},
...], "facts", "coverage", "context": [[start, end], ...]}}. If a call fails, the command stops and writes nothing. Run
it again to continue: the journal has the finished calls.

{llm_flags.HELP}"""
_EXAMPLES = """\
examples:
  qrag hicbench build handbook/ --llm openai --base_url http://127.0.0.1:8080/v1 --llm_model qwen --out bench/
  qrag hicbench build wikitext2:articles.jsonl.gz --llm_model qwen.gguf --num_two 0 --max_documents 3 --out bench/
"""
_FLAGS = f"""\
action ACTION               what to do: build
docs DOCS ...               Markdown file or folder, scisumm:PATH or wikitext2:PATH
--out! DIR                  folder to write; empty or new
--view = plain              headings with marks (kept) or as lines of text (plain)
--num_one I = 2             questions of type T1 to try for each document
--num_two I = 2             questions of type T2 to try for each document
--max_documents N           use only the first N documents (default: all)
--draw_temperature X = 0.7  temperature of the draws of evidence and answers
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
    """Formats the result in one line: questions tried, kept and rejected by reason, and the cost."""
    from qrag_jax.cli.llm_output import spent_by

    rejected = ", ".join(f"{number:,} {reason}" for reason, number in built.rejected.items())
    kinds = [f"{sum(one.kind == kind for one in built.questions):,} {kind}" for kind in ("T1", "T2")]
    facts = [
        f"{num_documents:,} documents",
        f"{built.num_tried:,} questions tried",
        f"{len(built.questions):,} kept ({', '.join(kinds)})",
        f"rejected: {rejected or 'none'}",
        f"{built.num_unreadable:,} unreadable answers",
        *spent_by(built.calls, prices),
    ]
    return ", ".join(facts)


VERB = Verb(
    _DESCRIPTION, _EXAMPLES, _FLAGS, _run, details=_DETAILS, choices={"action": ("build",), "view": ("kept", "plain")}
)
