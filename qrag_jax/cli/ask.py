"""`qrag ask`: answers a question from the user's files, by quotes or by a language model, with checked citations."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qrag_jax.cli import search_flags
from qrag_jax.cli.llm_flags import HELP, llm_config, llm_table
from qrag_jax.cli.parser import Verb
from qrag_jax.llm.calls import AroundGenerator
from qrag_jax.types import Finished, Generation, Message, Sampling, TextGenerator

if TYPE_CHECKING:
    from qrag_jax.cli.progress import Progress
    from qrag_jax.llm.config import LlmConfig, ReadyGenerator
    from qrag_jax.search.answer import Answer
    from qrag_jax.service.observing import Observe

_MAX_SHOWN = 100  # characters of a question above its answer
_OTHER_ANSWERS = (
    "the answer quotes your files; for a written answer choose a language model: --llm_model smollm2, a .gguf file, or "
    "--llm openai (docs/how_to/answers.md)"
)


_FLAGS = f"""\
texts
--retriever --questions
. --num_steps N            most passages to pick (default: with a run, as in training; else as many as fit)
--max_context_tokens N     most tokens of the passages (default: 2,000, or what fits into the context of a local model)
. --num_around I           with a run: most sentences to add before and after a pick (default: 2)
. --merge                  give a whole section instead of its passages, if enough of them are found and it fits; for an
                           index built with --strategy tree or hierarchy, and answers that need whole sections
--levels --smooth
. --planner P              for an index with levels: choose them by constant (--levels, or all levels), llm (the
                           language model; all levels if it names none), or a run that learned to plan
{search_flags.CUTTING}\
--notes_mode
{search_flags.RERANK}\
{search_flags.CHOICE}\
{search_flags.TRACE}\
--no_compile_cache
--show_context             also print the full text of the passages
. --html --json
--no_llm                   give no answer, print only the passages
{llm_table()}"""


def _run(args: argparse.Namespace) -> int:
    with search_flags.tracing(vars(args)) as observe:
        return _ask(args, observe)


def _ask(args: argparse.Namespace, observe: "Observe | None") -> int:
    from qrag_jax.cli.output import (
        answer_to_json,
        excerpt,
        format_answer,
        format_cost,
        planned_to_json,
        say_converted,
        say_planned,
        write_page,
    )
    from qrag_jax.cli.terminal import say, write_json
    from qrag_jax.index.options import AskOptions, SearchOptions
    from qrag_jax.llm.config import make_generator
    from qrag_jax.llm.prices import dollars
    from qrag_jax.search.answer import Answer
    from qrag_jax.service.search import answer_all

    # Cheap checks come before the encoder and the model are loaded.
    asks_model = not args.no_llm and (args.llm or args.llm_model) is not None
    planner, levels = search_flags.chosen_levels(args.planner, args.levels, asks_model=asks_model)
    llm = llm_config(vars(args))
    request = search_flags.search_request(vars(args))
    asked, many = request.read_questions(), args.questions is not None
    prices = llm.load_prices()
    options = AskOptions(
        SearchOptions(
            notes=args.notes_mode,
            levels=levels,
            smooth=args.smooth,
            num_steps=args.num_steps,
            late=search_flags.late_of(args),
            rerank=search_flags.rerank_options(vars(args)),
        ),
        max_context_tokens=args.max_context_tokens,
        num_around=args.num_around,
        merge=args.merge,
        num_quotes=0 if args.no_llm else AskOptions.num_quotes,
        prompts=llm.prompts,
        sampling=llm.sampling,
    )
    index = search_flags.open_searched(request, observe)
    search_flags.check_html(vars(args), index)
    if not asks_model and not args.no_llm:
        _say_other_answers(llm)
    num_questions = len(asked) if isinstance(asked, list) and planner != "llm" else None
    generator = _watched(make_generator(llm), num_questions) if asks_model else None
    failed, results = False, list[Answer]()
    for one, answer, nothing in answer_all(index, asked, options, generator):
        if nothing is not None and not many:
            raise nothing
        if nothing is not None:
            say(f"qrag: error: {excerpt(one.question, _MAX_SHOWN)}: {nothing}")
        if prices is not None:
            answer = replace(answer, cost=replace(answer.cost, dollars=dollars(answer.cost, prices)))
        told = {}
        if answer.levels is not None:
            told = planned_to_json(answer.levels, index.levels, planner) | {"sent_tokens": answer.context.num_tokens}
            say_planned(answer.levels, told)
        if args.json:
            write_json(answer_to_json(answer, one.id) | told, on_one_line=many)
        else:
            parts = format_answer(answer, with_context=args.show_context)
            print("\n\n".join([excerpt(one.question, _MAX_SHOWN), *parts, ""] if many else parts), flush=True)
            say_converted(answer.cited.citations or answer.given)
        _say_notes(answer, args.max_answer_tokens, picks=args.num_steps is not None)
        generation = answer.generation
        say(format_cost(answer.cost, generation is not None and generation.from_journal))
        if generation is not None and generation.error is not None:
            say(f"qrag: error: the language model gave no answer: {generation.error}")
        results += [answer] if args.html else []
        failed |= not answer.given or (generation is not None and generation.error is not None)
    if args.html:
        write_page(args.html, results, index, "qrag ask")
    return int(failed)


def _say_other_answers(llm: "LlmConfig") -> None:
    """Says how to choose a language model, and which of the given flags need one."""
    from qrag_jax.cli.terminal import say

    say(_OTHER_ANSWERS)
    given = [name for name in llm.given() if name != "prompts"]
    if llm.max_answer_tokens != type(llm).max_answer_tokens:
        given.append("max_answer_tokens")
    if given:
        say(f"note: {', '.join(f'--{name}' for name in given)}: ignored, because no language model is chosen")


def _say_notes(answer: "Answer", max_answer_tokens: int, *, picks: bool) -> None:
    """Says on standard error what limits the answer."""
    from qrag_jax.cli.output import say_reranked
    from qrag_jax.cli.terminal import say
    from qrag_jax.names import RETRIEVERS

    say_reranked(answer.reranked)
    if answer.num_cut:
        say(f"{answer.num_cut:,} texts are longer than the encoder reads; only their beginning was searched")
    picks |= answer.retriever not in RETRIEVERS  # else all chunks are ranked, and most are not meant to fit
    if picks and answer.context.num_left_out:
        say(f"{answer.context.num_left_out:,} picked passages did not fit into the context")
    if answer.generation is not None and answer.generation.finish_reason == "length":
        say(f"the answer was cut at {max_answer_tokens} tokens; --max_answer_tokens allows more")


def _watched(ready: "ReadyGenerator", num_questions: int | None) -> "ReadyGenerator":
    """A language model that shows progress on a terminal while it works, but not while answers are printed.

    Args:
        num_questions: that it is asked; None if they come one by one, or if it is also asked for plans.
    """
    from qrag_jax.cli.progress import Progress
    from qrag_jax.llm.wrappers import WatchedGenerator

    progress, num_asked = Progress(transient=True), 0

    def tell(done: int, of: int, generation: Generation | None) -> None:
        nonlocal num_asked
        if num_questions is not None and num_questions > 1:
            progress.answered("questions", num_asked + done, num_questions, generation)
            num_asked += done
        elif generation is None:
            progress.note("the language model reads and answers")

    return replace(ready, generator=_Shown(WatchedGenerator(ready, tell), progress))


@dataclass(frozen=True)
class _Shown(AroundGenerator):
    generator: TextGenerator
    progress: "Progress"

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> Sequence[Generation]:
        with self.progress:
            return self.generator.generate(prompts, sampling=sampling, finished=finished)


VERB = Verb(
    description="""\
Answer a question from your own files, with citations.

qrag finds passages and quotes the sentences that answer the question. With a language model (--llm_model, --llm), the
model writes an answer from the passages and cites them.

The output is the answer, then the cited passages, each with the file:line or file#page=N of the sentence that is cited
and the file:start-end of the passage. The cost goes to standard error. A citation appears only if its passage is in the
file exactly; a number that the model made up is reported. A citation does not prove the answer: read the passage. If a
model fails, the passages are printed and the exit code is 1.

--json gives one object: answer, quotes, citations, unknown_citations, context, cost, model, prompt_sha256.
""",
    details=f"""\
{search_flags.WAYS}\
  RUN      a retriever that you trained: it picks sentences step by step. qrag adds up to --num_around sentences before
           and after each pick, while they fit. Give its folder, for example runs/mine or ./hybrid

The context takes the best passages first, up to --max_context_tokens. The prompt contains them in document order,
marked as data. A local model counts its own tokens; otherwise the encoder counts, and a server may differ by a little.
With --levels or --planner, passages are parts of documents at any of these levels. The first part that does not fit is
replaced by its best leaves. Standard error and --json report the levels (docs/how_to/levels.md).

{search_flags.RERANK_HELP}
{search_flags.QUESTIONS_HELP}
{HELP}""",
    examples="""\
examples:
  qrag ask notes/ "Who has the key to the garden?"
  qrag ask notes/ "Who has the key to the garden?" --llm_model smollm2        a .gguf file may be better
  qrag ask book.txt "Who is Ishmael?" --llm openai --base_url http://127.0.0.1:8080/v1 --llm_model smollm2 --json
  qrag ask notes/ "Who has the key to the garden?" --no_llm
  qrag ask notes/ "Who has the key to the garden?" --retriever runs/mine --num_steps 3 --show_context
  qrag ask notes.index "How is the garden laid out?" --merge            an index built with --strategy tree
  qrag ask levels.index "Who has the key?" --levels section:paragraph   an index built with --strategy levels
""",
    flags=_FLAGS,
    usage="[--retriever R] [--llm L] [--show_context] [--json] [...] PATHS...|INDEX QUESTION",
    run=_run,
)
