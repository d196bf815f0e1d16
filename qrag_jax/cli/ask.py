"""`qrag ask`: a language model answers from the user's own files, and every citation is checked to exist."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qrag_jax.chunking.spans import readable
from qrag_jax.cli import say, shown, write_json
from qrag_jax.cli.ask_output import format_answer, format_cost, to_json
from qrag_jax.cli.ask_retrievers import Reading, make_reading
from qrag_jax.cli.generators import ReadyGenerator, make_generator, prices_of, prompts_folder, sampling_of, spent
from qrag_jax.cli.progress import Progress
from qrag_jax.data.files import read_files
from qrag_jax.llm.prompts import PromptTemplate, load_prompt
from qrag_jax.pipeline import PROMPT, Answer, FillContext, answer_question, check_question, prompt_size
from qrag_jax.retrieval.context import Budget, Context, fill_context
from qrag_jax.retrieval.hybrid import Ranked
from qrag_jax.retrieval.widen import widen_context
from qrag_jax.types import (
    Chunk,
    Document,
    Finished,
    Generation,
    InputError,
    Message,
    Sampling,
    TextGenerator,
    UsageError,
)

_MAX_CONTEXT_TOKENS = 2_000
_NUM_AROUND = 2  # sentences on either side of a pick of a run
# Of a window, for what a chat template writes around messages, and for tokens that join otherwise than they count.
_SLACK = 64


def run(args: argparse.Namespace) -> int:
    """Runs `qrag ask`; see `qrag ask --help`."""
    # What costs nothing to look at comes before encoder and model are loaded.
    check_question(args.question)
    prices = prices_of(args)
    template = load_prompt(PROMPT, prompts_folder(args))
    start = time.perf_counter()
    documents = read_files(args.paths, args.encoding)
    read = time.perf_counter()
    reading = make_reading(args)
    generator = make_generator(args)
    loaded = time.perf_counter()
    answer = answer_question(
        args.question,
        read=lambda: documents,
        chunk=reading.chunk,
        rank=reading.rank,
        fill=make_fill(args, reading, make_budget(args, reading, generator, template)),
        template=template,
        generator=_Noted(generator),
        sampling=sampling_of(args),
    )
    num_tokens, num_cut = reading.spent()
    paid = spent([answer.generation], prices)
    seconds = {"load": round(loaded - read, 3), **answer.cost.seconds, "read": round(read - start, 3)}
    cost = replace(paid, seconds=seconds, embedder_tokens=num_tokens)
    if args.json:
        write_json(to_json(answer, cost, args.retriever))
    else:
        print("\n\n".join(format_answer(answer, with_context=args.show_context)))
    _say_notes(answer, num_cut, args, picked=reading.sentences or args.num_steps is not None)
    say(format_cost(cost, answer.generation.from_journal))
    if answer.generation.error is not None:
        say(f"qrag: error: the language model gave no answer: {shown(answer.generation.error)}")
        return 1
    return 0


def make_budget(
    args: argparse.Namespace, reading: Reading, generator: ReadyGenerator, template: PromptTemplate
) -> Budget:
    """Tokens of the context: as asked for, else 2,000 or what the model's window leaves beside prompt and answer.

    Raises:
        UsageError: the window leaves nothing.
        InputError: the question fills it.
    """
    count = generator.count or reading.count
    empty, overhead = prompt_size(template, args.question, count)
    if generator.window is not None and empty + _SLACK >= generator.window:
        raise InputError(
            f"question: {count(readable(args.question)):,} tokens, with what the prompt says {empty:,}: the model's "
            f"window is {generator.window:,}, prompt and answer together: ask a shorter question"
        )
    most = args.max_context_tokens or _MAX_CONTEXT_TOKENS
    if args.max_context_tokens is None and generator.window is not None:
        most = min(most, generator.window - args.max_answer_tokens - empty - _SLACK)
        if most <= overhead:
            raise UsageError(
                f"--max_answer_tokens {args.max_answer_tokens}: the model reads and writes {generator.window} tokens "
                f"in all, and the prompt takes {empty}: nothing is left for passages; lower it"
            )
    return Budget(most, count, overhead, args.num_steps)


def make_fill(args: argparse.Namespace, reading: Reading, budget: Budget) -> FillContext:
    """How the context is filled: sentences of a run are widened, chunks stand as they are.

    Raises:
        UsageError: `--num_around` for chunks.
    """
    if not reading.sentences:
        if args.num_around is not None:
            raise UsageError(f"--num_around: belongs to the run of --retriever RUN, not to {args.retriever}")
        return lambda documents, chunks, ranked: fill_context(documents, chunks, ranked, budget)
    num_around = _NUM_AROUND if args.num_around is None else args.num_around

    def fill(documents: Sequence[Document], chunks: Sequence[Chunk], ranked: Ranked) -> Context:
        context = fill_context(documents, chunks, ranked, budget)
        return widen_context(documents, chunks, context, budget, num_around)

    return fill


def _say_notes(answer: Answer, num_cut: int, args: argparse.Namespace, *, picked: bool) -> None:
    """What a reader of the answer should know, on standard error."""
    if num_cut:
        say(f"{num_cut:,} texts are longer than the encoder reads; only their beginning was searched")
    if picked and answer.context.num_left_out:  # else all chunks are ranked, and most are never meant to fit
        say(f"{answer.context.num_left_out:,} passages that were picked did not fit into the context")
    if answer.generation.finish_reason == "length":
        say(f"the answer was cut at {args.max_answer_tokens} tokens (--max_answer_tokens)")


@dataclass(frozen=True)
class _Noted:
    """A language model that shows on a terminal that it is at work."""

    generator: TextGenerator

    @property
    def model(self) -> str:
        return self.generator.model

    def generate(
        self, prompts: Sequence[Sequence[Message]], *, sampling: Sampling, finished: Finished | None = None
    ) -> Sequence[Generation]:
        with Progress(transient=True) as progress:
            progress.note("the language model reads and answers")
            return self.generator.generate(prompts, sampling=sampling, finished=finished)
